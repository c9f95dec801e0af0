"""The training step and the evaluation step: pure functions, to be compiled once.

A model is split once by `nnx.split`, into a static definition and arrays, and merged
again inside these functions. A chunk of steps is one loop on the device, whose length
is an argument. So chunks of every length share one compiled program, and a step
computes the same numbers in whatever chunk it falls.

Letters: B batch, K batches for which a chunk has room.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.streams import STEPS
from nystromformer.training.data import Batch, Chunk, DeviceRows
from nystromformer.training.gradients import batch_gradient
from nystromformer.training.metrics import Totals
from nystromformer.training.objective import Objective

MakeModel = Callable[[nnx.Rngs], nnx.Module]
NUM_NAMED = 3  # at most, of what was not finite


class Weights(NamedTuple):
    """The variables of a model."""

    params: nnx.State  # the variables that are trained
    variables: nnx.State  # all others


class State(NamedTuple):
    """All that training needs to resume, as one pytree of arrays."""

    step: jax.Array  # int32, the optimizer steps done
    # uint32, the seed of the initial weights and of dropout. It is an argument of the
    # compiled functions, so that a different seed compiles nothing.
    seed: jax.Array
    weights: Weights
    optimizer: optax.OptState
    totals: Totals  # of the examples since the last line of metrics


class Finite(NamedTuple):
    """Whether the loss and each gradient were finite at the last step."""

    loss: jax.Array
    gradients: nnx.State

    def name_culprits(self) -> str:
        """Names what was not finite; "" if nothing was.

        If the loss is NaN so are all gradients. The first few are named, the others
        counted.
        """
        names = [] if self.loss else ["the loss"]
        for name, is_finite in leaves_by_name(self.gradients).items():
            if not is_finite:
                names.append(f"the gradient of {name}")

        text = ", ".join(names[:NUM_NAMED])
        if len(names) > NUM_NAMED:
            text += f" and {len(names) - NUM_NAMED} more"
        return text


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their names, such as "encoder.positions"."""
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        leaves[name.removesuffix(".value")] = leaf
    return leaves


def split_weights(model: nnx.Module) -> tuple[nnx.GraphDef, Weights]:
    """The static definition of a model, and its weights."""
    graphdef, params, variables = nnx.split(model, nnx.Param, ...)
    return graphdef, Weights(params, variables)


@dataclasses.dataclass(frozen=True, eq=False)
class StepDefinition:
    """What all steps of a run share: everything about them that is not an array.

    Attributes:
      make_model: makes a model with fresh weights.
      graphdef: the static definition of this model.
      objective: computes the sums of a batch.
      optimizer: None = for evaluation only.
      mesh: the mesh over which a batch, or each part of it, is split.
      grad_accum_steps, length_buckets: as in `batch_gradient`.
    """

    make_model: MakeModel
    graphdef: nnx.GraphDef
    objective: Objective
    optimizer: Any
    mesh: Mesh | None
    grad_accum_steps: int
    length_buckets: int


def init_state(definition: StepDefinition, seed: jax.Array) -> State:
    """The state at step 0, with the weights of the seed uint32."""
    rngs = nnx.Rngs(jax.random.key(seed))
    _, weights = split_weights(definition.make_model(rngs))
    return State(
        step=jnp.zeros((), jnp.int32),
        seed=seed,
        weights=weights,
        optimizer=definition.optimizer.init(weights.params),
        totals=Totals.zero(definition.objective.metrics),
    )


def train_step(
    definition: StepDefinition, state: State, rows: DeviceRows, places: jax.Array
) -> tuple[State, Finite]:
    """One optimizer step on the examples at places int32 [B] of the rows.

    All that it draws depends on the seed, the step, and the parts of the batch.
    """

    def forward(
        params: Any, variables: Any, batch: Batch, key: jax.Array
    ) -> tuple[Totals, Any]:
        # Copied, as the model writes to its variables.
        model = nnx.merge(definition.graphdef, params, variables, copy=True)
        sums = definition.objective(model, batch, key)
        _, weights = split_weights(model)
        return Totals(sums, batch.weights.sum()), weights.variables

    params, variables = state.weights
    steps_key = jax.random.fold_in(jax.random.key(state.seed), STEPS)
    gradient = batch_gradient(
        forward,
        params,
        variables,
        rows,
        places,
        key=jax.random.fold_in(steps_key, state.step),
        mesh=definition.mesh,
        grad_accum_steps=definition.grad_accum_steps,
        length_buckets=definition.length_buckets,
    )
    updates, optimizer_state = definition.optimizer.update(
        gradient.params, state.optimizer, params
    )
    new_params: Any = optax.apply_updates(params, updates)
    new_state = State(
        step=state.step + 1,
        seed=state.seed,
        weights=Weights(new_params, gradient.variables),
        optimizer=optimizer_state,
        totals=state.totals.plus(gradient.totals),
    )
    loss, _ = gradient.totals.sums["loss"]
    finite = Finite(
        loss=jnp.isfinite(loss),
        gradients=jax.tree.map(lambda x: jnp.isfinite(x).all(), gradient.params),
    )
    return new_state, finite


def train_chunk(
    definition: StepDefinition, state: State, chunk: Chunk
) -> tuple[State, Finite]:
    """One step on each batch of a chunk, up to the first that is not finite."""

    def is_unfinished(carry: tuple[jax.Array, State, Finite]) -> jax.Array:
        i, _, finite = carry
        all_finite = jnp.stack(jax.tree.leaves(finite)).all()
        return (i < chunk.num_batches) & all_finite

    def take_step(
        carry: tuple[jax.Array, State, Finite],
    ) -> tuple[jax.Array, State, Finite]:
        i, state, _ = carry
        state, finite = train_step(definition, state, chunk.rows, chunk.places[i])
        return i + 1, state, finite

    all_finite = Finite(
        loss=jnp.array(True),
        gradients=jax.tree.map(lambda _: jnp.array(True), state.weights.params),
    )
    start = (jnp.zeros((), jnp.int32), state, all_finite)
    _, state, finite = jax.lax.while_loop(is_unfinished, take_step, start)
    return state, finite


def eval_chunk(
    definition: StepDefinition,
    weights: Weights,
    chunk: Chunk,
    example_weights: jax.Array,
    totals: Totals,
    length: int,
) -> Totals:
    """Adds the batches of a chunk to the totals, without dropout.

    Args:
      example_weights: float32 [K, B], 0 for filler rows.
      length: the length to which the examples are cut.
    """

    def add_batch(i: jax.Array, totals: Totals) -> Totals:
        # Copied, for a model may write to its variables also when it evaluates.
        model = nnx.merge(definition.graphdef, *weights, copy=True)
        batch = chunk.rows.take(chunk.places[i], example_weights[i], length)
        sums = definition.objective(model, batch, None)
        return totals.plus(Totals(sums, batch.weights.sum()))

    return jax.lax.fori_loop(0, chunk.num_batches, add_batch, totals)
