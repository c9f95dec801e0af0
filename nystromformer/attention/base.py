"""The base class of all attentions: their one signature, its checks, a random key.

Every attention can be passed as `attention_fn` to the attention layers of Flax, nnx and
linen, and called like `jax.nn.dot_product_attention`. A subclass writes one head of
one sequence, and this class maps it over heads and batch. Only softmax attention goes
its own way: it honours the arguments that need the weights, and writes `__call__`.

Letters: B batch, T query length, S key length, N heads, H head dim, E value dim.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import module as linen_module

from nystromformer.attention.options import HasOptions
from nystromformer.masks import (
    check_key_mask,
    check_query_mask,
    find_query_mask,
    zero_padding,
)


class Attention(HasOptions, nnx.Module):
    """The base class of all attentions; a subclass writes `attend`, or `__call__`.

    Its options are the keyword arguments of its `__init__`, see `HasOptions`.

    Attributes that a subclass may set:
      num_projections: how many projections of its inputs a model makes for it, so that
        none goes unused: 3 for query, key and value; 2 for one that query and key
        share, and value; 1 for value alone.
      self_attention_only: whether it needs T = S.
      sums_over_queries: whether it sums over queries, so that `attend` gets
        `query_mask` and `is_self_attention`.
      shared_across_layers: whether an Encoder gives one object to all layers with equal
        options. It may be set in `__init__`.
      size_option: the option that 64 stands for in "nystrom-64".
      padding_sensitive: option -> the value with which the output of an example depends
        on its padding.
      batch_sensitive: option -> the value with which the output of an example depends
        on the other examples of its batch.
    """

    num_projections = 3
    self_attention_only = False
    sums_over_queries = False
    shared_across_layers = False
    size_option: ClassVar[str | None] = None
    padding_sensitive: ClassVar[Mapping[str, Any]] = {}
    batch_sensitive: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_length: int,
        rngs: nnx.Rngs,
    ):
        """Keeps the arguments that all attentions have.

        Args:
          num_heads: N.
          head_dim: H.
          max_length: the length of the longest sequence that it will see.
          rngs: the keys for the initial values of parameters.
        """
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.max_length = max_length

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
        dropout_rate: float = 0.0,
        broadcast_dropout: bool = True,
        deterministic: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: object = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """Attends with all heads of all sequences.

        linen passes only the keyword arguments that it finds in this signature.

        Args:
          query: [B, T, N, H].
          key: [B, S, N, H].
          value: [B, S, N, E].
          bias: must be None.
          mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend.
          query_mask: bool that broadcasts to [B, 1, 1, T], True = the query counts in
            what is made of all queries, as landmarks are; NaN in the others has no
            influence. None: with T = S this is self-attention and `mask` says it; with
            T ≠ S every query counts. So in cross attention give it, and True where
            every query counts.
          dropout_rng: the key for `for_training`, which mostly draws nothing.
          dropout_rate: must be 0, unless deterministic.
          broadcast_dropout: has no effect.
          deterministic: whether dropout_rate and dropout_rng have no effect.
          dtype: the dtype of the large products and of the output; None takes the
            dtype of the inputs.
          precision: the precision of the large products.
          module: must be None; flax passes one with sow_weights=True.
          is_causal: must be False.

        Returns:
          [B, T, N, E] in dtype.

        Raises:
          ValueError: shapes that do not fit, integers without a dtype, an argument that
            needs the [T, S] weights, which do not exist here, cross attention where the
            attention has none, or an attribute of a subclass that has no hash.
        """
        refuse_linen(self)
        query, key, value, query_mask = self._prepare(
            query, key, value, query_mask=query_mask, dtype=dtype
        )
        if bias is not None:
            check_bias(bias)
            self._refuse(f"a bias of shape {jnp.shape(bias)}", query, key)
        if is_causal:
            self._refuse("is_causal=True", query, key)
        if dropout_rate > 0 and not deterministic:
            self._refuse(
                f"dropout_rate={dropout_rate}",
                query,
                key,
                instead="use dropout_rate=0, and nnx.Dropout on the output, or take "
                "softmax attention",
            )
        if module is not None:
            self._refuse("sow_weights=True", query, key)

        if mask is not None:
            mask = check_key_mask(mask, batch=key.shape[0], length=key.shape[1])
        # A decoder of Flax has one query; its mask of floats says more than the sizes.
        self._check_sizes(query, key, query_mask)
        attention = self if deterministic else self.for_training(dropout_rng)
        graphdef, state = nnx.split(attention)
        _check_hashable(type(self).__name__, graphdef)
        return _attend_heads(
            graphdef,
            state,
            query=query,
            key=key,
            value=value,
            mask=mask,
            query_mask=query_mask,
            precision=precision,
        )

    @property
    def draws_in_training(self) -> bool:
        """Whether a training pass draws something, and so needs a dropout_rng."""
        return False

    def for_training(self, dropout_rng: jax.Array | None) -> "Attention":
        """Returns the attention for one training pass: this one, or a changed copy.

        A subclass whose parameters are drawn anew at each pass returns a copy.

        Args:
          dropout_rng: the key of its draws, or None.
        """
        return self

    def attend_heads(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        query_mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        """Maps `attend` over the heads and the batch.

        Args:
          query: [B, T, N, H].
          key: [B, S, N, H].
          value: [B, S, N, E].
          mask: [B, S] bool, True = attend, or None.
          query_mask: [B, T] bool, True = the query counts. None: `find_query_mask`
            says which.
          precision: the precision of the large products.

        Returns:
          [B, T, N, E] in the dtype of the query.
        """
        query_mask, is_self_attention = find_query_mask(
            query_mask, mask, num_queries=query.shape[1], num_keys=key.shape[1]
        )
        arrays = self.per_head(key.shape[1])
        # All heads get an array of one row unbatched. If vmap repeated it, its gradient
        # would be computed for each head and then summed.
        head_axes = [None if len(array) == 1 else 0 for array in arrays]
        arrays = [array[0] if len(array) == 1 else array for array in arrays]

        def attend_one_head(
            query: jax.Array,
            key: jax.Array,
            value: jax.Array,
            mask: jax.Array | None,
            query_mask: jax.Array | None,
            *head_arrays: jax.Array,
        ) -> jax.Array:
            # The padding is zeroed once, here, so that XLA keeps one copy of the result
            # for all that follows.
            query, key, value = zero_padding(
                query, key, value, mask=mask, query_mask=query_mask
            )
            queries = {}
            if self.sums_over_queries:
                queries["query_mask"] = query_mask
                queries["is_self_attention"] = is_self_attention
            out = self.attend(
                query, key, value, mask, precision, *head_arrays, **queries
            )
            return out.astype(query.dtype)

        attend_sequence = jax.vmap(
            attend_one_head,
            in_axes=(1, 1, 1, None, None, *head_axes),
            out_axes=1,
            axis_name="heads",
        )
        attend_batch = jax.vmap(
            attend_sequence,
            in_axes=(0, 0, 0, 0, 0) + (None,) * len(arrays),
            axis_name="batch",
        )
        return attend_batch(query, key, value, mask, query_mask, *arrays)

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        """Arrays that `attend` gets for keys of that length, such as parameters.

        Each has a row for each head, or a single row that all heads share.
        """
        return ()

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        *head_arrays: jax.Array,
    ) -> jax.Array:
        """Attends with one head of one sequence; each attention writes its own.

        It runs under `jax.vmap` over the axes "batch" and "heads".

        Args:
          query: [T, H]. An attention that sums over queries sets `sums_over_queries`
            and gets two keyword arguments: `query_mask` [T] bool, True = the query
            counts, or None if all do; and `is_self_attention`, whether that mask is
            `mask`, as queries and keys are the same tokens.
          key: [S, H], zero where the mask is False.
          value: [S, E], zero where the mask is False.
          mask: [S] bool, True = attend, or None.
          precision: the precision of the large products.
          *head_arrays: the rows of this head from `per_head`.

        Returns:
          [T, E].
        """
        raise NotImplementedError

    def _prepare(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        query_mask: jax.typing.ArrayLike | None,
        dtype: jax.typing.DTypeLike | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """Checks the arguments that every attention takes alike, and casts the arrays.

        Returns:
          Queries, keys and values in the dtype of the output, and `query_mask` as
          [B, T] or None.

        Raises:
          ValueError: as `__call__` says.
        """
        check_shapes(query, key, value)
        if query_mask is not None:
            query_mask = check_query_mask(query_mask, *query.shape[:2])
        dtype = _floating_dtype(dtype, query, key, value)
        return query.astype(dtype), key.astype(dtype), value.astype(dtype), query_mask

    def _check_sizes(
        self,
        query: jax.Array,
        key: jax.Array,
        query_mask: jax.typing.ArrayLike | None,
    ) -> None:
        """Raises ValueError for inputs that this attention was not made for."""
        expected = (self.num_heads, self.head_dim)
        if query.shape[2:] != expected:
            raise ValueError(f"made for [N, H] = {expected}, got {query.shape}")
        if self.self_attention_only and query.shape[1] != key.shape[1]:
            raise ValueError(
                f"{type(self).__name__} is self-attention and needs T = S, got "
                f"{query.shape} and {key.shape}"
            )
        if self.self_attention_only and query_mask is not None:
            raise ValueError(
                f"{type(self).__name__} is self-attention, in which mask holds for "
                "queries too: give no query_mask"
            )

    def _refuse(
        self,
        argument: str,
        query: jax.Array,
        key: jax.Array,
        instead: str = "take softmax attention",
    ) -> None:
        """Raises ValueError for an argument that needs the weights."""
        raise ValueError(
            f"{argument} needs the [T, S] weights of {query.shape} and {key.shape}, "
            f"which {type(self).__name__} never forms: {instead}"
        )


def _check_hashable(class_name: str, graphdef: nnx.GraphDef[Attention]) -> None:
    """Raises ValueError if `jax.jit` cannot tell whether two attentions are equal."""
    attributes: Any = graphdef.attributes
    for name, attribute in attributes:
        try:
            hash(attribute)
        except TypeError as error:
            raise ValueError(
                f"the attribute {name!r} of {class_name} is {attribute.value!r}, which "
                "has no hash, and jax.jit looks up programs by it: make it a tuple or "
                "an array, or an nnx.List or nnx.Dict"
            ) from error


@functools.partial(jax.jit, static_argnames=("graphdef", "precision"))
def _attend_heads(
    graphdef: nnx.GraphDef[Attention],
    state: nnx.State,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    query_mask: jax.Array | None,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """`Attention.attend_heads`, compiled once where the caller compiles nothing.

    Equal attentions share the program, and so do the layers of an encoder.
    """
    attention = nnx.merge(graphdef, state)
    return attention.attend_heads(query, key, value, mask, query_mask, precision)


def refuse_linen(attention: nnx.Module) -> None:
    """Refuses an attention with parameters if the caller is a linen module.

    linen sees no nnx.Param. flax has no public way to ask which module is running.

    Raises:
      ValueError: a linen module runs, and the attention has parameters.
    """
    caller = linen_module._context.module_stack[-1]  # noqa: SLF001
    if caller is None or isinstance(caller, nnx.bridge.ToLinen):
        return
    parameters = jax.tree.leaves(nnx.state(attention, nnx.Param))
    if parameters:
        num_parameters = sum(parameter.size for parameter in parameters)
        raise ValueError(
            f"{type(attention).__name__} has {num_parameters:,} parameters, which "
            f"linen's {type(caller).__name__} would never train: use flax.nnx, or the "
            "whole nnx model by flax.nnx.bridge.ToLinen"
        )


def check_dropout_rng(reason: str, dropout_rng: jax.Array | None) -> jax.Array:
    """Returns the key of what a training pass draws.

    Args:
      reason: the setting that asks for a draw, for the message.
      dropout_rng: the key, or None.

    Raises:
      ValueError: there is no key.
    """
    if dropout_rng is None:
        raise ValueError(f"{reason} needs a dropout_rng, or deterministic=True")
    return dropout_rng


class RandomKey(nnx.Variable):
    """The key of an attention that draws something, such as blocks or hashes.

    It is uint32 [2], in every checkpoint, and has no gradient.
    """


def make_random_key(key: jax.Array) -> RandomKey:
    """Draws the key of one attention from a key of jax."""
    return RandomKey(jax.random.bits(key, (2,), jnp.uint32))


def read_random_key(random_key: RandomKey) -> jax.Array:
    """The key as jax takes it.

    The generator is named, so that a change of jax's default changes no model.
    """
    return jax.random.wrap_key_data(random_key[...], impl="threefry2x32")


def check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises ValueError unless shapes are [B, T, N, H], [B, S, N, H], [B, S, N, E].

    S is at least 1, as there is no mean over no values. Queries and keys have the same
    number of heads: grouped-query attention is an error.
    """
    if query.ndim == 3:
        raise ValueError(
            f"query must be [B, T, N, H], got {query.shape}: add a batch axis to the "
            "inputs, as in x[None]"
        )
    has_four_axes = query.ndim == key.ndim == value.ndim == 4
    if has_four_axes and query.shape[2] > key.shape[2]:
        raise ValueError(
            f"query has {query.shape[2]} heads and key {key.shape[2]}: repeat those of "
            "key and value, as in jnp.repeat(key, num_repeats, axis=2)"
        )
    fits_key = has_four_axes and (
        query.shape[0] == key.shape[0] and query.shape[2:] == key.shape[2:]
    )
    if not fits_key or value.shape[:3] != key.shape[:3]:
        raise ValueError(
            "query, key and value must be [B, T, N, H], [B, S, N, H], [B, S, N, E]; "
            f"got {query.shape}, {key.shape}, {value.shape}"
        )
    if key.shape[1] == 0:
        raise ValueError(f"there must be at least one key, got key {key.shape}")


def _floating_dtype(
    dtype: jax.typing.DTypeLike | None, *arrays: jax.Array
) -> jax.typing.DTypeLike:
    """The dtype of an attention's result: the one asked for, or that of its arrays.

    Raises:
      ValueError: for a dtype of integers, since the result would be rounded.
    """
    dtype = dtype or jnp.result_type(*arrays)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            "query, key and value must be floating-point numbers, got "
            f"{jnp.dtype(dtype)}: pass dtype=jnp.float32, or convert them"
        )
    return dtype


def check_bias(bias: jax.Array) -> None:
    """Raises ValueError for a boolean bias, which is a mask in the place of a bias.

    Behind the values PyTorch's function takes a mask, and JAX's and Flax's a bias.
    Added to the scores, True would be a 1 and mask nothing.
    """
    if jnp.result_type(bias) == jnp.bool_:
        raise ValueError(
            "a bias is numbers to add to the scores, got a boolean array of shape "
            f"{jnp.shape(bias)}: pass a mask by its name, as in mask=mask"
        )
