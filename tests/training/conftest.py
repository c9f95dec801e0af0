"""A small real model and real arrays, on which a step compiles in a second."""

import copy
import functools
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.config import OptimizerConfig, TrainConfig
from nystromformer.dropout import dropout
from nystromformer.training.loop import Run, compile_step, open_run
from nystromformer.training.objective import Classification
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Programs

VOCAB = 11
LENGTH = 7
CLASSES = 3
CLASSIFICATION = Classification()


class BagOfTokens(nnx.Module):
    """Embedding, mean over valid tokens, dropout, linear: learns which token it saw."""

    def __init__(self, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(VOCAB, 13, rngs=rngs)
        self.out = nnx.Linear(13, CLASSES, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, inputs, mask, dropout_rng=None):
        if dropout_rng is not None:
            self.calls[...] += 1
        x = jnp.where(mask[..., None], self.embedding(inputs), 0).sum(1)
        x = x / jnp.maximum(mask.sum(1), 1)[:, None]
        return self.out(dropout(x, 0.25, dropout_rng))


def make_split(seed: int, num_examples: int, length: int = LENGTH) -> SimpleNamespace:
    """Examples whose label is their first token mod 3."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(1, VOCAB, (num_examples, length)).astype(np.uint8)
    inputs[:, 1:] = inputs[:, :1]
    lengths = rng.integers(1, length + 1, num_examples).astype(np.int32)
    labels = (inputs[:, 0] % CLASSES).astype(np.int32)
    return SimpleNamespace(inputs=inputs, lengths=lengths, labels=labels, pairs=None)


def with_functions(programs: Programs, **functions: Any) -> Programs:
    """Programs of which some functions are replaced."""
    changed = copy.copy(programs)
    vars(changed).update(functions)
    return changed


def flip_a_bit(folder) -> None:
    """Damages the largest file below a folder, or the file of this path."""
    files = [path for path in (folder, *folder.rglob("*")) if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


@pytest.fixture(scope="session")
def splits():
    return {
        "train": make_split(0, 103),
        "validation": make_split(1, 23),
        "test": make_split(2, 29),
    }


@pytest.fixture(scope="session")
def optimizer():
    config = OptimizerConfig(learning_rate=0.03, warmup_steps=5)
    return make_optimizer(config, num_steps=40)


@pytest.fixture(scope="module")
def run_in(optimizer, splits):
    """Makes the run of a workdir, new or resumed: 40 steps of 8 examples.

    The runs of a module share their compiled programs.
    """

    @functools.cache
    def programs_of(model, objective, augment, grad_accum_steps, length_buckets):
        return Programs(
            model,
            objective,
            optimizer,
            augment=augment,
            grad_accum_steps=grad_accum_steps,
            length_buckets=length_buckets,
        )

    def run_in(
        workdir,
        model=BagOfTokens,
        objective=CLASSIFICATION,
        *,
        augment=None,
        init_weights=None,
        batch_size=8,
        num_steps=40,
        log_every=5,
        eval_every=8,
        checkpoint_every=12,
        **settings,
    ) -> Run:
        config = TrainConfig(
            batch_size=batch_size,
            num_steps=num_steps,
            log_every=log_every,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            **settings,
        )
        programs = programs_of(
            model, objective, augment, config.grad_accum_steps, config.length_buckets
        )
        workdir.mkdir(exist_ok=True)
        run = open_run(programs, config, splits, workdir, init_weights=init_weights)
        compile_step([run])
        return run

    return run_in
