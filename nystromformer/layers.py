"""What the encoder is made of, besides attention.

Dense, Embedding, LayerNorm and GELU are nnx's, with gradients of our own that need less
time or memory. `short_conv` and `rotate_by_position` are what a config may add to the
attention of a layer.

Letters: B batch, L length, N heads, H head dim, D features, E output features,
K kernel size.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from nystromformer.encoder_config import EncoderConfig
from nystromformer.precision import at_least_float32, einsum
from nystromformer.rows import take_rows

# U(−1/√fan_in, 1/√fan_in), as PyTorch's Linear and so the published runs start.
# Biases start at zero.
kernel_init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
embedding_init = nnx.initializers.normal(0.02)
# Kernels of `dense` up to this many numbers have their gradient summed by sequence.
MAX_KERNEL_SIZE_BY_SEQUENCE = 2**16
# Rotary positions: the first pair of numbers turns by 1 radian a token, each next one
# by less, and the last by ROTARY_BASE^(2/H − 1).
ROTARY_BASE = 10_000


class Dense(nnx.Linear):
    """nnx.Linear with a bias and PyTorch's initial values, computed by `dense`."""

    # The other arguments of nnx.Linear would have no effect.
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            in_features,
            out_features,
            kernel_init=kernel_init,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., L, D] -> [..., L, E]."""
        assert self.bias is not None
        return dense(x.astype(self.dtype), self.kernel[...], self.bias[...])


def make_dense(
    config: EncoderConfig, in_features: int, out_features: int, rngs: nnx.Rngs
) -> Dense:
    """A linear layer in the dtype of the config."""
    return Dense(in_features, out_features, dtype=config.dtype, rngs=rngs)


@jax.custom_vjp
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """x [..., L, D] times kernel [D, E], plus bias [E]; in x's dtype.

    The gradients of kernel and bias are summed in the dtype of the parameters.

    The kernel's gradient could be one product over all B · L rows. For that, XLA copies
    the rows transposed and recomputes the layer that made them, so that a train step
    takes a tenth longer (measured on a CPU, estimated for a GPU). A small kernel
    therefore gets one product for each sequence, and their sum. For a large kernel
    these products would need more memory than the rows: it gets the one product. There
    is no derivative in forward mode.
    """
    bias = bias.astype(x.dtype)
    return x @ kernel.astype(x.dtype) + jnp.expand_dims(bias, range(x.ndim - 1))


def _dense_forward(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Any:
    return dense(x, kernel, bias), (x, kernel)


def _dense_backward(residuals: Any, cotangent: jax.Array) -> Any:
    x, kernel = residuals
    # Three products read it: it is written to memory once, in its own dtype.
    cotangent = lax.optimization_barrier(cotangent)
    x_gradient = cotangent @ kernel.T.astype(x.dtype)

    is_small = kernel.size <= MAX_KERNEL_SIZE_BY_SEQUENCE
    letters = "...ld,...le->...de" if is_small else "...ld,...le->de"
    products = einsum(letters, x, cotangent)
    kernel_gradient = products.sum(range(products.ndim - 2), dtype=kernel.dtype)

    bias_gradient = cotangent.sum(range(cotangent.ndim - 1), dtype=kernel.dtype)
    return x_gradient, kernel_gradient, bias_gradient


dense.defvjp(_dense_forward, _dense_backward)


class Embedding(nnx.Embed):
    """nnx.Embed, computed by `take_rows`."""

    def __call__(self, ids: jax.Array) -> jax.Array:
        """[...] -> [..., D]."""
        return take_rows(self.embedding[...].astype(self.dtype), ids)


class LayerNorm(nnx.LayerNorm):
    """nnx.LayerNorm over the last axis, with scale and bias, by `layer_norm`."""

    # The other arguments of nnx.LayerNorm would have no effect.
    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_features, epsilon=epsilon, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        assert self.scale is not None
        assert self.bias is not None
        out = layer_norm(x, self.scale[...], self.bias[...], self.epsilon)
        return jnp.asarray(out, self.dtype)


def make_norm(config: EncoderConfig, rngs: nnx.Rngs) -> LayerNorm:
    """A LayerNorm over the model dim, in the dtype of the config."""
    return LayerNorm(
        config.model_dim,
        epsilon=config.norm_epsilon,
        dtype=config.dtype,
        rngs=rngs,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> jax.Array:
    """(x − mean) / √(variance + ε) · scale + bias over the last axis of x [..., D].

    The variance is the mean of (x − mean)². As E[x²] − E[x]² it would lose its digits
    where the mean is large beside the spread. The backward pass keeps x and computes
    x − mean again: otherwise that would be one more array [..., D] in memory. There is
    no derivative in forward mode.

    Args:
      x: [..., D].
      scale: [D].
      bias: [D].
      epsilon: ε ≥ 0.

    Returns:
      [..., D] in at least float32.
    """
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> Any:
    z = x.astype(at_least_float32(x.dtype))
    mean = z.mean(-1, keepdims=True)
    variance = jnp.square(z - mean).mean(-1, keepdims=True)
    inverse_deviation = lax.rsqrt(variance + epsilon)
    normal = (z - mean) * inverse_deviation
    out = normal * _as_row(scale, z) + _as_row(bias, z)
    return out, (x, mean, inverse_deviation, scale)


def _layer_norm_backward(epsilon: float, residuals: Any, cotangent: jax.Array) -> Any:
    x, mean, inverse_deviation, scale = residuals
    normal = (x.astype(mean.dtype) - mean) * inverse_deviation
    normal_gradient = cotangent * _as_row(scale, cotangent)
    # A change of x along 1, or along itself, changes nothing.
    along_ones = normal_gradient.mean(-1, keepdims=True)
    along_normal = (normal_gradient * normal).mean(-1, keepdims=True) * normal
    x_gradient = inverse_deviation * (normal_gradient - along_ones - along_normal)

    axes = range(x.ndim - 1)
    scale_gradient = (cotangent * normal).sum(axes, dtype=scale.dtype)
    bias_gradient = cotangent.sum(axes, dtype=scale.dtype)
    return x_gradient.astype(x.dtype), scale_gradient, bias_gradient


def _as_row(vector: jax.Array, x: jax.Array) -> jax.Array:
    """A vector [D] that broadcasts to x [..., D], in x's dtype."""
    return jnp.expand_dims(vector.astype(x.dtype), range(x.ndim - 1))


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def gelu(x: jax.Array) -> jax.Array:
    """½ z (1 + erf(z / √2)) of z = x in at least float32; the result is in x's dtype.

    jax's own takes erfc, whose gradient keeps more arrays of the step in memory. Where
    that is no matter, `jax_gelu` has both forms.
    """
    z = x.astype(at_least_float32(x.dtype))
    return (0.5 * z * (1 + lax.erf(z * 0.5**0.5))).astype(x.dtype)


