"""Archives and folders as people place them, and a download from a real server."""

import dataclasses
import hashlib
import os

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

    with serve(NOISE) as (url, requests):
        first_path = obtain(archive_at(url), tmp_path, None)
        second_path = obtain(archive_at(url), tmp_path, None)
    assert len(requests) == 1
    assert first_path == second_path == tmp_path / "toy.tar.gz"
    assert first_path.read_bytes() == NOISE
    assert list(tmp_path.iterdir()) == [first_path]


def test_obtain_removes_what_a_killed_download_left(tmp_path):
    old, young = tmp_path / "toy.tar.gz.7.part", tmp_path / "toy.tar.gz.8.part"
    for part in (old, young):
        part.write_bytes(NOISE)
    os.utime(old, (0, 0))
    with serve(NOISE) as (url, _):
        path = obtain(archive_at(url), tmp_path, None)
    assert sorted(tmp_path.iterdir()) == [path, young]


# Nothing answers at this address.
UNREACHABLE = "http://127.0.0.1:1"


def test_obtain_says_where_to_put_what_cannot_be_downloaded(tmp_path):
    message = f"cannot be downloaded .*: run again, or put it in {tmp_path}"
    with pytest.raises(DataError, match=message):
        obtain(archive_at(UNREACHABLE), tmp_path, None)
    with (
        serve(NOISE, protocol="no HTTP") as (url, _),
        pytest.raises(DataError, match=message),
    ):
        obtain(archive_at(url), tmp_path, None)


def test_obtain_downloads_nothing_with_a_source_dir_and_nothing_large(tmp_path):
    archive = archive_at(UNREACHABLE)
    with pytest.raises(DataError, match="neither toy/a nor toy"):
        obtain(archive, tmp_path, str(tmp_path))
    too_large = dataclasses.replace(archive, md5=None)
    with pytest.raises(DataError, match="neither toy/a nor toy"):
        obtain(too_large, tmp_path, None)


def test_obtain_finds_rather_than_downloads(tmp_path):
    archive = archive_at(UNREACHABLE)
    empty = tmp_path / "empty"

    packed = tmp_path / archive.name
    packed.write_bytes(NOISE)
    assert obtain(archive, tmp_path, None) == packed
    assert obtain(archive, empty, str(tmp_path)) == packed

    unpacked = tmp_path / "toy/a"
    unpacked.mkdir(parents=True)
    assert obtain(archive, tmp_path, None) == unpacked
    assert obtain(archive, empty, str(tmp_path)) == unpacked


def read_texts(path):
    """The numbered texts of folder a, by their numbers."""
    with open_members(path, r"(?:^|/)a/(\d+)\.txt$") as members:
        return {match[1]: file.read() for match, file in members}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_open_members_reads_folders_and_archives(tmp_path, mode):
    write(tmp_path, FILES)
    archive = tmp_path / "misnamed.zip"
    archive.write_bytes(tar_of(FILES, mode))
    texts = {"1": b"one", "2": b"two\xff\r\n"}
    assert read_texts(tmp_path / "toy") == texts
    assert read_texts(archive) == texts


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_open_members_names_a_damaged_archive(tmp_path, mode):
    archive = tmp_path / "damaged.tar"
    content = tar_of({"toy/a/1.txt": NOISE}, mode)
    archive.write_bytes(content)
    assert read_texts(archive) == {"1": NOISE}

    middle = len(content) // 2
    damaged_contents = [b"", content[:middle]]
    if mode == "w:gz":  # Only gzip has a checksum of its content.
        flipped_byte = bytes([content[middle] ^ 1])
        flipped = content[:middle] + flipped_byte + content[middle + 1 :]
        damaged_contents.append(flipped)
    for damaged_content in damaged_contents:
        archive.write_bytes(damaged_content)
        with pytest.raises(DataError, match=f"{archive} cannot be read"):
            read_texts(archive)


