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

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from flax import nnx

from nystromformer import load_run, make_attention
from nystromformer.experiments import cli
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.experiments.trained_run import TrainedRun

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_ROWS = flags.DEFINE_multi_integer("rows", [4, 8, 16, 32], "rows of the projection", 1)
_STEPS = flags.DEFINE_integer("steps", 8_000, "of Adam", 1)
NUM_TRAIN_SEQUENCES = 512
NUM_TEST_SEQUENCES = 16
BATCH_SIZE = 16
LEARNING_RATE = 1e-2
COLUMNS = (
    "rows",
    "layer",
    # errors
    "Linformer",
    "fresh",
    "Performer",
    "Nyström",
    # costs
    "Linformer, MFLOP",
    "Performer, MFLOP",
    "Nyström, MFLOP",
    "exact, MFLOP",
)


def make_for(inputs: AttentionInputs, name: str, **options: Any) -> Any:
    """Makes an attention for inputs of these sizes."""
    _, length, num_heads, head_dim = inputs.query.shape
    return make_attention(
        name,
        num_heads=num_heads,
        head_dim=head_dim,
        max_length=length,
        rngs=nnx.Rngs(0),
        **options,
    )


@nnx.jit
def attend(attention: Any, inputs: AttentionInputs) -> jax.Array:
    """The output of an attention, zero in the padding.

    Returns:
      [B, L, N, H].
    """
    out = attention(
        inputs.query,
        inputs.key,
        inputs.value,
        mask=inputs.mask[:, None, None],
    )
    return jnp.where(inputs.mask[:, :, None, None], out, 0)


def relative_errors(
    attention: Any, inputs: AttentionInputs, exact: jax.Array
) -> jax.Array:
    """‖out − exact‖ / ‖exact‖ of each sequence and head, [B, N]."""
    difference = attend(attention, inputs) - exact
    length_and_features = (1, 3)
    error_norms = jnp.linalg.norm(difference, axis=length_and_features)
    return error_norms / jnp.linalg.norm(exact, axis=length_and_features)


def count_mflop(attention: Any, inputs: AttentionInputs) -> float:
    """Million floating-point operations of an attention for one sequence."""
    cost: Any = attend.lower(attention, inputs).compile().cost_analysis()
    num_sequences = len(inputs.mask)
    return cost["flops"] / num_sequences / 1e6


def fit(attention: Any, inputs: AttentionInputs, exact: jax.Array) -> Any:
    """Trains the parameters of an attention to give the exact output."""
    rate = optax.cosine_decay_schedule(LEARNING_RATE, _STEPS.value)
    optimizer = nnx.Optimizer(attention, optax.adam(rate), wrt=nnx.Param)

    @nnx.jit
    def step(
        attention: Any, optimizer: Any, inputs: AttentionInputs, exact: jax.Array
    ) -> None:
        def loss(attention: Any) -> jax.Array:
            return jnp.square(relative_errors(attention, inputs, exact)).mean()

        optimizer.update(attention, nnx.grad(loss)(attention))

    for number in range(_STEPS.value):
        rows = (number * BATCH_SIZE + np.arange(BATCH_SIZE)) % len(exact)
        batch = AttentionInputs(
            query=inputs.query[rows],
            key=inputs.key[rows],
            value=inputs.value[rows],
            mask=inputs.mask[rows],
        )
        step(attention, optimizer, batch, exact[rows])
    return attention


def layers_of_longest(run: TrainedRun, split: str, count: int) -> list[AttentionInputs]:
    """The inputs of each layer's attention for the longest sequences of a split."""
    data = run.task.load(split, run.config.task.data_dir)
    rows = np.argsort(-data.lengths, kind="stable")[:count]
    return run.layers(data.inputs[rows], data.lengths[rows])


def compare(
    num_rows: int, train_inputs: AttentionInputs, test_inputs: AttentionInputs
) -> list[float]:
    """The errors and the costs of a layer, in the order of COLUMNS.

    Args:
      num_rows: the rows of the projection, and as many features and landmarks.
      train_inputs: those of the layer's attention for the sequences of train.
      test_inputs: those for the sequences of validation.
    """
    softmax = make_for(test_inputs, "softmax")
    fresh = make_for(test_inputs, "linformer", projection_dim=num_rows)
    fitted = fit(nnx.clone(fresh), train_inputs, attend(softmax, train_inputs))
    performer = make_for(test_inputs, "performer", num_features=num_rows)
    nystrom = make_for(test_inputs, "nystrom", num_landmarks=num_rows)

    exact = attend(softmax, test_inputs)
    errors = []
    for attention in (fitted, fresh, performer, nystrom):
        median = np.median(relative_errors(attention, test_inputs, exact))
        errors.append(float(median))

    # XLA counts one round of a loop, and softmax attention is a loop. So the operations
    # of exact attention are counted in Nyström attention with a landmark for each
    # token, which is as exact.
    length = test_inputs.query.shape[1]
    exact_nystrom = make_for(test_inputs, "nystrom", num_landmarks=length)
    costs = []
    for attention in (fitted, performer, nystrom, exact_nystrom):
        costs.append(count_mflop(attention, test_inputs))
    return errors + costs


def print_row(cells: Sequence[Any]) -> None:
    """Prints a row of a table in Markdown."""
    row = " | ".join(str(cell) for cell in cells)
    print(f"| {row} |", flush=True)


def main() -> None:
    """Prints a row of the table for each number of rows and each layer."""
    run = load_run(str(_WORKDIR.value))
    train_layers = layers_of_longest(run, "train", NUM_TRAIN_SEQUENCES)
    test_layers = layers_of_longest(run, "validation", NUM_TEST_SEQUENCES)
    print_row(COLUMNS)
    print_row(["---:"] * len(COLUMNS))
    for num_rows in _ROWS.value:
        layers = zip(train_layers, test_layers, strict=True)
        for layer_number, (train_inputs, test_inputs) in enumerate(layers):
            numbers = compare(num_rows, train_inputs, test_inputs)
            print_row([num_rows, layer_number, *(f"{x:.2f}" for x in numbers)])


if __name__ == "__main__":
    cli.run(main)
