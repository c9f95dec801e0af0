"""Archives through what happens to networks and disks, on a real server."""

import resource
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from lra_tasks.archives import obtain, open_members, read_whole
from lra_tasks.split import DataError
from tests.archive_server import archive_at, serve, tar_of

FILES = {"toy/a/1.txt": b"one", "toy/a/2.txt": b"two\xff\r\n", "toy/readme": b"three"}
CONTENT = tar_of(FILES)
NOISE = np.random.default_rng(0).bytes(5_000_011)


def read(path, pattern=r"(?:^|/)a/(\d+)\.txt$"):
    with open_members(path, pattern) as members:
        return {match[1]: file.read() for match, file in members}


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def one_line(caught):
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
    with (
        serve(NOISE, break_off_after=3_000_017) as (url, _),
        pytest.raises(DataError, match=r"3,000,017 of 5,000,011 bytes; run again") as c,
    ):
        obtain([archive_at(url, NOISE)], [], tmp_path)
    one_line(c)
    assert not (tmp_path / "toy.tar.gz").exists()
    with serve(NOISE, ranges=ranges) as (url, seen):
        path = obtain([archive_at(url, NOISE)], [], tmp_path)
    assert seen == ["bytes=3000017-"]
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
    path = obtain([archive_at("http://127.0.0.1:1", NOISE)], [], tmp_path)
    other.join()
    assert path.read_bytes() == NOISE
    line = "another process is downloading toy.tar.gz: waiting for it\n"
    assert capsys.readouterr().err == line


def test_a_part_that_is_already_whole(tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(NOISE)
    with serve(NOISE) as (url, _):
        path = obtain([archive_at(url, NOISE)], [], tmp_path)
    assert path.read_bytes() == NOISE


def test_wrong_checksum_of_a_download_is_deleted(tmp_path):
    with (
        serve(NOISE[:-1] + b"x") as (url, _),
        pytest.raises(DataError, match=r"its md5 is .*, not .*: run again") as caught,
    ):
        obtain([archive_at(url, NOISE)], [], tmp_path)
    one_line(caught)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.tar.gz.lock"]


def test_wrong_checksum_of_a_file_placed_by_hand_is_kept(tmp_path):
    path = tmp_path / "toy.tar.gz"
    path.write_bytes(NOISE[:1009])
    with pytest.raises(DataError, match="is damaged or incomplete: its md5") as caught:
        obtain([archive_at("http://127.0.0.1:1", NOISE)], [], tmp_path)
    assert one_line(caught).startswith(str(path))
    assert path.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_without_a_server_one_line_at_once(tmp_path, host):
    archive = archive_at(f"http://{host}:{closed_port()}", NOISE)
    started = time.monotonic()
    with pytest.raises(DataError, match="cannot be downloaded") as caught:
        obtain([archive], ["toy"], tmp_path)
    assert time.monotonic() - started < 10
    for part in (archive.url, "(5 MB)", str(tmp_path)):  # what, how large, where to
        assert part in one_line(caught)


def test_a_server_that_never_answers_is_left_soon(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        archive = archive_at(f"http://127.0.0.1:{silent.getsockname()[1]}", NOISE)
        started = time.monotonic()
        with pytest.raises(DataError, match="timed out"):
            obtain([archive], [], tmp_path)
    assert time.monotonic() - started < 10


def test_found_rather_than_downloaded(tmp_path):
    archive = archive_at("http://127.0.0.1:1", CONTENT)
    (tmp_path / archive.name).write_bytes(CONTENT)
    assert obtain([archive], ["toy/a"], tmp_path) == tmp_path / archive.name
    (tmp_path / "toy" / "a").mkdir(parents=True)
    assert obtain([archive], ["toy/a"], tmp_path) == tmp_path / "toy" / "a"


@pytest.mark.parametrize("name", ["", "toy/a", "toy.tar.gz"])
def test_source_dir_is_the_place_or_the_thing_itself(tmp_path, name):
    archive = archive_at("http://127.0.0.1:1", CONTENT)
    if name == "toy/a":
        (tmp_path / name).mkdir(parents=True)
    else:
        (tmp_path / archive.name).write_bytes(CONTENT)
    found = obtain([archive], ["toy/a"], tmp_path / "no", str(tmp_path / name))
    assert found == tmp_path / (name or archive.name)


def test_nothing_is_downloaded_into_a_source_dir(tmp_path):
    with serve(NOISE) as (url, seen):
        archive = archive_at(url, NOISE)
        with pytest.raises(DataError, match=r"has none of toy, toy\.tar\.gz: get http"):
            obtain([archive], ["toy"], tmp_path, str(tmp_path / "elsewhere"))
    assert not seen


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_members_of_an_archive_are_those_of_its_folder(tmp_path, mode):
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    path = tmp_path / "misnamed.zip"
    path.write_bytes(tar_of(FILES, mode))
    assert read(path) == read(tmp_path / "toy") == {"1": b"one", "2": b"two\xff\r\n"}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_truncated_archive(tmp_path, mode, share):
    path = tmp_path / "toy.tar"
    content = tar_of({"a/1.txt": NOISE[:100_003], "a/2.txt": NOISE[:10_007]}, mode)
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match="is truncated or no tar archive") as caught:
        read(path)
    assert str(path) in one_line(caught)


def test_a_flipped_bit_in_a_compressed_archive(tmp_path):
    path = tmp_path / "toy.tar"
    content = bytearray(tar_of({"a/1.txt": NOISE[:100_003]}, "w:gz"))
    content[50_021] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"truncated|damaged"):
        read(path)


