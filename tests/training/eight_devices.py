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
from jax.sharding import NamedSharding, PartitionSpec

from nystromformer.attention import make_attention
from nystromformer.config import OptimizerConfig, TrainConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import MaskedOrderModel, SequenceClassifier
from nystromformer.training.data import Data, HostData, train_indices
from nystromformer.training.devices import (
    DATA,
    SEQ,
    check_same_on_all_hosts,
    device_put_global,
    make_mesh,
    replicated,
)
from nystromformer.training.evaluate import evaluate
from nystromformer.training.interrupt import Interrupted
from nystromformer.training.loop import Trainer
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.objective import Classification, Totals
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import (
    Programs,
    graphdef_of,
    make_eval_chunk,
    make_init,
    make_train_chunk,
    split_weights,
)
from tests.training.conftest import ADAM, BagOfTokens, make_split

OPTIONS = {
    "nystrom": {"num_landmarks": 16, "conv_kernel_size": 35},
    "linear": {},
    "performer": {"num_features": 32},
    "linformer": {"projection_dim": 16},
}
LENGTH, BATCH, STEPS = 128, 8, 50
SPLITS = "train", "validation", "test"


def training(
    data_shards: int, sequence_parallelism: int, parts: int
) -> tuple[Any, Any]:
    """A compiled chunk of one step on such a mesh, and what `losses` runs it on.

    parts: of each batch, and how many lengths they may have.
    """

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        config = EncoderConfig(
            vocab_size=11,
            max_length=LENGTH,
            num_layers=1,
            attention_options=OPTIONS["nystrom"],
        )
        return SequenceClassifier(config, num_classes=3, rngs=rngs)

    devices = jax.devices()[: data_shards * sequence_parallelism]
    mesh = make_mesh(
        BATCH, LENGTH, sequence_parallelism=sequence_parallelism, devices=devices
    )
    config = OptimizerConfig(learning_rate=1e-3, warmup_steps=10, **ADAM)
    optimizer = make_optimizer(config, STEPS)
    graphdef = graphdef_of(make_model)
    objective = Classification()
    state = make_init(make_model, optimizer, objective, mesh)(np.uint32(0))
    batching = {"grad_accum_steps": parts, "length_buckets": parts}
    chunk = make_train_chunk(graphdef, optimizer, objective, mesh, **batching)
    data = Data.put(make_split(0, 103, LENGTH), mesh)
    indices = [
        device_put_global(mesh, train_indices(0, step, 1, 103, BATCH), None, DATA)
        for step in range(STEPS)
    ]
    return chunk.lower(state, data, indices[0], 1).compile(), (state, data, indices)


def losses(data_shards: int, sequence_parallelism: int, parts: int = 1) -> list[float]:
    """The mean loss of each of the first steps on such a mesh."""
    chunk, (state, data, indices) = training(data_shards, sequence_parallelism, parts)
    found = []
    for of_step in indices:
        state = state._replace(totals=jax.tree.map(jnp.zeros_like, state.totals))
        state, finite = chunk(state, data, of_step, 1)
        assert not finite.culprits()
        found.append(state.totals.means()["loss"])
        assert state.totals.examples.sharding.is_fully_replicated
    return found


def masked() -> list[list[dict[str, float]]]:
    """What an evaluation finds on one device and on eight: `masked`, `mlm_sop`."""
    split = make_split(0, 103, LENGTH)
    split.inputs = np.random.default_rng(0).integers(1, 11, split.inputs.shape)
    split.labels %= 2
    sizes = {"vocab_size": 12, "max_length": LENGTH, "num_layers": 1}
    config = EncoderConfig(**sizes, attention="softmax")
    model = MaskedOrderModel(config, rngs=nnx.Rngs(0))
    graphdef, weights = split_weights(model)

    def found(objective: Any, data: int, seq: int, batch_size: int) -> dict[str, float]:
        devices = jax.devices()[: data * seq]
        mesh = make_mesh(batch_size, LENGTH, sequence_parallelism=seq, devices=devices)
        chunk = make_eval_chunk(graphdef, objective, mesh)
        there = jax.device_put(weights, replicated(mesh)), HostData.of(split, mesh)
        return evaluate(chunk, Totals.zero(objective), *there, batch_size, mesh)

    ids = {"vocab_size": 11, "mask_token": 11}
    shapes = (1, 1, 64), (2, 4, 8)
    objectives = MaskedTokens(**ids), MaskedOrder(**ids)
    return [[found(objective, *shape) for shape in shapes] for objective in objectives]


def operations(data_shards: int, parts: int) -> float:
    """Floating-point operations of one device in a step, by the compiler."""
    chunk, _ = training(data_shards, 1, parts)
    return chunk.cost_analysis()["flops"]


