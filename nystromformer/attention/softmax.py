"""Exact attention: the reference that every approximation is measured against."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_choice, zero_padding
from nystromformer.attention.flash import (
    cuda_capability,
    flash_attention,
    flash_obstacle,
)
from nystromformer.ops import at_least_float32, dropout

IMPLEMENTATIONS = ("auto", "xla", "cudnn")
MAX_SCORES = 2**27  # at a time; where there are more, queries go in blocks


def softmax_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    implementation: str = "auto",
    cross_attention: bool = False,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: nnx.Module | None = None,
    is_causal: bool = False,
) -> jax.Array:
    """softmax(Q Kᵀ / √H + bias) V, in O(T · S) work and at most MAX_SCORES at a time.

    Args:
      query: [B, T, N, H].
      key, value: [B, S, N, H].
      bias: broadcastable to [B, N, T, S].
      mask: bool (as in flax, of numbers all but 0 are True), broadcastable to
        [B, N, T, S], True = attend. One that broadcasts to [B, 1, 1, S] is taken for
        padding: nothing there has influence, not even NaN. With T = S queries there
        are padding too, and their rows have no meaning.
      implementation: "cudnn", flash attention on a GPU in bfloat16 or float16, without
        dropout, sowing, precision, bias, or a mask that varies over queries; "xla"; or
        "auto", cuDNN where it applies.
      cross_attention: queries are of other tokens than keys: also with T = S, a mask
        of padding says nothing of them.
      dropout_rng, dropout_rate, broadcast_dropout, deterministic: dropout on the
        attention weights; broadcast_dropout shares one pattern over batch and heads.
      dtype: of the computation; None = the inputs'.
      precision: of both products.
      module: where to sow the weights, which takes O(T · S) memory, or None.
      is_causal: query t sees only keys ≤ t.

    Returns:
      [B, T, N, H] in dtype.
    """
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    of_keys = None
    if mask is not None:
        mask = jnp.asarray(mask, bool)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        if mask.shape[1:3] == (1, 1):
            of_keys = jnp.broadcast_to(mask[:, 0, 0, :], key.shape[:2])
            query, key, value = zero_padding(
                query, key, value, of_keys, cross_attention
            )
    if bias is not None:
        bias = jnp.asarray(bias).reshape((1,) * (4 - jnp.ndim(bias)) + jnp.shape(bias))
    dtype = dtype or jnp.result_type(query, key, value)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    has_dropout = dropout_rate > 0 and not deterministic
    not_flash = {
        "dropout": has_dropout,
        "sowing": module is not None,
        "precision": precision is not None,
        "bias": bias is not None,
        "mask over queries or heads": mask is not None and of_keys is None,
        "is_causal beside a mask": is_causal and mask is not None,
    }
    if _takes_flash(implementation, dtype, query.shape[-1], not_flash):
        return flash_attention(query, key, value, of_keys, is_causal=is_causal)
    if has_dropout and dropout_rng is None:
        raise ValueError(f"dropout_rate={dropout_rate} needs a dropout_rng")
    attend = functools.partial(
        _attend,
        # Wide, as the blocks' gradients of them are summed in their dtype.
        key=key.astype(at_least_float32(dtype)),
        value=value.astype(at_least_float32(dtype)),
        is_causal=is_causal,
        dropout_rate=dropout_rate if has_dropout else 0.0,
        shared=(0, 1) if broadcast_dropout else (),
        precision=precision,
        module=module,
    )
    num_scores = math.prod(query.shape[:3]) * key.shape[1]
    num_blocks = min(-(-num_scores // MAX_SCORES), query.shape[1])
    if module is not None or num_blocks <= 1:
        return attend(query, bias, mask, dropout_rng)
    return _in_blocks(attend, num_blocks, query, bias, mask, dropout_rng)


def _takes_flash(
    implementation: str,
    dtype: jax.typing.DTypeLike,
    head_dim: int,
    asked: Mapping[str, bool],
) -> bool:
    """Whether to use cuDNN; ValueError if asked to but impossible."""
    if implementation == "xla":
        return False
    names = [name for name, is_asked in asked.items() if is_asked]
    missing = flash_obstacle(cuda_capability(), dtype, head_dim, names)
    if missing and implementation == "cudnn":
        raise ValueError(f"implementation='cudnn' needs {missing}")
    return missing is None


def _attend(
    query: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rng: jax.Array | None,
    first: int | jax.Array = 0,
    *,
    key: jax.Array,
    value: jax.Array,
    is_causal: bool,
    dropout_rate: float,
    shared: tuple[int, ...],
    precision: jax.lax.PrecisionLike,
    module: nnx.Module | None,
) -> jax.Array:
    """Exact attention of all queries, or of those from `first` on with their masks."""
    wide = at_least_float32(query.dtype)
    key, value = key.astype(query.dtype), value.astype(query.dtype)
    options: Any = {"precision": precision, "preferred_element_type": wide}
    scores = jnp.einsum("btnh,bsnh->bnts", query, key, **options)
    scores *= query.shape[-1] ** -0.5
    if bias is not None:
        scores += bias
    if is_causal:
        shape = (1, 1, *scores.shape[2:])
        ranks = first + jax.lax.broadcasted_iota(jnp.int32, shape, 2)
        causal = ranks >= jax.lax.broadcasted_iota(jnp.int32, shape, 3)
        mask = causal if mask is None else mask & causal
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(wide).min)
    weights = jax.nn.softmax(scores).astype(query.dtype)  # [B, N, T, S]
    if module is not None:
        module.sow(nnx.Intermediate, "attention_weights", weights)
    if dropout_rate:
        weights = dropout(weights, dropout_rate, rng, shared)
    out = jnp.einsum("bnts,bsnh->btnh", weights, value, **options)
    return out.astype(query.dtype)


def _in_blocks(
    attend: Callable[..., jax.Array],
    num_blocks: int,
    query: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rng: jax.Array | None,
) -> jax.Array:
    """attend(query, bias, mask, rng, first) for blocks of queries, one after another.

    Each computes its weights again for the gradient.
    """
    length = query.shape[1]
    size = -(-length // num_blocks)

    def split(x: jax.Array | None, axis: int) -> jax.Array | None:
        """Blocks first; None for what all queries share."""
        if x is None or x.shape[axis] == 1:
            return None
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, num_blocks * size - length)
        shape = *x.shape[:axis], num_blocks, size, *x.shape[axis + 1 :]
        return jnp.moveaxis(jnp.pad(x, widths).reshape(shape), axis, 0)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def block(parts: Any) -> jax.Array:
        query, its_bias, its_mask, rng, first = parts
        its_bias = bias if its_bias is None else its_bias
        its_mask = mask if its_mask is None else its_mask
        return attend(query, its_bias, its_mask, rng, first)

    rngs = None if rng is None else jax.random.split(rng, num_blocks)
    firsts = size * jnp.arange(num_blocks)
    parts = split(query, 1), split(bias, 2), split(mask, 2), rngs, firsts
    out = jnp.moveaxis(jax.lax.map(block, parts), 0, 1)  # [B, blocks, size, N, H]
    return out.reshape(len(query), -1, *query.shape[2:])[:, :length]


class SoftmaxAttention(Attention):
    """`softmax_attention` with its own dropout rate on the attention weights.

    Flax's attention layers have a rate of their own, and go by that one alone.
    """

    defaults = {"dropout_rate": 0.1}

    def __init__(
        self, *, dropout_rate: float = 0.0, implementation: str = "auto", **sizes: Any
    ):
        check_choice("implementation", implementation, IMPLEMENTATIONS)
        if not 0 <= dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {dropout_rate}")
        self.dropout_rate = dropout_rate
        self.implementation = implementation

    @functools.wraps(Attention.__call__)  # linen passes only what it sees
    def __call__(self, *inputs: Any, **flax: Any) -> jax.Array:
        flax["dropout_rate"] = flax.get("dropout_rate") or self.dropout_rate
        own = {"implementation": self.implementation}
        own |= {"cross_attention": self.cross_attention}
        return softmax_attention(*inputs, **own, **flax)
