"""The layers of an encoder: attention and MLP, and the block that holds both.

Letters: B batch, L length, N heads, H head dim, D model dim, E output dim.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.dropout import dropout, split_rng
from nystromformer.encoder_config import EncoderConfig
from nystromformer.ops import (
    at_least_float32,
    dense,
    gelu,
    layer_norm,
    take_rows,
    zero_masked,
)
from nystromformer.rotary import rotate_by_position
from nystromformer.short_conv import short_conv

# U(−1/√fan_in, 1/√fan_in), as PyTorch's Linear and so the published runs start.
# Biases start at zero.
kernel_init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Dense(nnx.Linear):
    """nnx.Linear with a bias and PyTorch's initial values, computed by `ops.dense`."""

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


class Embedding(nnx.Embed):
    """nnx.Embed, computed by `rows.take_rows`."""

    def __call__(self, ids: jax.Array) -> jax.Array:
        """[...] -> [..., D]."""
        return take_rows(self.embedding[...].astype(self.dtype), ids)


class LayerNorm(nnx.LayerNorm):
    """nnx.LayerNorm over the last axis, with scale and bias, by `ops.layer_norm`."""

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


def make_dense(
    config: EncoderConfig, in_features: int, out_features: int, rngs: nnx.Rngs
) -> Dense:
    """A linear layer in the dtype of the config."""
    return Dense(in_features, out_features, dtype=config.dtype, rngs=rngs)


def make_norm(config: EncoderConfig, rngs: nnx.Rngs) -> LayerNorm:
    """A LayerNorm over the model dim, in the dtype of the config."""
    return LayerNorm(
        config.model_dim,
        epsilon=config.norm_epsilon,
        dtype=config.dtype,
        rngs=rngs,
    )


