"""Whole models of transformers, randomly initialised, beside ours of the same weights.

Logits and the gradient of every weight are compared in float64, where both are the same
mathematics: exact attention, and Nyström attention with Z₀ scaled over the batch. No
test has padding, since theirs lets it into the convolution.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nystromformer.huggingface import load_pretrained
from nystromformer.huggingface.layout import LAYOUTS
from nystromformer.huggingface.load import variables_by_name
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

# The length of a sequence, the landmarks, the vocabulary and the classes.
L = 30
M = 6
V = 53
C = 3
SIZES = {
    "small": {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2},
    "wide": {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 3},
}
LAYOUT = LAYOUTS["nystromformer"]
CLASSES = {"masked_lm": "MaskedLM", "classification": "SequenceClassification"}


class Inputs(NamedTuple):
    """Four sequences and their labels, of the tokens or of the sequences."""

    tokens: np.ndarray
    token_types: np.ndarray
    labels: np.ndarray


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def make_theirs(head, folder, size="small", num_landmarks=L):
    """Their model in float64, whose folder is written."""
    torch.manual_seed(0)
    config = transformers.NystromformerConfig(
        **SIZES[size],
        vocab_size=V,
        intermediate_size=31,
        num_labels=C,
        max_position_embeddings=L,
        segment_means_seq_len=L,
        conv_kernel_size=13,
        num_landmarks=num_landmarks,
        layer_norm_eps=1e-5,
        # Id 0 is not among the inputs: its row has no gradient.
        pad_token_id=0,
    )
    model = getattr(transformers, f"NystromformerFor{CLASSES[head]}")(config)
    # With this noise attention is uneven, and no bias is zero.
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model = model.double().eval()
    model.save_pretrained(folder)
    return model


def make_inputs(head):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, V, (4, L))
    token_types = rng.integers(0, 2, (4, L))
    if head == "classification":
        labels = rng.integers(0, C, 4)
    else:
        labels = rng.integers(0, V, (4, L))
    return Inputs(tokens, token_types, labels)


def run_theirs(model, inputs):
    """Logits, and gradients by name."""
    tokens, token_types, labels = map(torch.from_numpy, inputs)
    logits = model(input_ids=tokens, token_type_ids=token_types).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    gradients = {
        name: parameter.grad.numpy() for name, parameter in model.named_parameters()
    }
    return logits.detach().numpy(), gradients


def run_ours(model, inputs):
    """Logits, and gradients by their names."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(state):
        model = nnx.merge(graphdef, state)
        logits = model(inputs.tokens, token_types=inputs.token_types)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, inputs.labels)
        return losses.mean(), logits

    gradient, logits = jax.grad(forward, has_aux=True)(state)
    variables = variables_by_name(gradient)
    arrays = {name: np.asarray(x[...]) for name, (_, x) in variables.items()}
    return logits, LAYOUT.to_published(arrays)


def compare(head, folder, their_model, **options):
    """The largest error of the logits and of the gradients of our model of a folder."""
    model = load_pretrained(folder, head=head, dtype=jnp.float64, **options)
    inputs = make_inputs(head)
    logits, gradients = run_ours(model, inputs)
    their_logits, their_gradients = run_theirs(their_model, inputs)
    # No token reads the first two positions.
    their_gradients[LAYOUT.positions] = their_gradients[LAYOUT.positions][2:]
    assert gradients.keys() == their_gradients.keys()

    errors = {"logits": relative_error(logits, their_logits)}
    for name, expected in their_gradients.items():
        actual = gradients[name]
        assert actual.dtype == expected.dtype == np.float64
        is_key_bias = name.endswith("self.key.bias")
        if is_key_bias and np.abs(expected).max() < 1e-12:
            # Exact attention does not see this bias: both gradients are rounding.
            errors[name] = np.abs(actual).max()
        else:
            errors[name] = relative_error(actual, expected)
    return float(np.max(list(errors.values())))  # NaN if one of them is


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("head", CLASSES)
def test_load_pretrained_exact_attention_is_theirs(head, size, tmp_path):
    model = make_theirs(head, tmp_path, size)
    assert compare(head, tmp_path, model) < TOLERANCE["float64"]


@pytest.mark.parametrize("head", CLASSES)
def test_load_pretrained_computes_what_theirs_does_by_default(head, tmp_path):
    """Nyström attention has Z₀ scaled over the batch."""
    model = make_theirs(head, tmp_path, num_landmarks=M)
    assert compare(head, tmp_path, model) < TOLERANCE["float64"]


# Z₀ scaled by each matrix, exact attention, and another number of landmarks.
@pytest.mark.parametrize("num_landmarks", [M, L, 5])
def test_load_pretrained_with_other_options_is_not_theirs(num_landmarks, tmp_path):
    model = make_theirs("masked_lm", tmp_path, num_landmarks=M)
    error = compare("masked_lm", tmp_path, model, num_landmarks=num_landmarks)
    assert error > 1e-3


def test_load_pretrained_reads_the_file_of_torch(tmp_path):
    model = make_theirs("masked_lm", tmp_path)
    expected = nnx.state(load_pretrained(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    actual = nnx.state(load_pretrained(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_load_pretrained_refuses_a_pickle_that_calls(tmp_path):
    make_theirs("masked_lm", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"x": Path()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin cannot be read"):
        load_pretrained(tmp_path)
