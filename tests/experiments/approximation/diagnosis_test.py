"""A diagnosis of heads whose limits are known."""

import signal
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import nystromformer
from nystromformer.experiments.approximation import columns
from nystromformer.experiments.approximation.diagnosis import (
    _choose_landmark_counts,
    advise,
    summarize,
)

L = 48
H = 8
# All tests with these settings share one program.
SETTINGS: dict[str, Any] = {"num_landmarks": (4,), "num_pinv_iters": 30}


@pytest.fixture(scope="module")
def layers():
    """Queries, keys and values of two layers of two heads.

    In the first layer a head looks at each token itself, so that its matrix has full
    rank, and a head looks at all tokens equally. In the second layer tokens come in
    four kinds: one head has them in runs, the other has each kind everywhere.
    """
    rng = np.random.default_rng(0)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(L, L)))
    own_token = orthogonal[:, :H]
    own_token *= 12 / np.linalg.norm(own_token, axis=1, keepdims=True)
    everywhere = 0.01 * rng.normal(size=(L, H))
    kinds = rng.normal(size=(4, H))
    in_runs = kinds[np.arange(L) * 4 // L]
    mixed = kinds[np.arange(L) % 4]
    first = np.stack([own_token, everywhere], 1)
    second = np.stack([in_runs, mixed], 1)
    value = rng.normal(size=(2, L, 2, H))
    return [first, second], [first, second], list(value)


@pytest.fixture(scope="module")
def diagnosis(layers):
    return nystromformer.diagnose(*layers, **SETTINGS)


def test_diagnose_says_what_limits_a_head(diagnosis):
    assert diagnosis.table["limited_by"].to_dict() == {
        (0, 0, 4): "rank",
        (0, 1, 4): "",
        (1, 0, 4): "",
        (1, 1, 4): "landmarks",
    }


def test_diagnosis_has_the_methods_in_the_order_of_the_steps(diagnosis):
    assert list(diagnosis.table)[:5] == [
        "best rank",
        "best middle matrix",
        "nystrom",
        "exact inverse",
        "no inverse",
    ]


def test_diagnose_blames_the_inverse_where_more_iterations_would_do(layers):
    table = nystromformer.diagnose(*layers, num_landmarks=4, num_pinv_iters=1).table
    assert table.at[(1, 0, 4), "limited_by"] == "inverse"
    assert table.at[(1, 0, 4), "exact inverse"] < 1e-6
    assert table.at[(1, 0, 4), "inverse_residual"] > 0.1


def test_diagnose_blames_a_head_by_the_tolerance(layers, diagnosis):
    error = diagnosis.table.at[(0, 1, 4), "best rank"]
    assert 0 < error < 0.1 < diagnosis.table["nystrom"].max() < 2
    found = nystromformer.diagnose(*layers, **SETTINGS, tolerance=2.0, num_draws=2)
    assert found.errors["draw"].nunique() == 2
    assert set(found.table["limited_by"]) == {""}
    answer = "4 landmarks are enough: no head has an error over 2 in any example."
    assert found.advice == f"Layers 0 and 1: {answer}"
    table = nystromformer.diagnose(*layers, **SETTINGS, tolerance=error / 2).table
    assert table.at[(0, 1, 4), "limited_by"] == "rank"


def test_diagnose_says_where_no_error_is_defined(layers):
    queries, keys, values = layers
    value = values[0].copy()
    value[:, 1] = 0
    found = nystromformer.diagnose(queries[0], keys[0], value, **SETTINGS)
    limits = {(0, 0, 4): "rank", (0, 1, 4): "undefined"}
    assert found.table["limited_by"].to_dict() == limits
    assert found.figure.axes[0].texts[1].get_text() == "nan\n?"


@pytest.mark.parametrize("changes", [{"value": 0.0}, {"query": 1e200, "key": 1e200}])
def test_diagnose_refuses_what_has_no_finite_error(layers, changes):
    """Values are zero, or scores are infinite."""
    arrays = {"query": layers[0][0], "key": layers[1][0], "value": layers[2][0]}
    scaled = {name: changes.get(name, 1) * array for name, array in arrays.items()}
    with pytest.raises(ValueError, match="no head has an error to judge"):
        nystromformer.diagnose(**scaled, **SETTINGS)


@pytest.mark.parametrize("method", ["best middle matrix", "nystrom"])
def test_summarize_blames_nothing_where_an_error_is_not_a_number(diagnosis, method):
    errors = diagnosis.errors.copy()
    is_changed = (errors["method"] == method) & (errors["layer"] == 1)
    errors.loc[is_changed & (errors["head"] == 1), "error"] = np.nan
    limits = summarize(errors)["limited_by"]
    assert limits[1, 1, 4] == "undefined"
    assert limits[0, 0, 4] == "rank"


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_diagnose_names_the_input_that_is_not_finite(layers, name):
    arrays = dict(zip(("query", "key", "value"), layers, strict=True))
    second = arrays[name][1].copy()
    second[3, 1] = np.inf
    arrays[name] = [arrays[name][0], second]
    with pytest.raises(ValueError, match=f"^{name} must be finite, .* in layer 1: "):
        nystromformer.diagnose(**arrays, num_landmarks=4)


# The errors of two heads, of which the tolerance is 0.1.
SMALL = (0.1, 0.1)
LARGE = (0.3, 0.1)
# What the advice says of numbers that were not tried and may not be enough.
NOT_TRIED = (
    "No number between %s and half of the %s tokens was tried, and the errors so far "
    "do not suggest that one is enough: give some of these as num_landmarks, or keep "
    "exact attention."
)
METHODS = {
    "k_means": "k-means landmarks",
    "random": "random landmarks",
    "exact": "exact inverse",
    "rank": "best rank",
    "middle": "best middle matrix",
}


def make_errors(errors, layer=0, **others):
    """Errors of a layer in one example and draw.

    Args:
      errors: by the number of landmarks, those of each head.
      layer: its number.
      others: the errors of other methods, as `errors`; the rest has 1, and none where
        `errors` has none.
    """
    rows = []
    for count, errors_of_heads in errors.items():
        for head, error in enumerate(errors_of_heads):
            row_key = {"layer": layer, "head": head, "num_landmarks": count}
            values = dict.fromkeys(columns.METHODS, 1.0) | {"nystrom": error}
            for name, errors_of_method in others.items():
                values[METHODS[name]] = errors_of_method[count][head]
            for method, value in values.items():
                rows.append(row_key | {"method": method, "error": value + 0 * error})
    return pd.DataFrame(rows)


def test_the_advice_names_the_least_number_that_is_enough_for_a_layer(diagnosis):
    """Layer 0 has one head that 8 landmarks suit, and one that only 16 do."""
    errors_of_layer = [
        {8: (0.1, 0.2), 16: (0.05, 0.06)},
        {8: (0.1, 0.1), 16: (0.0, 0.0)},
        {8: (0.5, np.nan), 16: (0.5, np.nan)},
        {8: (0.1, 0.1), 16: (0.2, 0.2)},
    ]
    errors = pd.concat([make_errors(x, i) for i, x in enumerate(errors_of_layer)])
    small = "no head has an error over 0.1 in any example."
    assert advise(errors, num_tokens=100).splitlines() == [
        f"Layer 0: 16 landmarks are enough: {small}",
        f"Layers 1 and 3: 8 landmarks are enough: {small}",
        "Layer 2: 16 landmarks are too few in some example (the rank limits head 0"
        f"). {NOT_TRIED % (16, 100)} There is no error to judge in head 1.",
    ]
    assert diagnosis.advice == advise(diagnosis.errors, L)


def test_the_advice_is_for_the_worst_example_and_draw():
    errors = [make_errors({8: SMALL}), make_errors({8: SMALL}), make_errors({8: LARGE})]
    assert "8 landmarks are enough" in advise(pd.concat(errors[:2]), 100)
    assert "8 landmarks are too few in some" in advise(pd.concat(errors), 100)
    draws = [make_errors({8: LARGE}, random={8: error}) for error in (SMALL, LARGE)]
    assert '8 landmarks with landmarks="random"' in advise(draws[0], 100)
    assert "8 landmarks are too few in some" in advise(pd.concat(draws), 100)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (
            {"k_means": {8: LARGE, 16: SMALL}},
            '16 landmarks with landmarks="kmeans" are',
        ),
        (
            {"random": {8: SMALL, 16: LARGE}},
            '8 landmarks with landmarks="random" (in the',
        ),
        ({"exact": {8: LARGE, 16: SMALL}}, '16 landmarks with pinv="exact" or enough'),
        (
            {"k_means": {8: LARGE, 16: SMALL}, "random": {8: SMALL, 16: SMALL}},
            '8 landmarks with landmarks="random" (in the draws that were tried) are',
        ),
        (
            {"k_means": {8: SMALL, 16: SMALL}, "random": {8: SMALL, 16: SMALL}},
            '8 landmarks with landmarks="kmeans" are enough',
        ),
        ({"k_means": {8: LARGE, 16: LARGE}}, "16 landmarks are too few"),
    ],
)
def test_where_segment_means_are_not_enough_the_advice_names_what_is(others, expected):
    table = make_errors({8: (0.9, 0.1), 16: (0.8, 0.1)}, **others)
    assert advise(table, num_tokens=100).startswith(f"Layer 0: {expected}")


