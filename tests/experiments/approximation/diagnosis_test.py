"""What a diagnosis says of heads whose limits are known."""

import numpy as np
import pytest

import nystromformer

L, H = 48, 8


@pytest.fixture(scope="module")
def layers():
    """Two layers of two heads.

    The first layer has a head that looks at each token itself, whose matrix has full
    rank, and one that looks everywhere alike. In the second layer tokens come in four
    kinds: one head has them in runs, the other has each kind everywhere.
    """
    rng = np.random.default_rng(0)
    own_token = 30 * np.linalg.qr(rng.normal(size=(L, L)))[0][:, :H]
    own_token /= np.linalg.norm(own_token, axis=1, keepdims=True) / 12
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
    return nystromformer.diagnose(*layers, num_landmarks=(4,), num_pinv_iters=30)


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
    table = nystromformer.diagnose(*layers, num_landmarks=(4,), num_pinv_iters=1).table
    assert table.at[(1, 0, 4), "limited_by"] == "inverse"
    assert table.at[(1, 0, 4), "exact inverse"] < 1e-6
    assert table.at[(1, 0, 4), "inverse_residual"] > 0.1


def test_diagnose_draws_each_head_with_its_error(diagnosis):
    panel = diagnosis.figure.axes[0]
    texts = [text.get_text() for text in panel.texts]
    assert [text.split("\n")[1] for text in texts] == ["R", "", "", "L"]
    errors = diagnosis.table["nystrom"].to_numpy()
    assert [text.split("\n")[0] for text in texts] == [f"{x:.2g}" for x in errors]
    assert panel.images[0].get_array().ravel().tolist() == pytest.approx(errors)


def test_diagnose_leaves_padding_out(layers):
    query, key, value = ([layer.copy() for layer in arrays] for arrays in layers)
    mask = np.arange(L) < 40
    shorter = [[layer[:40] for layer in arrays] for arrays in (query, key, value)]
    for arrays in (query, key, value):
        for layer in arrays:
            layer[40:] = np.nan
    padded = nystromformer.diagnose(query, key, value, mask, num_landmarks=(4,)).table
    expected = nystromformer.diagnose(*shorter, num_landmarks=(4,)).table
    for method in ("best middle matrix", "nystrom", "standard Nyström"):
        assert padded[method].tolist() == pytest.approx(expected[method].tolist())


def test_diagnose_refuses_what_does_not_fit(layers):
    query, key, value = (arrays[0] for arrays in layers)
    with pytest.raises(ValueError, match="num_landmarks=64 is exact attention here"):
        nystromformer.diagnose(query, key, value)
    with pytest.raises(ValueError, match=r"must have one shape \[L, N, H\]"):
        nystromformer.diagnose(query, key[:-1], value)
    with pytest.raises(ValueError, match=r"mask must have a value for each token"):
        nystromformer.diagnose(query, key, value, np.ones(L - 1, bool))


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
