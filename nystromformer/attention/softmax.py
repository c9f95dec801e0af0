"""Exact attention: the reference that every approximation is measured against.

Letters: B batch, T query length, S key length, N heads, H head dim.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.attention import dot_product_attention_weights

from nystromformer.attention.base import (
    Attention,
    check_choice,
    check_shapes,
    zero_padding,
)
from nystromformer.nystrom import attend
from nystromformer.ops import at_least_float32, dropout

IMPLEMENTATIONS = ("xla", "cudnn")
MAX_SCORES = 2**27  # at a time; where there are more, queries go in blocks
CPU_SCORES, CPU_BLOCK = 2**19, 128  # scores that stay in the cache, and queries


def softmax_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    implementation: str = "xla",
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
    """softmax(Q Kᵀ / √H + bias) V, in O(T · S) time and a bounded number of scores.

    Args:
      query: [B, T, N, H].
      key, value: [B, S, N, H].
      bias: broadcastable to [B, N, T, S].
      mask: bool (as in flax, numbers other than 0 are True), broadcastable to
        [B, N, T, S], True = attend. One that broadcasts to [B, 1, 1, S] means padding:
        nothing there has influence, not even NaN. With T = S queries there
        are padding too, and their rows have no meaning.
      implementation: "xla", or "cudnn" for flash attention on a GPU, which raises where
        it cannot: it takes bfloat16 or float16, no dropout, no sowing, no precision.
      cross_attention: set it where T = S but queries and keys are different tokens:
        padding then masks keys only.
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
    check_shapes(query, key, value)
    whole = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    for what, x in (("bias", bias), ("mask", mask)):
        if x is not None and jnp.broadcast_shapes(jnp.shape(x), whole) != whole:
            raise ValueError(f"a {what} of shape {jnp.shape(x)} does not fit {whole}")
    bias, mask = jax.tree.map(
        lambda x: jnp.reshape(x, (1,) * (4 - jnp.ndim(x)) + jnp.shape(x)), (bias, mask)
    )
    of_keys = None
    if mask is not None:
        mask = mask.astype(bool)
        if mask.shape[1:3] == (1, 1):
            of_keys = jnp.broadcast_to(mask[:, 0, 0, :], key.shape[:2])
            query, key, value = zero_padding(
                query, key, value, of_keys, cross_attention
            )
    dtype = dtype or jnp.result_type(query, key, value)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    has_dropout = dropout_rate > 0 and not deterministic
    if implementation == "cudnn":
        if has_dropout or module is not None or precision is not None:
            raise ValueError("cudnn has no dropout, sowing or precision: take 'xla'")
        return _flash(query, key, value, bias, mask, of_keys, is_causal)
    rngs = None
    if has_dropout:
        if dropout_rng is None:
            raise ValueError(f"dropout_rate={dropout_rate} needs a dropout_rng")
        rngs = jax.random.split(
            dropout_rng, (1, 1) if broadcast_dropout else query.shape[:3:2]
        )
    options = {"is_causal": is_causal, "precision": precision}
    if module is not None:  # whole, and without dropout
        dot_product_attention_weights(query, key, bias, mask, module=module, **options)
    return _heads(
        query, key, value, bias, mask, rngs, dropout_rate=dropout_rate, **options
    )


