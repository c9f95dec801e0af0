"""Evaluation counts every example once, in any batch size."""

import numpy as np
import pytest
from flax import nnx

from nystromformer.config import TrainConfig
from nystromformer.training.data import HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.loop import open_run, train
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs, split_weights
from tests.training.conftest import LENGTH, BagOfTokens, make_split, with_functions

MODEL = BagOfTokens(nnx.Rngs(3))
_, WEIGHTS = split_weights(MODEL)


@pytest.fixture(scope="module")
def programs():
    return Programs(BagOfTokens, Classification())


@pytest.fixture
def test_split(splits):
    return HostSplit.from_split(splits["test"])


def test_evaluate_counts_as_by_hand_in_any_batch_size(programs, test_split):
    inputs = test_split.inputs
    mask = np.arange(inputs.shape[1]) < test_split.lengths[:, None]
    predictions = np.asarray(MODEL(inputs, mask)).argmax(1)
    num_correct = int((predictions == test_split.labels).sum())
    assert 0 < num_correct < 29
    for batch_size in (29, 8, 64):
        metrics = evaluate(programs, WEIGHTS, test_split, batch_size)
        assert metrics["examples"] == 29
        # They are equal to the last digit.
        assert metrics["accuracy"] == num_correct / 29


def watch(programs):
    """The programs, and a list: the length and the examples of each evaluated chunk."""
    calls = []

    def eval_chunk(weights, chunk, example_weights, totals, length):
        is_used = np.arange(len(chunk.places))[:, None] < chunk.num_batches
        is_example = np.asarray(example_weights) > 0
        places = np.asarray(chunk.places)[is_used & is_example]
        calls.append((length, np.asarray(chunk.rows.example_ids)[places].tolist()))
        return programs.eval_chunk(
            weights, chunk, example_weights, totals, length=length
        )

    return with_functions(programs, eval_chunk=eval_chunk), calls


def test_evaluate_puts_examples_of_similar_length_together(programs, test_split):
    expected = evaluate(programs, WEIGHTS, test_split, batch_size=8)
    watched, calls = watch(programs)
    metrics = evaluate(watched, WEIGHTS, test_split, batch_size=8, length_buckets=7)
    assert metrics == pytest.approx(expected)

    lengths = [length for length, _ in calls]
    assert lengths == sorted(lengths)
    # Lengths from 1 to 7 are equally frequent.
    assert lengths[0] < 4
    evaluated_examples = []
    for length, examples in calls:
        assert test_split.lengths[examples].max() <= length
        evaluated_examples += examples
    assert sorted(evaluated_examples) == list(range(29))


def test_evaluate_puts_a_pair_where_its_longer_text_fits(programs):
    split = make_split(0, 8)
    split.lengths[:] = [1, 7, 2, 2, 1, 1, 3, 1]
    split.pairs = np.arange(8, dtype=np.int32).reshape(4, 2)
    split.labels = split.labels[:4]

    def compute_nothing(weights, chunk, example_weights, totals, length):
        return totals

    watched, calls = watch(with_functions(programs, eval_chunk=compute_nothing))
    pairs = HostSplit.from_split(split)
    evaluate(watched, WEIGHTS, pairs, batch_size=2, length_buckets=7)
    assert calls == [(2, [2, 1]), (7, [3, 0])]


def test_evaluate_begins_each_length_with_a_chunk_of_one_batch(programs):
    """Its time is the compiler's, which says nothing about the size of a chunk."""
    split = make_split(0, 32)
    split.lengths[:] = np.repeat([1, 7], 16)

    def compute_nothing(weights, chunk, example_weights, totals, length):
        return totals

    watched, calls = watch(with_functions(programs, eval_chunk=compute_nothing))
    data = HostSplit.from_split(split)
    evaluate(watched, WEIGHTS, data, batch_size=2, length_buckets=7)
    sizes = {}
    for length, examples in calls:
        sizes.setdefault(length, []).append(len(examples))
    assert sizes[1][0] == 2
    assert sizes[7][0] == 2


def test_evaluate_of_fewer_examples_spreads_them_over_the_split(programs, test_split):
    watched, calls = watch(programs)
    metrics = evaluate(watched, WEIGHTS, test_split, batch_size=8, max_examples=10)
    assert metrics["examples"] == 10
    examples = [example for _, chunk in calls for example in chunk]
    assert examples == [0, 2, 5, 8, 11, 14, 17, 20, 23, 26]

    watched, calls = watch(programs)
    evaluate(watched, WEIGHTS, test_split, 8, length_buckets=7, max_examples=10)
    assert sorted(example for _, chunk in calls for example in chunk) == examples

    all_of_them = evaluate(programs, WEIGHTS, test_split, 8, max_examples=30)
    assert all_of_them["examples"] == 29


def test_evaluate_is_none_when_asked_to_stop(programs, test_split):
    answers = iter([False, True])
    metrics = evaluate(
        programs, WEIGHTS, test_split, 8, should_stop=lambda: next(answers)
    )
    assert metrics is None


def test_a_run_evaluates_what_it_may_in_batches_as_small_and_short_as_its_parts(
    optimizer, splits, tmp_path
):
    """Evaluation takes no more memory than training."""
    batching = {"grad_accum_steps": 4, "length_buckets": 7}
    config = TrainConfig(
        batch_size=8,
        num_steps=2,
        eval_every=1,
        checkpoint_every=2,
        max_eval_examples=20,
        **batching,
    )
    programs = Programs(BagOfTokens, Classification(), optimizer, **batching)
    batch_sizes = set()
    lengths = set()

    def eval_chunk(weights, chunk, *arguments, length):
        batch_sizes.add(chunk.places.shape[1])
        lengths.add(length)
        return programs.eval_chunk(weights, chunk, *arguments, length=length)

    recording_programs = with_functions(programs, eval_chunk=eval_chunk)
    outcome = train(open_run(recording_programs, config, splits, tmp_path))
    assert outcome["test_examples"] == 20
    assert batch_sizes == {8 // 4}
    assert lengths > {2, LENGTH}