@pytest.mark.parametrize(
    ("k_means", "more"),
    [
        ({8: SMALL, 16: SMALL, 32: SMALL}, ', or 8 with landmarks="kmeans"'),
        ({8: LARGE, 16: SMALL, 32: SMALL}, ', or 16 with landmarks="kmeans"'),
        ({8: LARGE, 16: LARGE, 32: SMALL}, ""),
    ],
)
def test_beside_segment_means_others_are_named_that_need_half_as_many(k_means, more):
    table = make_errors({8: LARGE, 16: LARGE, 32: SMALL}, k_means=k_means)
    answer = f"Layer 0: 32 landmarks are enough{more}: no head has an error over 0.1"
    assert advise(table, 100).startswith(answer)


@pytest.mark.parametrize("other", ["k_means", "random"])
def test_landmarks_that_save_nothing_are_not_advised(other):
    """Half of the tokens, or more, by whatever choice."""
    table = make_errors({8: LARGE, 16: SMALL, 64: SMALL})
    assert advise(table, num_tokens=33).startswith("Layer 0: 16 landmarks are enough:")
    assert advise(table, num_tokens=32) == (
        "Layer 0: 8 landmarks are too few in some example (the rank limits head 0): "
        "try more, or keep exact attention."
    )
    assert advise(table, num_tokens=16) == (
        "Layer 0: all these numbers of landmarks are half of the 16 tokens or more, "
        "and save nothing: try fewer, or keep exact attention."
    )
    table = make_errors({8: LARGE, 16: LARGE}, **{other: {8: LARGE, 16: SMALL}})
    assert "keep exact attention" in advise(table, num_tokens=32)
    assert "keep exact attention" not in advise(table, num_tokens=33)