def _heads(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rngs: jax.Array | None,
    **options: Any,
) -> jax.Array:
    """The attention of each head of each sequence, as many at a time as have room.

    On a CPU they take turns, so that scores stay in the cache; what several devices or
    an accelerator share goes at once. The default backend decides, not the arrays.
    """
    batch, length, num_heads = query.shape[:3]
    at_once, block = batch * num_heads, length
    if jax.default_backend() != "cpu":
        block = max(1, MAX_SCORES // (at_once * key.shape[1]))
    else:
        if length > 2 * CPU_BLOCK:
            block = max(1, min(CPU_SCORES // key.shape[1], CPU_BLOCK))
        at_once = CPU_SCORES // (block * key.shape[1])
    one_head = functools.partial(_one_head, block=block, **options)

    def one_sequence(*inputs):
        heads = (x.swapaxes(0, 1) for x in inputs[:3])
        out = _each(one_head, num_heads, at_once, *heads, *inputs[3:])
        return out.swapaxes(0, 1)

    # A batch may be sharded over devices, and a loop over it would gather it.
    sequences = batch if jax.device_count() > 1 else at_once // num_heads
    inputs = query, key, value, bias, mask, rngs
    return _each(one_sequence, batch, sequences, *inputs).astype(query.dtype)


def _each(
    function: Callable[..., jax.Array], count: int, at_once: int, *inputs: Any
) -> jax.Array:
    """function of each of `count` rows of the inputs, `at_once` of them in parallel.

    An input may be None, or have one row for all.
    """
    shared = {i: x[0] for i, x in enumerate(inputs) if x is not None and len(x) == 1}
    own = [None if i in shared else x for i, x in enumerate(inputs)]

    def one(rows: Sequence[Any]) -> jax.Array:
        return function(*(shared.get(i, x) for i, x in enumerate(rows)))

    if count == 1:
        return one(own)[None]
    if at_once >= count:
        return jax.vmap(one)(own)
    return jax.lax.map(one, own, batch_size=at_once if at_once > 1 else None)


def _one_head(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rng: jax.Array | None,
    *,
    block: int,
    is_causal: bool,
    precision: jax.lax.PrecisionLike,
    dropout_rate: float = 0.0,
) -> jax.Array:
    """Attention of query [T, H] to key and value [S, H], `block` queries at a time.

    bias and mask are [T or 1, S or 1]. Of several blocks the gradient computes the
    scores again.
    """
    length, dtype = len(query), query.dtype

    def rows(first, rng, query, bias, mask):
        if is_causal:
            t = first + jnp.arange(len(query))
            causal = t[:, None] >= jnp.arange(len(key))[None]
            mask = causal if mask is None else mask & causal
        drop = functools.partial(dropout, rate=dropout_rate, rng=rng)
        return attend(
            *(query, key.astype(dtype), value.astype(dtype), mask),
            bias=bias,
            scale=query.shape[-1] ** -0.5,
            drop=drop,
            precision=precision,
        )

    if block >= length:
        return rows(0, rng, query, bias, mask)
    # Wide, as the blocks' gradients of them are summed in their dtype.
    key, value = (x.astype(at_least_float32(dtype)) for x in (key, value))
    num_blocks = -(-length // block)
    fill = num_blocks * block - length

    def split(x: jax.Array) -> jax.Array:
        if len(x) == 1:
            return x[None]
        x = jnp.pad(x, ((0, fill), (0, 0)))
        return x.reshape(num_blocks, block, x.shape[1])

    rngs = None if rng is None else jax.random.split(rng, num_blocks)
    firsts = block * jnp.arange(num_blocks)
    parts = (firsts, rngs, *jax.tree.map(split, (query, bias, mask)))
    one_block = jax.checkpoint(rows, prevent_cse=False)
    return _each(one_block, num_blocks, 1, *parts).reshape(-1, value.shape[1])[:length]


def _flash(query, key, value, bias, mask, of_keys, is_causal) -> jax.Array:
    """cuDNN's kernel. Alone, a mask of keys becomes their number and takes no memory.

    The order of keys does not matter, so the valid ones are moved to the front.
    """
    lengths = None
    if of_keys is not None and bias is None and not is_causal:
        order = jnp.argsort(~of_keys, axis=1)[:, :, None, None]
        key, value = (jnp.take_along_axis(x, order, axis=1) for x in (key, value))
        lengths, mask = jnp.maximum(of_keys.sum(1, dtype=jnp.int32), 1), None
    return jax.nn.dot_product_attention(
        *(query, key, value, bias, mask),
        is_causal=is_causal,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )


class SoftmaxAttention(Attention):
    """`softmax_attention` with its own dropout rate on the attention weights.

    Flax's attention layers have a rate of their own, and go by that one alone.
    """

    defaults = {"dropout_rate": 0.1}

    def __init__(
        self, *, dropout_rate: float = 0.0, implementation: str = "xla", **sizes: Any
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
