"""Image: tiny batches in the official format through the real reader."""

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.image import Image, to_grey
from tests.lra_tasks.archive_server import hashes, load_all, tar_of, write, write_tfds

BATCH_SIZE = 20
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class TinyImage(Image):
    batch_size = BATCH_SIZE


def make_batches():
    """Batches of records label, R, G, B; the first of batch 2 is in test too."""
    rng = np.random.default_rng(0)
    batches = {x: rng.integers(0, 256, (BATCH_SIZE, 3073), np.uint8) for x in NAMES}
    for records in batches.values():
        records[:, 0] = np.arange(BATCH_SIZE) % 10
        records[-1, 1:] = 0  # black is a value, no padding
        records[-1, 1] = rng.integers(1, 256)
    batches["data_batch_2"][0] = batches["test_batch"][0]
    return batches


BATCHES = make_batches()
FILES = {f"cifar-10-batches-bin/{x}.bin": BATCHES[x].tobytes() for x in NAMES}


def test_to_grey_is_the_weighted_sum():
    colours = [[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]
    expected = np.array(colours) @ [0.2989, 0.5870, 0.1140]
    grey = to_grey(np.array(colours, np.uint8))
    np.testing.assert_array_equal(grey, expected.round())


def test_make_splits_by_hand(tmp_path, capsys):
    write(tmp_path, FILES)
    train, validation, test = load_all(TinyImage(), tmp_path)
    assert train.num_examples + validation.num_examples == 99
    assert "1 examples left out of" in capsys.readouterr().err
    assert validation.num_examples in (9, 10)
    assert test.labels.tolist() == [*range(10), *range(10)]
    assert test.lengths.tolist() == [1024] * BATCH_SIZE
    rgb = BATCHES["test_batch"][:, 1:].reshape(-1, 3, 1024)
    np.testing.assert_array_equal(test.inputs, to_grey(rgb))


def test_every_source_gives_the_same_data(tmp_path):
    write(tmp_path / "a", FILES)
    write(tmp_path / "b", {Image.archive.name: tar_of(dict(reversed(FILES.items())))})
    rows = {"train": [], "test": []}
    for number, record in enumerate(np.concatenate([*BATCHES.values()])):
        split, first = ("train", 0) if number < 100 else ("test", 100)
        image = record[1:].reshape(3, 32, 32).transpose(1, 2, 0)
        PIL.Image.fromarray(image).save(png := io.BytesIO(), "PNG")
        name = f"{split}_{number - first:05d}"
        row = {"id": name, "image": png.getvalue(), "label": int(record[0])}
        rows[split].insert(0, row)
    features = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    write_tfds(tmp_path / "c", "cifar10", features, rows)
    places = ["a", "b", "c", "d"]
    (tmp_path / "d").symlink_to(tmp_path / "a/cifar-10-batches-bin")  # renamed
    found = [hashes(TinyImage(source_dir=str(tmp_path / x)), tmp_path) for x in places]
    assert found[0] == found[1] == found[2] == found[3]


def test_make_splits_refuses_a_damaged_batch(tmp_path):
    cut = FILES["cifar-10-batches-bin/test_batch.bin"][1:]
    write(tmp_path, FILES | {"cifar-10-batches-bin/data_batch_3.bin": cut})
    message = "train has 307,299 bytes, not 100 pictures of 3,073: get it again"
    with pytest.raises(DataError, match=message):
        TinyImage().load("train", tmp_path)
