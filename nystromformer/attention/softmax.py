"""Exact attention: the reference that every approximation is measured against.

Letters: B batch, T query length, S key length, N heads, H head dim, E value dim.
"""

import functools
from typing import Any, Unpack, cast

import jax
import jax.numpy as jnp
from flax.nnx.nn.attention import dot_product_attention_weights

from nystromformer.attention.base import Attention, check_bias, check_dropout_rng
from nystromformer.attention.options import CommonArguments
from nystromformer.attention.softmax_groups import (
    Inputs,
    Settings,
    attend_in_groups,
    choose_group_sizes,
)
from nystromformer.fused import attend_fused
from nystromformer.masks import (
    find_query_mask,
    mask_with_four_axes,
    with_four_axes,
    zero_padding,
)
from nystromformer.validation import check_rate


class SoftmaxAttention(Attention):
    """softmax(Q Kᵀ / √H + bias) V, in O(T · S) time and a bounded number of scores.

    On a single NVIDIA GPU in bfloat16 or float16 cuDNN's fused kernel computes it,
    unless there is a bias, dropout, or a mask that is not of padding: see
    `nystromformer.fused`. The kernel has no derivative in forward mode.

    With `decode=True` Flax's attention layers make a mask of floats, which needs a cast
    on its way here.
    """

    paper_options = {"dropout_rate": 0.1}

    def __init__(
        self,
        *,
        dropout_rate: float = 0.0,
        fused: bool = True,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention.

        Args:
          dropout_rate: the probability that a weight is dropped, in [0, 1), where a
            call names none. Inside a layer of Flax it has no effect: the layer passes
            its own.
          fused: whether cuDNN's kernel is taken where it can be.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: a rate outside [0, 1).
        """
        super().__init__(**common)
        check_rate("dropout_rate", dropout_rate)
        self.dropout_rate = dropout_rate
        self.fused = fused

    @property
    def draws_in_training(self) -> bool:
        return self.dropout_rate > 0

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        query_mask: jax.typing.ArrayLike | None = None,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float | None = None,
        broadcast_dropout: bool = True,
        deterministic: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: Any = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """Attends, and honours what other attentions refuse.

        Args:
          query: [B, T, N, H].
          key: [B, S, N, H].
          value: [B, S, N, E].
          bias: None, or an array that broadcasts to [B, N, T, S].
          mask: None, or bool that broadcasts to [B, N, T, S], True = attend. One that
            broadcasts to [B, 1, 1, S] is padding, as for every `Attention`.
          query_mask: as for every `Attention`.
          dropout_rng: the key of the dropout of weights.
          dropout_rate: the probability that a weight is dropped; None takes the option.
          broadcast_dropout: whether all heads of the batch drop the same weights.
          deterministic: whether nothing is dropped.
          dtype: the dtype of the large products and of the output; None takes the
            dtype of the inputs.
          precision: the precision of the large products.
          module: sows the weights into this module, in O(T · S) memory.
          is_causal: whether query t attends to no key after t.

        Returns:
          [B, T, N, E] in dtype.

        Raises:
          ValueError: shapes that do not fit, integers without a dtype, a boolean bias,
            or dropout without dropout_rng.
        """
        # Queries of padding may overflow in the dtype; they are zeroed below.
        query, key, value, query_mask = self._prepare(
            query, key, value, query_mask=query_mask, dtype=dtype
        )
        weights_shape = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        if bias is not None:
            bias = with_four_axes("bias", bias, weights_shape)
            check_bias(bias)
        if mask is not None:
            mask = mask_with_four_axes(mask, weights_shape)
        self._check_sizes(query, key, query_mask)
        padding_mask = _padding_mask(mask, key.shape[:2])
        query_mask, _ = find_query_mask(
            query_mask,
            padding_mask,
            num_queries=query.shape[1],
            num_keys=key.shape[1],
        )
        query, key, value = zero_padding(
            query, key, value, mask=padding_mask, query_mask=query_mask
        )

        if module is not None:
            # It sows all of them, without dropout.
            dot_product_attention_weights(
                query,
                key,
                bias,
                mask,
                precision=cast(Any, precision),  # flax's type is narrower than jax's
                module=module,
                is_causal=is_causal,
            )
        # A rate may be an array, which is no static argument of `jax.jit`.
        rate = float(self.dropout_rate if dropout_rate is None else dropout_rate)
        rngs = None
        if rate > 0 and not deterministic:
            rngs_shape = (1, 1) if broadcast_dropout else weights_shape[:2]
            key_of_dropout = check_dropout_rng(f"dropout_rate={rate}", dropout_rng)
            rngs = jax.random.split(key_of_dropout, rngs_shape)
        return _attend_batch(
            Inputs(query, key, value, bias, mask, rngs),
            padding_mask,
            fused=self.fused,
            settings=Settings(
                group_sizes=choose_group_sizes(query.shape, num_keys=key.shape[1]),
                dropout_rate=rate,
                is_causal=is_causal,
                precision=precision,
            ),
        )


def _padding_mask(mask: jax.Array | None, shape: tuple[int, ...]) -> jax.Array | None:
    """The mask of four axes as [B, S], that shape; None if it is not one of padding."""
    if mask is None or mask.shape[1:3] != (1, 1):
        return None
    return jnp.broadcast_to(mask[:, 0, 0, :], shape)


@functools.partial(jax.jit, static_argnames=("fused", "settings"))
def _attend_batch(
    inputs: Inputs,
    padding_mask: jax.Array | None,
    *,
    fused: bool,
    settings: Settings,
) -> jax.Array:
    """Attends by cuDNN's kernel where it can, and in groups elsewhere.

    A caller that compiles nothing would otherwise compile the loops over groups at each
    call. `padding_mask` is the mask as [B, S], or None without a mask, or if the mask
    is not one of padding.
    """

    def attend_without_kernel(
        query: jax.Array, key: jax.Array, value: jax.Array
    ) -> jax.Array:
        others = inputs._replace(query=query, key=key, value=value)
        return attend_in_groups(others, settings)

    query, key, value, bias, mask, rngs = inputs
    is_padding = mask is None or padding_mask is not None
    can_be_fused = is_padding and bias is None and rngs is None
    if not fused or settings.is_causal or not can_be_fused:
        return attend_in_groups(inputs, settings)
    return attend_fused(
        query,
        key,
        value,
        padding_mask,
        scale=query.shape[-1] ** -0.5,
        dtype=query.dtype,
        otherwise=attend_without_kernel,
    )
