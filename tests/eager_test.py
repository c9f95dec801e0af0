"""Calls without jit: the second one compiles nothing, forward and in its gradient."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.nystrom import nystrom_attention
from nystromformer.pinv import PINVS
from tests.attention.cases import MASK, make, normal, random_qkv
from tests.encoder_cases import INPUTS, make_encoder
from tests.encoder_cases import MASK as ENCODER_MASK

COMPILED = "/jax/core/compile/backend_compile_duration"
PADDING = jnp.asarray(MASK)[:, None, None]


@contextlib.contextmanager
def noting_compilations():
    """The list to which every compilation in the context adds its seconds."""
    compilations = []

    def note(event, seconds, **_):
        if event == COMPILED:
            compilations.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def num_of_second_call(function, *inputs):
    """How many programs the second call of a function compiles."""
    function(*inputs)
    with noting_compilations() as compilations:
        function(*inputs)
    return len(compilations)


def check_second_call(function, *inputs):
    """Neither the function nor its gradient compiles anything at the second call."""

    def gradient(*inputs):
        def total(inputs):
            return function(*inputs).sum()

        return jax.grad(total)(inputs)

    assert num_of_second_call(function, *inputs) == 0
    assert num_of_second_call(gradient, *inputs) == 0


def test_a_loop_over_a_new_function_compiles_at_every_call():
    def count_to_three(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: x + 1, x)

    assert num_of_second_call(count_to_three, 0.0) == 1


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_compiles_nothing_the_second_time(name):
    attention = make(name)

    def attend(*qkv):
        return attention(*qkv, mask=PADDING, deterministic=True)

    check_second_call(attend, *random_qkv())


def test_nystrom_attention_compiles_nothing_the_second_time():
    def attend(*qkv):
        return nystrom_attention(*qkv, mask=PADDING, num_landmarks=7)

    check_second_call(attend, *random_qkv())


def test_attentions_with_equal_options_share_one_program():
    """As the function `nystrom_attention`, which makes one at each call."""
    make("nystrom")(*random_qkv())
    with noting_compilations() as compilations:
        make("nystrom")(*random_qkv())
    assert not compilations


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_rate": 0.5}])
def test_softmax_of_many_queries_compiles_nothing_the_second_time(options):
    """They are several blocks, even on a CPU."""
    attention = make("softmax")

    def attend(*qkv):
        return attention(*qkv, dropout_rng=jax.random.key(0), **options)

    check_second_call(attend, *jnp.float32(normal(0, 3, 1, 300, 2, 5)))


@pytest.mark.parametrize("pinv", PINVS)
def test_the_inverse_compiles_nothing_the_second_time(pinv):
    def invert(a):
        return jax.vmap(PINVS[pinv], (0, None))(a, 2)

    check_second_call(invert, jnp.eye(7)[None] + 0.1)


@pytest.mark.parametrize("remat", ["none", "block"])
def test_encoder_compiles_nothing_the_second_time(remat):
    """Beside its attention, which is tested by itself above."""
    encoder = make_encoder(attention="identity", dropout_rate=0.1, remat=remat)
    graphdef, weights = nnx.split(encoder)
    ids = jnp.asarray(INPUTS)
    mask = jnp.asarray(ENCODER_MASK)

    def encode(weights):
        x, _ = nnx.merge(graphdef, weights)(ids, mask, jax.random.key(0))
        return x

    check_second_call(encode, weights)