def test_find_tfds_takes_the_newest_version_and_refuses_tfrecord(tmp_path, monkeypatch):
    examples = [{"x": 7}]
    folder = write_tfds(tmp_path, "toy/plain", {"x": np.int32}, {"train": examples})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert find_tfds("toy/plain", None) is None
    assert find_tfds("toy/plain", str(tmp_path)) == folder

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert find_tfds("toy/plain", None) == folder
    assert read_tfds(folder, "train") == examples

    newer = folder.with_name("1.0.1")
    write(newer, {"dataset_info.json": b"{}", "x.tfrecord-0": b""})
    with pytest.raises(DataError, match="tfds convert_format --dataset_version_dir="):
        find_tfds("toy/plain", None)
    other = tmp_path / "tensorflow_datasets/toy/plain/1.0.0"
    write(other, {"dataset_info.json": b"{}", "x.array_record-0": b""})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_tfds("toy/plain", None) == other


def test_obtain_downloads_an_archive_in_the_place_of_tfrecord(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "tfds/toy/1.0.0"
    write(folder, {"dataset_info.json": b"{}", "x.tfrecord-0": b""})
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    with serve(NOISE) as (url, requests):
        archive = dataclasses.replace(archive_at(url), dataset="toy")
        path = obtain(archive, tmp_path, None)
    assert path == tmp_path / "toy.tar.gz"
    assert len(requests) == 1
    line = capsys.readouterr().err
    assert f"{folder} is not in array_record files" in line
    assert f"; {archive.url} is downloaded instead" in line

    # Without a download the conversion is what helps.
    path.unlink()
    too_large = dataclasses.replace(archive, md5=None)
    for other, source_dir in ((archive, f"{tmp_path}/tfds"), (too_large, None)):
        with pytest.raises(DataError, match="is not in array_record files"):
            obtain(other, tmp_path, source_dir)


def test_find_tfds_says_where_a_conversion_runs(tmp_path):
    folder = tmp_path / "toy/1.0.0"
    write(folder, {"dataset_info.json": b"{}", "x.tfrecord-0": b""})
    with pytest.raises(DataError, match="where TensorFlow is installed, run `tfds "):
        find_tfds("toy", str(tmp_path))


def damage(path, kind):
    """Damages an array_record file as a broken copy or a disk does."""
    content = path.read_bytes()
    middle = len(content) // 2
    if kind == "a flipped bit":
        path.write_bytes(
            content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
        )
    else:
        path.unlink()


@pytest.mark.parametrize("kind", ["a flipped bit", "no file"])
def test_read_tfds_names_a_damaged_dataset(tmp_path, kind):
    examples = [{"x": number} for number in range(40)]
    folder = write_tfds(tmp_path, "toy/plain", {"x": np.int32}, {"train": examples})
    (file,) = folder.glob("*.array_record*")
    assert read_tfds(folder, "train") == examples
    damage(file, kind)
    with pytest.raises(DataError, match=f"{folder} is damaged .*: get it") as caught:
        read_tfds(folder, "train")
    assert "\n" not in str(caught.value)


def test_read_tfds_names_a_damaged_description_or_a_missing_split(tmp_path):
    folder = write_tfds(tmp_path, "toy/plain", {"x": np.int32}, {"train": [{"x": 1}]})
    with pytest.raises(DataError, match=f"{folder} is damaged .*test.*: get it"):
        read_tfds(folder, "test")
    write(folder, {"dataset_info.json": b"{"})
    with pytest.raises(DataError, match=f"{folder} is damaged .*: get it again"):
        read_tfds(folder, "train")


def test_find_tfds_compares_versions_as_numbers(tmp_path):
    names = ["9.0.0", "10.0.0", "10.0.0.incompleteA", "incomplete.B_11.0.0", "2.10.0"]
    for name in names:
        folder = tmp_path / "toy" / name
        write(folder, {"dataset_info.json": b"{}", "x.array_record": b""})
    assert find_tfds("toy", str(tmp_path)) == tmp_path / "toy/10.0.0"