def attention(
    name: str, length: int, data_shards: int, sequence_parallelism: int
) -> Any:
    """The compiled output and gradients of an attention, split over such a mesh."""
    devices = jax.devices()[: data_shards * sequence_parallelism]
    mesh = make_mesh(
        data_shards,
        sequence_parallelism,
        sequence_parallelism=sequence_parallelism,
        devices=devices,
    )
    split = NamedSharding(mesh, PartitionSpec(DATA, SEQ))
    module = make_attention(
        name,
        num_heads=2,
        head_dim=16,
        max_length=length,
        rngs=nnx.Rngs(0),
        **OPTIONS[name],
    )

    def pin(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, split), tree)

    @jax.jit
    def output_and_gradients(query, key, value, mask, cotangent):
        def forward(*inputs):
            return module(*inputs, mask=mask[:, None, None])

        *inputs, mask, cotangent = pin((query, key, value, mask, cotangent))
        out, backward = jax.vjp(forward, *inputs)
        return pin((out, *backward(cotangent)))

    return output_and_gradients


def difference(name: str, length: int, data_shards: int) -> float:
    """The largest relative error of output and gradients, eight against one device.

    In float64: the gradient through the pseudo-inverse makes float32's rounding large.
    """
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(length)
    query, key, value, cotangent = rng.normal(size=(4, 2, length, 2, 16))
    mask = np.arange(length) < np.array([[length], [length * 2 // 3]])
    cotangent = np.where(mask[:, :, None, None], cotangent, 0)
    one, eight = (
        attention(name, length, *shards)(query, key, value, mask, cotangent)
        for shards in ((1, 1), (data_shards, 8 // data_shards))
    )
    one, eight = (
        [np.where(mask[:, :, None, None], x, 0) for x in found]
        for found in (one, eight)
    )
    pairs = zip(one, eight, strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs)


def cost(name: str, length: int, devices: int) -> dict[str, int]:
    """Numbers told between devices, and bytes of temporaries on each; not run."""
    shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    program = attention(name, length, 1, devices)
    compiled = program.lower(shape, shape, shape, mask, shape).compile()
    told = 0
    for line in compiled.as_text().splitlines():
        collective = re.search(
            r"= (.*) (all-gather|all-reduce|all-to-all|collective-permute"
            r"|reduce-scatter)(-start)?\(",
            line,
        )
        for shape_text in re.findall(
            r"\w\[([\d,]*)\]", collective[1] if collective else ""
        ):
            told += int(np.prod([int(n) for n in shape_text.split(",") if n] or [1]))
    return {"told": told, "temporaries": compiled.memory_analysis().temp_size_in_bytes}


def resumed(workdir: str) -> list[float]:
    """The test loss of a run on one device, and of one that moves from eight to two."""
    splits = {name: make_split(i, 40) for i, name in enumerate(SPLITS)}
    sizes = {"seed": 0, "batch_size": 8, "num_steps": 12, "checkpoint_every": 4}
    schedule = TrainConfig(**sizes, eval_every=4, log_every=4)
    adamw = OptimizerConfig(learning_rate=0.03, warmup_steps=2, **ADAM)

    def trainer(name: str, num_devices: int) -> Trainer:
        folder = Path(workdir, name)
        folder.mkdir(exist_ok=True)
        mesh = make_mesh(8, 7, devices=jax.devices()[:num_devices])
        optimizer = make_optimizer(adamw, 12)
        run = BagOfTokens, Classification(), optimizer, schedule, mesh
        return Trainer(Programs.make(*run), schedule, splits, folder)

    found = [trainer("alone", 1).fit()["test_loss"]]
    first = trainer("moved", 8)
    first.writer.write = stop_after(4, first.writer.write)
    try:
        first.fit()
    except Interrupted:
        second = trainer("moved", 2)
        assert 0 < second.step < 12
        found.append(second.fit()["test_loss"])
    return found


def stop_after(step: int, write: Any) -> Any:
    """Writes a row, and sends this process a signal once it has come to the step."""

    def write_and_stop(at: int, *row: Any) -> None:
        write(at, *row)
        if at >= step:
            signal.raise_signal(signal.SIGTERM)

    return write_and_stop


def same(port: str, process: int, text: str) -> str:
    """Of one of two processes that ask whether all have this text."""
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    try:
        check_same_on_all_hosts(data="the same", config=text)
    except ValueError as error:
        return str(error)
    return "the same"


COMMANDS = (losses, masked, operations, difference, cost, resumed, same)


def main(what: str, *arguments: str) -> Any:
    numbers = [int(text) if text.isdigit() else text for text in arguments]
    command = next(x for x in COMMANDS if x.__name__ == what)
    return command(*numbers)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    print(json.dumps(main(*sys.argv[1:])))
