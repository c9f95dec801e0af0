"""The contract of every attention in the table; listing one is testing it."""

import ast
import functools
import inspect
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import listops
from nystromformer.attention import ATTENTIONS, make_attention, register_attention
from nystromformer.attention.base import Attention
from nystromformer.attention.nystrom import NystromAttention, nystrom_attention
from tests.attention.cases import KINDS, MASK, MAX_LENGTH, B, H, N, inputs, make
from tests.tolerance import TOLERANCE, relative_error

KEEP = MASK[:, :, None, None]
# The attentions without a property, and the reason.
WITHOUT = {
    "linear memory": {"softmax"},  # the [T, S] matrix, whole or in blocks
    "equivariance": {"reformer"},  # each head draws its own rotations
    "every value seen": {"reformer"},  # its buckets leave out distant tokens
}
every_attention = pytest.mark.parametrize("name", ATTENTIONS)


def having(property_name):
    names = [n for n in ATTENTIONS if n not in WITHOUT[property_name]]
    return pytest.mark.parametrize("name", names)


@functools.cache
def program(name):
    """The one program of [B, 67, N, H]: outputs, and gradients at valid ones.

    A function of query, key and value, of the mask [B, 67], and of other parameters:
    its gradients are those of parameters, query, key and value.
    """
    graphdef, params, rest = nnx.split(make(name), nnx.Param, ...)

    def loss(params, qkv, rest, mask):
        out = nnx.merge(graphdef, params, rest)(*qkv, mask=mask[:, None, None])
        kept = jnp.where(mask[:, :, None, None], out, 0)
        weights = jnp.cos(jnp.arange(kept.size)).reshape(kept.shape)
        return (kept * weights).sum(), out

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))

    def run(qkv, mask=MASK, exchange=lambda state: state):
        state = exchange(params), qkv, exchange(rest), jnp.asarray(mask)
        (_, out), grads = gradient(*state)
        return np.asarray(out), jax.tree.map(np.asarray, grads)

    return run


def check_rows(actual, expected, mask, tolerance):
    assert actual.shape == expected.shape
    for one, other, valid in zip(actual, expected, mask, strict=True):
        assert relative_error(one[valid], other[valid]) <= TOLERANCE[tolerance]


@every_attention
def test_attention_ignores_added_padding_at_any_length(name):
    graphdef, state = nnx.split(make(name))
    short = jax.jit(lambda *x: nnx.merge(graphdef, state)(*x))(*inputs(13))
    assert short.shape == (B, 13, N, H)
    assert short.dtype == jnp.float32
    mask = np.arange(MAX_LENGTH) < np.full((B, 1), 13)
    padded, _ = program(name)(inputs(), mask)
    check_rows(padded[:, :13], short, mask[:, :13], "float32")


@every_attention
def test_attention_ignores_garbage_in_padding_forward_and_backward(name):
    clean, clean_grads = program(name)([jnp.where(KEEP, x, 0) for x in inputs()])
    for number in (1e6, 3e38, -jnp.inf, jnp.nan):
        garbage = [jnp.where(KEEP, x, number) for x in inputs()]
        dirty, dirty_grads = program(name)(garbage)
        assert np.isfinite(dirty).all()
        np.testing.assert_array_equal(dirty[MASK], clean[MASK])
        jax.tree.map(np.testing.assert_array_equal, dirty_grads, clean_grads)
        for grad in dirty_grads[1]:
            assert not grad[~MASK].any()
    seen = dirty_grads[1][2][MASK].any(-1)  # [valid tokens, N]
    assert seen.any() if name in WITHOUT["every value seen"] else seen.all()
    without, _ = program(name)(garbage, np.ones_like(MASK))
    assert not np.isfinite(without).all()


@every_attention
def test_attention_of_padding_alone_is_finite(name):
    out, grads = program(name)(inputs(), MASK & np.array([True, False, True])[:, None])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((out, grads)))


@every_attention
def test_attention_of_a_row_does_not_depend_on_its_batch(name):
    together, _ = program(name)(inputs())
    for b in range(B):
        others = np.arange(B) != b
        changed = [x.at[others].multiply(-3.0) for x in inputs()]
        out, _ = program(name)(changed, np.where(others[:, None], MASK[:, ::-1], MASK))
        check_rows(out[b : b + 1], together[b : b + 1], MASK[b : b + 1], "same")


