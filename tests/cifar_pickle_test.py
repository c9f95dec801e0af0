"""Pickles that run code, or that would crash what reads pickles."""

import os
import pickle

import numpy as np
import pytest

from lra_tasks.cifar_pickle import parse_pickle
from lra_tasks.split import DataError
from tests.cifar_batches import BATCH_SIZE, BATCHES, changed, pickle_as_python_2


class Mischief:
    def __reduce__(self):
        return os.system, ("touch {}",)


NO_PICKLE = "not a batch in pickle format"
NO_ARRAY = "not a uint8 array"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(extra=Mischief()), "the pickle asks for 'posix system': refused"),
        (pickle.dumps(np.load, 2), "the pickle asks for 'numpy load': refused"),
        (b"\x80\x02c\x1b[2Jx\nload\n.", r"asks for '\\x1b\[2Jx load': refused"),
        (pickle.dumps(os.getcwd), NO_PICKLE),  # an opcode of later protocols
        (b"\x80\x02N.", NO_PICKLE),
        (changed()[:1009], NO_PICKLE),
        (b"", NO_PICKLE),
        (pickle_as_python_2([1, 2]), NO_PICKLE),
        (changed(data=BATCHES["test_batch"][0][:, 1:]), NO_ARRAY),
        (changed(data=np.zeros((BATCH_SIZE, 3072), np.int32)), NO_ARRAY),
        (changed(data=[1, 2]), NO_ARRAY),
        (changed(labels=["1"] * BATCH_SIZE), "labels are not a list of integers"),
    ],
)
def test_what_is_no_batch(content, message):
    with pytest.raises(DataError, match=message) as caught:
        parse_pickle(content)
    assert str(caught.value).isprintable()


def test_numpy_never_sees_a_pickle():
    content = changed().replace(b"|NNNJ", b"|NJ")
    assert content != changed()
    rgb, _ = parse_pickle(content)  # where numpy reads this state, the process crashes
    np.testing.assert_array_equal(rgb, BATCHES["test_batch"][0])


DEEP = b"N" + 200_000 * pickle.TUPLE1  # to hash it would take all of the C stack


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        # Python's reader makes a table of all objects up to this one: 16 GiB.
        (pickle.LONG_BINPUT + bytes([255, 255, 255, 63]), NO_PICKLE),
        (b"(" + DEEP + b"Nu", "a key of the pickle is no text"),
    ],
)
def test_a_pickle_takes_no_more_than_its_size_explains(content, message):
    with pytest.raises(DataError, match=message):
        parse_pickle(b"\x80\x02}" + content + b".")
