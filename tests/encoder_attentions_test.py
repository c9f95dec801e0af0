"""The attentions of an encoder's layers: one for each, or a projection that they share.

Linformer's projections are the parameters that layers may share.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.token_models import DenoisingClassifier
from tests.encoder_cases import (
    INPUTS,
    MASK,
    L,
    compile_model,
    compiled_encoder,
    encoder_config,
    error_of_valid_rows,
    make_encoder,
)
from tests.tolerance import TOLERANCE, relative_error

NYSTROM = {"num_landmarks": 7, "num_pinv_iters": 2}


def attentions_of(model):
    return [block.attention.attention for block in model.blocks]


def swap_by_hand(remat):
    """Makes three layers of softmax, and puts a Nyström attention into layer 1.

    Both begin with the same numbers, as these attentions have no parameters.
    """
    model = make_encoder(attention="softmax", num_layers=3, remat=remat)
    nystrom = make_encoder(attention_options=NYSTROM)
    model.blocks[1].attention.attention = attentions_of(nystrom)[0]
    return model


@pytest.mark.parametrize(
    ("attention", "options", "by_layer", "remat"),
    [
        ("softmax", {}, {1: {"name": "nystrom", **NYSTROM}}, "none"),
        ("nystrom", NYSTROM, {0: "softmax", 2: {"name": "softmax"}}, "block"),
    ],
)
def test_encoder_with_an_attention_for_each_layer(attention, options, by_layer, remat):
    model = make_encoder(
        attention=attention,
        attention_options=options,
        attention_by_layer=by_layer,
        num_layers=3,
        remat=remat,
    )
    out, _ = compile_model(model)(INPUTS, MASK)
    expected, _ = compile_model(swap_by_hand(remat))(INPUTS, MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["same"]
    only_softmax, _ = compiled_encoder(attention="softmax", num_layers=3)(INPUTS, MASK)
    assert error_of_valid_rows(out, only_softmax) > 1e-4


def test_encoder_config_refuses_a_layer_that_it_does_not_have():
    with pytest.raises(ValueError, match=r"no layer 2 to have .*: the 2 layers are 0"):
        encoder_config(num_layers=2, attention_by_layer={2: "softmax"})


def test_encoder_shares_a_projection_among_the_layers_that_have_it():
    model = make_encoder(
        attention="linformer",
        attention_options={"projection_dim": 4, "sharing": "layerwise_per_head"},
        attention_by_layer={0: "softmax", 2: {"projection_dim": 5}},
        num_layers=4,
    )
    _, second, third, fourth = attentions_of(model)
    assert second is fourth
    assert second.projection.shape[1:] == (4, L)
    assert third.projection.shape[1:] == (5, L)
    shapes = [x.shape for x in jax.tree.leaves(nnx.state(model)) if x.shape[-1] == L]
    assert len(shapes) == 2


def test_encoder_shares_a_projection_with_a_layer_that_states_a_default():
    model = make_encoder(
        max_length=256,
        attention="linformer",
        attention_options={"sharing": "layerwise"},
        attention_by_layer={1: {"projection_dim": 256}},
        num_layers=2,
    )
    first, second = attentions_of(model)
    assert first is second


def count_parameters(make_model):
    state = nnx.state(nnx.eval_shape(make_model))
    return sum(leaf.size for leaf in jax.tree.leaves(state))


def make_linformer(sharing, num_layers=2, remat="none"):
    return make_encoder(
        attention="linformer",
        attention_options={"projection_dim": 5, "sharing": sharing},
        num_layers=num_layers,
        remat=remat,
    )


@pytest.mark.parametrize(
    ("sharing", "num_matrices"),
    [("headwise", 24), ("key_value", 12), ("layerwise", 1), ("layerwise_per_head", 2)],
)
def test_encoder_of_12_layers_has_as_many_projections_as_linformer_says(
    sharing, num_matrices
):
    """Section 4 of Linformer counts 24, 12 and 1.

    As on the LRA, the last kind has one for each of two heads.
    """
    num_parameters = count_parameters(lambda: make_linformer(sharing, num_layers=12))
    num_others = count_parameters(
        lambda: make_encoder(attention="softmax", num_layers=12)
    )
    assert num_parameters - num_others == num_matrices * 5 * L


def output_and_projection_gradients(model):
    """The vectors, and the gradient of E in every block that has one."""
    graphdef, state = nnx.split(model)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def compute(state):
        out, _ = nnx.merge(graphdef, state)(INPUTS, jnp.asarray(MASK))
        return jnp.where(MASK[:, :, None], jnp.sin(out), 0).sum(), out

    gradient, out = compute(state)
    projection_gradients = []
    for block in nnx.to_pure_dict(gradient)["blocks"].values():
        attention = block["attention"].get("attention", {})
        projection_gradients.extend(np.asarray(x) for x in attention.values())
    return np.asarray(out), projection_gradients


@functools.cache
def output_and_gradients_of_equal_projections():
    """The layers have projections of their own, with the numbers of the shared one."""
    shared_projection = attentions_of(make_linformer("layerwise"))[0].projection[...]
    model = make_linformer("key_value")
    for attention in attentions_of(model):
        attention.projection[...] = shared_projection
    return output_and_projection_gradients(model)


@pytest.mark.parametrize("remat", ["none", "block"])
def test_encoder_layers_share_a_projection_and_sum_its_gradients(remat):
    """Against a model whose layers have equal projections of their own."""
    model = make_linformer("layerwise", remat=remat)
    first, second = attentions_of(model)
    assert first is second

    # The other parameters of both models were drawn by the same keys.
    out, [gradient] = output_and_projection_gradients(model)
    expected, gradients_by_layer = output_and_gradients_of_equal_projections()
    assert error_of_valid_rows(out, expected) <= TOLERANCE["float32"]
    assert len(gradients_by_layer) == 2
    gradient_sum = sum(gradients_by_layer)
    assert relative_error(gradient, gradient_sum) <= TOLERANCE["float32"]
    assert relative_error(gradients_by_layer[0], gradient_sum) > 0.01


def test_encoder_trains_the_projection_of_each_head_that_layers_share():
    model = make_linformer("layerwise_per_head")
    first, second = attentions_of(model)
    assert first is second
    _, [gradient] = output_and_projection_gradients(model)
    for gradient_of_head in gradient:
        assert gradient_of_head.any()


def test_parameters_are_the_same_float32_numbers_under_x64():
    """Of a model with every attention and every optional part."""
    by_layer = dict(enumerate(ATTENTIONS)) | {
        len(ATTENTIONS): {"name": "linformer", "sharing": "headwise"},
        len(ATTENTIONS) + 1: {"name": "linformer", "sharing": "layerwise_per_head"},
    }
    config = encoder_config(
        max_length=256,
        num_layers=len(by_layer),
        attention_by_layer=by_layer,
        attention_options={**NYSTROM, "conv_kernel_size": 5},
        cls_token=True,
        num_token_types=2,
        short_conv=3,
    )

    def draw_weights():
        model = DenoisingClassifier(
            config, num_classes=3, pooling="cls_token", rngs=nnx.Rngs(0)
        )
        return dict(nnx.to_flat_state(nnx.state(model)))

    expected_weights = draw_weights()
    with jax.enable_x64(True):
        weights = draw_weights()
    assert weights.keys() == expected_weights.keys()
    for path, expected in expected_weights.items():
        assert weights[path].dtype == expected.dtype, path
        if expected[...].any():
            error = relative_error(weights[path][...], expected[...])
            assert error <= TOLERANCE["same"], path
        else:
            assert not weights[path][...].any(), path