@pytest.mark.parametrize(
    ("errors", "num_tokens", "may_be_enough"),
    [
        # Errors that halve with twice the landmarks are small enough with 64.
        ({8: (0.8, 0.05), 16: (0.4, 0.09)}, 128, True),
        ({8: (0.8, 0.05), 16: (0.4, 0.09)}, 127, False),
        ({8: (0.8, 0.8), 16: (0.4, 0.7)}, 128, False),
        ({8: (0.9, 0.1), 16: (0.2, 0.1), 32: (0.199, 0.1)}, 256, False),
        ({8: (0.5, 0.1), 16: (0.6, 0.1)}, 128, False),
        # Below an eighth of the tokens they may fall all at once.
        ({8: (0.5, 0.1), 16: (0.6, 0.1)}, 129, True),
        ({16: (0.9, 0.5)}, 35, True),
    ],
)
def test_of_more_landmarks_the_advice_says_whether_they_may_be_enough(
    errors, num_tokens, may_be_enough
):
    advice = advise(make_errors(errors), num_tokens)
    assert f"{max(errors)} landmarks are too few" in advice
    not_tried = f"). {NOT_TRIED % (max(errors), num_tokens)}"
    try_more = "): try more, or keep exact attention."
    assert advice.endswith(try_more if may_be_enough else not_tried)


