"""Arrays as a file: back they come, or one line says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from nystromformer.training.arrays import (
    CheckpointError,
    digest,
    load_arrays,
    save_arrays,
)
from nystromformer.training.step import split_weights


@pytest.fixture
def weights(make_model):
    _, weights = split_weights(make_model(nnx.Rngs(0)))
    return jax.device_get(weights)


def test_they_come_back_bit_for_bit_and_anyone_can_read_them(weights, tmp_path):
    path = tmp_path / "best" / "3.safetensors"
    save_arrays(path, weights, {"note": "α"})
    assert load_arrays(path, weights)[1] == {"note": "α"}
    assert digest(load_arrays(path, weights)[0]) == digest(weights)
    theirs = load_file(path)
    assert sorted(theirs) == [
        *("params.embedding.embedding", "params.out.bias", "params.out.kernel"),
        "variables.calls",
    ]
    np.testing.assert_array_equal(
        theirs["params.out.bias"], weights.params["out"]["bias"][...]
    )
    assert [*path.parent.iterdir()] == [path]


def test_what_is_not_the_models_is_named(weights, tmp_path):
    path = tmp_path / "3.safetensors"
    save_arrays(path, weights)
    fewer = weights._replace(variables={})
    with pytest.raises(CheckpointError, match=r"has another model's variables\.calls"):
        load_arrays(path, fewer)
    save_arrays(path, fewer)
    with pytest.raises(CheckpointError, match=r"lacks variables\.calls"):
        load_arrays(path, weights)
    wider = jax.tree.map(lambda x: jnp.zeros((*x.shape, 2), x.dtype), fewer)
    with pytest.raises(CheckpointError, match=r"embedding is float32 \(11, 13\), not"):
        load_arrays(path, wider)


@pytest.mark.parametrize("cut", [0, 1, 700, -1])
def test_damage_is_one_line(weights, tmp_path, cut):
    path = tmp_path / "3.safetensors"
    save_arrays(path, weights)
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content if cut == 700 else content[:cut])
    with pytest.raises(CheckpointError, match=r"3\.safetensors is damaged"):
        load_arrays(path, weights)


def test_the_digest_sees_names_shapes_dtypes_and_values():
    base = {"a": np.zeros((2, 3), np.float32)}
    others = [
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.int32)},
        {"a": np.full((2, 3), 1e-45, np.float32)},
    ]
    assert digest(base) == digest({"a": jnp.zeros((2, 3))})
    assert len({digest(tree) for tree in [base, *others]}) == 5
