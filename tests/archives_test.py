"""Archives through what happens to networks and disks, on a real server."""

import os
import re
import socket
import tarfile

import numpy as np
import pytest

from lra_tasks.archives import obtain, open_members
from lra_tasks.split import DataError
from tests.archive_server import archive_at, serve, tar_of, write

FILES = {"toy/a/1.txt": b"one", "toy/a/2.txt": b"two\xff\r\n", "toy/readme": b"three"}
NOISE = np.random.default_rng(0).bytes(3_000_011)
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


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_broke_off_goes_on_and_is_made_once(tmp_path, ranges):
    with serve(NOISE, break_off_after=1_000_017) as (url, _):
        message = r"1,000,017 of 3,000,011 bytes; run again"
        refused(message, archive_at(url, NOISE), [], tmp_path)
    assert not (tmp_path / "toy.tar.gz").exists()
    with serve(NOISE, ranges=ranges) as (url, seen):
        paths = [obtain([archive_at(url, NOISE)], [], tmp_path) for _ in range(2)]
    assert seen == ["bytes=1000017-"]
    assert paths == [tmp_path / "toy.tar.gz"] * 2
    assert paths[0].read_bytes() == NOISE
    assert not list(tmp_path.glob("*.part"))


def test_a_part_that_is_already_whole_needs_no_server(tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(NOISE)
    path = obtain([archive_at(NO_SERVER, NOISE)], [], tmp_path)
    assert path.read_bytes() == NOISE


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


def test_a_server_that_never_answers_is_left_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("lra_tasks.archives.SECONDS_TO_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        archive = archive_at(f"http://127.0.0.1:{silent.getsockname()[1]}", NOISE)
        said = refused("cannot be downloaded .*timed out", archive, [], tmp_path)
    for part in (archive.url, "(3 MB)", str(tmp_path)):  # what, how large, where to
        assert part in said


def test_found_rather_than_downloaded(tmp_path):
    content = tar_of(FILES)
    archive = archive_at(NO_SERVER, content)
    (tmp_path / archive.name).write_bytes(content)
    assert obtain([archive], ["toy/a"], tmp_path) == tmp_path / archive.name
    (tmp_path / "toy" / "a").mkdir(parents=True)
    for source_dir in (None, str(tmp_path), str(tmp_path / "toy/a")):
        found = obtain([archive], ["toy/a"], tmp_path, source_dir)
        assert found == tmp_path / "toy" / "a"
    source_dir = str(tmp_path / archive.name)
    assert obtain([archive], ["x"], tmp_path, source_dir) == tmp_path / archive.name
    message = r"has none of toy, toy\.tar\.gz: get http"  # and is not asked for it
    refused(message, archive, ["toy"], tmp_path, str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_members_are_those_of_the_folder_and_damage_is_one_line(tmp_path, mode):
    content = tar_of({**FILES, "toy/a/3.txt": NOISE[:100_003]}, mode)
    path = tmp_path / "misnamed.zip"
    write(tmp_path, {**FILES, "misnamed.zip": content})
    expected = {"1": b"one", "2": b"two\xff\r\n"}
    assert read(tmp_path / "toy") == expected
    assert read(path) == expected | {"3": NOISE[:100_003]}
    damaged = [b"", content[: len(content) * 3 // 5]]
    if mode == "w:gz":
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        damaged.append(content[:middle] + flipped + content[middle + 1 :])
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(
            DataError, match=f"{path} is truncated or not a tar archive"
        ):
            read(path)


def special(kind, target=""):
    member = tarfile.TarInfo("toy/l")
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("toy/../../a/3.txt", b"x", "leads out"),
        ("/a/3.txt", b"x", "leads out"),
        ("..\\a\\3.txt", b"x", "leads out"),
        ("toy/l", special(tarfile.SYMTYPE, "/etc/passwd"), "link or a device"),
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
    with pytest.raises(DataError, match=r"3\.txt is not a regular file: refused"):
        read(tmp_path / "toy")
