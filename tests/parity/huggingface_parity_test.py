"""Whole models of transformers, randomly initialised, beside ours of the same weights.

Logits and the gradient of every weight, in float64, where both are the same
mathematics: exact attention, and Nyström attention with Z₀ scaled over the batch. Never
with padding, which theirs lets into the convolution.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nystromformer.huggingface import load_pretrained, variables_by_name
from nystromformer.huggingface_layout import LAYOUTS
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

L, M, V, C = 30, 6, 53, 3
SIZES = {
    "small": {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2},
    "wide": {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 3},
}
LAYOUT = LAYOUTS["nystromformer"]
CLASSES = {"masked_lm": "MaskedLM", "classification": "SequenceClassification"}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def make(head, folder, sizes="small", landmarks=L):
    torch.manual_seed(0)
    options = SIZES[sizes] | {"vocab_size": V, "intermediate_size": 31, "num_labels": C}
    options |= {"max_position_embeddings": L, "segment_means_seq_len": L}
    options |= {"conv_kernel_size": 13, "num_landmarks": landmarks}
    # Id 0 is not among the inputs: its row has no gradient.
    options |= {"layer_norm_eps": 1e-5, "pad_token_id": 0}
    config = transformers.NystromformerConfig(**options)
    model = getattr(transformers, f"NystromformerFor{CLASSES[head]}")(config)
    for parameter in model.parameters():  # uneven attention, no bias of zeros
        parameter.data += 0.3 * torch.randn_like(parameter)
    model = model.double().eval()
    model.save_pretrained(folder)
    return model


def make_batch(head, batch):
    rng = np.random.default_rng(0)
    inputs, types = rng.integers(1, V, (batch, L)), rng.integers(0, 2, (batch, L))
    if head == "classification":
        return inputs, types, rng.integers(0, C, batch)
    return inputs, types, rng.integers(0, V, (batch, L))


def run_theirs(model, batch):
    """Logits, and gradients by name."""
    inputs, types, labels = map(torch.from_numpy, batch)
    logits = model(input_ids=inputs, token_type_ids=types).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    gradients = {x: p.grad.numpy() for x, p in model.named_parameters()}
    return logits.detach().numpy(), gradients


def run_ours(model, batch):
    """Logits, and gradients by their names."""
    inputs, types, labels = batch
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(state):
        logits = nnx.merge(graphdef, state)(inputs, token_types=types)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, logits

    gradient, logits = jax.grad(forward, has_aux=True)(state)
    variables = variables_by_name(gradient)
    arrays = {name: np.asarray(x[...]) for name, (_, x) in variables.items()}
    return logits, LAYOUT.to_published(arrays)


def compare(head, tmp_path, model, **options):
    """The largest error of the logits and of the gradients."""
    ours = load_pretrained(tmp_path, head=head, dtype=jnp.float64, **options)
    data = make_batch(head, 4)
    logits, gradients = run_ours(ours, data)
    their_logits, their_gradients = run_theirs(model, data)
    # No token reads the first two.
    their_gradients[LAYOUT.positions] = their_gradients[LAYOUT.positions][2:]
    assert gradients.keys() == their_gradients.keys()
    errors = {"logits": relative_error(logits, their_logits)}
    for name, x in their_gradients.items():
        assert gradients[name].dtype == x.dtype == np.float64
        errors[name] = relative_error(gradients[name], x)
        if name.endswith("self.key.bias") and np.abs(x).max() < 1e-12:
            # Exact attention does not see it: rounding on both sides.
            errors[name] = np.abs(gradients[name]).max()
    return max(errors.values())


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("head", CLASSES)
def test_load_pretrained_exact_attention_is_theirs(head, sizes, tmp_path):
    assert compare(head, tmp_path, make(head, tmp_path, sizes)) < TOLERANCE["float64"]


@pytest.mark.parametrize("head", CLASSES)
def test_load_pretrained_computes_what_theirs_does_by_default(head, tmp_path):
    """Nyström attention with Z₀ scaled over the batch."""
    model = make(head, tmp_path, "small", M)
    assert compare(head, tmp_path, model) < TOLERANCE["float64"]


def test_load_pretrained_with_other_options_is_not_theirs(tmp_path):
    model = make("masked_lm", tmp_path, "small", M)
    for num_landmarks in (M, L, 5):  # Z₀ by each matrix; exact; another M
        model.zero_grad()
        options = {"num_landmarks": num_landmarks}
        assert compare("masked_lm", tmp_path, model, **options) > 1e-3


def test_load_pretrained_reads_the_file_of_torch(tmp_path):
    model = make("masked_lm", tmp_path)
    wanted = load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    found = load_pretrained(tmp_path)
    for x, y in zip(
        *(jax.tree.leaves(nnx.state(m)) for m in (found, wanted)), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    torch.save({"x": Path()}, tmp_path / "pytorch_model.bin")  # a pickle that calls
    with pytest.raises(ValueError, match=r"pytorch_model\.bin cannot be read"):
        load_pretrained(tmp_path)