@pytest.mark.parametrize("errors", [{16: LARGE}, {8: (0.9, 0.1), 16: (0.101, 0.1)}])
def test_more_landmarks_are_no_choice_where_the_next_number_saves_nothing(errors):
    keep = "(the rank limits head 0): keep exact attention."
    assert advise(make_errors(errors), num_tokens=34).endswith(keep)
    assert "keep exact" in advise(make_errors(errors), num_tokens=35)
    assert not advise(make_errors(errors), num_tokens=35).endswith(keep)


@pytest.mark.parametrize(
    ("error", "answer"),
    [(0.05, "8 landmarks are enough: no head has"), (np.nan, "There is no error to")],
)
def test_heads_without_an_error_decide_nothing(error, answer):
    advice = advise(make_errors({8: (error, np.nan)}), num_tokens=100)
    assert advice.startswith(f"Layer 0: {answer}")
    heads = "head 1" if error == 0.05 else "heads 0 and 1"
    assert advice.endswith(f" There is no error to judge in {heads}.")


def test_more_are_advised_of_the_choice_with_which_they_may_be_enough():
    table = make_errors(
        {8: (0.9, 0.1), 16: (0.9, 0.1)}, k_means={8: (0.4, 0.1), 16: (0.2, 0.1)}
    )
    advice = advise(table, num_tokens=100)
    assert 'try more with landmarks="kmeans", or keep exact attention.' in advice
    assert "try more" not in advise(table, num_tokens=40)


def test_the_advice_says_what_limits_the_heads_with_the_most_landmarks():
    large = (0.9, 0.9, 0.9, 0.9)
    small = (0.1, 0.1, 0.1, 0.1)
    errors = make_errors(
        {8: large, 16: (0.9, 0.9, 0.9, 0.1)},
        rank={8: large, 16: (0.1, 0.9, 0.1, 0.1)},
        middle={8: large, 16: small},
    )
    reasons = "(the inverse limits heads 0 and 2; the rank limits head 1)"
    assert f"16 landmarks are too few in some example {reasons}" in advise(
        errors, num_tokens=100
    )
    reasons = "(the rank limits heads 0, 1, 2 and 3)"
    assert reasons in advise(errors, num_tokens=100, tolerance=0.05)


def test_a_diagnosis_is_written_as_a_page(diagnosis, tmp_path):
    diagnosis.write(tmp_path / "new" / "folder")
    page = (tmp_path / "new/folder/README.md").read_text()
    assert diagnosis.advice in page
    assert page.count("\n| 1 | ") == 2
    assert (tmp_path / "new/folder/errors.png").is_file()
    assert len((tmp_path / "new/folder/errors.csv").read_text().splitlines()) == 5


def test_diagnose_draws_each_head_with_its_error(diagnosis):
    panel = diagnosis.figure.axes[0]
    errors = diagnosis.table["nystrom"].to_numpy()
    limits = ["R", "", "", "L"]
    expected = [
        f"{error:.2g}\n{limit}" for error, limit in zip(errors, limits, strict=True)
    ]
    assert [text.get_text() for text in panel.texts] == expected
    assert panel.images[0].get_array().ravel().tolist() == pytest.approx(errors)


def fill_padding(array):
    """A copy with NaN behind the first 40 tokens."""
    array = array.copy()
    array[40:] = np.nan
    return array


def test_diagnose_leaves_padding_out(layers):
    padded_layers = jax.tree.map(fill_padding, layers)
    shorter_layers = jax.tree.map(lambda array: array[:40], layers)
    mask = np.arange(L) < 40
    # The program of the padded layers is compiled already: it is that of `diagnosis`.
    table = nystromformer.diagnose(*padded_layers, mask, **SETTINGS).table
    expected = nystromformer.diagnose(*shorter_layers, **SETTINGS).table
    for method in ("best middle matrix", "nystrom", "standard Nyström"):
        assert table[method].tolist() == pytest.approx(expected[method].tolist())


