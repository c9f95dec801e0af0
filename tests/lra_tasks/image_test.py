"""Image: tiny batches in the official format through the real reader."""

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.image import Image, to_grey
from tests.lra_tasks.archive_server import tar_of, write, write_tfds
from tests.lra_tasks.splits import hashes, load_all

BATCH_SIZE = 20
NAMES = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)


class TinyImage(Image):
    batch_size = BATCH_SIZE


def make_batches():
    """Batches of records label, R, G, B; the first of batch 2 is in test too."""
    rng = np.random.default_rng(0)
    batches = {}
    for name in NAMES:
        batches[name] = rng.integers(0, 256, (BATCH_SIZE, 3073), np.uint8)
    for records in batches.values():
        records[:, 0] = np.arange(BATCH_SIZE) % 10
        # The last picture is black but for a pixel: 0 is a value and no padding.
        records[-1, 1:] = 0
        records[-1, 1] = rng.integers(1, 256)
    batches["data_batch_2"][0] = batches["test_batch"][0]
    return batches


BATCHES = make_batches()
FILES = {
    f"cifar-10-batches-bin/{name}.bin": records.tobytes()
    for name, records in BATCHES.items()
}


def test_to_grey_is_the_weighted_sum():
    white = [255, 255, 255]
    black = [0, 0, 0]
    colours = np.array([white, [255, 0, 0], [0, 255, 0], [0, 0, 255], black])
    expected = colours @ [0.2989, 0.5870, 0.1140]
    grey = to_grey(colours.astype(np.uint8))
    np.testing.assert_array_equal(grey, expected.round())


def test_make_splits_by_hand(tmp_path, capsys):
    write(tmp_path, FILES)
    train, validation, test = load_all(TinyImage(), tmp_path)
    assert "1 example left out of" in capsys.readouterr().err
    assert (train.num_examples, validation.num_examples) == (89, 10)
    assert test.labels.tolist() == [*range(10), *range(10)]
    assert test.lengths.tolist() == [1024] * BATCH_SIZE
    rgb = BATCHES["test_batch"][:, 1:].reshape(-1, 3, 1024)
    np.testing.assert_array_equal(test.inputs, to_grey(rgb))


def tfds_rows(split, records):
    """Records as TFDS has them, in an order of its own."""
    rows = []
    for number, record in enumerate(records):
        image = record[1:].reshape(3, 32, 32).transpose(1, 2, 0)
        png = io.BytesIO()
        PIL.Image.fromarray(image).save(png, "PNG")
        rows.append(
            {
                "id": f"{split}_{number:05d}",
                "image": png.getvalue(),
                "label": int(record[0]),
            }
        )
    return rows[::-1]


def test_every_source_gives_the_same_data(tmp_path):
    write(tmp_path / "folder", FILES)
    archive = tar_of(dict(reversed(FILES.items())))
    write(tmp_path / "archive", {Image.archive.name: archive})
    records = np.concatenate(list(BATCHES.values()))
    rows = {
        "train": tfds_rows("train", records[:100]),
        "test": tfds_rows("test", records[100:]),
    }
    features = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    write_tfds(tmp_path / "tfds", "cifar10", features, rows)

    def hashes_of(name):
        return hashes(TinyImage(source_dir=str(tmp_path / name)), tmp_path)

    expected = hashes_of("folder")
    assert hashes_of("archive") == expected
    assert hashes_of("tfds") == expected


def test_other_data_are_made_if_a_batch_or_the_archive_changes(tmp_path):
    def folder_of_data(name):
        return TinyImage(source_dir=str(tmp_path / name)).folder()

    write(tmp_path / "unpacked", FILES)
    before = folder_of_data("unpacked")
    write(tmp_path / "unpacked/cifar-10-batches-bin", {".DS_Store": b"", "a.txt": b""})
    assert folder_of_data("unpacked") == before
    write(tmp_path / "unpacked/cifar-10-batches-bin", {"test_batch.bin": b"shorter"})
    assert folder_of_data("unpacked") != before

    write(tmp_path / "packed", {Image.archive.name: tar_of(FILES)})
    before = folder_of_data("packed")
    write(tmp_path / "packed", {Image.archive.name: b"shorter"})
    assert folder_of_data("packed") != before


def test_make_splits_refuses_a_damaged_batch(tmp_path):
    cut = FILES["cifar-10-batches-bin/test_batch.bin"][1:]
    write(tmp_path, FILES | {"cifar-10-batches-bin/data_batch_3.bin": cut})
    message = "train has 307,299 bytes, not 100 pictures of 3,073: get it again"
    with pytest.raises(DataError, match=message):
        TinyImage().load("train", tmp_path)
