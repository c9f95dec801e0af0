r"""Pictures as pictures: landmarks that are squares, and a two-dimensional convolution.

    python scripts/sweep.py --load=examples/square_landmarks.py --workdir=runs/squares \
        --tasks=image --preset=quick --config.attention.num_landmarks=64 --seeds=3 \
        --grid=attention.name=nystrom_square \
        --grid=attention.landmarks=segment_means,squares --grid=attention.conv_2d=0,5

A picture is a sequence of pixels, row by row. With 64 landmarks of 1,024 pixels a
segment is half a row; here it is a square of 4 × 4 pixels. The convolution of V, over
35 pixels in the order of rows, becomes one over 5 × 5. The sweep trains both, each of
them alone, and neither: with segment means and conv_2d=0 this is the library's
"nystrom".

Letters: S pixels, √S a whole number; H head dim, E value dim, M landmarks, K kernel
size.
"""

import math
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from nystromformer import register_attention
from nystromformer.attention.nystrom import NystromAttention, depthwise_conv
from nystromformer.attention.options import CommonArguments
from nystromformer.landmarks import LANDMARKS
from nystromformer.nystrom import segment_means
from nystromformer.precision import at_least_float32
from nystromformer.validation import check_kernel_size


def check_squares(num_pixels: int, num_squares: int) -> None:
    """Raises ValueError unless √S and √M are whole and √M divides √S."""
    side = math.isqrt(num_pixels)
    per_side = math.isqrt(num_squares)
    is_whole = side**2 == num_pixels and per_side**2 == num_squares
    if not is_whole or side % per_side > 0:
        raise ValueError(
            f"{num_squares} landmarks do not divide {num_pixels} pixels into squares: "
            "both must be square numbers, and the root of one divide the other's, as "
            "in 64 landmarks of 1024 pixels"
        )


def to_squares(x: jax.Array, num_squares: int) -> jax.Array:
    """Divides a picture [S, …] into M squares: [M, S/M, …], row by row.

    Raises:
      ValueError: if √M does not divide √S, or one of them is no whole number.
    """
    check_squares(len(x), num_squares)
    per_side = math.isqrt(num_squares)
    size = math.isqrt(len(x)) // per_side
    # Rows of squares, rows in a square, columns of squares, columns in a square.
    picture = x.reshape(per_side, size, per_side, size, *x.shape[1:])
    return picture.swapaxes(1, 2).reshape(num_squares, size**2, *x.shape[1:])


def square_means(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Landmarks: the means of the valid pixels of M squares.

    A square without any does not exist. With n ≤ M valid pixels each is a landmark.

    Arguments and results are those of `segment_means`.
    """
    if mask is None:
        mask = jnp.ones(len(x), bool)
    is_valid = to_squares(mask, num_landmarks)
    dtype = at_least_float32(x.dtype)
    sizes = is_valid.sum(1, dtype=dtype)  # [M]
    sums = to_squares(x, num_landmarks).sum(1, dtype=dtype, where=is_valid[..., None])
    means = sums / jnp.maximum(sizes, 1)[:, None]

    pixels, are_pixels = segment_means(x, num_landmarks, mask)
    is_few = mask.sum() <= num_landmarks
    return jnp.where(is_few, pixels, means), jnp.where(is_few, are_pixels, sizes > 0)


def depthwise_conv_2d(
    value: jax.Array, kernel: jax.Array, *, precision: jax.lax.PrecisionLike = None
) -> jax.Array:
    """Convolves the values of one head over the picture, with zeros outside.

    Args:
      value: [S, E], zero for padding.
      kernel: [K, K], K odd, one kernel for all E features.
      precision: the precision of the products.

    Returns:
      [S, E] in the dtype of value.
    """
    side = math.isqrt(len(value))
    margin = len(kernel) // 2
    rows = value.reshape(side, side, -1)
    rows = jnp.pad(rows, ((margin, margin), (0, 0), (0, 0)))

    def convolve(row: jax.Array, kernel_row: jax.Array) -> jax.Array:
        return depthwise_conv(row, kernel_row, precision=precision)

    out = jnp.zeros_like(value).reshape(side, side, -1)
    for k, kernel_row in enumerate(kernel):
        out += jax.vmap(convolve, (0, None))(rows[k : k + side], kernel_row)
    return out.reshape(value.shape)


class SquareNystrom(NystromAttention):
    """Nyström attention for pictures whose sides are equal, row by row."""

    self_attention_only = True

    def __init__(
        self,
        *,
        landmarks: str = "squares",
        conv_2d: int = 0,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention, and the kernel if it has a convolution.

        Args:
          landmarks: "squares", or another name in LANDMARKS.
          conv_2d: K odd: the kernel has K × K weights over the picture, whatever
            conv_kernel_size says. 0: the kernel of that size along the sequence.
          **common: the options of `NystromAttention`, and the arguments of every
            attention.

        Raises:
          ValueError: an invalid value, and squares that max_length does not have.
        """
        check_kernel_size("conv_2d", conv_2d)
        arguments: dict[str, Any] = {**common}
        if conv_2d > 0:
            arguments["conv_kernel_size"] = conv_2d**2
        super().__init__(landmarks=landmarks, **arguments)
        # With as many landmarks as pixels attention is exact.
        if landmarks == "squares" and self.num_landmarks < self.max_length:
            check_squares(self.max_length, self.num_landmarks)
        self.conv_2d = conv_2d

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        kernel: jax.Array | None = None,
        **queries: Any,
    ) -> jax.Array:
        if self.conv_2d == 0 or kernel is None:
            return super().attend(query, key, value, mask, precision, kernel, **queries)
        out = super().attend(query, key, value, mask, precision, **queries)
        kernel = kernel.reshape(self.conv_2d, self.conv_2d)
        convolved_value = depthwise_conv_2d(value, kernel, precision=precision)
        return out + convolved_value.astype(out.dtype)


LANDMARKS["squares"] = lambda x, count, mask, seed: square_means(x, count, mask)
register_attention("nystrom_square", SquareNystrom)
