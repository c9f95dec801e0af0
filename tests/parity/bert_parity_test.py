"""BERT and RoBERTa of transformers, randomly initialised, beside ours.

Hidden states, logits and the gradient of every weight are compared in float64. Padding
has no influence on either side.
"""

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

# The length of a sequence, the vocabulary and the classes.
L = 30
V = 53
C = 3
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

MASK = np.arange(L) < np.array([[L], [17], [5]])


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def make_theirs(kind, head, folder, hidden_act="gelu"):
    """Their model in float64, whose folder is written."""
    torch.manual_seed(0)
    name, options = CONFIGS[kind]
    config = getattr(transformers, f"{name}Config")(
        **SIZES, **options, hidden_act=hidden_act
    )
    model = getattr(transformers, f"{name}{CLASSES[head]}")(config)
    # With this noise attention is uneven, and no bias is zero.
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model = model.double().eval()
    model.save_pretrained(folder)
    return model


def make_inputs(kind):
    """Ids, which are the tokenizer's own at the padding, and token types."""
    _, options = CONFIGS[kind]
    rng = np.random.default_rng(0)
    inputs = np.where(MASK, rng.integers(2, V, (3, L)), options["pad_token_id"])
    token_types = rng.integers(0, options.get("type_vocab_size", 2), (3, L))
    return inputs, token_types


def run_theirs(model, inputs, token_types):
    """The first output of their model, as a tensor of torch."""
    return model(
        input_ids=torch.from_numpy(inputs),
        attention_mask=torch.from_numpy(MASK.astype(np.int64)),
        token_type_ids=torch.from_numpy(token_types),
    )[0]


def hidden_states_error(folder, inputs, token_types, expected, **options):
    """The error at valid tokens of the encoder of a folder."""
    encoder = load_pretrained(folder, head=None, dtype=jnp.float64, **options)
    vectors, _ = encoder(inputs, MASK, token_types=token_types)
    return relative_error(np.asarray(vectors)[MASK], expected[MASK])


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_of_valid_tokens_are_theirs(kind, tmp_path):
    model = make_theirs(kind, None, tmp_path)
    inputs, token_types = make_inputs(kind)
    expected = run_theirs(model, inputs, token_types).detach().numpy()
    error = hidden_states_error(tmp_path, inputs, token_types, expected)
    assert error < TOLERANCE["float64"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["masked_lm", "classification"])
def test_logits_with_the_approximate_gelu_are_theirs(head, kind, tmp_path):
    """RoBERTa's head that predicts tokens has the exact one."""
    their_model = make_theirs(kind, head, tmp_path, hidden_act="gelu_new")
    inputs, token_types = make_inputs(kind)
    their_logits = run_theirs(their_model, inputs, token_types).detach().numpy()
    model = load_pretrained(tmp_path, head=head, dtype=jnp.float64)
    logits = np.asarray(model(inputs, MASK, token_types=token_types))
    expected = valid_logits(their_logits, head)
    assert relative_error(valid_logits(logits, head), expected) < TOLERANCE["float64"]


def valid_logits(logits, head):
    """The logits that a loss takes: those of valid tokens, or of the sequences."""
    return logits[MASK] if head == "masked_lm" else logits


def their_logits_and_gradients(model, head, inputs, token_types, labels):
    """Logits, and gradients by name."""
    logits = valid_logits(run_theirs(model, inputs, token_types), head)
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).backward()
    gradients = {
        name: parameter.grad.numpy() for name, parameter in model.named_parameters()
    }
    return logits.detach().numpy(), gradients


def our_logits_and_gradients(model, head, inputs, token_types, labels):
    """Logits, and the gradients of our variables."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(state):
        model = nnx.merge(graphdef, state)
        logits = valid_logits(model(inputs, MASK, token_types=token_types), head)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), logits

    gradient, logits = jax.grad(forward, has_aux=True)(state)
    return logits, gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["masked_lm", "classification"])
def test_logits_and_gradients_are_theirs(head, kind, tmp_path):
    their_model = make_theirs(kind, head, tmp_path)
    model = load_pretrained(tmp_path, head=head, dtype=jnp.float64)
    inputs, token_types = make_inputs(kind)
    rng = np.random.default_rng(1)
    if head == "masked_lm":
        labels = rng.integers(0, V, MASK.sum())
    else:
        labels = rng.integers(0, C, 3)
    examples = (head, inputs, token_types, labels)
    their_logits, their_gradients = their_logits_and_gradients(their_model, *examples)
    logits, gradient = our_logits_and_gradients(model, *examples)
    assert relative_error(logits, their_logits) < TOLERANCE["float64"]

    layout = LAYOUTS[kind]
    variables = variables_by_name(gradient)
    gradients = layout.to_published(
        {name: np.asarray(x[...]) for name, (_, x) in variables.items()}
    )
    positions = their_gradients[layout.positions]
    their_gradients[layout.positions] = positions[layout.num_reserved_positions :]
    assert gradients.keys() == their_gradients.keys()
    for name, expected in their_gradients.items():
        actual = gradients[name]
        if name.endswith("self.key.bias"):
            # Exact attention does not see this bias: both gradients are rounding.
            assert np.abs(expected).max() < 1e-12
            assert np.abs(actual).max() < 1e-12
        else:
            error = relative_error(actual, expected)
            assert error < TOLERANCE["float64"], name


def test_other_settings_are_not_theirs(tmp_path):
    """The epsilon and fewer landmarks are seen by these comparisons."""
    model = make_theirs("roberta", None, tmp_path)
    inputs, token_types = make_inputs("roberta")
    expected = run_theirs(model, inputs, token_types).detach().numpy()
    examples = (tmp_path, inputs, token_types, expected)
    assert hidden_states_error(*examples, num_landmarks=6) > 1e-3

    config_file = tmp_path / "config.json"
    text = config_file.read_text()
    assert "1e-05" in text
    config_file.write_text(text.replace("1e-05", "1e-12"))
    assert hidden_states_error(*examples) > 1e3 * TOLERANCE["float64"]
