"""Pickles that would crash, or keep for ever, what reads pickles."""

import pickle

import numpy as np
import pytest

from lra_tasks.cifar_pickle import parse_pickle
from lra_tasks.split import DataError
from tests.image_test import BATCHES, changed


def test_numpy_never_sees_a_pickle():
    content = changed().replace(b"|NNNJ", b"|NJ")
    assert content != changed()
    rgb, _ = parse_pickle(content)  # where numpy reads this state, the process crashes
    np.testing.assert_array_equal(rgb, BATCHES["test_batch"][0])


@pytest.mark.timeout(20)
def test_a_list_in_itself_is_left_soon():
    labels = []
    labels += [labels, labels]
    with pytest.raises(DataError, match="labels are not a list of integers"):
        parse_pickle(changed(labels=labels))


DEEP = b"N" + 200_000 * pickle.TUPLE1  # to hash it would take all of the C stack


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        # Python's reader makes a table of all objects up to this one: 16 GiB.
        (pickle.LONG_BINPUT + bytes([255, 255, 255, 63]), "not a batch"),
        (b"(" + DEEP + b"Nu", "a key of the pickle is no text"),
        (2**20 * b"N", "more than 1,048,576 opcodes"),
    ],
)
def test_a_pickle_takes_no_more_than_its_size_explains(content, message):
    with pytest.raises(DataError, match=message):
        parse_pickle(b"\x80\x02}" + content + b".")
