"""What the tests of the attentions share: options, inputs, one head of one sequence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.attention import make_attention

B, N, H, MAX_LENGTH = 3, 2, 5, 67
LENGTHS = np.array([67, 41, 23])
MASK = np.arange(MAX_LENGTH) < LENGTHS[:, None]

# Options that make 67 tokens a long sequence; those not listed use their defaults.
OPTIONS = {
    "nystrom": {"num_landmarks": 7, "conv_kernel_size": 5},
    "linformer": {"projection_dim": 11},
    "performer": {"num_features": 13},
    "reformer": {"bucket_size": 8},
    "longformer": {"window": 4},
    "bigbird": {"block_size": 4, "num_random_blocks": 1},
}


def make(name, num_heads=N, head_dim=H, max_length=MAX_LENGTH, **options):
    """The attention with those options, or else with OPTIONS."""
    return make_attention(
        name,
        num_heads=num_heads,
        head_dim=head_dim,
        max_length=max_length,
        rngs=nnx.Rngs(0),
        **(options or OPTIONS.get(name, {})),
    )


# Rows [length, dim] of small integers, whose logits are exact in float32.
KINDS = {
    "random": lambda rng, length, dim: rng.integers(-3, 4, (length, dim)),
    "constant": lambda rng, length, dim: np.tile(np.arange(dim) - 2, (length, 1)),
    "duplicates": lambda rng, length, dim: rng.integers(-3, 4, (2, dim))[
        rng.integers(0, 2, length)
    ],
    "one-hot": lambda rng, length, dim: np.eye(dim)[rng.integers(0, dim, length)],
}


def normal(seed, *shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def inputs(length=MAX_LENGTH, dtype=np.float32):
    """Query, key and value; the rows differ in scale by 40."""
    scale = np.array([0.1, 1, 4])[:, None, None, None]
    x = normal(0, 3, B, MAX_LENGTH, N, H) * scale[None]
    return [jnp.asarray(y[:, :length], dtype) for y in x]


@functools.cache
def compiled(name, **options):
    """An attention of one head, as a function of arrays, compiled once a shape."""
    given = {"num_heads": 1, "head_dim": H, "max_length": 1024, "rngs": nnx.Rngs(0)}
    graphdef, state = nnx.split(make_attention(name, **given, **options))
    return jax.jit(lambda *inputs: nnx.merge(graphdef, state)(*inputs))


def one_head(name, query, key, value, mask, dtype="float64", **options):
    """Of one sequence: query [T, H], key and value [S, H], mask [S], in that dtype."""
    with jax.enable_x64(dtype == "float64"):
        x = [jnp.asarray(a, dtype)[None, :, None] for a in (query, key, value)]
        out = compiled(name, **options)(*x, None, jnp.asarray(mask)[None, None, None])
        assert out.dtype == dtype
        return np.asarray(out)[0, :, 0]
