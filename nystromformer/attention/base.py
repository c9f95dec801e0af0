"""The signature common to all attentions, and the checks of masks and shapes.

It is the one that `jax.nn.dot_product_attention`, `attention_fn` of
`flax.nnx.MultiHeadAttention` and of `flax.linen.MultiHeadDotProductAttention` share. A
subclass writes the attention of one head of one sequence, lifted over batch and heads.

Letters: B batch, T query length, S key length, N heads, H head dim.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_origin

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import module as linen_module

from nystromformer.ops import zeroed
from nystromformer.validation import check_type

# Above it a query where the mask is False is taken for garbage: no network makes such
# numbers, and its scores might overflow.
LARGEST_QUERY = 2.0**64


def check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises ValueError unless shapes are [B, T, N, H], [B, S, N, H], [B, S, N, H].

    S ≥ 1: there is no mean over no values.
    """
    if query.ndim == 3:
        raise ValueError(
            f"query must be [B, T, N, H], got {query.shape}: add a batch axis to the "
            "inputs, as in x[None]"
        )
    is_same = query.shape[:1] + query.shape[2:] == key.shape[:1] + key.shape[2:]
    is_same &= value.shape[:3] == key.shape[:3]
    if not (query.ndim == key.ndim == value.ndim == 4 and is_same):
        got = f"got {query.shape}, {key.shape}, {value.shape}"
        wanted = "[B, T, N, H], [B, S, N, H], [B, S, N, H]"
        raise ValueError(f"query, key and value must be {wanted}; {got}")
    if key.shape[1] == 0:
        raise ValueError(f"there must be at least one key, got key {key.shape}")


def with_four_axes(name: str, x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """x with axes of 1 in front; ValueError unless it broadcasts to that shape."""
    x = jnp.asarray(x)
    axes = (1,) * (4 - x.ndim) + x.shape
    if len(axes) > 4 or any(n not in (1, m) for n, m in zip(axes, shape, strict=True)):
        fails = f"a {name} of shape {x.shape} does not broadcast to {tuple(shape)}"
        padding = "for padding pass mask[:, None, None, :], which is [B, 1, 1, S]"
        raise ValueError(f"{fails}; {padding}")
    return x.reshape(axes)


def mask_with_four_axes(mask: jax.Array, shape: Sequence[int]) -> jax.Array:
    """A mask as `with_four_axes` gives it; ValueError unless it is boolean."""
    mask = with_four_axes("mask", mask, shape)
    if mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask must be boolean (True = attend), got {mask.dtype}; flax's "
            "make_attention_mask and combine_masks need dtype=bool, and decode=True, "
            "which is causal, makes a mask of floats"
        )
    return mask


def key_mask(mask: jax.Array, batch: int, length: int) -> jax.Array:
    """The key mask [B, S] from a mask that broadcasts to [B, 1, 1, S].

    Raises ValueError, with the shape, for a mask that varies over queries or heads.
    """
    mask = mask_with_four_axes(mask, (batch, 1, 1, length))
    return jnp.broadcast_to(mask[:, 0, 0, :], (batch, length))


