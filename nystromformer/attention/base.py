"""The common signature of all attentions, and the checks of their masks and shapes.

An attention is written for one head of one sequence and lifted here.

Letters: B batch, T query length, S key length, N heads, H head dim.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import module as linen_module

from nystromformer.ops import zeroed

LARGEST_SEED = 2**63 - 1


def check_range(
    name: str,
    value: int,
    smallest: int,
    largest: int | None = None,
    max_length: int | None = None,
) -> None:
    """Raises ValueError for an option outside its range, and says what limits it."""
    if value < smallest:
        raise ValueError(f"{name} must be at least {smallest}, got {value}")
    if largest is not None and value > largest:
        why = f" for max_length {max_length}" if max_length else ""
        raise ValueError(f"{name} must be at most {largest}{why}, got {value}")


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raises ValueError for a value that is not among the known ones."""
    if value not in (known := tuple(known)):
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises ValueError unless shapes are [B, T, N, H], [B, S, N, H], [B, S, N, H]."""
    is_same = query.shape[:1] + query.shape[2:] == key.shape[:1] + key.shape[2:]
    is_same &= value.shape[:3] == key.shape[:3]
    if not (query.ndim == key.ndim == value.ndim == 4 and is_same):
        raise ValueError(
            "query, key and value must be [B, T, N, H], [B, S, N, H], [B, S, N, H]; "
            f"got {query.shape}, {key.shape}, {value.shape}"
        )


def key_mask(mask: jax.Array, batch: int, length: int) -> jax.Array:
    """The key mask [B, S] from a mask that broadcasts to [B, 1, 1, S].

    Raises ValueError naming the shape of one that varies over queries or heads.
    """
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise ValueError(f"mask must be boolean (True = attend), got {mask.dtype}")
    shape, wanted = (1,) * (4 - mask.ndim) + mask.shape, (batch, 1, 1, length)
    fits = all(n in (1, m) for n, m in zip(shape, wanted, strict=False))
    if len(shape) != 4 or not fits:
        raise ValueError(
            f"mask of shape {mask.shape} does not broadcast to [B, 1, 1, S] = "
            f"{wanted}: it must not vary over queries or heads; for padding pass "
            "mask[:, None, None, :]"
        )
    return jnp.broadcast_to(mask.reshape(shape)[:, 0, 0, :], (batch, length))


def zero_padding(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    cross_attention: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Zeros where the mask is False, so that not even a NaN there has any effect.

    Of one head with mask [S], or of a batch with mask [B, S]. With T = S the queries
    are taken for the same tokens, but in cross attention, and zeroed too: a NaN times
    the zero cotangent of a padded output would be NaN.
    """
    if mask is None:
        return query, key, value
    tokens = mask.ndim - 1
    same_tokens = query.shape[tokens] == key.shape[tokens] and not cross_attention
    of_queries = mask if same_tokens else None
    return zeroed(query, of_queries), zeroed(key, mask), zeroed(value, mask)