def test_the_advice_counts_tokens_and_no_padding(layers):
    mask = np.arange(L) < 8
    advice = nystromformer.diagnose(*layers, mask, **SETTINGS, tolerance=9.0).advice
    assert "all these numbers of landmarks are half of the 8 tokens or more" in advice


def test_diagnose_refuses_what_does_not_fit(layers):
    queries, keys, values = layers
    query = queries[0]
    key = keys[0]
    value = values[0]
    with pytest.raises(ValueError, match="num_landmarks=48 is exact attention here"):
        nystromformer.diagnose(query, key, value, num_landmarks=(4, L))
    with pytest.raises(ValueError, match="mask must have a token"):
        nystromformer.diagnose(query, key, value, np.zeros(L, bool))
    for num_tokens in (2, 8):  # The arrays have two heads.
        few = [array[:num_tokens] for array in (query, key, value)]
        with pytest.raises(
            ValueError, match=rf"has {num_tokens} tokens, too few for 8"
        ):
            nystromformer.diagnose(*few)
    heads_first = [array.swapaxes(0, 1) for array in (query, key, value)]  # [N, L, H]
    with pytest.raises(ValueError, match="have 48 heads and 2 tokens: bring them"):
        nystromformer.diagnose(*heads_first)
    for numbers in ([], [0, 4]):
        with pytest.raises(ValueError, match="num_landmarks must be one or more numb"):
            nystromformer.diagnose(query, key, value, num_landmarks=numbers)
    with pytest.raises(ValueError, match="num_draws must be at least 1, got 0"):
        nystromformer.diagnose(query, key, value, num_landmarks=4, num_draws=0)
    with pytest.raises(ValueError, match=r"must have one shape \[L, N, H\]"):
        nystromformer.diagnose(query, key[:-1], value)
    with pytest.raises(ValueError, match=r"mask must have a value for each token"):
        nystromformer.diagnose(query, key, value, np.ones(L - 1, bool))
    batches = [np.stack([array, array]) for array in (query, key, value)]
    with pytest.raises(ValueError, match=rf"token \(2, {L}\), got \({L},\)$"):
        nystromformer.diagnose(*batches, np.ones(L, bool))


def test_numbers_that_nobody_names_are_those_below_the_longest_example():
    assert _choose_landmark_counts(None, 48) == [8, 16, 32]
    assert _choose_landmark_counts(None, 1_000) == [8, 16, 32, 64]


def test_a_number_that_is_named_twice_is_tried_once():
    assert _choose_landmark_counts([16, 8, 16], 48) == [8, 16]
    assert _choose_landmark_counts(8, 48) == [8]


def test_diagnose_refuses_other_numbers_of_layers(layers):
    queries, keys, values = layers
    message = r"one array for each layer, of at least one layer, got 2, 1 and 2"
    with pytest.raises(ValueError, match=message):
        nystromformer.diagnose(queries, keys[:1], values)
    with pytest.raises(ValueError, match="of at least one layer, got 0, 0 and 0"):
        nystromformer.diagnose([], [], [])
    for arrays in ((queries[0], keys, values), (queries, keys[0], values)):
        with pytest.raises(ValueError, match="three arrays or three lists of arrays"):
            nystromformer.diagnose(*arrays)


DIAGNOSE_AGAIN = """
import numpy as np
import nystromformer

query, key, value = np.random.default_rng(0).normal(size=(3, 128, 2, 16))
for _ in range(4):
    nystromformer.diagnose(query, key, value, num_landmarks=(32, 64), num_draws=1)
"""


# pinv_test holds that the inverse computes no batch, which may wait for ever.
@pytest.mark.slow
def test_diagnose_returns(commands, tmp_path):
    """In a process of its own: threads of XLA that wait for ever cannot be stopped."""
    script = tmp_path / "diagnose_again.py"
    script.write_text(DIAGNOSE_AGAIN)
    process = commands.start(str(script))
    try:
        _, err = process.communicate(timeout=120)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.returncode == 0, err