@having("equivariance")
def test_attention_treats_heads_equally_and_independently(name):
    """Heads exchanged, in inputs and parameters, are outputs exchanged."""

    def per_head(x):
        return x[(slice(None),) * x.shape.index(N) + (slice(None, None, -1),)]

    def exchange(state):
        return jax.tree.map(lambda x: per_head(x) if N in x.shape else x, state)

    out, _ = program(name)(inputs())
    exchanged, _ = program(name)([x[:, :, ::-1] for x in inputs()], exchange=exchange)
    check_rows(exchanged[:, :, ::-1], out, MASK, "same")


@every_attention
def test_attention_has_gradients_for_its_projections_and_parameters(name):
    _, (params, qkv) = program(name)(inputs(), np.ones_like(MASK))
    for grad in jax.tree.leaves(params):
        assert grad.any()
    used = [bool(grad.any()) for grad in qkv]
    assert used == [ATTENTIONS[name].num_projections > 1] * 2 + [True]


@every_attention
def test_attention_in_bfloat16_is_near_float32(name):
    graphdef, state = nnx.split(make(name))
    call = jax.jit(lambda *x: nnx.merge(graphdef, state)(*x))
    rounded = inputs(dtype=jnp.bfloat16)
    for mask in (jnp.asarray(MASK), jnp.ones_like(MASK)):
        out = call(*rounded, None, mask[:, None, None] if not mask.all() else None)
        assert out.dtype == jnp.bfloat16
        wide, _ = program(name)([x.astype(jnp.float32) for x in rounded], mask)
        check_rows(np.asarray(out, np.float32), wide, mask, "bfloat16")


@every_attention
def test_attention_in_float16_has_room_for_sums_over_many_keys(name):
    numbers = np.random.default_rng(0).normal(size=(3, 1, 4096, 1, H))
    numbers[:2] *= 0.1  # so that all keys have a share in every sum
    numbers[2] += 30  # values, whose sum is over the largest float16
    rounded = jnp.asarray(numbers, jnp.float16)
    given = {"num_heads": 1, "head_dim": H, "max_length": 4096, "rngs": nnx.Rngs(0)}
    attend = jax.jit(ATTENTIONS[name](**given))
    out, wide = attend(*rounded), attend(*rounded.astype(jnp.float32))
    assert out.dtype == jnp.float16
    assert relative_error(out, wide) <= TOLERANCE["bfloat16"]


@every_attention
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_promotes_no_dtype_unasked(name, dtype):
    """As in a program that sets `jax_numpy_dtype_promotion="strict"`."""
    graphdef, params, rest = nnx.split(make(name), nnx.Param, ...)

    def loss(params, qkv, mask):
        out = nnx.merge(graphdef, params, rest)(*qkv, mask=mask)
        return out.astype(jnp.float32).sum()

    with jax.numpy_dtype_promotion("strict"):
        for mask in (None, jnp.asarray(MASK)[:, None, None]):
            gradient = jax.grad(loss, argnums=(0, 1))
            jax.eval_shape(gradient, params, inputs(dtype=dtype), mask)  # or raises


@every_attention
def test_attention_is_exported_for_any_batch(name):
    attend = jax.jit(make(name))
    shape = (*jax.export.symbolic_shape("b"), MAX_LENGTH, N, H)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    out = jax.export.export(attend)(x, x, x).call(*inputs())
    assert relative_error(out, attend(*inputs())) <= TOLERANCE["float32"]


@every_attention
def test_attention_at_extremes_is_finite_forward_and_backward(name):
    """Rows of each kind; logits 2^−10, 1 and 2^10 times their size."""
    rng, scales = np.random.default_rng(0), np.array([2.0**-10, 1, 2.0**10])
    for kind in KINDS.values():
        rows = np.array(
            [[kind(rng, MAX_LENGTH, H) for _ in range(N)] for _ in range(3)], np.float32
        )
        rows = np.broadcast_to(rows.swapaxes(1, 2)[:, None], (3, B, MAX_LENGTH, N, H))
        query = rows[0] * scales[:, None, None, None].astype(np.float32)
        results = program(name)([jnp.asarray(x) for x in (query, rows[1], rows[2])])
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(results))


