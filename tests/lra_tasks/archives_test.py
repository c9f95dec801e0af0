"""Archives and folders as people place them, and a download from a real server."""

import dataclasses
import hashlib

import numpy as np
import pytest

from lra_tasks.archives import Archive, find_tfds, obtain, open_members, read_tfds
from lra_tasks.errors import DataError
from tests.lra_tasks.archive_server import serve, tar_of, write, write_tfds

FILES = {"toy/a/1.txt": b"one", "toy/a/2.txt": b"two\xff\r\n", "toy/readme": b"three"}
NOISE = np.random.default_rng(0).bytes(300_011)


def archive_at(url, content=NOISE):
    return Archive(f"{url}/toy.tar.gz", ("toy/a",), hashlib.md5(content).hexdigest())


def test_obtain_downloads_once_and_checks_the_md5(tmp_path):
    with serve(NOISE[:-1]) as (url, _), pytest.raises(DataError, match="its md5 is"):
        obtain(archive_at(url), tmp_path, None)
    assert not list(tmp_path.iterdir())
    with serve(NOISE) as (url, seen):
        paths = [obtain(archive_at(url), tmp_path, None) for _ in range(2)]
    assert len(seen) == 1
    assert paths == [tmp_path / "toy.tar.gz"] * 2
    assert paths[0].read_bytes() == NOISE
    assert [*tmp_path.iterdir()] == paths[:1]


def test_obtain_finds_rather_than_downloads(tmp_path):
    archive = archive_at("http://127.0.0.1:1")
    message = f"cannot be downloaded .*: run again, or put it in {tmp_path}"
    with pytest.raises(DataError, match=message):
        obtain(archive, tmp_path, None)
    too_large = dataclasses.replace(archive, md5=None)
    for asked, source_dir in ((archive, str(tmp_path)), (too_large, None)):
        with pytest.raises(DataError, match="neither toy/a nor toy"):
            obtain(asked, tmp_path, source_dir)
    packed, unpacked = tmp_path / archive.name, tmp_path / "toy/a"
    packed.write_bytes(NOISE)
    assert obtain(archive, tmp_path / "x", str(tmp_path)) == packed
    assert obtain(archive, tmp_path / "x", str(packed)) == packed
    unpacked.mkdir(parents=True)
    assert obtain(archive, tmp_path, None) == unpacked
    assert obtain(archive, tmp_path / "x", str(unpacked)) == unpacked


@pytest.mark.parametrize("name", ["toy.tgz", "toy.tar", "toy.gz", "toy.tar.gz"])
def test_obtain_finds_an_archive_that_a_browser_has_named(tmp_path, name):
    archive = dataclasses.replace(archive_at("http://127.0.0.1:1"), content="1.txt")
    path = tmp_path / name
    path.write_bytes(NOISE)
    assert obtain(archive, tmp_path, None) == path
    assert obtain(archive, tmp_path / "x", str(tmp_path)) == path
    moved = path.rename(tmp_path / "download (1)")
    assert obtain(archive, tmp_path / "x", str(moved)) == moved
    with pytest.raises(DataError, match="neither toy/a nor toy"):
        obtain(archive, tmp_path, str(tmp_path))


def test_obtain_takes_a_renamed_folder_for_what_is_in_it(tmp_path):
    archive = dataclasses.replace(archive_at("http://127.0.0.1:1"), content="1.txt")
    write(tmp_path / "renamed", {"1.txt": b"one"})
    folder = tmp_path / "renamed"
    assert obtain(archive, tmp_path / "x", str(folder)) == folder
    for place, content in ((tmp_path, "1.txt"), (folder, ""), (folder, "2.txt")):
        other = dataclasses.replace(archive, content=content)
        with pytest.raises(DataError, match="or name the folder that holds its files"):
            obtain(other, tmp_path / "x", str(place))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_open_members_reads_folders_and_archives_and_names_damage(tmp_path, mode):
    def read(path):
        with open_members(path, r"(?:^|/)a/(\d+)\.txt$") as members:
            return {match[1]: file.read() for match, file in members}

    content = tar_of({**FILES, "toy/a/3.txt": NOISE}, mode)
    path = tmp_path / "misnamed.zip"
    write(tmp_path, {**FILES, "misnamed.zip": content})
    expected = {"1": b"one", "2": b"two\xff\r\n"}
    assert read(tmp_path / "toy") == expected
    assert read(path) == expected | {"3": NOISE}
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for wrong in (b"", content[:middle], flipped)[: 2 if mode == "w" else 3]:
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=f"{path} cannot be read"):
            read(path)


def test_find_tfds_takes_the_newest_version_and_refuses_tfrecord(tmp_path, monkeypatch):
    folder = write_tfds(tmp_path, "toy/plain", {"x": np.int32}, {"train": [{"x": 7}]})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert find_tfds("toy/plain", None) is None
    assert find_tfds("toy/plain", str(tmp_path)) == folder
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert find_tfds("toy/plain", None) == folder
    assert read_tfds(folder, "train") == [{"x": 7}]
    write(folder.with_name("1.0.1"), {"dataset_info.json": b"{}", "x.tfrecord-0": b""})
    with pytest.raises(DataError, match="tfds convert_format --dataset_version_dir="):
        find_tfds("toy/plain", None)


def test_find_tfds_compares_versions_as_numbers(tmp_path):
    names = ["9.0.0", "10.0.0", "10.0.0.incompleteA", "incomplete.B_11.0.0", "2.10.0"]
    for name in names:
        write(
            tmp_path / "toy" / name, {"dataset_info.json": b"{}", "x.array_record": b""}
        )
    assert find_tfds("toy", str(tmp_path)) == tmp_path / "toy/10.0.0"
