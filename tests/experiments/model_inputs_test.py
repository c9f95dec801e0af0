"""Texts and token ids become padded arrays, or an error in one line."""

import numpy as np
import pytest

from lra_tasks.errors import DataError
from lra_tasks.task import get_task
from nystromformer.experiments.model_inputs import prepare_inputs

LISTOPS = get_task("listops", max_length=48, min_tokens=24, max_tokens=48)
TEXTS = ["[MAX 2 3 ]", "[MIN 2 [MAX 2 3 ] ]"]


def test_prepare_inputs_encodes_texts_as_the_task_does():
    tokens, mask = prepare_inputs(LISTOPS, TEXTS)
    expected_tokens, lengths = LISTOPS.encode(TEXTS)
    np.testing.assert_array_equal(tokens, expected_tokens)
    assert (tokens.dtype, mask.dtype) == (np.int32, bool)
    assert mask.sum(1).tolist() == lengths.tolist()
    assert mask[0, : lengths[0]].all()


def test_prepare_inputs_pads_token_ids():
    tokens, mask = prepare_inputs(LISTOPS, np.full((2, 9), 7), [9, 4])
    assert tokens.shape == mask.shape == (2, 48)
    assert mask.sum(1).tolist() == [9, 4]
    assert not tokens[:, 9:].any()


class Tensor:
    """An array of another library, whose dtypes have no kind."""

    dtype = "torch.int64"

    def __array__(self, dtype=None, copy=None):
        return np.full((2, 9), 7)


def test_prepare_inputs_takes_arrays_of_other_libraries():
    tokens, _ = prepare_inputs(LISTOPS, Tensor(), [9, 4])
    expected_tokens, _ = prepare_inputs(LISTOPS, np.asarray(Tensor()), [9, 4])
    np.testing.assert_array_equal(tokens, expected_tokens)


def test_prepare_inputs_takes_one_text_without_a_list():
    tokens, _ = prepare_inputs(LISTOPS, np.array(TEXTS[0]))
    np.testing.assert_array_equal(tokens, prepare_inputs(LISTOPS, TEXTS[:1])[0])


def test_prepare_inputs_of_pairs_has_two_sequences():
    task = get_task("retrieval", max_length=31)
    pairs = [["one", "another"], ["a third", "ö" * 40]]
    with pytest.warns(UserWarning, match="^1 of 4 texts are cut: they have more tok"):
        tokens, mask = prepare_inputs(task, pairs, num_sequences=2)
    expected_tokens, lengths = task.encode([text for pair in pairs for text in pair])
    np.testing.assert_array_equal(tokens.reshape(4, 31), expected_tokens)
    assert mask.sum(-1).ravel().tolist() == lengths.tolist()

    by_ids, mask_by_ids = prepare_inputs(
        task, tokens, lengths.reshape(2, 2), num_sequences=2
    )
    np.testing.assert_array_equal(by_ids, tokens)
    np.testing.assert_array_equal(mask_by_ids, mask)
    with pytest.raises(ValueError, match="must be a list of pairs of texts"):
        prepare_inputs(task, ("one", "another"), num_sequences=2)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["[MAX 2 x ]"], DataError, "'x' is not a token of ListOps"),
        (np.zeros((3, 2, 9), int), ValueError, r"must be \[B, L\] with L ≤ 48"),
        (np.zeros((3, 49), int), ValueError, r"with L ≤ 48, got \(3, 49\)"),
        (np.arange(1, 4), ValueError, r"must be \[B, L\].*got \(3,\)"),
        (np.full((3, 9), 16), ValueError, "token ids must be from 0 to 15"),
        (np.full((3, 9), 7.0), ValueError, "must be integers, got float64"),
        (np.ones((3, 9), bool), ValueError, "must be integers, got bool"),
        ([("[MAX 2 3 ]", "4")], ValueError, "must be a list of texts"),
        ([[1, 2]], ValueError, r"or an array of token ids; got \[\[1, 2\]\]"),
        ([None], ValueError, r"must be a list of texts, .* got \[None\]"),
    ],
)
def test_prepare_inputs_rejects_what_is_no_example(inputs, error, message):
    with pytest.raises(error, match=message):
        prepare_inputs(LISTOPS, inputs)


LENGTHS = r"lengths must be integers of shape \(2,\), one for each row of token ids"


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 10], "lengths must be from 0 to 9, .* got 3 to 10"),
        ([-1, 9], "lengths must be from 0 to 9, .* got -1 to 9"),
        ([9, 9, 9], LENGTHS),
        ([9], LENGTHS),  # One length is not that of all rows.
        (9, LENGTHS),
        ([[9], [9]], LENGTHS),
        ([9.0, 4.0], LENGTHS),
        ([True, False], LENGTHS),
    ],
)
def test_prepare_inputs_rejects_lengths_that_cannot_be(lengths, message):
    tokens = np.ones((2, 9), int)
    assert prepare_inputs(LISTOPS, tokens, [9, 0])[0].shape == (2, 48)
    with pytest.raises(ValueError, match=message):
        prepare_inputs(LISTOPS, tokens, lengths)


@pytest.mark.parametrize(
    ("options", "num_fitting"),
    [
        ({"max_length": 12}, 12),
        ({"max_length": 16, "num_bytes": 12}, 12),
        # [CLS], a leading space and [SEP] are three tokens more.
        ({"max_length": 12, "tokenizer": "byte"}, 9),
    ],
    ids=str,
)
def test_prepare_inputs_warns_of_texts_that_are_cut(options, num_fitting):
    task = get_task("text", **options)
    fitting = "x" * num_fitting
    prepare_inputs(task, [fitting, f"{fitting}\n", ""])
    message = r"^2 of 3 texts are cut: .* text takes \(max_length=(12|16)\)$"
    with pytest.warns(UserWarning, match=message) as caught:
        prepare_inputs(task, [fitting, f"{fitting}x", fitting * 3])
    assert len(caught) == 1


def test_prepare_inputs_rejects_lengths_of_texts():
    with pytest.raises(ValueError, match="lengths are of token ids: leave them out"):
        prepare_inputs(LISTOPS, TEXTS[:1], [4])


def test_prepare_inputs_takes_no_padding_for_a_token():
    tokens, _ = LISTOPS.encode(TEXTS)
    # The second row alone fills seven columns.
    for rows in (tokens, tokens[:, :7]):
        with pytest.raises(ValueError, match="end in 0, the padding: give lengths"):
            prepare_inputs(LISTOPS, rows)
    _, mask = prepare_inputs(LISTOPS, tokens[1:, :7])
    assert mask.sum() == 7


def test_prepare_inputs_knows_padding_of_a_task_whose_own_sequences_are_full():
    recall = get_task("recall", max_length=192, num_pairs=16)
    tokens, _ = recall.encode(["k1 v2 k1"])
    with pytest.raises(ValueError, match="end in 0, the padding: give lengths"):
        prepare_inputs(recall, tokens)


def test_prepare_inputs_takes_a_black_pixel_for_a_token():
    _, mask = prepare_inputs(get_task("image"), np.zeros((1, 1024), np.uint8))
    assert mask.all()