@having("linear memory")
def test_attention_memory_is_linear_in_length(name):
    """Of the gradient, with the default options, at 4,096 and 8,192 tokens."""

    def temporary_bytes(length):
        given = {"num_heads": 1, "head_dim": H, "max_length": length}
        graphdef, state = nnx.split(ATTENTIONS[name](**given, rngs=nnx.Rngs(0)))

        def total(state, *x):
            return nnx.merge(graphdef, state)(*x).sum()

        x = jax.ShapeDtypeStruct((1, length, 1, H), jnp.float32)
        gradient = jax.jit(jax.grad(total, argnums=(1, 2, 3)))
        memory = gradient.lower(state, x, x, x).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert temporary_bytes(8192) <= 2.2 * max(temporary_bytes(4096), 1024)


class Shifted(Attention):
    """Each token gets its neighbour's value: an attention of another package."""

    self_attention_only = True

    def __init__(self, *, by: int = 1, **common):
        super().__init__(**common)
        self.by = by

    def attend(self, query, key, value, mask, precision):
        return jnp.roll(value, self.by, axis=0)


@pytest.fixture
def registered_shifted():
    register_attention("shifted", Shifted)
    yield
    del ATTENTIONS["shifted"]


def test_register_attention_adds_one_of_another_package(registered_shifted):
    query, key, value = inputs(13)
    shifted = make("shifted", by=2)
    np.testing.assert_array_equal(shifted(query, key, value), jnp.roll(value, 2, 1))


def test_register_attention_takes_a_class_again(registered_shifted):
    """A config imports its file once more, which makes another class of that name."""
    same_name = type("Shifted", (Shifted,), {"__module__": "config_of_it"})
    register_attention("shifted", same_name)
    assert ATTENTIONS["shifted"] is same_name


@pytest.mark.parametrize(
    "cls", [type("Other", (Shifted,), {}), Attention, ATTENTIONS["linear"]]
)
def test_register_attention_rejects_a_name_that_is_taken(registered_shifted, cls):
    with pytest.raises(ValueError, match="'shifted' is taken"):
        register_attention("shifted", cls)
    assert ATTENTIONS["shifted"] is Shifted


def test_register_attention_rejects_unknown_paper_options(registered_shifted):
    wrong = type("Shifted", (Shifted,), {"paper_options": {"of": 2}})
    with pytest.raises(ValueError, match=r"Shifted has no option 'of'.*by"):
        register_attention("shifted", wrong)
    assert ATTENTIONS["shifted"] is Shifted


class Fewer(NystromAttention):
    """The paper's, with other defaults."""

    self_attention_only: bool = True  # which is no option

    def __init__(self, *, num_landmarks: int = 32, pinv: str = "exact", **common):
        super().__init__(num_landmarks=num_landmarks, pinv=pinv, **common)


class FewerStill(Fewer):
    paper_options = {"num_landmarks": 16}

    def __init__(self, *, landmark_seed: int = 3, conv_kernel_size: int = 0, **common):
        super().__init__(
            landmark_seed=landmark_seed, conv_kernel_size=conv_kernel_size, **common
        )


class Fixed(NystromAttention):
    """Its `__init__` passes on no options of its parent."""

    def __init__(self, *, num_heads, head_dim, max_length, rngs, pinv: str = "exact"):
        super().__init__(
            num_heads=num_heads,
            head_dim=head_dim,
            max_length=max_length,
            rngs=rngs,
            pinv=pinv,
        )


def test_paper_options_are_those_of_configs():
    defaults = {name: x.default for name, x in NystromAttention.options().items()}
    assert defaults["conv_kernel_size"] == 0
    paper = NystromAttention.config_defaults()
    assert paper == defaults | {"conv_kernel_size": 35}
    assert list(paper) == list(defaults)


def test_defaults_of_a_subclass_are_those_of_its_configs():
    paper = NystromAttention.config_defaults()
    changed = {"num_landmarks": 32, "pinv": "exact"}
    assert Fewer.config_defaults() == paper | changed
    assert list(Fewer.options()) == list(NystromAttention.options())

    changed |= {"num_landmarks": 16, "landmark_seed": 3, "conv_kernel_size": 0}
    assert FewerStill.config_defaults() == paper | changed
    assert Fixed.config_defaults() == {"pinv": "exact"}


def test_config_of_a_registered_subclass_starts_from_its_defaults():
    try:
        register_attention("fewer", Fewer)
        config = listops.get_config("fewer").attention.to_dict()
        assert config == {"name": "fewer"} | Fewer.config_defaults()
        assert make("fewer", pinv_init="per_batch").num_landmarks == 32
    finally:
        del ATTENTIONS["fewer"]


