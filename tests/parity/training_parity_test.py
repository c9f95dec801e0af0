"""Two hundred steps of AdamW beside PyTorch: the same weights, batches and losses.

Their side is a whole model of transformers with torch's AdamW and OneCycleLR; ours is
the training step of `scripts/train.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.huggingface import load_pretrained
from nystromformer.training.data import Data, train_indices
from nystromformer.training.objective import Classification, Totals
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import State, make_train_step, split_weights
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


def our_losses(model, cycle_b1):
    """The loss of each step."""
    settings = {"warmup_steps": WARMUP, "num_steps": STEPS, "cycle_b1": cycle_b1}
    optimizer = make_optimizer(
        learning_rate=RATE, b1=0.9, b2=0.999, **ADAMW, **settings
    )
    objective = Classification()
    graphdef, weights = split_weights(model)
    step = make_train_step(graphdef, optimizer, objective)
    data = Data(jnp.asarray(SPLIT.inputs), None, jnp.asarray(SPLIT.labels), None)

    @jax.jit
    def train(weights):
        zero = Totals.zero(objective)
        state = State(
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.uint32),
            weights,
            optimizer.init(weights.params),
            zero,
        )

        def one(state, indices):
            state, _ = step(state._replace(totals=zero), data, indices)
            total, weight = state.totals.sums["loss"]
            return state, total / weight

        return jax.lax.scan(one, state, INDICES)[1]

    return train(weights)


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


@pytest.mark.parametrize("cycle_b1", [False, True])
def test_nystrom_of_transformers(tmp_path, cycle_b1):
    torch.manual_seed(0)
    config = transformers.NystromformerConfig(
        vocab_size=V,
        hidden_size=12,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=17,
        max_position_embeddings=L,
        num_landmarks=M,
        segment_means_seq_len=L,  # not num_landmarks, which would mean exact attention
        conv_kernel_size=5,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=C,
        pad_token_id=0,  # gets no gradient from the embedding: not among the inputs
    )
    theirs = transformers.NystromformerForSequenceClassification(config)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path, head="classification", attention="nystrom")
    for block in ours.encoder.blocks:
        block.attention.attention.inverse_scale = "batch"
    inputs = torch.from_numpy(SPLIT.inputs).long()
    check(
        our_losses(ours, cycle_b1),
        their_losses(theirs, lambda at: theirs(inputs[at]).logits, cycle_b1),
    )
