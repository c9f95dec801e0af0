"""Two hundred steps of AdamW beside PyTorch: the same weights, batches and losses.

Their side is written with torch's own modules, AdamW and OneCycleLR, or is a whole
model of transformers; ours is the training step of `scripts/train.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.config import OptimizerConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import SequenceClassifier
from nystromformer.huggingface import load_pretrained
from nystromformer.training.compiled import jit_programs
from nystromformer.training.data import Chunk, DeviceRows, train_indices
from nystromformer.training.objective import Classification
from nystromformer.training.optimizer import make_optimizer
from tests.training.conftest import make_split

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

STEPS, WARMUP, RATE, BATCH = 200, 20, 3e-3, 8
L, M, V, C = 24, 4, 11, 3
ADAMW = {"weight_decay": 0.01, "eps": 1e-6}
SPLIT = make_split(0, 64, L)
# Noise in a third of the tokens, so that the loss takes its time.
NOISE = np.random.default_rng(1)
SPLIT.inputs[:] = np.where(
    NOISE.random(SPLIT.inputs.shape) < 1 / 3,
    NOISE.integers(1, V, SPLIT.inputs.shape),
    SPLIT.inputs,
)
INDICES = train_indices(0, 0, STEPS, len(SPLIT.labels), BATCH)


def our_losses(model, lengths, cycle_b1):
    """The loss of each step."""
    settings = {"warmup_steps": WARMUP, "cycle_b1": cycle_b1, "b1": 0.9, "b2": 0.999}
    config = OptimizerConfig(learning_rate=RATE, **settings, **ADAMW)
    optimizer, losses = make_optimizer(config, STEPS), []
    programs = jit_programs(lambda _: nnx.clone(model), Classification(), optimizer)
    state = programs.init(np.uint32(0))
    rows = DeviceRows(jnp.asarray(SPLIT.inputs), lengths, jnp.asarray(SPLIT.labels))
    for indices in INDICES:
        state, _ = programs.train_chunk(state, Chunk(rows, indices[None], 1))
        losses.append(state.totals.means()["loss"])
        state = state._replace(totals=jax.tree.map(jnp.zeros_like, state.totals))
    return losses


def their_losses(model, logits_of, cycle_b1):
    """The same, where model.train() would change nothing but dropout of 0."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.999), **ADAMW
    )
    # Theirs peaks at step pct_start · total_steps − 1 and ends at total_steps − 1.
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        RATE,
        total_steps=STEPS + 1,
        pct_start=(WARMUP + 1) / (STEPS + 1),
        anneal_strategy="linear",
        cycle_momentum=cycle_b1,
    )
    losses = []
    for indices in INDICES:
        labels = torch.from_numpy(SPLIT.labels[indices]).long()
        loss = torch.nn.functional.cross_entropy(logits_of(indices), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def check(ours, theirs):
    """They agree, and something was learnt on the way."""
    assert np.mean(theirs[-20:]) < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


class Softmax(torch.nn.Module):
    """A pre-LN encoder of torch's own layers, and our head."""

    def __init__(self, width, hidden):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, width)
        self.positions = torch.nn.Parameter(torch.zeros(L, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, 2, hidden, 0.0, "gelu", batch_first=True, norm_first=True
        )
        norm = torch.nn.LayerNorm(width)
        self.encoder = torch.nn.TransformerEncoder(
            layer, 2, norm, enable_nested_tensor=False
        )
        self.hidden = torch.nn.Linear(width, hidden)
        self.out = torch.nn.Linear(hidden, C)

    def forward(self, inputs, mask):
        x = self.embedding(inputs) + self.positions
        x = self.encoder(x, src_key_padding_mask=~mask) * mask[:, :, None]
        return self.out(torch.relu(self.hidden(x.sum(1) / mask.sum(1, keepdim=True))))

    def take(self, model):
        """The weights of our model."""

        def linear(theirs, ours):
            return [(theirs.weight, ours.kernel[...].T), (theirs.bias, ours.bias[...])]

        def norm(theirs, ours):
            return [(theirs.weight, ours.scale[...]), (theirs.bias, ours.bias[...])]

        encoder = model.encoder
        pairs = [
            (self.embedding.weight, encoder.embedding.embedding[...]),
            (self.positions, encoder.positions[...]),
            *norm(self.encoder.norm, encoder.norm),
            *linear(self.hidden, model.head.hidden),
            *linear(self.out, model.head.out),
        ]
        for theirs, ours in zip(self.encoder.layers, encoder.blocks, strict=True):
            project = ours.attention.project
            pairs += [
                (theirs.self_attn.in_proj_weight, project.kernel[...].T),
                (theirs.self_attn.in_proj_bias, project.bias[...]),
                *linear(theirs.self_attn.out_proj, ours.attention.out),
                *norm(theirs.norm1, ours.attention_norm),
                *norm(theirs.norm2, ours.mlp_norm),
                *linear(theirs.linear1, ours.mlp.expand),
                *linear(theirs.linear2, ours.mlp.contract),
            ]
        for theirs, ours in pairs:
            theirs.data.copy_(torch.from_numpy(np.array(ours)))
        return self


@pytest.mark.parametrize("cycle_b1", [False, True])
def test_train_step_with_softmax_on_padded_batches_is_theirs(cycle_b1):
    sizes = {"vocab_size": V, "max_length": L, "model_dim": 12, "mlp_dim": 17}
    config = EncoderConfig(**sizes, attention="softmax", dropout_rate=0.0)
    model = SequenceClassifier(config, num_classes=C, rngs=nnx.Rngs(0))
    theirs = Softmax(12, 17).take(model)
    inputs = torch.from_numpy(SPLIT.inputs).long()
    mask = torch.arange(L) < torch.from_numpy(SPLIT.lengths)[:, None]
    check(
        our_losses(model, jnp.asarray(SPLIT.lengths), cycle_b1),
        their_losses(theirs, lambda at: theirs(inputs[at], mask[at]), cycle_b1),
    )


def test_train_step_of_transformers_model_is_theirs(tmp_path):
    torch.manual_seed(0)
    options = {"vocab_size": V, "hidden_size": 12, "num_attention_heads": 2}
    options |= {"num_hidden_layers": 2, "intermediate_size": 17, "num_labels": C}
    options |= {"max_position_embeddings": L, "conv_kernel_size": 5, "num_landmarks": M}
    options["segment_means_seq_len"] = L  # M would mean exact attention
    options |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    options |= {"layer_norm_eps": 1e-5, "pad_token_id": 0}  # 0 is not in the inputs
    config = transformers.NystromformerConfig(**options)
    theirs = transformers.NystromformerForSequenceClassification(config)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path, head="classification")
    inputs = torch.from_numpy(SPLIT.inputs).long()
    check(
        our_losses(ours, None, False),
        their_losses(theirs, lambda at: theirs(inputs[at]).logits, False),
    )
