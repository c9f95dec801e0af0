"""Official archives and TFDS folders: found or downloaded, read in place."""

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import sys
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from lra_tasks.errors import DataError

# The match of a file's name, and the open file.
Member = tuple[re.Match[str], IO[bytes]]
TFDS_INFO = "dataset_info.json"
# 7.7 GB; a plain tar file, whatever its name says.
LRA_RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
# The folders in which the release's own folders lie, wherever it was unpacked.
UNPACKED = ("lra_release/lra_release/", "lra_release/", "")
# What a killed download left is removed when it is so old.
SECONDS_OF_REMAINS = 3600


@dataclass(frozen=True)
class Archive:
    """An official archive.

    Attributes:
      url: its address; the last part is the name of the file.
      folders: the folders that it unpacks to, the first that is there is read.
      md5: its checksum, as published; None if it is too large to be downloaded unasked.
      dataset: the name of a TFDS dataset of the same data.
    """

    url: str
    folders: tuple[str, ...]
    md5: str | None = None
    dataset: str | None = None

    @property
    def name(self) -> str:
        """The name of the file, as published."""
        return self.url.rpartition("/")[2]


def find(names: Iterable[str], folder: Path) -> Path | None:
    """Returns the first of these files or folders that a folder has."""
    paths = [folder / name for name in names]
    return next((path for path in paths if path.exists()), None)


def obtain(archive: Archive, data_dir: Path, source_dir: str | None) -> Path:
    """Finds an archive, its folder or TFDS's dataset of it, or downloads the archive.

    Args:
      archive: the archive.
      data_dir: where it is looked for, and downloaded to, without a `source_dir`.
      source_dir: where it is looked for; then nothing is downloaded.

    Returns:
      The path of the archive, of its folder or of the dataset's.

    Raises:
      DataError: if nothing is there and no download is possible, or if its checksum is
        wrong.
    """
    place = Path(source_dir or data_dir)
    path = find([*archive.folders, archive.name], place)
    is_downloadable = bool(archive.md5) and not source_dir
    if not path and archive.dataset:
        try:
            path = find_tfds(archive.dataset, source_dir)
        except DataError as error:
            if not is_downloadable:
                raise
            print(f"{error}; {archive.url} is downloaded instead", file=sys.stderr)
    if path:
        return path
    if not is_downloadable:
        raise DataError(
            f"{place} has neither {archive.folders[-1]} nor {archive.name}: get "
            f"{archive.url} and put or unpack it there, or name the folder that holds "
            "it as source_dir"
        )
    place.mkdir(parents=True, exist_ok=True)
    return _download(archive, place / archive.name)


def _download(archive: Archive, path: Path) -> Path:
    """Downloads to a temporary file, and renames it once its checksum is right."""
    for remains in path.parent.glob(f"{path.name}.*.part"):
        # A download that goes on, as in another process, writes all the time.
        with contextlib.suppress(OSError):  # Another process removed it, or owns it.
            if time.time() - remains.stat().st_mtime > SECONDS_OF_REMAINS:
                remains.unlink()
    partial_file = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=30) as response,
            tqdm.wrapattr(
                response, "read", response.length, desc=path.name, disable=None
            ) as body,
            partial_file.open("w+b") as file,
        ):
            shutil.copyfileobj(body, file, 2**20)
            file.seek(0)
            md5 = hashlib.file_digest(file, "md5").hexdigest()
        if archive.md5 != md5:
            raise OSError(f"broken off or changed: its md5 is not {archive.md5}")
        return partial_file.rename(path)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error).strip()  # A bad answer is shown with its line's end.
        raise DataError(
            f"{archive.url} cannot be downloaded ({reason}): run again, or put it in "
            f"{path.parent}"
        ) from error
    finally:
        partial_file.unlink(missing_ok=True)


@contextlib.contextmanager
def open_members(path: Path, pattern: str) -> Iterator[Iterator[Member]]:
    """Opens the files below a folder, or in a tar archive, whose names match.

    Args:
      path: the folder or the archive.
      pattern: a regular expression, searched in the name below the folder.

    Yields:
      An iterator over the match of each name and the open file, which is to be read
      before the next one.

    Raises:
      DataError: if it is damaged, from within the `with` block too.
    """
    try:
        if path.is_dir():
            yield _read_folder(path, pattern)
        else:
            yield _read_tar(path, pattern)
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
            file = tar.extractfile(member) if match else None
            if match and file:
                yield match, file
        while tar.fileobj and tar.fileobj.read(2**20):
            pass  # gzip compares its checksum at the very end.


def find_tfds(dataset: str, source_dir: str | None) -> Path | None:
    """Finds the newest version of a prepared TFDS dataset.

    Args:
      dataset: its name, with that of its config, such as "glue/sst2".
      source_dir: where it is looked for; None means $TFDS_DATA_DIR and
        ~/tensorflow_datasets.

    Returns:
      The folder of that version; None if there is none.

    Raises:
      DataError: if it is not in array_record files.
    """
    if source_dir:
        roots = [source_dir]
    else:
        roots = [os.environ.get("TFDS_DATA_DIR"), "~/tensorflow_datasets"]
    folders = [_find_newest(dataset, root) for root in roots if root]
    found_folders = [folder for folder in folders if folder]
    for folder in found_folders:
        if any(folder.glob("*.array_record*")):
            return folder
    if found_folders:
        folder = found_folders[0]
        raise DataError(
            f"{folder} is not in array_record files: where TensorFlow is installed, "
            f"run `tfds convert_format --dataset_version_dir={folder} "
            "--out_file_format=array_record`"
        )
    return None


def _find_newest(dataset: str, root: str) -> Path | None:
    """The folder of a dataset's newest version, among those that are complete."""
    folders = {}
    for info in Path(root).expanduser().glob(f"{dataset}/*/{TFDS_INFO}"):
        version = info.parent.name
        if re.fullmatch(r"\d+\.\d+\.\d+", version):
            numbers = tuple(int(number) for number in version.split("."))
            folders[numbers] = info.parent
    return folders[max(folders)] if folders else None


def read_tfds(folder: Path, split: str) -> list[dict[str, Any]] | None:
    """Reads all examples of a split of a prepared TFDS dataset.

    Returns:
      The examples; None if the folder is no such dataset.

    Raises:
      DataError: if it is damaged, or has no such split.
    """
    if not (folder / TFDS_INFO).exists():
        return None
    import tensorflow_datasets as tfds  # The import takes 0.3 s.

    from lra_tasks.storage import DAMAGE

    try:
        builder: Any = tfds.builder_from_directory(folder, file_format="array_record")
        source = builder.as_data_source(split)
        examples = source.__getitems__(list(range(len(source))))
    except DAMAGE as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{folder} is damaged ({reason}): get it again") from error
    return examples
