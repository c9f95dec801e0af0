"""Linformer against its formula, its limit, and what shares a projection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.linformer import linformer_attention
from nystromformer.attention.softmax import softmax_attention
from nystromformer.encoder import Encoder
from tests.tolerance import TOLERANCE, relative_error

B, N, H, MAX_LENGTH, K = 2, 3, 5, 17, 7


def normal(seed, *shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def reference(query, key, value, mask, of_keys, of_values):
    """Eq. (7) of Wang et al., one head at a time, over the valid columns."""
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, n in np.ndindex(query.shape[0], query.shape[2]):
        valid = np.flatnonzero(mask[b])
        projected_keys = of_keys[:, valid] @ key[b, valid, n]
        projected_values = of_values[:, valid] @ value[b, valid, n]
        for t, q in enumerate(query[b, :, n]):
            scores = projected_keys @ q / np.sqrt(len(q))
            weights = np.exp(scores - scores.max())
            out[b, t, n] = weights @ projected_values / weights.sum()
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_queries", [13, 11])
@pytest.mark.parametrize("shared", [True, False])
def test_equals_the_paper_with_padding_and_shorter_inputs(shared, num_queries, dtype):
    mask = np.array([np.arange(13) < 11, np.arange(13) % 3 != 1])
    of_keys = normal(3, K, MAX_LENGTH, scale=0.3)
    of_values = of_keys if shared else normal(4, K, MAX_LENGTH, scale=0.3)
    for scale in (0.1, 1.0, 4.0):
        query = normal(0, B, num_queries, N, H, scale=scale)
        key, value = normal(1, B, 13, N, H, scale=scale), normal(2, B, 13, N, H)
        with jax.enable_x64(dtype == "float64"):
            out = linformer_attention(
                *(jnp.asarray(x, dtype) for x in (query, key, value)),
                mask=mask[:, None, None],
                key_projection=jnp.asarray(of_keys, dtype),
                value_projection=None if shared else jnp.asarray(of_values, dtype),
            )
            assert out.dtype == dtype
        expected = reference(query, key, value, mask, of_keys, of_values)
        for b, valid in enumerate(mask if num_queries == 13 else [slice(None)] * B):
            error = relative_error(out[b, valid], expected[b, valid])
            assert error <= TOLERANCE[dtype]


def test_identity_projections_are_softmax_attention():
    for scale in (0.1, 1.0, 4.0):
        x = [jnp.float32(normal(s, B, 13, N, H, scale=scale)) for s in range(3)]
        out = linformer_attention(*x, key_projection=jnp.eye(13))
        assert relative_error(out, softmax_attention(*x)) <= TOLERANCE["float32"]
        twin = linformer_attention(*x, key_projection=jnp.eye(13)[1:])
        assert relative_error(twin, softmax_attention(*x)) > 1e-2


def make(**options):
    return make_attention(
        "linformer",
        num_heads=N,
        head_dim=H,
        max_length=MAX_LENGTH,
        rngs=nnx.Rngs(0),
        **{"projection_dim": K, **options},
    )


@pytest.mark.parametrize(("sharing", "count"), [("head", 2), ("key_value", 1)])
def test_every_projection_is_trained(sharing, count):
    graphdef, params = nnx.split(make(sharing=sharing))
    x = [jnp.float32(normal(s, B, 13, N, H)) for s in range(3)]
    gradients = jax.grad(lambda p: jnp.sin(nnx.merge(graphdef, p)(*x)).sum())(params)
    leaves = jax.tree.leaves(gradients)
    assert [leaf.shape for leaf in leaves] == [(K, MAX_LENGTH)] * count
    for leaf in leaves:  # the columns in use, and no other
        assert np.asarray(leaf)[:, :13].all()
        assert not np.asarray(leaf)[:, 13:].any()


def test_projections_of_keys_and_values_start_apart_and_keep_the_length_of_keys():
    attention = make(sharing="head", projection_dim=MAX_LENGTH)
    of_keys, of_values = attention.key_projection[...], attention.value_projection[...]
    assert not np.isclose(of_keys, of_values).any(1).all()
    bound = np.sqrt(3 / (2 * MAX_LENGTH))  # U(−bound, bound): variance 1/(L + k)
    for projection in (of_keys, of_values):
        assert 0.9 * bound < np.abs(projection).max() <= bound


def encoder(sharing, remat="none"):
    return Encoder(
        vocab_size=11,
        max_length=MAX_LENGTH - 1,
        num_layers=3,
        num_heads=2,
        model_dim=14,
        mlp_dim=6,
        attention="linformer",
        attention_options={"projection_dim": K, "sharing": sharing},
        cls_token=True,
        remat=remat,
        rngs=nnx.Rngs(0),
    )


def projections(state):
    """The Linformer projections in a state, by path."""
    return {k: v for k, v in nnx.to_flat_state(state) if k[-1].endswith("_projection")}


@pytest.mark.parametrize(
    ("sharing", "count"), [("head", 6), ("key_value", 3), ("layer", 1)]
)
def test_how_many_projections_three_layers_have(sharing, count):
    state = nnx.state(encoder(sharing))
    assert len(projections(state)) == count


def loss_and_gradient(model):
    """Of an encoder on padded tokens, without graph mode: a plain tree."""
    inputs = np.arange(26).reshape(2, 13) % 11
    mask = np.arange(13) < np.array([[11], [7]])
    with nnx.set_graph_mode(False):
        graphdef, state = nnx.split(model)

        @jax.jit
        @jax.value_and_grad
        def loss(state):
            out, valid = nnx.merge(graphdef, state)(inputs, mask)
            return jnp.where(valid[:, :, None], jnp.sin(3 * out), 0).sum()

        return loss(state)


@pytest.mark.parametrize("remat", ["none", "attention", "block"])
def test_one_projection_for_all_layers_sums_their_gradients(remat):
    """Three layers with equal projections of their own tell what each contributes."""
    shared, own = encoder("layer", remat), encoder("key_value")
    (path, projection), *others = projections(nnx.state(shared)).items()
    assert (path, others) == (("shared", "key_projection"), [])
    own_state = nnx.to_flat_state(nnx.state(own))
    shared_state = dict(nnx.to_flat_state(nnx.state(shared)))
    for key, variable in own_state:
        is_projection = key[-1] == "key_projection"
        variable[...] = projection[...] if is_projection else shared_state[key][...]
    nnx.update(own, nnx.from_flat_state(own_state))

    loss, gradient = loss_and_gradient(shared)
    own_loss, own_gradient = loss_and_gradient(own)
    assert relative_error(loss, own_loss) <= TOLERANCE["same"]
    parts = [np.asarray(v[...]) for v in projections(own_gradient).values()]
    assert len(parts) == 3
    assert all(part.any() for part in parts)
    [total] = projections(gradient).values()
    assert relative_error(total[...], sum(parts)) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"projection_dim": 18}, "projection_dim.* 17.* 18"),
        ({"projection_dim": 0}, "projection_dim.* 17.* 0"),
        ({"sharing": "heads"}, "sharing.*head.*key_value.*layer.*'heads'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dropout_rate": 0.1, "deterministic": False}, "dropout_rate=0.1.*linformer"),
        ({"module": object()}, "linformer never forms"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options, text):
    x = jnp.ones((B, 7, N, H))
    with pytest.raises(ValueError, match=text):
        make()(x, x, x, **options)


def test_inputs_and_projections_that_do_not_fit_are_refused():
    x = jnp.ones((B, MAX_LENGTH + 1, N, H))
    with pytest.raises(ValueError, match=r"length 18 .*max_length 17"):
        make()(x, x, x)
    two = {"key_projection": jnp.eye(19), "value_projection": jnp.eye(23)}
    with pytest.raises(ValueError, match=r"\(19, 19\) and \(23, 23\)"):
        linformer_attention(x, x, x, **two)
