"""The training step and the evaluation step: pure functions, compiled once.

`nnx.split` once, `nnx.merge` inside. A chunk of steps is one device loop whose length
is an argument, so chunks of every length share one compiled program and a step computes
the same numbers in whatever chunk it falls.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.training.data import Batch, Data
from nystromformer.training.devices import one_device, whole
from nystromformer.training.gradients import Gradient, batch_gradient
from nystromformer.training.objective import Objective, Totals


class Weights(NamedTuple):
    """The variables of a model: trained parameters, and the others."""

    params: nnx.State
    variables: nnx.State


class State(NamedTuple):
    """All that training needs to resume, as one pytree of arrays.

    step: optimizer steps done.
    seed: of the weights and the dropout; another seed compiles nothing.
    totals: training metrics since the last log line.
    """

    step: jax.Array
    seed: jax.Array
    weights: Weights
    optimizer: optax.OptState
    totals: Totals


class Finite(NamedTuple):
    """Whether the loss and each gradient were finite at the last step."""

    loss: jax.Array
    gradients: nnx.State

    def culprits(self) -> list[str]:
        """The names of what was not finite."""
        leaves = jax.tree_util.tree_leaves_with_path(self.gradients)
        found = [] if self.loss else ["the loss"]
        wrong = [leaf_name(path) for path, finite in leaves if not finite]
        return found + [f"the gradient of {name}" for name in wrong]


def leaf_name(path: Any) -> str:
    """As in encoder.positions, for the path of a leaf of a pytree."""
    parts = (getattr(part, "key", getattr(part, "name", part)) for part in path)
    return ".".join(map(str, parts)).removesuffix(".value")


def split_weights(model: nnx.Module) -> tuple[nnx.GraphDef, Weights]:
    """The static part of a model and its numbers."""
    graphdef, params, variables = nnx.split(model, nnx.Param, ...)
    return graphdef, Weights(params, variables)


def graphdef_of(make_model: Callable[[nnx.Rngs], nnx.Module]) -> nnx.GraphDef:
    """The static part of the models that make_model makes, without making one."""
    return nnx.graphdef(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))


def make_init(
    make_model: Callable[[nnx.Rngs], nnx.Module],
    optimizer: optax.GradientTransformation,
    objective: Objective,
    mesh: Mesh | None = None,
) -> Callable[[Any], State]:
    """The state at step 0 of a seed (uint32), as one compiled program."""
    mesh = mesh or one_device()
    # It runs once, and is compiled for a CPU much sooner with less optimisation.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    options = {"xla_backend_optimization_level": 1} if on_cpu else None

    @functools.partial(jax.jit, out_shardings=whole(mesh), compiler_options=options)
    def init(seed: jax.Array) -> State:
        _, weights = split_weights(make_model(nnx.Rngs(jax.random.key(seed))))
        return State(
            step=jnp.zeros((), jnp.int32),
            seed=seed,
            weights=weights,
            optimizer=optimizer.init(weights.params),
            totals=Totals.zero(objective),
        )

    return init


def make_train_step(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    objective: Objective,
    gradient_of: Callable[..., Gradient] = batch_gradient,
) -> Callable[[State, Data, jax.Array], tuple[State, Finite]]:
    """One step, on the examples at indices [B]; not compiled."""

    def train_step(
        state: State, data: Data, indices: jax.Array
    ) -> tuple[State, Finite]:
        def forward(
            params: Any, variables: Any, batch: Batch, key: jax.Array
        ) -> tuple[Totals, Any]:
            model = nnx.merge(graphdef, params, variables, copy=True)
            for _, module in nnx.iter_modules(model):
                if at_step := getattr(module, "at_step", None):
                    at_step(state.step)
            totals = Totals(objective(model, batch, key), batch.weights.sum())
            return totals, split_weights(model)[1].variables

        dropout_key = jax.random.fold_in(jax.random.key(state.seed), 1)
        key = jax.random.fold_in(dropout_key, state.step)
        params, variables = state.weights
        found = gradient_of(forward, params, variables, data, indices, key)
        updates, optimizer_state = optimizer.update(
            found.params, state.optimizer, params
        )
        params = optax.apply_updates(params, updates)
        finite = jax.tree.map(lambda x: jnp.isfinite(x).all(), found.params)
        state = state._replace(
            step=state.step + 1,
            weights=Weights(params, found.variables),  # type: ignore[arg-type]
            optimizer=optimizer_state,
            totals=state.totals.plus(found.totals),
        )
        return state, Finite(jnp.isfinite(found.totals.sums["loss"][0]), finite)

    return train_step


def make_train_chunk(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    objective: Objective,
    mesh: Mesh | None = None,
    *,
    grad_accum_steps: int = 1,
    length_buckets: int = 1,
) -> Callable[[State, Data, jax.Array, Any], tuple[State, Finite]]:
    """A compiled function that takes several steps.

    Its arguments: the state (donated), the training data, the examples of each step
    int32 [K, B], and how many ≤ K of these steps to take. It stops after the first
    step at which something is not finite, which `Finite` then tells.

    Dropout of a step depends on (seed, step), grad_accum_steps and length_buckets alone.
    The batch is split over the mesh (None: one device) as the indices and the data are;
    the state stays whole. grad_accum_steps, length_buckets: of `batch_gradient`.
    """
    gradient_of = functools.partial(
        batch_gradient,
        mesh=mesh,
        grad_accum_steps=grad_accum_steps,
        length_buckets=length_buckets,
    )
    train_step = make_train_step(graphdef, optimizer, objective, gradient_of)
    everywhere = whole(mesh or one_device())

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=everywhere)
    def train_chunk(
        state: State, data: Data, indices: jax.Array, num_steps: jax.Array
    ) -> tuple[State, Finite]:
        def go_on(carry: Any) -> jax.Array:
            i, _, finite = carry
            return (i < num_steps) & jnp.stack(jax.tree.leaves(finite)).all()

        def body(carry: Any) -> Any:
            i, state, _ = carry
            return i + 1, *train_step(state, data, indices[i])

        all_true = jax.tree.map(lambda _: jnp.array(True), state.weights.params)
        start = (jnp.zeros((), jnp.int32), state, Finite(jnp.array(True), all_true))
        _, state, finite = jax.lax.while_loop(go_on, body, start)
        return state, finite

    return train_chunk


def make_eval_chunk(
    graphdef: nnx.GraphDef, objective: Objective, mesh: Mesh | None = None
) -> Callable[..., Totals]:
    """A compiled function that adds several batches, without dropout, to the totals.

    Its arguments: weights, data, the examples of each batch int32 [K, B], their weights
    float32 [K, B], how many ≤ K of these batches to take, totals, and the length to
    which the examples are cut, for each of which it is compiled.
    """

    @functools.partial(
        jax.jit, static_argnames="length", out_shardings=whole(mesh or one_device())
    )
    def eval_chunk(
        weights: Weights,
        data: Data,
        indices: jax.Array,
        example_weights: jax.Array,
        num_batches: jax.Array,
        totals: Totals,
        length: int,
    ) -> Totals:
        def add(i: jax.Array, totals: Totals) -> Totals:
            model = nnx.merge(graphdef, *weights)
            batch = data.take(indices[i], example_weights[i], length)
            found = Totals(objective(model, batch, None), batch.weights.sum())
            return totals.plus(found)

        return jax.lax.fori_loop(0, num_batches, add, totals)

    return eval_chunk