class SelfAttention(nnx.Module):
    """An attention of the table, and as many projections as it uses.

    A short convolution may come before the projections, and a rotation of queries and
    keys after them. With rotary positions an attention that has no queries and keys
    knows no positions.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        model_dim = config.model_dim
        self.attention = make_attention(
            config.attention,
            num_heads=config.num_heads,
            head_dim=model_dim // config.num_heads,
            max_length=config.max_length + config.cls_token,
            rngs=rngs,
            **config.attention_options,
        )
        self.num_heads = config.num_heads
        self.num_projections = self.attention.num_projections
        self.project = make_dense(
            config, model_dim, self.num_projections * model_dim, rngs
        )
        self.out = make_dense(config, model_dim, model_dim, rngs)
        self.rotary = config.positions == "rotary"
        self.short_conv: Any = nnx.data(None)
        if config.short_conv:
            kernel = kernel_init(rngs.params(), (config.short_conv, model_dim))
            self.short_conv = nnx.Param(kernel)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        if self.short_conv is not None:
            x = zero_masked(x, mask)  # Padding must not reach its neighbours.
            x = x + short_conv(x, self.short_conv[...])
        query, key, value = self._project(x)
        attended = self.attention(
            query,
            key,
            value,
            mask=None if mask is None else mask[:, None, None, :],
            dropout_rng=dropout_rng,
            broadcast_dropout=False,
            deterministic=dropout_rng is None,
        )
        return self.out(attended.reshape(x.shape))

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys and values [B, L, N, H]; with fewer projections they share."""
        batch_size, length, model_dim = x.shape
        shape = (batch_size, length, self.num_heads, model_dim // self.num_heads)
        projections = jnp.split(self.project(x), self.num_projections, axis=-1)
        heads = [projection.reshape(shape) for projection in projections]

        if self.num_projections == 1:
            (value,) = heads
            return value, value, value
        if self.num_projections == 2:
            shared, value = heads
            if self.rotary:
                shared = rotate_by_position(shared)
            return shared, shared, value
        query, key, value = heads
        if self.rotary:
            query = rotate_by_position(query)
            key = rotate_by_position(key)
        return query, key, value


def jax_gelu(x: jax.Array, approximate: bool) -> jax.Array:
    """jax's GELU, computed in at least float32; the result is in x's dtype.

    In bfloat16 the tanh form would be 0 at −3.5 and below, and the erf form inexact.
    The erf form of an MLP is `ops.gelu`, which needs less memory in training. Heads
    have few such numbers and take jax's.
    """
    z = x.astype(at_least_float32(x.dtype))
    return jax.nn.gelu(z, approximate=approximate).astype(x.dtype)


class Mlp(nnx.Module):
    """Linear, GELU, Linear."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.expand = make_dense(config, config.model_dim, config.mlp_dim, rngs)
        self.contract = make_dense(config, config.mlp_dim, config.model_dim, rngs)
        self.approximate = config.gelu == "tanh"
        self.dropout_rate = config.dropout_rate if config.norm == "pre" else 0.0

    def __call__(self, x: jax.Array, dropout_rng: jax.Array | None = None) -> jax.Array:
        """[B, L, D] -> [B, L, D]."""
        hidden = self.expand(x)
        if self.approximate:
            hidden = jax_gelu(hidden, approximate=True)
        else:
            hidden = gelu(hidden)
        return self.contract(dropout(hidden, self.dropout_rate, dropout_rng))


class Block(nnx.Module):
    """Attention, then the MLP, each with a residual connection and a LayerNorm.

    Args:
      config: the config of the layer, which for layer i is `config.of_layer(i)`. Its
        `attention` and `attention_options` hold; its `attention_by_layer` has no
        effect.
      rngs: the keys for the initial values of parameters.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.attention_norm = make_norm(config, rngs)
        self.attention = SelfAttention(config, rngs=rngs)
        self.mlp_norm = make_norm(config, rngs)
        self.mlp = Mlp(config, rngs=rngs)
        self.dropout_rate = config.dropout_rate
        self.deterministic = True  # flax's train() and eval() set it
        self.pre_norm = config.norm == "pre"

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D].

        Raises:
          ValueError: after model.train() without a dropout_rng, if something is
            drawn.
        """
        if dropout_rng is None and not self.deterministic:
            attention = self.attention.attention
            if self.dropout_rate > 0 or attention.draws_in_training:
                raise ValueError(
                    "model.train() asks for dropout, or for features or hashes that "
                    "are redrawn, which needs a key here: pass dropout_rng=…, or call "
                    "model.eval()"
                )
        rngs = split_rng(dropout_rng, 4)
        attend = functools.partial(self.attention, mask=mask, dropout_rng=rngs[0])
        x = self._add(x, self.attention_norm, attend, rngs[1])
        mlp = functools.partial(self.mlp, dropout_rng=rngs[2])
        return self._add(x, self.mlp_norm, mlp, rngs[3])

    def _add(
        self,
        x: jax.Array,
        norm: LayerNorm,
        layer: Callable[[jax.Array], jax.Array],
        dropout_rng: jax.Array | None,
    ) -> jax.Array:
        """x + f(LN(x)), or LN(x + f(x))."""
        out = layer(norm(x) if self.pre_norm else x)
        x = x + dropout(out, self.dropout_rate, dropout_rng)
        return x if self.pre_norm else norm(x)


def call_with_remat(block: Block, *inputs: Any) -> jax.Array:
    """block(*inputs), of which only the inputs are stored for the backward pass.

    The backward pass computes the block again. Unlike `nnx.remat` it writes no
    variables back: inside a loop of jax, where the variables come from outside, that
    would be an error.
    """
    graphdef, state = nnx.split(block)
    return _merge_and_call(graphdef, state, *inputs)


@functools.partial(jax.checkpoint, static_argnums=0)
def _merge_and_call(
    graphdef: nnx.GraphDef[Block], state: nnx.State, *inputs: Any
) -> jax.Array:
    return nnx.merge(graphdef, state)(*inputs)
