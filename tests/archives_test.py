"""Archives and folders as people place them, and a download from a real server."""

import numpy as np
import pytest

from lra_tasks.archives import obtain, open_members, read_tfds
from lra_tasks.split import DataError
from tests.archive_server import archive_at, serve, tar_of, write, write_tfds

FILES = {"toy/a/1.txt": b"one", "toy/a/2.txt": b"two\xff\r\n", "toy/readme": b"three"}
NOISE = np.random.default_rng(0).bytes(300_011)
NO_SERVER = "http://127.0.0.1:1"


def read(path):
    with open_members(path, r"(?:^|/)a/(\d+)\.txt$") as members:
        return {match[1]: file.read() for match, file in members}


def refused(message, archive, *arguments):
    with pytest.raises(DataError, match=message) as caught:
        obtain(archive, "toy/a", *arguments)
    assert "\n" not in str(caught.value)


def test_obtain_downloads_once_and_checks_the_md5(tmp_path):
    with serve(NOISE[:-1]) as (url, _):
        refused(
            "its md5 is not .*: run again, or put it in",
            archive_at(url, NOISE),
            tmp_path,
            False,
        )
    assert not list(tmp_path.iterdir())
    with serve(NOISE) as (url, seen):
        paths = [obtain(archive_at(url, NOISE), "x", tmp_path, False) for _ in range(2)]
    assert len(seen) == 1
    assert paths == [tmp_path / "toy.tar.gz"] * 2
    assert paths[0].read_bytes() == NOISE
    assert [*tmp_path.iterdir()] == paths[:1]


def test_obtain_finds_rather_than_downloads(tmp_path):
    content = tar_of(FILES)
    archive = archive_at(NO_SERVER, content)
    refused(
        "cannot be downloaded .*: run again, or put it in", archive, tmp_path, False
    )
    refused(r"neither toy/a nor toy\.tar\.gz: get http", archive, tmp_path, True)
    (tmp_path / archive.name).write_bytes(content)
    for place in (tmp_path, tmp_path / archive.name):
        assert obtain(archive, "toy/a", place, True) == tmp_path / archive.name
    (tmp_path / "toy" / "a").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "toy/a"):
        assert obtain(archive, "toy/a", place, False) == tmp_path / "toy" / "a"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_open_members_reads_folders_and_archives_and_names_damage(tmp_path, mode):
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


def test_read_tfds_takes_the_newest_version_and_refuses_tfrecord(tmp_path, monkeypatch):
    folder = write_tfds(tmp_path, "toy/plain", {"x": np.int32}, {"train": [{"x": 7}]})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert read_tfds("toy/plain", "train", None) is None
    for source_dir in (tmp_path, folder):
        assert read_tfds("toy/plain", "train", str(source_dir)) == [{"x": 7}]
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert read_tfds("toy/plain", "train", None) == [{"x": 7}]
    write(folder.with_name("1.0.1"), {"dataset_info.json": b"{}", "x.tfrecord-0": b""})
    with pytest.raises(DataError, match="tfds convert_format --dataset_version_dir="):
        read_tfds("toy/plain", "train", None)
