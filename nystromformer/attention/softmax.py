"""Exact attention: the reference that every approximation is measured against.

Letters: B batch, T query length, S key length, N heads, H head dim.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.nnx.nn.attention import dot_product_attention_weights

from nystromformer.attention.base import (
    Attention,
    check_shapes,
    mask_with_four_axes,
    with_four_axes,
)
from nystromformer.dot_product import attend
from nystromformer.ops import at_least_float32, dropout

MAX_SCORES = 2**27  # at a time; where there are more, queries go in blocks
CPU_SCORES, CPU_BLOCK = 2**19, 128  # scores that stay in the cache, and queries


def _heads(one_head: Callable[..., jax.Array], query, key, *others) -> jax.Array:
    """The attention of each head of each sequence, as many at a time as have room.

    On a CPU they take turns, so that scores stay in the cache; what several devices or
    an accelerator share goes at once. The default backend decides, not the arrays.
    """
    batch, length, num_heads = query.shape[:3]
    is_symbolic = jax.export.is_symbolic_dim(batch)  # a program for every batch size
    at_once = num_heads if is_symbolic else batch * num_heads
    block = max(1, length)  # no queries are one block
    if jax.default_backend() != "cpu":
        block = max(1, MAX_SCORES // max(1, at_once * key.shape[1]))
    else:
        if length > 2 * CPU_BLOCK:
            block = max(1, min(CPU_SCORES // key.shape[1], CPU_BLOCK))
        at_once = CPU_SCORES // (block * key.shape[1])

    def one_sequence(*inputs):
        heads = (x.swapaxes(0, 1) for x in inputs[:3])
        of_head = functools.partial(one_head, block)
        return _each(of_head, num_heads, at_once, *heads, *inputs[3:]).swapaxes(0, 1)

    # A batch may be sharded over devices, and a loop over it would gather it.
    whole_batch = is_symbolic or jax.device_count() > 1
    sequences = batch if whole_batch else at_once // num_heads
    out = _each(one_sequence, batch, sequences, query, key, *others)
    return out.astype(query.dtype)


def _each(
    function: Callable[..., jax.Array], count: Any, at_once: Any, *inputs: Any
) -> jax.Array:
    """function of each of `count` rows of the inputs, which may be None or have one."""
    given = {i: x for i, x in enumerate(inputs) if x is not None}
    shared = {i: x[0] for i, x in given.items() if x.shape[0] == 1}
    own = [None if i in shared else x for i, x in enumerate(inputs)]

    def one(rows):
        return function(*(shared.get(i, x) for i, x in enumerate(rows)))

    if count == 1:
        return one(own)[None]
    if at_once >= count:
        return jax.vmap(one)(own)
    return jax.lax.map(one, own, batch_size=at_once if at_once > 1 else None)


def _one_head(
    block, query, key, value, bias, mask, rng, *, is_causal, dropout_rate, precision
) -> jax.Array:
    """`block` queries at a time; of several blocks the gradient computes again."""
    num_blocks = -(-len(query) // block)

    def rows(first, rng, query, bias, mask):
        """The attention of query [T, H], which stands at `first` in the sequence."""
        if is_causal:
            t = first + jnp.arange(len(query))
            causal = t[:, None] >= jnp.arange(len(key))[None]
            mask = causal if mask is None else mask & causal
        qkv = query, key.astype(query.dtype), value.astype(query.dtype)
        drop = functools.partial(dropout, rate=dropout_rate, rng=rng)
        options = {"drop": drop, "precision": precision, "is_block": num_blocks > 1}
        return attend(*qkv, mask, bias=bias, scale=query.shape[-1] ** -0.5, **options)

    def split(x: jax.Array) -> jax.Array:
        if len(x) == 1:
            return x[None]
        x = jnp.pad(x, ((0, num_blocks * block - len(x)), (0, 0)))
        return x.reshape(num_blocks, block, x.shape[1])

    if num_blocks == 1:
        return rows(0, rng, query, bias, mask)
    # Wide, as the blocks' gradients of them are summed in their dtype.
    key, value = (x.astype(at_least_float32(x.dtype)) for x in (key, value))
    rngs = None if rng is None else jax.random.split(rng, num_blocks)
    firsts, parts = block * jnp.arange(num_blocks), (query, bias, mask)
    one_block = jax.checkpoint(rows, prevent_cse=False)
    out = _each(one_block, num_blocks, 1, firsts, rngs, *jax.tree.map(split, parts))
    return out.reshape(-1, value.shape[1])[: len(query)]


class SoftmaxAttention(Attention):
    """softmax(Q Kᵀ / √H + bias) V, in O(T · S) time and a bounded number of scores.

    Flax's attention layers have a dropout rate of their own, and go by that one alone.
    Their `decode=True` makes a mask of floats, which needs a cast on its way here.
    """

    dropout_rate: float = 0.0  # of the attention weights, where a call names none

    defaults = {"dropout_rate": 0.1}

    def __init__(self, **options: Any):
        super().__init__(**options)
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {self.dropout_rate}")

    def __call__(
        self,
        query,
        key,
        value,
        bias=None,
        mask=None,
        *,
        dropout_rng=None,
        dropout_rate=None,
        broadcast_dropout=True,
        deterministic=False,
        dtype=None,
        precision=None,
        module=None,
        is_causal=False,
    ):
        """Attends, and honours what other attentions refuse.

        bias and mask broadcast to [B, N, T, S]; a mask that broadcasts to [B, 1, 1, S]
        is padding, as for every `Attention`. dropout_rate=None is the option's; over 0
        it needs a dropout_rng, unless deterministic. broadcast_dropout draws one
        pattern for batch and heads. Sowing the weights into `module` takes O(T · S)
        memory.
        """
        check_shapes(query, key, value)
        whole = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        bias = None if bias is None else with_four_axes("bias", bias, whole)
        if mask is not None:
            mask = mask_with_four_axes(mask, whole)
            if mask.shape[1:3] == (1, 1):
                of_keys = jnp.broadcast_to(mask[:, 0, 0, :], key.shape[:2])
                query, key, value = self.without_padding(query, key, value, of_keys)
        dtype = dtype or jnp.result_type(query, key, value)
        query, key, value = (x.astype(dtype) for x in (query, key, value))
        options: Any = {"is_causal": is_causal, "precision": precision}
        if module is not None:  # whole, and without dropout
            inputs = query, key, bias, mask
            dot_product_attention_weights(*inputs, **options | {"module": module})
        rate = self.dropout_rate if dropout_rate is None else dropout_rate
        rngs = None
        if rate > 0 and not deterministic:
            if dropout_rng is None:
                raise ValueError(
                    f"dropout_rate={rate} needs a dropout_rng, or deterministic=True"
                )
            draws = (1, 1) if broadcast_dropout else query.shape[:3:2]
            rngs = jax.random.split(dropout_rng, draws)
        one_head = functools.partial(_one_head, dropout_rate=rate, **options)
        return _heads(one_head, query, key, value, bias, mask, rngs)
