"""Official archives and TFDS folders: found or downloaded, and read in place."""

import contextlib
import hashlib
import lzma
import os
import re
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from lra_tasks.split import DataError

Member = tuple[re.Match[str], IO[bytes]]
SECONDS_TO_ANSWER = 30.0


@dataclass(frozen=True)
class Archive:
    """An official archive; its name is the last part of the url."""

    url: str
    md5: str | None = None  # as published
    by_hand: bool = False  # too large to be downloaded unasked

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


LRA_RELEASE = Archive(  # 7.7 GB; a plain tar file, whatever its name says
    "https://storage.googleapis.com/long-range-arena/lra_release.gz", by_hand=True
)


def find(names: Sequence[str], place: Path) -> Path | None:
    """The first of files or folders `names` in `place`, which may be one of them."""
    for name in names:
        for path in (place / name, place):
            if path.exists() and path.as_posix().endswith(f"/{name}"):
                return path
    return None


def obtain(archive: Archive, folder: str, data_dir: Path, by_hand: bool) -> Path:
    """Finds the unpacked `folder` or the archive in `data_dir`; else downloads it.

    Raises:
      DataError: nothing there and no download either, or a wrong checksum.
    """
    if path := find([folder, archive.name], data_dir):
        return path
    if by_hand or archive.by_hand:
        message = f"{data_dir} has neither {folder} nor {archive.name}"
        raise DataError(f"{message}: get {archive.url} and put it there")
    path = data_dir / archive.name
    path.parent.mkdir(parents=True, exist_ok=True)
    part, digest = path.with_name(f"{path.name}.{os.getpid()}.part"), hashlib.md5()
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=SECONDS_TO_ANSWER) as response,
            part.open("wb") as file,
            tqdm(total=response.length, desc=path.name, unit="B", disable=None) as bar,
        ):
            while chunk := response.read(2**20):
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
        if archive.md5 not in (None, digest.hexdigest()):
            raise OSError(f"broken off or changed: its md5 is not {archive.md5}")
        return part.rename(path)
    except OSError as error:
        message = f"{archive.url} cannot be downloaded ({error})"
        raise DataError(f"{message}: run again, or put it in {data_dir}") from error
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
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
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


def read_tfds(dataset: str, split: str, source_dir: str | None) -> list[Any] | None:
    """The examples of a prepared TFDS dataset, as "glue/sst2"; None if there is none.

    It is looked for in `source_dir`, which may be its own folder; without one in
    $TFDS_DATA_DIR and ~/tensorflow_datasets.

    Raises:
      DataError: it is not in array_record files.
    """
    usual = (os.environ.get("TFDS_DATA_DIR", ""), "~/tensorflow_datasets")
    folders = []
    for root in filter(None, [source_dir] if source_dir else usual):
        place = Path(os.path.expanduser(root))
        found = [*place.glob(f"{dataset}/*/dataset_info.json")]
        if place.match(f"{dataset}/*"):
            found += [*place.glob("dataset_info.json")]
        folders += sorted(path.parent for path in found)[-1:]  # the newest version
    if not folders:
        return None
    import tensorflow_datasets as tfds  # takes 0.3 s

    folder = folders[0]
    if not [*folder.glob("*.array_record*")]:
        raise DataError(
            f"{folder} is not in array_record files: run `tfds convert_format "
            f"--dataset_version_dir={folder} --out_file_format=array_record`"
        )
    builder: Any = tfds.builder_from_directory(folder, file_format="array_record")
    source = builder.as_data_source(split)
    return source.__getitems__([*range(len(source))])
