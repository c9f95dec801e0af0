"""Archives through what happens to networks and disks, on a real server."""

import os
import re
import socket
import tarfile
import threading
import time

import numpy as np
import pytest
from filelock import FileLock

from lra_tasks.archives import obtain, open_members, read_whole
from lra_tasks.split import DataError
from tests.archive_server import archive_at, full_disk, serve, tar_of, write

FILES = {"toy/a/1.txt": b"one", "toy/a/2.txt": b"two\xff\r\n", "toy/readme": b"three"}
CONTENT = tar_of(FILES)
NOISE = np.random.default_rng(0).bytes(5_000_011)
NO_SERVER = "http://127.0.0.1:1"


def read(path):
    with open_members(path, r"(?:^|/)a/(\d+)\.txt$") as members:
        return {match[1]: file.read() for match, file in members}


def refused(message, archive, *arguments):
    """The one line that `obtain` says."""
    with pytest.raises(DataError, match=message) as caught:
        obtain([archive], *arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_downloaded_once_and_whole(tmp_path):
    with serve(NOISE) as (url, seen):
        for _ in range(2):
            path = obtain([archive_at(url, NOISE)], [], tmp_path)
    assert path == tmp_path / "toy.tar.gz"
    assert path.read_bytes() == NOISE
    assert len(seen) == 1
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_that_breaks_off_and_the_next_run(tmp_path, ranges):
    with serve(NOISE, break_off_after=3_000_017) as (url, _):
        message = r"3,000,017 of 5,000,011 bytes; run again"
        refused(message, archive_at(url, NOISE), [], tmp_path)
    assert not (tmp_path / "toy.tar.gz").exists()
    with serve(NOISE, ranges=ranges) as (url, seen):
        path = obtain([archive_at(url, NOISE)], [], tmp_path)
    assert seen == ["bytes=3000017-"]
    assert path.read_bytes() == NOISE


def test_a_part_that_is_already_whole(tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(NOISE)
    with serve(NOISE) as (url, _):
        path = obtain([archive_at(url, NOISE)], [], tmp_path)
    assert path.read_bytes() == NOISE


def test_who_waits_for_another_download_says_so_and_takes_it(tmp_path, capsys):
    held = threading.Event()

    def download():
        with FileLock(tmp_path / "toy.tar.gz.lock"):
            held.set()
            time.sleep(0.3)
            (tmp_path / "toy.tar.gz").write_bytes(NOISE)

    other = threading.Thread(target=download)
    other.start()
    held.wait()
    path = obtain([archive_at(NO_SERVER, NOISE)], [], tmp_path)
    other.join()
    assert path.read_bytes() == NOISE
    line = "another process is downloading toy.tar.gz: waiting for it\n"
    assert capsys.readouterr().err == line


def test_wrong_checksum_of_a_download_is_deleted(tmp_path):
    with serve(NOISE[:-1] + b"x") as (url, _):
        refused(r"its md5 is .*: run again", archive_at(url, NOISE), [], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.tar.gz.lock"]


def test_wrong_checksum_of_a_file_placed_by_hand_is_kept(tmp_path):
    path = tmp_path / "toy.tar.gz"
    path.write_bytes(NOISE[:1009])
    message = f"^{re.escape(str(path))} is damaged or incomplete: its md5"
    refused(message, archive_at(NO_SERVER, NOISE), [], tmp_path)
    assert path.exists()


def test_without_a_server_one_line_at_once(tmp_path):
    archive = archive_at(NO_SERVER, NOISE)
    said = refused("cannot be downloaded", archive, ["toy"], tmp_path)
    for part in (archive.url, "(5 MB)", str(tmp_path)):  # what, how large, where to
        assert part in said


def test_a_server_that_never_answers_is_left_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("lra_tasks.archives.SECONDS_TO_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        archive = archive_at(f"http://127.0.0.1:{silent.getsockname()[1]}", NOISE)
        refused("timed out", archive, [], tmp_path)


def test_a_full_disk_while_downloading_is_one_line(tmp_path):
    with (
        serve(NOISE) as (url, _),
        full_disk(2**21),
        pytest.raises(OSError, match="File too large") as caught,
    ):
        obtain([archive_at(url, NOISE)], [], tmp_path)
    assert caught.value.filename == str(tmp_path / "toy.tar.gz.part")
    assert not (tmp_path / "toy.tar.gz").exists()


def test_found_rather_than_downloaded(tmp_path):
    archive = archive_at(NO_SERVER, CONTENT)
    (tmp_path / archive.name).write_bytes(CONTENT)
    assert obtain([archive], ["toy/a"], tmp_path) == tmp_path / archive.name
    (tmp_path / "toy" / "a").mkdir(parents=True)
    for source_dir in (None, str(tmp_path), str(tmp_path / "toy/a")):
        found = obtain([archive], ["toy/a"], tmp_path, source_dir)
        assert found == tmp_path / "toy" / "a"
    source_dir = str(tmp_path / archive.name)
    assert obtain([archive], ["x"], tmp_path, source_dir) == tmp_path / archive.name


def test_nothing_is_downloaded_into_a_source_dir(tmp_path):
    with serve(NOISE) as (url, seen):
        message = r"has none of toy, toy\.tar\.gz: get http"
        source_dir = str(tmp_path / "elsewhere")
        refused(message, archive_at(url, NOISE), ["toy"], tmp_path, source_dir)
    assert not seen


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_members_of_an_archive_are_those_of_its_folder(tmp_path, mode):
    write(tmp_path, {**FILES, "misnamed.zip": tar_of(FILES, mode)})
    expected = {"1": b"one", "2": b"two\xff\r\n"}
    assert read(tmp_path / "misnamed.zip") == read(tmp_path / "toy") == expected


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_truncated_archive(tmp_path, mode, share):
    path = tmp_path / "toy.tar"
    content = tar_of({"a/1.txt": NOISE[:100_003], "a/2.txt": NOISE[:10_007]}, mode)
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match="is truncated or no tar archive") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_flipped_bit_in_a_compressed_archive(tmp_path):
    path = tmp_path / "toy.tar"
    content = bytearray(tar_of({"a/1.txt": NOISE[:100_003]}, "w:gz"))
    content[50_021] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"truncated|damaged"):
        read(path)


def special(kind, target=""):
    member = tarfile.TarInfo("toy/l")
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("../a/3.txt", b"x", "leads out"),
        ("toy/../../a/3.txt", b"x", "leads out"),
        ("/a/3.txt", b"x", "leads out"),
        ("..\\a\\3.txt", b"x", "leads out"),
        ("toy/l", special(tarfile.SYMTYPE, "/etc/passwd"), "link or a device"),
        ("toy/l", special(tarfile.LNKTYPE, "toy/a/1.txt"), "link or a device"),
        ("toy/l", special(tarfile.CHRTYPE), "link or a device"),
    ],
)
def test_what_an_archive_may_not_hold(tmp_path, name, content, message):
    path = tmp_path / "toy.tar"
    path.write_bytes(tar_of({**FILES, name: content}))
    with pytest.raises(DataError, match=f"{message}.*: refused"):
        read(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_data_that_never_end_are_refused(tmp_path, kind):
    write(tmp_path, FILES)
    path = tmp_path / "toy" / "a" / "3.txt"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"3\.txt is no regular file: refused"):
        read(tmp_path / "toy")


def test_a_member_may_be_as_long_as_the_limit(tmp_path):
    path = tmp_path / "toy.tar"
    path.write_bytes(tar_of({"a/1.txt": b"x" * 1009}))
    with open_members(path, "txt") as members:
        for _, file in members:
            assert len(read_whole(file, "it", 1009)) == 1009
            file.seek(0)
            with pytest.raises(DataError, match="it is longer than 1,008 bytes"):
                read_whole(file, "it", 1008)
