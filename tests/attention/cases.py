"""What the tests of the attentions share: options, inputs, one head of one sequence."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.base import Attention

# Batch, heads, the size of a head, and tokens.
B = 3
N = 2
H = 5
MAX_LENGTH = 67
LENGTHS = np.array([67, 41, 23])
MASK = np.arange(MAX_LENGTH) < LENGTHS[:, None]

# Options that make 67 tokens a long sequence; those not listed use their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {"num_landmarks": 7, "conv_kernel_size": 5},
    "linformer": {"projection_dim": 11},
    "performer": {"num_features": 13},
    "reformer": {"bucket_size": 8},
    "longformer": {"window": 4},
    "bigbird": {"block_size": 4, "num_random_blocks": 1},
}


def make(
    name: str,
    num_heads: int = N,
    head_dim: int = H,
    max_length: int = MAX_LENGTH,
    **options: Any,
) -> Attention:
    """The attention with those options; without any, with those of OPTIONS."""
    return make_attention(
        name,
        num_heads=num_heads,
        head_dim=head_dim,
        max_length=max_length,
        rngs=nnx.Rngs(0),
        **(options or OPTIONS.get(name, {})),
    )


def skip_without_float16() -> None:
    """Skips the test on a CPU that has no float16 (F16C) and gets none from XLA.

    XLA leaves the conversion to functions of the compiler's library, which it lacks.
    """
    try:
        jnp.float16(1) + jnp.float16(1)
    except jax.errors.JaxRuntimeError as error:
        if "Failed to materialize symbols" not in str(error):
            raise
        pytest.skip("XLA does not compile float16 for this CPU")


def random_rows(rng: np.random.Generator, length: int, dim: int) -> np.ndarray:
    return rng.integers(-3, 4, (length, dim))


def constant_rows(rng: np.random.Generator, length: int, dim: int) -> np.ndarray:
    return np.tile(np.arange(dim) - 2, (length, 1))


def duplicate_rows(rng: np.random.Generator, length: int, dim: int) -> np.ndarray:
    """Each row is one of two."""
    two_rows = rng.integers(-3, 4, (2, dim))
    return two_rows[rng.integers(0, 2, length)]


def one_hot_rows(rng: np.random.Generator, length: int, dim: int) -> np.ndarray:
    return np.eye(dim)[rng.integers(0, dim, length)]


# Rows [length, dim] of small integers, whose logits are exact in float32.
KINDS = {
    "random": random_rows,
    "constant": constant_rows,
    "duplicates": duplicate_rows,
    "one-hot": one_hot_rows,
}


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal numbers of that shape, times the scale."""
    return scale * np.random.default_rng(seed).normal(size=shape)


def random_qkv(length: int = MAX_LENGTH, dtype: Any = np.float32) -> list[jax.Array]:
    """Query, key and value [B, length, N, H]; the examples differ in scale by 40."""
    scale = np.array([0.1, 1, 4])[:, None, None, None]
    numbers = normal(0, 3, B, MAX_LENGTH, N, H) * scale
    return [jnp.asarray(array[:, :length], dtype) for array in numbers]


@functools.cache
def compile_one_head(name: str, **options: Any) -> Callable[..., jax.Array]:
    """An attention of one head, as a function of arrays, compiled once a shape."""
    attention = make_attention(
        name, num_heads=1, head_dim=H, max_length=1024, rngs=nnx.Rngs(0), **options
    )
    graphdef, state = nnx.split(attention)
    return jax.jit(lambda *arrays: nnx.merge(graphdef, state)(*arrays))


def one_head(
    name: str,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray,
    dtype: str = "float64",
    **options: Any,
) -> np.ndarray:
    """The attention of one head of one sequence, computed in that dtype.

    query [T, H], key and value [S, H], mask [S] -> [T, H].
    """
    with jax.enable_x64(dtype == "float64"):
        attend = compile_one_head(name, **options)
        out = attend(
            jnp.asarray(query, dtype)[None, :, None],
            jnp.asarray(key, dtype)[None, :, None],
            jnp.asarray(value, dtype)[None, :, None],
            None,
            jnp.asarray(mask)[None, None, None],
        )
        assert out.dtype == dtype
        return np.asarray(out)[0, :, 0]
