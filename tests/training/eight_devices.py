"""Computes what devices_test compares, in a process that has eight devices.

It is a process of its own, since JAX counts its devices once. It prints one JSON value.
"""

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.classifiers import SequenceClassifier
from nystromformer.config import OptimizerConfig, TrainConfig
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import Interrupted
from nystromformer.training.data import HostSplit, train_example_ids
from nystromformer.training.devices import check_same_on_all_hosts, make_mesh
from nystromformer.training.loop import Run, open_run, train
from nystromformer.training.objective import Classification
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Programs
from tests.training.conftest import BagOfTokens, make_split
from tests.training.sharded_layers import NYSTROM, convolved_and_rotated, costs

LENGTH = 128
BATCH = 8
STEPS = 12


def compile_training(
    data_shards: int,
    sequence_parallelism: int,
    parts: int,
    attention: str = "nystrom",
) -> Any:
    """Compiles a chunk of one step on such a mesh.

    Args:
      data_shards: how many devices share a batch.
      sequence_parallelism: how many devices share a sequence.
      parts: the parts of each batch, and how many lengths they may have.
      attention: the attention of the only layer.

    Returns:
      The compiled chunk, the initial state, and the batches of all steps.
    """
    options = NYSTROM if attention == "nystrom" else {}

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        config = EncoderConfig(
            vocab_size=11,
            max_length=LENGTH,
            num_layers=1,
            attention=attention,
            attention_options=options,
        )
        return SequenceClassifier(config, num_classes=3, rngs=rngs)

    mesh = make_mesh(
        BATCH,
        LENGTH,
        sequence_parallelism=sequence_parallelism,
        devices=jax.devices()[: data_shards * sequence_parallelism],
    )
    config = OptimizerConfig(learning_rate=5e-3, warmup_steps=4)
    programs = Programs(
        make_model,
        Classification(),
        make_optimizer(config, STEPS),
        mesh,
        grad_accum_steps=parts,
        length_buckets=parts,
    )
    state = programs.init(np.uint32(0))
    data = HostSplit.from_split(make_split(0, 103, LENGTH))
    batches = train_example_ids(0, 0, STEPS, 103, BATCH)
    chunks = [data.chunk(batch[None], mesh) for batch in batches]
    train_chunk = programs.train_chunk.lower(state, chunks[0]).compile()
    return train_chunk, state, chunks


def losses(
    data_shards: int, sequence_parallelism: int, parts: int
) -> list[list[float]]:
    """The mean loss of each of the first steps on one device, and on such a mesh."""
    return [
        losses_on_mesh(1, 1, parts),
        losses_on_mesh(data_shards, sequence_parallelism, parts),
    ]


def losses_on_mesh(
    data_shards: int, sequence_parallelism: int, parts: int
) -> list[float]:
    """The mean loss of each of the first steps on such a mesh."""
    train_chunk, state, chunks = compile_training(
        data_shards, sequence_parallelism, parts
    )
    losses = []
    for chunk in chunks:
        state = state._replace(totals=jax.tree.map(jnp.zeros_like, state.totals))
        state, finite = train_chunk(state, chunk)
        assert not finite.name_culprits()
        losses.append(state.totals.means()["loss"])
        assert state.totals.examples.sharding.is_fully_replicated
    return losses


def operations(parts: int) -> list[float]:
    """Floating-point operations of a step, on the only device and on one of four."""
    num_operations = []
    for data_shards in (1, 4):
        train_chunk, *_ = compile_training(data_shards, 1, parts, attention="linear")
        num_operations.append(train_chunk.cost_analysis()["flops"])
    return num_operations


def resumed(workdir: str) -> list[float]:
    """The test loss of a run on one device, and of one that moves from eight to two."""
    splits = {
        "train": make_split(0, 40),
        "validation": make_split(1, 40),
        "test": make_split(2, 40),
    }
    config = TrainConfig(
        seed=0,
        batch_size=8,
        num_steps=12,
        checkpoint_every=4,
        eval_every=4,
        log_every=4,
    )
    optimizer_config = OptimizerConfig(learning_rate=0.03, warmup_steps=2)

    def make_run(name: str, num_devices: int) -> Run:
        folder = Path(workdir, name)
        folder.mkdir(exist_ok=True)
        mesh = make_mesh(8, 7, devices=jax.devices()[:num_devices])
        optimizer = make_optimizer(optimizer_config, 12)
        programs = Programs(BagOfTokens, Classification(), optimizer, mesh)
        return open_run(programs, config, splits, folder)

    with contextlib.suppress(Interrupted):
        train(make_run("moved", num_devices=8), should_stop=lambda: signal.SIGTERM)

    # A run that was not stopped would be at its last step.
    moved_run = make_run("moved", num_devices=2)
    assert 0 < moved_run.step < 12
    lone_run = make_run("alone", num_devices=1)
    return [train(lone_run)["test_loss"], train(moved_run)["test_loss"]]


def same(port: int, process: int, text: str) -> str:
    """The answer to one of two processes that asks whether both have its text."""
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    try:
        check_same_on_all_hosts(data="the same", config=text)
    except ValueError as error:
        return str(error)
    return "the same"


FUNCTIONS = {
    "losses": losses,
    "operations": operations,
    "costs": costs,
    "convolved_and_rotated": convolved_and_rotated,
    "resumed": resumed,
    "same": same,
}

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    name, *texts = sys.argv[1:]
    arguments = [int(text) if text.isdigit() else text for text in texts]
    print(json.dumps(FUNCTIONS[name](*arguments)))
