"""Evaluation counts every example once, in any batch size."""

import numpy as np
import pytest
from flax import nnx

from nystromformer.training.data import Data
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs, split_weights
from tests.training.conftest import BagOfTokens, make_split

MODEL = BagOfTokens(nnx.Rngs(3))
WEIGHTS = split_weights(MODEL)[1]


@pytest.fixture
def programs():
    return Programs(BagOfTokens, Classification())


def test_evaluate_counts_as_by_hand_in_any_batch_size(programs, splits):
    split = splits["test"]
    mask = np.arange(split.inputs.shape[1]) < split.lengths[:, None]
    right = int((np.asarray(MODEL(split.inputs, mask)).argmax(1) == split.labels).sum())
    assert 0 < right < 29
    for batch_size in (29, 8, 64):
        metrics = evaluate(programs, WEIGHTS, Data.of(split), batch_size)
        assert metrics is not None
        assert metrics["examples"] == 29
        assert metrics["accuracy"] == right / 29  # all digits: equals must tie


def watch(programs):
    """A list that gets the length and the examples of each call of the device."""
    seen, eval_chunk = [], programs.eval_chunk

    def watched(weights, data, indices, present, num_batches, totals, length):
        is_taken = np.arange(len(indices))[:, None] < num_batches
        places = np.asarray(indices)[(np.asarray(present) > 0) & is_taken]
        seen.append((length, np.asarray(data.examples)[places].tolist()))
        batches = data, indices, present, num_batches
        return eval_chunk(weights, *batches, totals, length=length)

    programs.eval_chunk = watched
    return seen


def test_evaluate_puts_examples_of_similar_length_together(programs, splits):
    split = splits["test"]
    plain = evaluate(programs, WEIGHTS, Data.of(split), 8)
    seen = watch(programs)
    found = evaluate(programs, WEIGHTS, Data.of(split), 8, length_buckets=7)
    assert found == pytest.approx(plain)
    assert all(split.lengths[examples].max() <= length for length, examples in seen)
    assert [length for length, _ in seen] == sorted(length for length, _ in seen)
    assert seen[0][0] < 4  # of 7, with lengths spread evenly
    assert sorted(x for _, examples in seen for x in examples) == [*range(29)]


def test_evaluate_puts_a_pair_where_its_longer_text_fits(programs):
    split = make_split(0, 8)
    split.lengths[:] = [1, 7, 2, 2, 1, 1, 3, 1]
    split.pairs = np.arange(8, dtype=np.int32).reshape(4, 2)
    split.labels = split.labels[:4]
    programs.eval_chunk = lambda *batches, length: batches[-1]  # the totals
    seen = watch(programs)
    evaluate(programs, WEIGHTS, Data.of(split), 2, length_buckets=7)
    assert seen == [(2, [2, 1]), (7, [3, 0])]


def test_evaluate_is_none_when_asked_to_stop(programs, splits):
    asked = iter([False, True])
    what = programs, WEIGHTS, Data.of(splits["test"]), 8
    assert evaluate(*what, should_stop=lambda: next(asked)) is None