class Attention(nnx.Module):
    """The base class of all attentions; a subclass writes `attend`.

    Its annotated attributes with a value are the options, with types and defaults.
    """

    # Projections of x that a model makes for it, so that none goes unused: 3 = query,
    # key and value; 2 = one for query and key, and value; 1 = value.
    num_projections = 3
    self_attention_only = False  # whether it needs T = S
    shared_across_layers = False  # whether one instance serves all layers
    options: ClassVar[Mapping[str, type]] = {}
    # The options of the paper's experiments, with which configs and benchmarks start;
    # a subclass names those that differ from the defaults of its options. What it does
    # not mention it takes from its parent.
    defaults: ClassVar[Mapping[str, Any]] = {}
    size_option: ClassVar[str | None] = None  # the option behind 64 in "nystrom-64"
    # Option -> the value with which the output of an example depends on its padding,
    # or on the others of its batch.
    padding_sensitive: ClassVar[Mapping[str, Any]] = {}
    batch_sensitive: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        parent: Any = super(cls, cls)
        options = dict(parent.options)
        for name, annotation in inspect.get_annotations(cls, eval_str=True).items():
            is_class_variable = ClassVar in (annotation, get_origin(annotation))
            is_flag = name in vars(Attention)  # as `self_attention_only: bool = True`
            if name in vars(cls) and not is_class_variable and not is_flag:
                options[name] = annotation
        cls.options = options

        defaults = {name: getattr(cls, name) for name in options}
        for name, value in parent.defaults.items():
            if name not in vars(cls):  # a new default is that of the configs, too
                defaults[name] = value
        cls.defaults = {**defaults, **vars(cls).get("defaults", {})}

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_length: int,
        rngs: nnx.Rngs,
        cross_attention: bool = False,
        **options: Any,
    ):
        """Checks the options, and keeps them as attributes.

        Args:
          num_heads, head_dim: N and H.
          max_length: of the sequences that it will see.
          rngs: for the initial values of parameters.
          cross_attention: whether queries belong to other tokens than keys. Landmarks
            of queries need to know: where T = S this cannot be seen from the arrays,
            and the mask of keys would keep queries out of them. The other attentions
            that take T ≠ S give the same result either way.
          **options: those of the class.

        Raises:
          ValueError: an unknown option or an invalid value, or cross attention where
            the attention has none.
        """
        self.check_options(options)
        if cross_attention and self.self_attention_only:
            raise ValueError(f"{type(self).__name__} has no cross attention")
        self.cross_attention = cross_attention
        self.num_heads, self.head_dim, self.max_length = num_heads, head_dim, max_length
        for name in self.options:
            setattr(self, name, options.get(name, getattr(self, name)))

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Raises ValueError for an unknown option, or one of a wrong type."""
        owner, known = cls.__name__, ", ".join(cls.options) or "none"
        for name, value in options.items():
            if name not in cls.options:
                raise ValueError(f"{owner} has no option {name!r}; known: {known}")
            check_type(f"{name} of {owner}", value, cls.options[name])

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
        deterministic: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: object = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """Attends. linen passes only the keywords that it finds in this signature.

        Args:
          query, key, value: [B, T, N, H], [B, S, N, H], [B, S, N, H].
          bias, is_causal, module, and a dropout_rate over 0 unless deterministic: each
            needs the [T, S] weights, which do not exist here: ValueError.
          mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend. With T = S
            and without `cross_attention` it also says which queries make landmarks, and
            NaN in the others has no influence.
          dtype: of the large products and the output; None = the inputs'.
          precision: of the large products.

        Returns:
          [B, T, N, H] in dtype.
        """
        self._refuse_linen()
        check_shapes(query, key, value)
        if query.shape[2:] != (sizes := (self.num_heads, self.head_dim)):
            raise ValueError(f"made for [N, H] = {sizes}, got {query.shape}")
        name, shapes = type(self).__name__, f"{query.shape} and {key.shape}"
        if self.self_attention_only and query.shape[1] != key.shape[1]:
            raise ValueError(f"{name} is self-attention and needs T = S, got {shapes}")
        for what, is_asked in (
            (f"a bias of shape {getattr(bias, 'shape', ())}", bias is not None),
            ("is_causal=True", is_causal),
            (f"dropout_rate={dropout_rate}", dropout_rate > 0 and not deterministic),
            ("sow_weights=True", module is not None),
        ):
            if is_asked:
                needs = f"{what} needs the [T, S] weights of {shapes}, which {name}"
                raise ValueError(f"{needs} never forms: take softmax attention")
        if mask is not None:
            mask = key_mask(mask, *key.shape[:2])
        dtype = dtype or jnp.result_type(query, key, value)
        query, key, value = (x.astype(dtype) for x in (query, key, value))
        return self._lifted(query, key, value, mask, precision)

    def _lifted(self, query, key, value, mask, precision) -> jax.Array:
        """`attend` over batch and heads."""
        per_head = self.per_head(key.shape[1])

        def one_head(query, key, value, mask, *own):
            # Zeroed here, as then XLA keeps one copy of each for all that follows.
            query, key, value = self.without_padding(query, key, value, mask)
            out = self.attend(query, key, value, mask, precision, *own)
            return out.astype(query.dtype)

        # One row for all heads stays one, or its gradient would be made for each.
        shared = [x[0] if len(x) == 1 else x for x in per_head]
        axes = (1, 1, 1, None, *(None if len(x) == 1 else 0 for x in per_head))
        heads = jax.vmap(one_head, axes, out_axes=1, axis_name="heads")
        axes = (0,) * 4 + (None,) * len(per_head)
        batch = jax.vmap(heads, axes, axis_name="batch")
        return batch(query, key, value, mask, *shared)

    def without_padding(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys and values, zero where the mask of their first axes is False.

        With T = S these may be the places of padded queries, too, or, in cross
        attention, of valid ones. So queries stay there, except for garbage, which is
        zero unless `cross_attention` says that it is valid: NaN in a score times the
        zero cotangent of its output would be NaN.
        """
        if mask is None:
            return query, key, value
        if query.shape == key.shape and not self.cross_attention:
            by_token = jnp.expand_dims(mask, range(mask.ndim, query.ndim))
            is_number = jnp.abs(query) < LARGEST_QUERY
            query = jnp.where(by_token | is_number, query, 0)
        return query, zeroed(key, mask), zeroed(value, mask)

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        """Arrays for `attend` at that length of keys: a row for each head, or one."""
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
        """The attention of one head of one sequence; vmap names "batch" and "heads".

        query [T, H] and key and value [S, H] of one dtype, these zero where mask [S]
        (or None) is False, and this head's rows of `per_head` -> [T, H]. Where queries
        are added up, as in landmarks, and T = S without `self.cross_attention`, the
        mask is theirs, too.
        """
        raise NotImplementedError

    def _refuse_linen(self) -> None:
        """Raises ValueError if a linen module, which sees no nnx.Param, calls any.

        flax has no public way to ask which module is running.
        """
        caller = linen_module._context.module_stack[-1]
        if caller is None or isinstance(caller, nnx.bridge.ToLinen):
            return
        if params := jax.tree.leaves(nnx.state(self, nnx.Param)):
            count, name = sum(x.size for x in params), type(self).__name__
            module = f"linen's {type(caller).__name__}"
            lost = f"{name} has {count:,} parameters, which {module} would never train"
            use = "use flax.nnx, or the whole nnx model by flax.nnx.bridge.ToLinen"
            raise ValueError(f"{lost}: {use}")