class Attention(nnx.Module):
    """The base class of all attentions; a subclass writes `attend`.

    num_projections: how many projections of x the attention uses: 3 = query, key and
      value; 2 = one for query and key, and value; 1 = value. So none goes unused.
    self_attention_only: it needs T = S.
    cross_attention: of an instance: queries are of other tokens than keys even where
      T = S, so that the mask says nothing of them.
    defaults: the options of the paper's experiments, which configs and benchmarks start
      from; a subclass names those that differ from the defaults of its `__init__`.
    size_option: the option that says how large it is, as 64 in "nystrom-64".
    padding_sensitive: option -> the value with which outputs depend on the padding.
    shared_across_layers: one instance serves all layers of an encoder.
    """

    num_projections = 3
    self_attention_only = False
    cross_attention = False
    shared_across_layers = False
    defaults: ClassVar[Mapping[str, Any]] = {}
    size_option: ClassVar[str | None] = None
    padding_sensitive: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        given = inspect.signature(cls.__init__).parameters.items()
        own = {name: x.default for name, x in given if x.default is not x.empty}
        cls.defaults = own | dict(cls.defaults)

    def __init__(
        self, *, num_heads: int, head_dim: int, max_length: int, rngs: nnx.Rngs
    ):
        """For N heads of H and sequences up to max_length; subclasses add options."""

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        broadcast_dropout: bool = True,
        deterministic: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: object = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """Attends. linen passes only the keywords that it finds in this signature.

        What needs the [T, S] weights must be left out: bias, dropout of them unless
        deterministic, a module to sow them into, causality.

        Args:
          query: [B, T, N, H].
          key, value: [B, S, N, H].
          mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend. With T = S
            it is taken for self-attention, unless `cross_attention` is set: queries it
            excludes are padding too, and their rows have no meaning. On a mesh of
            explicit axes it must be sharded as the keys are.
          dtype: of the large products and the output; None = the inputs'.
          precision: of the large products.

        Returns:
          [B, T, N, H] in dtype.

        Raises:
          ValueError: for what this attention cannot honour.
        """
        name = type(self).__name__
        self._refuse_linen(name)
        check_shapes(query, key, value)
        for is_asked, what in (
            (bias is not None, f"a bias of shape {getattr(bias, 'shape', ())}"),
            (is_causal, "is_causal=True"),
            (dropout_rate > 0 and not deterministic, f"dropout_rate={dropout_rate}"),
            (module is not None, "sow_weights=True"),
        ):
            if is_asked:
                raise ValueError(
                    f"{what} needs the [T, S] weights of {query.shape} and {key.shape},"
                    f" which {name} never forms: leave it out, or use softmax attention"
                )
        if self.self_attention_only and query.shape[1] != key.shape[1]:
            raise ValueError(
                f"{name} is self-attention and needs T = S, got {query.shape} and "
                f"{key.shape}"
            )
        if mask is not None:
            mask = key_mask(mask, *key.shape[:2])
        dtype = dtype or jnp.result_type(query, key, value)
        per_head = self.per_head(key.shape[1])

        def one_head(query, key, value, mask, *own):
            # Zeroed here, as then XLA keeps one copy of each for all that follows.
            query, key, value = zero_padding(
                query, key, value, mask, self.cross_attention
            )
            return self.attend(query, key, value, mask, precision, *own).astype(dtype)

        axes = (1, 1, 1, None) + (0,) * len(per_head)
        heads = jax.vmap(one_head, axes, out_axes=1, axis_name="heads")
        axes = (0,) * 4 + (None,) * len(per_head)
        batch = jax.vmap(heads, axes, axis_name="batch")
        query, key, value = (x.astype(dtype) for x in (query, key, value))
        return batch(query, key, value, mask, *per_head)

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        """Arrays [N, ...] of each head for keys of that length."""
        return ()

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        *own: jax.Array,
    ) -> jax.Array:
        """The attention of one head of one sequence, lifted by vmap.

        A subclass need not repeat the types. The axes of vmap are "batch" and "heads".

        Args:
          query, key, value: [T, H], [S, H], [S, H] of one dtype, zero where mask is
            False.
          mask: [S] bool, True = attend, or None.
          precision: of the large products.
          *own: this head's rows of `per_head`.

        Returns:
          [T, H].
        """
        raise NotImplementedError

    def _refuse_linen(self, name: str) -> None:
        """Raises ValueError if linen calls an attention with parameters."""
        caller = linen_module._context.module_stack[-1]
        if caller is None or isinstance(caller, nnx.bridge.ToLinen):
            return
        params = jax.tree.leaves(nnx.state(self, nnx.Param))
        if params:
            raise ValueError(
                f"{name} has {sum(x.size for x in params):,} parameters, which linen's "
                f"{type(caller).__name__} would never train: use it in "
                "flax.nnx.MultiHeadAttention, or the whole nnx model by "
                "flax.nnx.bridge.ToLinen"
            )
