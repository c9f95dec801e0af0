"""BERT and RoBERTa of transformers, randomly initialised, beside ours.

Hidden states, logits and the gradient of every weight in float64, where padding has no
influence on either side.
"""

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

L, V, C = 30, 53, 3
SIZES = {
    "vocab_size": V,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 31,
    "num_labels": C,
}
CONFIGS = {
    "bert": (
        "Bert",
        {"max_position_embeddings": L, "layer_norm_eps": 1e-12, "pad_token_id": 0},
    ),
    "roberta": (
        "Roberta",
        {
            "max_position_embeddings": L + 2,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "type_vocab_size": 1,
        },
    ),
}
CLASSES = {
    None: "Model",
    "masked_lm": "ForMaskedLM",
    "classification": "ForSequenceClassification",
}
KINDS = tuple(CONFIGS)

LENGTHS = np.array([L, 17, 5])
MASK = np.arange(L) < LENGTHS[:, None]
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def make(kind, head, folder):
    """Their model in float64, whose folder is written."""
    torch.manual_seed(0)
    name, options = CONFIGS[kind]
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    model = getattr(transformers, f"{name}{CLASSES[head]}")(config)
    for parameter in model.parameters():  # uneven attention, no bias of zeros
        parameter.data += 0.3 * torch.randn_like(parameter)
    model = model.double().eval()
    model.save_pretrained(folder)
    return model


def make_inputs(kind):
    """Ids, of which those of the padding are the tokenizer's, and token types."""
    padding = CONFIGS[kind][1]["pad_token_id"]
    inputs = np.where(MASK, rng.integers(2, V, (3, L)), padding)
    num_types = CONFIGS[kind][1].get("type_vocab_size", 2)
    return inputs, rng.integers(0, num_types, (3, L))


def run_theirs(model, inputs, token_types):
    """The first output of their model, as a tensor of torch."""
    return model(
        input_ids=torch.from_numpy(inputs),
        attention_mask=torch.from_numpy(MASK.astype(np.int64)),
        token_type_ids=torch.from_numpy(token_types),
    )[0]


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_of_valid_tokens_are_theirs(kind, tmp_path):
    model = make(kind, None, tmp_path)
    inputs, token_types = make_inputs(kind)
    expected = run_theirs(model, inputs, token_types).detach().numpy()
    encoder = load_pretrained(tmp_path, head=None, dtype=jnp.float64)
    vectors, _ = encoder(inputs, MASK, token_types=token_types)
    error = relative_error(np.asarray(vectors)[MASK], expected[MASK])
    assert error < TOLERANCE["float64"]


def losses(logits, labels, head):
    """Cross-entropy of each label, of valid tokens or of classes, in torch."""
    if head == "masked_lm":
        logits = logits[torch.from_numpy(MASK)]
    return torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["masked_lm", "classification"])
def test_logits_and_gradients_are_theirs(head, kind, tmp_path):
    model = make(kind, head, tmp_path)
    inputs, token_types = make_inputs(kind)
    is_of_tokens = head == "masked_lm"
    labels = rng.integers(
        0, V if is_of_tokens else C, MASK.sum() if is_of_tokens else 3
    )
    their_logits = run_theirs(model, inputs, token_types)
    losses(their_logits, labels, head).backward()
    their_gradients = {
        name: parameter.grad.numpy() for name, parameter in model.named_parameters()
    }

    ours = load_pretrained(tmp_path, head=head, dtype=jnp.float64)
    graphdef, state = nnx.split(ours)

    @jax.jit
    def forward(state):
        logits = nnx.merge(graphdef, state)(inputs, MASK, token_types=token_types)
        valid = logits[MASK] if is_of_tokens else logits
        loss = optax.softmax_cross_entropy_with_integer_labels(valid, labels).mean()
        return loss, valid

    gradient, logits = jax.grad(forward, has_aux=True)(state)
    expected = their_logits.detach().numpy()
    expected = expected[MASK] if is_of_tokens else expected
    assert relative_error(logits, expected) < TOLERANCE["float64"]

    layout = LAYOUTS[kind]
    arrays = {
        name: np.asarray(x[...]) for name, (_, x) in variables_by_name(gradient).items()
    }
    gradients = layout.to_published(arrays)
    positions = their_gradients[layout.positions]
    their_gradients[layout.positions] = positions[layout.num_reserved_positions :]
    assert gradients.keys() == their_gradients.keys()
    for name, expected in their_gradients.items():
        if name.endswith("self.key.bias"):  # Exact attention does not see it.
            assert max(np.abs(expected).max(), np.abs(gradients[name]).max()) < 1e-12
            continue
        assert relative_error(gradients[name], expected) < TOLERANCE["float64"], name


def test_other_settings_are_not_theirs(tmp_path):
    """The epsilon, the positions and fewer landmarks are seen by these comparisons."""
    model = make("roberta", None, tmp_path)
    inputs, token_types = make_inputs("roberta")
    expected = run_theirs(model, inputs, token_types).detach().numpy()
    config_file = tmp_path / "config.json"
    text = config_file.read_text()
    assert "1e-05" in text
    config_file.write_text(text.replace("1e-05", "1e-12"))
    errors = {}
    for name, options in (("epsilon", {}), ("landmarks", {"num_landmarks": 6})):
        encoder = load_pretrained(tmp_path, head=None, dtype=jnp.float64, **options)
        vectors, _ = encoder(inputs, MASK, token_types=token_types)
        errors[name] = relative_error(np.asarray(vectors)[MASK], expected[MASK])
    assert errors["epsilon"] > 1e3 * TOLERANCE["float64"]
    assert errors["landmarks"] > 1e-3
