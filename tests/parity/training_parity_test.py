"""Two hundred steps of AdamW beside PyTorch: the same weights, batches and losses.

Their side is written with torch's own modules, AdamW and OneCycleLR, or is a whole
model of transformers; ours is the training step of `scripts/train.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.classifiers import SequenceClassifier
from nystromformer.config import OptimizerConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.huggingface import load_pretrained
from nystromformer.training.data import Chunk, DeviceRows, train_example_ids
from nystromformer.training.objective import Classification
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Programs
from tests.training.conftest import make_split

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

STEPS = 200
WARMUP_STEPS = 20
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.01
EPSILON = 1e-6
# The length of a sequence, the landmarks, the vocabulary and the classes.
L = 24
M = 4
V = 11
C = 3


def make_noisy_split():
    """Examples with noise in a third of the tokens, so that learning takes its time."""
    split = make_split(0, 64, L)
    rng = np.random.default_rng(1)
    is_noise = rng.random(split.inputs.shape) < 1 / 3
    noise = rng.integers(1, V, split.inputs.shape)
    split.inputs[:] = np.where(is_noise, noise, split.inputs)
    return split


SPLIT = make_noisy_split()
EXAMPLE_IDS = train_example_ids(0, 0, STEPS, len(SPLIT.labels), 8)


def our_losses(model, lengths, cycle_b1):
    """The loss of each step, of batches of eight."""
    config = OptimizerConfig(
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        weight_decay=WEIGHT_DECAY,
        b1=0.9,
        b2=0.999,
        eps=EPSILON,
        cycle_b1=cycle_b1,
    )
    optimizer = make_optimizer(config, STEPS)
    programs = Programs(lambda _: nnx.clone(model), Classification(), optimizer)
    state = programs.init(np.uint32(0))
    rows = DeviceRows(jnp.asarray(SPLIT.inputs), lengths, jnp.asarray(SPLIT.labels))

    losses = []
    for example_ids in EXAMPLE_IDS:
        state, _ = programs.train_chunk(state, Chunk(rows, example_ids[None], 1))
        losses.append(state.totals.means()["loss"])
        state = state._replace(totals=jax.tree.map(jnp.zeros_like, state.totals))
    return losses


def their_losses(model, logits_of, cycle_b1):
    """The loss of each step of their model.

    model.train() is not called: it would change dropout alone, whose rate is 0.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=(0.9, 0.999),
        eps=EPSILON,
        weight_decay=WEIGHT_DECAY,
    )
    # Theirs peaks at step pct_start · total_steps − 1 and ends at total_steps − 1.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=LEARNING_RATE,
        total_steps=STEPS + 1,
        pct_start=(WARMUP_STEPS + 1) / (STEPS + 1),
        anneal_strategy="linear",
        cycle_momentum=cycle_b1,
    )

    losses = []
    for example_ids in EXAMPLE_IDS:
        labels = torch.from_numpy(SPLIT.labels[example_ids]).long()
        loss = torch.nn.functional.cross_entropy(logits_of(example_ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def check_losses(actual, expected):
    """The losses are the same, and half of the first is gone at the end."""
    assert np.mean(expected[-20:]) < 0.5 * expected[0]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)


class TorchClassifier(torch.nn.Module):
    """A pre-LN encoder of torch's own layers, and our head."""

    def __init__(self, model_dim, mlp_dim):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, model_dim)
        self.positions = torch.nn.Parameter(torch.zeros(L, model_dim))
        layer = torch.nn.TransformerEncoderLayer(
            d_model=model_dim,
            nhead=2,
            dim_feedforward=mlp_dim,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = torch.nn.TransformerEncoder(
            layer,
            num_layers=2,
            norm=torch.nn.LayerNorm(model_dim),
            enable_nested_tensor=False,
        )
        self.hidden = torch.nn.Linear(model_dim, mlp_dim)
        self.out = torch.nn.Linear(mlp_dim, C)

    def forward(self, inputs, mask):
        x = self.embedding(inputs) + self.positions
        x = self.encoder(x, src_key_padding_mask=~mask) * mask[:, :, None]
        mean = x.sum(1) / mask.sum(1, keepdim=True)
        return self.out(torch.relu(self.hidden(mean)))

    def copy_weights(self, model):
        """Copies the weights of our model into this one."""
        encoder = model.encoder
        copy(self.embedding.weight, encoder.embedding.embedding)
        copy(self.positions, encoder.positions)
        for layer, block in zip(self.encoder.layers, encoder.blocks, strict=True):
            attention = layer.self_attn
            project = block.attention.project
            copy(attention.in_proj_weight, project.kernel[...].T)
            copy(attention.in_proj_bias, project.bias)
            copy_linear(attention.out_proj, block.attention.out)
            copy_norm(layer.norm1, block.attention_norm)
            copy_norm(layer.norm2, block.mlp_norm)
            copy_linear(layer.linear1, block.mlp.expand)
            copy_linear(layer.linear2, block.mlp.contract)
        copy_norm(self.encoder.norm, encoder.norm)
        copy_linear(self.hidden, model.head.hidden)
        copy_linear(self.out, model.head.out)


def copy(parameter, variable):
    """Copies a variable of ours into a parameter of torch."""
    parameter.data.copy_(torch.from_numpy(np.array(variable[...])))


def copy_linear(their_linear, our_linear):
    copy(their_linear.weight, our_linear.kernel[...].T)
    copy(their_linear.bias, our_linear.bias)


def copy_norm(their_norm, our_norm):
    copy(their_norm.weight, our_norm.scale)
    copy(their_norm.bias, our_norm.bias)


@pytest.mark.parametrize("cycle_b1", [False, True])
def test_train_step_with_softmax_on_padded_batches_is_theirs(cycle_b1):
    config = EncoderConfig(
        vocab_size=V,
        max_length=L,
        model_dim=12,
        mlp_dim=17,
        attention="softmax",
        dropout_rate=0.0,
    )
    model = SequenceClassifier(config, num_classes=C, rngs=nnx.Rngs(0))
    their_model = TorchClassifier(model_dim=12, mlp_dim=17)
    their_model.copy_weights(model)

    inputs = torch.from_numpy(SPLIT.inputs).long()
    mask = torch.arange(L) < torch.from_numpy(SPLIT.lengths)[:, None]
    expected = their_losses(
        their_model, lambda rows: their_model(inputs[rows], mask[rows]), cycle_b1
    )
    actual = our_losses(model, jnp.asarray(SPLIT.lengths), cycle_b1)
    check_losses(actual, expected)


def test_train_step_of_transformers_model_is_theirs(tmp_path):
    torch.manual_seed(0)
    config = transformers.NystromformerConfig(
        vocab_size=V,
        hidden_size=12,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=17,
        num_labels=C,
        max_position_embeddings=L,
        conv_kernel_size=5,
        num_landmarks=M,
        segment_means_seq_len=L,  # With M here, their attention would be exact.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        pad_token_id=0,  # The inputs do not have this id.
    )
    their_model = transformers.NystromformerForSequenceClassification(config)
    their_model.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path, head="classification")

    inputs = torch.from_numpy(SPLIT.inputs).long()
    expected = their_losses(
        their_model, lambda rows: their_model(inputs[rows]).logits, cycle_b1=False
    )
    actual = our_losses(model, lengths=None, cycle_b1=False)
    check_losses(actual, expected)