def special(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("../a/3.txt", b"x", "leads out"),
        ("toy/../../a/3.txt", b"x", "leads out"),
        ("/a/3.txt", b"x", "leads out"),
        ("..\\a\\3.txt", b"x", "leads out"),
        ("toy/l", special("toy/l", tarfile.SYMTYPE, "/etc/passwd"), "link or a device"),
        ("toy/l", special("toy/l", tarfile.LNKTYPE, "toy/a/1.txt"), "link or a device"),
        ("toy/l", special("toy/l", tarfile.CHRTYPE), "link or a device"),
        ("toy/l", special("toy/l", tarfile.FIFOTYPE), "link or a device"),
    ],
)
def test_what_an_archive_may_not_hold(tmp_path, name, content, message):
    path = tmp_path / "toy.tar"
    path.write_bytes(tar_of({**FILES, name: content}))
    with pytest.raises(DataError, match=f"{message}.*: refused") as caught:
        read(path)
    one_line(caught)


def test_a_member_may_be_as_long_as_the_limit(tmp_path):
    path = tmp_path / "toy.tar"
    path.write_bytes(tar_of({"a/1.txt": b"x" * 1009}))
    with open_members(path, "txt") as members:
        for _, file in members:
            assert len(read_whole(file, "it", 1009)) == 1009
            file.seek(0)
            with pytest.raises(DataError, match="it is longer than 1,008 bytes"):
                read_whole(file, "it", 1008)


# A process of its own, whose files may not grow beyond a limit.
DOWNLOAD = """
import sys
from pathlib import Path
from lra_tasks.archives import Archive, obtain
try:
    obtain([Archive(sys.argv[1] + "/toy.tar.gz", 0)], [], Path(sys.argv[2]))
except OSError as error:
    sys.exit(f"{error.filename}: {error.strerror}")
"""


def test_a_full_disk_while_downloading_is_one_line(tmp_path):
    with serve(NOISE) as (url, _):
        done = subprocess.run(
            [sys.executable, "-c", DOWNLOAD, url, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parents[1],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**21,) * 2),
        )
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path}/toy.tar.gz.part: File too large\n"
    assert not (tmp_path / "toy.tar.gz").exists()
