"""Official archives: found or downloaded, checked, and read member by member.

Nothing is ever unpacked to disk. An archive is a stranger: names that climb out of
it, links and devices are refused even though only contents are read.
"""

import contextlib
import hashlib
import http.client
import lzma
import os
import re
import tarfile
import urllib.request
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO

from lra_tasks.progress import Progress
from lra_tasks.split import DataError
from lra_tasks.storage import hold

Members = Generator[tuple[re.Match[str], IO[bytes]], None, None]
SECONDS_TO_ANSWER = 5.0
CHUNK_BYTES = 2**20
DAMAGES = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Archive:
    """An official archive; its name is the last part of the url."""

    url: str
    num_bytes: int
    md5: str | None = None  # as published
    by_hand: bool = False  # too large to be downloaded unasked

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.url} ({self.num_bytes / 1e6:,.0f} MB)"


LRA_RELEASE = Archive(  # a plain tar file, whatever its name says
    "https://storage.googleapis.com/long-range-arena/lra_release.gz",
    num_bytes=7_700_000_000,
    by_hand=True,
)


def obtain(
    archives: Sequence[Archive],
    folders: Sequence[str],
    data_dir: Path,
    source_dir: str | None = None,
) -> Path:
    """Finds the first of unpacked `folders` or `archives`, or downloads archives[0].

    They are looked for in `data_dir`, where the download goes too; or in `source_dir`,
    which may be one of them itself, and then nothing is downloaded.

    Raises:
      DataError: nothing there and no server either, or a wrong checksum.
    """
    place = Path(source_dir) if source_dir else data_dir
    if folder := find_folder(place, folders):
        return folder
    for archive in archives:
        for path in (place / archive.name, place):
            if path.is_file() and path.name == archive.name:
                _verify(path, archive, "delete it, or get it again")
                return path
    if source_dir or archives[0].by_hand:
        names = ", ".join([*folders, *(archive.name for archive in archives)])
        raise DataError(
            f"{place} has none of {names}: get {archives[0]} and put it there"
        )
    return _download(archives[0], data_dir)


def find_folder(place: Path, names: Sequence[str]) -> Path | None:
    """The first of `names` below `place`, or `place` itself if it bears such a name."""
    for name in names:
        for path in (place / name, place):
            if path.is_dir() and path.as_posix().endswith(f"/{name}"):
                return path
    return None


def _verify(path: Path, archive: Archive, remedy: str) -> None:
    if archive.md5 is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != archive.md5:
        raise DataError(
            f"{path} is damaged or incomplete: its md5 is {found}, not {archive.md5}; "
            f"{remedy}"
        )


def _download(archive: Archive, folder: Path) -> Path:
    """Downloads to a .part file, which the next attempt extends."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.name
    part = folder / f"{archive.name}.part"
    with hold(folder / f"{archive.name}.lock", f"downloading {archive.name}"):
        if path.exists():  # the process we waited for has it
            return path
        if not part.exists() or part.stat().st_size < archive.num_bytes:
            _receive(archive, part)
        try:
            _verify(part, archive, "it is deleted: run again")
        except DataError:
            part.unlink()
            raise
        part.rename(path)
    return path


def _receive(archive: Archive, part: Path) -> None:
    """Appends the missing rest of the archive to `part`."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={done}-"})
    try:
        response = urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{archive.name} is not in {part.parent} and cannot be downloaded "
            f"({getattr(error, 'reason', error)}): get {archive} and put it there"
        ) from error
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        done = 0
    with (
        response,
        part.open("ab" if done else "wb") as file,
        Progress(archive.name, archive.num_bytes) as progress,
    ):
        progress.update(done)
        for chunk in _chunks(response):
            file.write(chunk)
            progress.update(len(chunk))
    if (size := part.stat().st_size) < archive.num_bytes:
        raise DataError(
            f"{archive.url} broke off after {size:,} of {archive.num_bytes:,} bytes; "
            "run again to resume"
        )


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yields bytes until the server ends or disconnects."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while chunk := response.read(CHUNK_BYTES):
            yield chunk


@contextlib.contextmanager
def open_members(path: Path, pattern: str) -> Iterator[Members]:
    """Reads the files below a folder, or in a tar archive of any compression.

    Yields:
      An iterator over (match, open file) of the files in whose names, "folder/…/file",
      the pattern is found; each is to be read before the next is asked for.

    Raises:
      DataError: from the `with` block too; the archive is damaged, or holds links,
        devices or names that lead out of it; a file of the folder is no regular one.
    """
    read = _read_folder if path.is_dir() else _read_tar
    try:
        with contextlib.closing(read(path, re.compile(pattern))) as members:
            yield members
    except (*DAMAGES, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # gzip's word for a wrong checksum has no number
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} is truncated or not a tar archive: {reason}"
        ) from error


def _read_folder(folder: Path, pattern: re.Pattern[str]) -> Members:
    for path in sorted(folder.rglob("*")):
        match = pattern.search(path.relative_to(folder).as_posix())
        if match and not path.is_dir():
            with open_regular(path) as file:
                yield match, file


def _read_tar(path: Path, pattern: re.Pattern[str]) -> Members:
    with tarfile.open(path) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue] - it grows
            parts = re.split(r"[/\\]", member.name)
            plain = member.isreg() or member.isdir()
            if not (plain and parts[0]) or ".." in parts:
                reason = "is a link or a device, or leads out of the archive"
                raise DataError(f"{path}: {member.name!r} {reason}: refused")
            content = tar.extractfile(member)
            if content and (match := pattern.search(os.path.normpath(member.name))):
                with content:
                    yield match, content
        while tar.fileobj and tar.fileobj.read(CHUNK_BYTES):
            pass  # gzip compares its checksum at the very end


def open_regular(path: Path) -> BufferedReader:
    """Opens a file, unless it is a pipe or a device, whose bytes may never end."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file: refused")
    return path.open("rb")


def as_text(content: bytes | bytearray, path: Path) -> str:
    """The text of a file; DataError if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None


def read_whole(file: IO[bytes], name: str, max_bytes: int) -> bytes:
    """Reads a file into memory; DataError if it is over `max_bytes`."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DataError(f"{name} is longer than {max_bytes:,} bytes")
    return content
