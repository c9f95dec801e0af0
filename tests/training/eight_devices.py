"""What devices_test compares, computed in a process that has eight devices.

Prints one JSON object. A process of its own, as JAX's devices are counted once.
"""

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.config import OptimizerConfig, TrainConfig
from nystromformer.encoder_config import EncoderConfig
from nystromformer.heads import SequenceClassifier
from nystromformer.layers import SelfAttention
from nystromformer.training.compiled import jit_programs
from nystromformer.training.data import HostSplit, train_indices
from nystromformer.training.devices import (
    DATA,
    SEQ,
    check_same_on_all_hosts,
    make_mesh,
    placement,
)
from nystromformer.training.interrupt import Interrupted
from nystromformer.training.loop import Trainer
from nystromformer.training.objective import Classification
from nystromformer.training.optimizer import make_optimizer
from tests.tolerance import relative_error
from tests.training.conftest import BagOfTokens, make_split

NYSTROM = {"num_landmarks": 16, "num_pinv_iters": 2, "conv_kernel_size": 35}
LENGTH, BATCH, STEPS = 128, 8, 12


def training(
    data_shards: int,
    sequence_parallelism: int,
    parts: int,
    attention: str = "nystrom",
) -> Any:
    """A compiled chunk of one step on such a mesh, and what `losses` runs it on.

    parts: of each batch, and how many lengths they may have.
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

    split_over = {"sequence_parallelism": sequence_parallelism}
    devices = jax.devices()[: data_shards * sequence_parallelism]
    mesh = make_mesh(BATCH, LENGTH, **split_over, devices=devices)
    config = OptimizerConfig(learning_rate=5e-3, warmup_steps=4)
    programs = jit_programs(
        make_model,
        Classification(),
        make_optimizer(config, STEPS),
        mesh,
        grad_accum_steps=parts,
        length_buckets=parts,
    )
    state, chunk = programs.init(np.uint32(0)), programs.train_chunk
    data = HostSplit.from_split(make_split(0, 103, LENGTH))
    chunks = [data.chunk(x[None], mesh) for x in train_indices(0, 0, STEPS, 103, BATCH)]
    return chunk.lower(state, chunks[0]).compile(), state, chunks


def losses(
    data_shards: int, sequence_parallelism: int, parts: int = 1
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
    chunk, state, steps = training(data_shards, sequence_parallelism, parts)
    found = []
    for step in steps:
        state = state._replace(totals=jax.tree.map(jnp.zeros_like, state.totals))
        state, finite = chunk(state, step)
        assert not finite.culprits()
        found.append(state.totals.means()["loss"])
        assert state.totals.examples.sharding.is_fully_replicated
    return found


def operations(parts: int) -> list[float]:
    """Floating-point operations of a device in a step, by the compiler: of the only
    device, and of one of four.
    """
    found = []
    for data_shards in (1, 4):
        chunk, *_ = training(data_shards, 1, parts, attention="identity")
        found.append(chunk.cost_analysis()["flops"])
    return found


def costs() -> dict[str, dict[str, int]]:
    """The cost of a sequence, of one four times as long, and of that on two devices."""
    return {
        "short": cost(65_536, 8),
        "long": cost(262_144, 8),
        "long on fewer": cost(262_144, 2),
    }


def cost(length: int, num_devices: int) -> dict[str, int]:
    """Of Nyström attention and its gradients over the shards of a sequence, not run:
    numbers communicated between devices, and bytes of temporaries on each.
    """
    split_over = {"sequence_parallelism": num_devices}
    mesh = make_mesh(1, length, **split_over, devices=jax.devices()[:num_devices])
    sizes = {"num_heads": 2, "head_dim": 16, "max_length": length}
    attention = make_attention("nystrom", **sizes, rngs=nnx.Rngs(0), **NYSTROM)
    split = placement(mesh, DATA, SEQ)
    shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32, sharding=split)
    mask = jax.ShapeDtypeStruct((1, length), bool, sharding=split)

    @jax.jit
    def output_and_gradients(query, key, value, mask, cotangent):
        def forward(*inputs):
            return attention(*inputs, mask=mask[:, None, None])

        out, backward = jax.vjp(forward, query, key, value)
        return jax.lax.with_sharding_constraint((out, *backward(cotangent)), split)

    compiled = output_and_gradients.lower(shape, shape, shape, mask, shape).compile()
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return {"communicated": numbers_communicated(compiled), "temporaries": temporaries}


def numbers_communicated(compiled: Any) -> int:
    """How many numbers a compiled program sends between devices."""
    collective = r"= (.*) (?:all-|collective-permute|reduce-scatter)\S*\("
    arrays = re.findall(
        r"\w\[([\d,]*)\]", " ".join(re.findall(collective, compiled.as_text()))
    )
    return sum(int(np.prod([int(n) for n in x.split(",") if n])) for x in arrays)


def convolved_and_rotated() -> list[dict[str, float]]:
    """What `compare_with_one_device` finds on a short sequence and on a long one."""
    return [compare_with_one_device(length) for length in (256, 2048)]


def compare_with_one_device(length: int) -> dict[str, float]:
    """Of a layer with a short convolution and rotary positions, spread over two batches
    and four parts of the sequence: how far its output and gradients are from those on
    one device, and the numbers communicated between devices.
    """
    config = EncoderConfig(
        vocab_size=11,
        max_length=length,
        attention="linear",
        short_conv=7,
        positions="rotary",
    )
    layer = SelfAttention(config, rngs=nnx.Rngs(0))
    graphdef, weights = nnx.split(layer)
    x = np.random.default_rng(0).normal(size=(2, length, config.model_dim))
    mask = np.arange(length) < np.array([[length], [length - 3]])

    def run(mesh: Any) -> tuple[Any, Any]:
        split = placement(mesh, DATA, SEQ)

        @jax.jit
        def output_and_gradients(weights, x, mask):
            def forward(weights, x):
                out = nnx.merge(graphdef, weights)(x, mask)
                return jnp.where(mask[:, :, None], out, 0)

            out, backward = jax.vjp(forward, weights, x)
            of_weights, of_x = backward(out)
            spread = jax.lax.with_sharding_constraint((out, of_x), split)
            return of_weights, *spread

        inputs = jax.device_put((np.float32(x), mask), split)
        compiled = output_and_gradients.lower(weights, *inputs).compile()
        return compiled(weights, *inputs), numbers_communicated(compiled)

    expected, _ = run(make_mesh(1, 1, devices=jax.devices()[:1]))
    found, num_communicated = run(make_mesh(2, length, sequence_parallelism=4))
    errors = jax.tree.map(relative_error, found, expected)
    return {"error": max(jax.tree.leaves(errors)), "communicated": num_communicated}


def resumed(workdir: str) -> list[float]:
    """The test loss of a run on one device, and of one that moves from eight to two."""
    names = "train", "validation", "test"
    splits = {name: make_split(i, 40) for i, name in enumerate(names)}
    sizes = {"seed": 0, "batch_size": 8, "num_steps": 12, "checkpoint_every": 4}
    schedule = TrainConfig(**sizes, eval_every=4, log_every=4)
    adamw = OptimizerConfig(learning_rate=0.03, warmup_steps=2)

    def trainer(name: str, num_devices: int) -> Trainer:
        folder = Path(workdir, name)
        folder.mkdir(exist_ok=True)
        mesh = make_mesh(8, 7, devices=jax.devices()[:num_devices])
        optimizer = make_optimizer(adamw, 12)
        programs = jit_programs(BagOfTokens, Classification(), optimizer, mesh)
        return Trainer(programs, schedule, splits, folder)

    def write_and_stop(at: int, *row: Any) -> None:
        write(at, *row)
        signal.raise_signal(signal.SIGTERM)

    first = trainer("moved", 8)
    write, first.writer.write = first.writer.write, write_and_stop
    try:
        raise AssertionError(first.fit())
    except Interrupted:
        second = trainer("moved", 2)
    assert 0 < second.step < 12
    return [trainer("alone", 1).fit()["test_loss"], second.fit()["test_loss"]]


def same(port: str, process: int, text: str) -> str:
    """Of one of two processes that ask whether all have this text."""
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
