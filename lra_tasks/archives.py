"""Official archives and TFDS folders: found or downloaded, read in place."""

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from lra_tasks.errors import DataError

Member = tuple[re.Match[str], IO[bytes]]
TFDS_INFO = "dataset_info.json"
# 7.7 GB; a plain tar file, whatever its name says.
LRA_RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
UNPACKED = ("lra_release/lra_release/", "lra_release/", "")  # where its folders may lie


@dataclass(frozen=True)
class Archive:
    """An official archive; its file is named as the last part of the url."""

    url: str
    folders: tuple[str, ...]  # that it unpacks to
    md5: str | None = None  # as published; None: too large to be downloaded unasked
    dataset: str | None = None  # of TFDS, with the same data
    content: str = ""  # a file or folder in it that tells a renamed folder

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def names(self) -> list[str]:
        """Its file's name, and what browsers and users make of it."""
        stem = self.name.partition(".")[0]
        suffixes = (".tar.gz", ".tgz", ".tar", ".gz")
        return [self.name, *(stem + suffix for suffix in suffixes)]


def find(names: Sequence[str], place: Path) -> Path | None:
    """The first of files or folders `names` in `place`, which may be one of them."""
    for name in names:
        for path in (place / name, place):
            if path.exists() and path.as_posix().endswith(f"/{name}"):
                return path
    return None


def obtain(archive: Archive, data_dir: Path, source_dir: str | None) -> Path:
    """Finds an archive, unpacked or packed, or TFDS's dataset of it; else downloads it.

    They are looked for in `source_dir` if it is given, and then nothing is downloaded;
    it may be the archive or its folder itself, under another name. DataError for
    nothing there and no download either, or a wrong checksum.
    """
    place = Path(source_dir or data_dir)
    path = find([*archive.folders, *archive.names], place)
    if not path and source_dir and _is_source(archive, place):
        path = place
    if not path and archive.dataset:
        path = find_tfds(archive.dataset, source_dir)
    if path:
        return path
    if source_dir or not archive.md5:
        raise DataError(
            f"{place} has neither {archive.folders[-1]} nor {archive.name}: get "
            f"{archive.url} and put or unpack it there, or name the folder that holds "
            "its files as source_dir"
        )
    place.mkdir(parents=True, exist_ok=True)
    return _download(archive, place / archive.name)


def _is_source(archive: Archive, place: Path) -> bool:
    """Whether a path is a file, or a folder with an archive's content."""
    has_content = bool(archive.content) and (place / archive.content).exists()
    return place.is_file() or has_content


def _download(archive: Archive, path: Path) -> Path:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=30) as response,
            tqdm.wrapattr(
                response, "read", response.length, desc=path.name, disable=None
            ) as body,
            part.open("w+b") as file,
        ):
            shutil.copyfileobj(body, file, 2**20)
            file.seek(0)
            digest = hashlib.file_digest(file, "md5").hexdigest()
        if archive.md5 != digest:
            raise OSError(f"broken off or changed: its md5 is not {archive.md5}")
        return part.rename(path)
    except OSError as error:
        message = f"{archive.url} cannot be downloaded ({error})"
        raise DataError(f"{message}: run again, or put it in {path.parent}") from error
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def open_members(path: Path, pattern: str) -> Iterator[Iterator[Member]]:
    """Reads the files below a folder, or in a tar archive, whose names match.

    Yields an iterator over the match of each name and the open file, which is to be
    read before the next one. DataError, from the `with` block too: it is damaged.
    """
    try:
        yield (_read_folder if path.is_dir() else _read_tar)(path, pattern)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read ({reason}): get it again") from error


def _read_folder(folder: Path, pattern: str) -> Iterator[Member]:
    for path in sorted(folder.rglob("*")):
        match = re.search(pattern, path.relative_to(folder).as_posix())
        if match and path.is_file():
            with path.open("rb") as file:
                yield match, file


def _read_tar(path: Path, pattern: str) -> Iterator[Member]:
    with tarfile.open(path) as tar:
        for member in tar:
            match = re.search(pattern, member.name)
            if match and (file := tar.extractfile(member)):
                yield match, file
        while tar.fileobj and tar.fileobj.read(2**20):
            pass  # gzip compares its checksum at the very end


def find_tfds(dataset: str, source_dir: str | None) -> Path | None:
    """The newest version of a prepared TFDS dataset, as "glue/sst2"; None = none.

    It is looked for in `source_dir`, or else in $TFDS_DATA_DIR and
    ~/tensorflow_datasets. DataError if it is not in array_record files.
    """
    usual = (os.environ.get("TFDS_DATA_DIR"), "~/tensorflow_datasets")
    for root in filter(None, [source_dir] if source_dir else usual):
        infos = Path(root).expanduser().glob(f"{dataset}/*/{TFDS_INFO}")
        versions = {
            tuple(map(int, info.parent.name.split("."))): info.parent
            for info in infos
            if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
        }
        if versions:
            folder = versions[max(versions)]
            if any(folder.glob("*.array_record*")):
                return folder
            command = f"tfds convert_format --dataset_version_dir={folder}"
            command += " --out_file_format=array_record"
            raise DataError(f"{folder} is not in array_record files: run `{command}`")
    return None


def read_tfds(folder: Path, split: str) -> list[dict[str, Any]] | None:
    """All examples of a split of a prepared TFDS dataset; None: it is none."""
    if not (folder / TFDS_INFO).exists():
        return None
    import tensorflow_datasets as tfds  # takes 0.3 s

    builder: Any = tfds.builder_from_directory(folder, file_format="array_record")
    source = builder.as_data_source(split)
    return source.__getitems__([*range(len(source))])
