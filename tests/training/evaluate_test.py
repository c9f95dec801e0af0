"""Evaluation counts every example once, in any batch size."""

from typing import Any

import numpy as np
import pytest
from flax import nnx

from nystromformer.training.data import HostData
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Classification, Totals
from nystromformer.training.step import make_eval_chunk, split_weights
from tests.training.conftest import make_split

OBJECTIVE = Classification()
ZERO = Totals.zero(OBJECTIVE)


def test_evaluate_equals_the_accuracy_counted_by_hand_in_any_batch_size(
    make_model, splits
):
    graphdef, weights = split_weights(make_model(nnx.Rngs(3)))
    data = HostData.of(splits["test"])
    eval_chunk = make_eval_chunk(graphdef, OBJECTIVE)

    split = splits["test"]
    mask = np.arange(split.inputs.shape[1]) < split.lengths[:, None]
    logits = nnx.merge(graphdef, *weights)(split.inputs, mask)
    right = int((np.asarray(logits).argmax(1) == split.labels).sum())
    assert 0 < right < 29
    for batch_size in (29, 8, 64):
        metrics = evaluate(eval_chunk, ZERO, weights, data, batch_size)
        assert metrics is not None
        assert metrics["examples"] == 29
        assert metrics["accuracy"] == right / 29  # all digits: equals must tie


def test_evaluate_puts_examples_of_similar_length_into_a_shorter_batch(
    make_model, splits
):
    graphdef, weights = split_weights(make_model(nnx.Rngs(3)))
    data = HostData.of(splits["test"])
    eval_chunk = make_eval_chunk(graphdef, OBJECTIVE)
    seen = []

    def watched(weights, data, indices, present, num_batches, totals, length):
        of_these = np.arange(len(indices))[:, None] < num_batches
        places = np.asarray(indices)[(np.asarray(present) > 0) & of_these]
        counted = np.asarray(data.examples)[places]
        seen.append((length, counted))
        assert splits["test"].lengths[counted].max() <= length
        return eval_chunk(
            weights, data, indices, present, num_batches, totals, length=length
        )

    plain = evaluate(eval_chunk, ZERO, weights, data, 8)
    found = evaluate(watched, ZERO, weights, data, 8, length_buckets=7)
    assert plain is not None
    assert found == pytest.approx(plain)
    assert [length for length, _ in seen] == sorted(length for length, _ in seen)
    assert seen[0][0] < 4  # of 7, with lengths spread evenly
    assert sorted(np.concatenate([counted for _, counted in seen])) == [*range(29)]


def test_evaluate_puts_a_pair_where_its_longer_text_fits():
    split = make_split(0, 8)
    split.lengths[:] = [1, 7, 2, 2, 1, 1, 3, 1]
    split.pairs = np.arange(8, dtype=np.int32).reshape(4, 2)
    split.labels = split.labels[:4]
    seen = []

    def watched(weights, data, indices, present, num_batches, totals, length):
        assert num_batches == 1
        seen.append((length, data.examples[indices[0]].tolist()))
        return totals

    data: Any = HostData.of(split)
    evaluate(watched, ZERO, data, data, 2, length_buckets=7)
    assert seen == [(2, [2, 1]), (7, [3, 0])]


def test_evaluate_is_none_when_asked_to_stop(make_model, splits):
    graphdef, weights = split_weights(make_model(nnx.Rngs(3)))
    asked = iter([False, True])
    metrics = evaluate(
        make_eval_chunk(graphdef, OBJECTIVE),
        ZERO,
        weights,
        HostData.of(splits["test"]),
        8,
        should_stop=lambda: next(asked),
    )
    assert metrics is None