def jax_gelu(x: jax.Array, approximate: bool) -> jax.Array:
    """jax's GELU, computed in at least float32; the result is in x's dtype.

    In bfloat16 the tanh form would be 0 at −3.5 and below, and the erf form inexact.
    The erf form of an MLP is `gelu`, which needs less memory in training. Heads have
    few such numbers and take jax's.
    """
    z = x.astype(at_least_float32(x.dtype))
    return jax.nn.gelu(z, approximate=approximate).astype(x.dtype)


def short_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves each channel along the sequence with its own kernel.

    Output t of channel d is Σₖ kernel[k, d] · x[t + k − (K − 1)/2, d], where x is zero
    outside the sequence. It is a sum of K shifted arrays, which for a short kernel is
    faster than banded matmuls. Those suit the convolution of V, where one long kernel
    serves a whole head. Where a sequence is sharded, neighbouring shards exchange
    (K − 1)/2 tokens.

    Args:
      x: [B, L, D], zero where a token does not count.
      kernel: [K, D], K odd.

    Returns:
      [B, L, D] in x's dtype, summed in at least float32.
    """
    length = x.shape[1]
    size = kernel.shape[0]
    margin = (size - 1) // 2
    summands = x.astype(at_least_float32(x.dtype))
    padded = jnp.pad(summands, ((0, 0), (margin, margin), (0, 0)))
    total = kernel[0][None, None] * padded[:, :length]
    for k in range(1, size):
        shifted = padded[:, k : k + length]
        total = total + kernel[k][None, None] * shifted
    return total.astype(x.dtype)


def rotate_by_position(x: jax.Array) -> jax.Array:
    """Rotates the numbers i and i + H/2 of token t by t · ROTARY_BASE^(−2i/H).

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    With R(t) the rotation of position t, (R(t) q) · (R(s) k) = q · R(s − t) k: in exact
    attention a position matters only relative to others.

    The rotation comes before the attention, whichever it is. So the landmarks of
    Nyström attention are means of rotated vectors, Reformer hashes rotated vectors, and
    a feature map is taken of rotated vectors; the scores of such an attention need not
    be functions of s − t.

    Args:
      x: [B, L, N, H] queries or keys, H even. Token t of the array has position t,
        whether or not there is padding before it.

    Returns:
      [B, L, N, H] in x's dtype, computed in at least float32.
    """
    angle_dtype = at_least_float32(x.dtype)
    half = x.shape[-1] // 2
    frequencies = jnp.array(
        [ROTARY_BASE ** (-i / half) for i in range(half)], angle_dtype
    )
    angles = jnp.outer(jnp.arange(x.shape[1], dtype=angle_dtype), frequencies)
    cos = jnp.cos(angles)[None, :, None]
    sin = jnp.sin(angles)[None, :, None]

    first, second = jnp.split(x.astype(angle_dtype), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