@every_attention
def test_help_of_make_attention_has_every_option(name):
    """In its line of the table, which the next attention's line ends."""
    table = make_attention.__doc__.split("explain them:")[1].split("Configs")[0]
    entries = re.split(r"\n +(?=[a-z]+  )", table)
    entry = next(entry for entry in entries if entry.startswith(name))
    options = {
        option: ast.literal_eval(default)
        for option, default in re.findall(r"(\w+)=([^,\s]+)", entry)
    }
    expected = ATTENTIONS[name].options()
    assert options == {option: x.default for option, x in expected.items()}


def test_help_of_make_attention_has_the_options_of_the_paper():
    for cls in ATTENTIONS.values():
        for option, value in cls.paper_options.items():
            assert f"{option}={value}" in make_attention.__doc__


def test_nystrom_attention_has_the_options_of_the_class():
    options = NystromAttention.options()
    del options["conv_kernel_size"]  # conv_kernel, the parameter itself
    arguments = inspect.signature(nystrom_attention, eval_str=True).parameters
    for name, option in options.items():
        assert arguments[name].default == option.default
        assert arguments[name].annotation == option.annotation


class Typed(Attention):
    """Options of more than plain types."""

    def __init__(
        self,
        *,
        kind: Literal["a", "b"] = "a",
        sizes: tuple[int, ...] = (1, 2),
        extra: Any = None,
        rate: float | None = None,
        untyped=None,
        **common,
    ):
        super().__init__(**common)


def test_check_options_accepts_the_types_that_an_option_may_have():
    Typed.check_options(Typed.config_defaults())
    Typed.check_options(
        {"kind": "b", "sizes": [3], "extra": "x", "rate": np.float32(2), "untyped": {}}
    )
    NystromAttention.check_options({"num_landmarks": np.int64(8)})


@pytest.mark.parametrize(
    ("name", "value"), [("kind", "c"), ("sizes", 3), ("rate", "2")]
)
def test_check_options_rejects_another_type(name, value):
    with pytest.raises(ValueError, match=f"{name} of Typed must be .*, got {value!r}"):
        Typed.check_options({name: value})


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("nystrom", {"num_landmarks": 0}, "num_landmarks.*got 0"),
        ("nystrom", {"conv_kernel_size": 4}, "conv_kernel_size.*odd.*got 4"),
        ("nystrom", {"landmark_padding": "even"}, "'mask', 'count'.*'even'"),
        ("nystrom", {"landmarks": "means"}, "segment_means.*random.*'means'"),
        ("nystrom", {"pinv": "svd"}, "iterative.*exact.*identity.*'svd'"),
        ("linformer", {"projection_dim": 68}, "projection_dim.*at most 67.*got 68"),
        ("longformer", {"window": 134}, "window.*at most 132.*got 134"),
        ("longformer", {"window": 7}, "window must be even.*got 7"),
        ("bigbird", {"block_size": 68}, "block_size.*at most 67.*got 68"),
        ("bigbird", {"num_random_blocks": 3}, "num_random_blocks.*at most 2.*got 3"),
        ("reformer", {"bucket_size": 7}, "bucket_size must be even.*got 7"),
        ("reformer", {"bucket_size": 70}, "bucket_size.*at most 68.*got 70"),
        ("performer", {"num_features": 0}, "num_features.*got 0"),
        ("performer", {"kernel": "gauss"}, "softmax.*published.*'gauss'"),
        ("softmax", {"dropout_rate": 1.0}, r"dropout_rate.*1\.0"),
        ("nystrom", {"num_landmarks": 7.0}, "num_landmarks of Nystrom.*int.*7.0"),
        ("softmax", {"dropout_rate": True}, "dropout_rate of Softmax.*float.*True"),
        ("nistrom", {}, "'nistrom'.*nystrom.*softmax"),
        ("nystrom", {"landmark": 7}, "'landmark'.*num_landmarks.*landmark_padding"),
        ("identity", {"x": 1}, "Identity.*'x'.*none"),
    ],
)
def test_make_attention_rejects_invalid_options(name, options, text):
    with pytest.raises(ValueError, match=text):
        make(name, **options)


def test_make_attention_takes_the_largest_options():
    make("longformer", window=132)
    make("bigbird", block_size=4, num_random_blocks=17)
    make("reformer", bucket_size=68)
    make("linformer", projection_dim=67)
    make("softmax", dropout_rate=0)
