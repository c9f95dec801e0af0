"""How near does Linformer come to exact attention inside a trained model?

python examples/linformer_in_place.py --workdir=RUN --rows=8 --rows=32

RUN is a run of scripts/train.py on short sequences, preferably of softmax. Its queries,
keys and values stay as they are. In each layer Adam trains Linformer's projection, one
for keys, values and all heads, to lower the squared relative error of its output on the
512 longest sequences of train. The table has the medians of ‖out − exact‖ / ‖exact‖
over the heads and the 16 longest sequences of validation, beside those of a fresh
projection, and of Performer and Nyström attention with as many features and landmarks.
All have seed 0, and Nyström has no convolution. As many rows are not as much work: the
last columns have the million floating-point operations of a sequence, as XLA counts
them, of Linformer, Performer, Nyström and exact attention.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from flax import nnx

from nystromformer import load_run, make_attention
from nystromformer.experiments import cli
from nystromformer.experiments.recorded_layers import Layer

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_ROWS = flags.DEFINE_multi_integer("rows", [4, 8, 16, 32], "rows of the projection", 1)
_STEPS = flags.DEFINE_integer("steps", 8_000, "of Adam", 1)
NUM_MEASURED = 16  # sequences
NUM_FITTED = 512  # sequences
BATCH_SIZE = 16
LEARNING_RATE = 1e-2
ERRORS = ["Linformer", "fresh", "Performer", "Nyström"]
COSTS = ["Linformer, MFLOP", "Performer, MFLOP", "Nyström, MFLOP", "exact, MFLOP"]
COLUMNS = ["rows", "layer", *ERRORS, *COSTS]


def make(name: str, layer: Layer, **options: Any) -> Any:
    """An attention of the sizes of a layer."""
    length, num_heads, head_dim = layer.query.shape[1:]
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": length}
    return make_attention(name, rngs=nnx.Rngs(0), **sizes, **options)


@nnx.jit
def output(attention: Any, layer: Layer) -> jax.Array:
    """What the attention makes of a layer, [B, L, N, H], zero in padding."""
    *qkv, mask = layer
    out = attention(*qkv, mask=mask[:, None, None])
    return jnp.where(mask[:, :, None, None], out, 0)


def errors(attention: Any, layer: Layer, exact: jax.Array) -> jax.Array:
    """‖out − exact‖ / ‖exact‖ of each sequence and head, [B, N]."""
    norm = jnp.linalg.norm(output(attention, layer) - exact, axis=(1, 3))
    return norm / jnp.linalg.norm(exact, axis=(1, 3))


def mflop(attention: Any, layer: Layer) -> float:
    """Million floating-point operations for one sequence of a layer."""
    cost: Any = output.lower(attention, layer).compile().cost_analysis()
    return cost["flops"] / len(layer.mask) / 1e6


def fit(attention: Any, layer: Layer, exact: jax.Array) -> Any:
    """The attention with its parameters trained to give the exact output."""
    rate = optax.cosine_decay_schedule(LEARNING_RATE, _STEPS.value)
    optimizer = nnx.Optimizer(attention, optax.adam(rate), wrt=nnx.Param)

    @nnx.jit
    def step(attention: Any, optimizer: Any, layer: Layer, exact: jax.Array) -> None:
        def loss(attention: Any) -> jax.Array:
            return jnp.square(errors(attention, layer, exact)).mean()

        optimizer.update(attention, nnx.grad(loss)(attention))

    for number in range(_STEPS.value):
        rows = (number * BATCH_SIZE + np.arange(BATCH_SIZE)) % len(exact)
        step(attention, optimizer, Layer(*(x[rows] for x in layer)), exact[rows])
    return attention


def longest(run: Any, split: str, count: int) -> list[Layer]:
    """The layers of a run for the longest sequences of a split."""
    data = run.task.load(split, run.config.task.data_dir)
    rows = np.argsort(-data.lengths, kind="stable")[:count]
    return run.layers(data.inputs[rows], data.lengths[rows])


def main() -> None:
    """Prints a row of the table for each number of rows and each layer."""
    run = load_run(str(_WORKDIR.value))
    train_layers = longest(run, "train", NUM_FITTED)
    test_layers = longest(run, "validation", NUM_MEASURED)
    layers = list(zip(train_layers, test_layers, strict=True))
    print(f"| {' | '.join(COLUMNS)} |")
    print("| ---: " * len(COLUMNS) + "|")
    cases = itertools.product(_ROWS.value, enumerate(layers))
    for rows, (layer_number, (train, test)) in cases:
        softmax = make("softmax", test)
        fresh = make("linformer", test, projection_dim=rows)
        fitted = fit(nnx.clone(fresh), train, output(softmax, train))
        performer = make("performer", test, num_features=rows)
        nystrom = make("nystrom", test, num_landmarks=rows)
        exact = output(softmax, test)
        compared = (fitted, fresh, performer, nystrom)
        medians = [np.median(errors(x, test, exact)) for x in compared]
        # XLA counts one round of a loop, and softmax attention is a loop. So the
        # operations of exact attention are counted in Nyström attention with a landmark
        # for each token, which is as exact.
        exact_nystrom = make("nystrom", test, num_landmarks=test.query.shape[1])
        costs = [mflop(x, test) for x in (fitted, performer, nystrom, exact_nystrom)]
        cells = " | ".join(f"{number:.2f}" for number in [*medians, *costs])
        print(f"| {rows} | {layer_number} | {cells} |", flush=True)


if __name__ == "__main__":
    cli.run(main)
