"""The training step and the evaluation step: pure functions, compiled once.

`nnx.split` once, `nnx.merge` inside. A chunk of steps is one device loop whose length
is an argument. So chunks of every length share one compiled program, and a step
computes the same numbers in whatever chunk it falls.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.config import TrainConfig
from nystromformer.training.data import Batch, Data, HostData
from nystromformer.training.devices import one_device, replicated
from nystromformer.training.gradients import Gradient, batch_gradient
from nystromformer.training.objective import Objective, Totals


class Weights(NamedTuple):
    """The variables of a model: trained parameters, and the others."""

    params: nnx.State
    variables: nnx.State


class State(NamedTuple):
    """All that training needs to resume, as one pytree of arrays."""

    step: jax.Array  # optimizer steps done
    seed: jax.Array  # of the weights and the dropout; another one compiles nothing
    weights: Weights
    optimizer: optax.OptState
    totals: Totals  # training metrics since the last log line


class Finite(NamedTuple):
    """Whether the loss and each gradient were finite at the last step."""

    loss: jax.Array
    gradients: nnx.State

    def culprits(self) -> list[str]:
        """The names of what was not finite."""
        found = [] if self.loss else ["the loss"]
        leaves = named_leaves(self.gradients).items()
        return found + [f"the gradient of {name}" for name, ok in leaves if not ok]


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by name, as in encoder.positions."""

    def name(path: Any) -> str:
        parts = (getattr(part, "key", getattr(part, "name", part)) for part in path)
        return ".".join(map(str, parts)).removesuffix(".value")

    return {name(x): leaf for x, leaf in jax.tree_util.tree_leaves_with_path(tree)}


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
) -> Any:
    """A compiled function from a seed (uint32) to the State at step 0."""
    mesh = mesh or one_device()
    # It runs once; with less optimisation a CPU's compiler takes much less time.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    options = {"xla_backend_optimization_level": 1} if on_cpu else None

    @functools.partial(
        jax.jit, out_shardings=replicated(mesh), compiler_options=options
    )
    def init(seed: jax.Array) -> State:
        _, weights = split_weights(make_model(nnx.Rngs(jax.random.key(seed))))
        optimizer_state = optimizer.init(weights.params)
        step, totals = jnp.zeros((), jnp.int32), Totals.zero(objective)
        return State(step, seed, weights, optimizer_state, totals)

    return init


def make_train_step(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    objective: Objective,
    gradient_of: Callable[..., Gradient] = batch_gradient,
) -> Callable[[State, Data, jax.Array], tuple[State, Finite]]:
    """One step, on the examples at indices [B]; not compiled."""

    def forward(
        params: Any, variables: Any, batch: Batch, key: jax.Array
    ) -> tuple[Totals, Any]:
        model = nnx.merge(graphdef, params, variables, copy=True)
        totals = Totals(objective(model, batch, key), batch.weights.sum())
        return totals, split_weights(model)[1].variables

    def train_step(
        state: State, data: Data, indices: jax.Array
    ) -> tuple[State, Finite]:
        dropout_key = jax.random.fold_in(jax.random.key(state.seed), 1)
        key = jax.random.fold_in(dropout_key, state.step)
        params, variables = state.weights
        found = gradient_of(forward, params, variables, data, indices, key)
        updates, optimizer_state = optimizer.update(
            found.params, state.optimizer, params
        )
        params: Any = optax.apply_updates(params, updates)
        finite = jax.tree.map(lambda x: jnp.isfinite(x).all(), found.params)
        state = state._replace(
            step=state.step + 1,
            weights=Weights(params, found.variables),
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
    **batching: int,
) -> Callable[[State, Data, jax.Array, Any], tuple[State, Finite]]:
    """A compiled function that takes several steps.

    Its arguments: the state (donated), the training data, the examples of each step
    int32 [K, B], and how many ≤ K of these steps to take. It stops after the first step
    at which something is not finite, which `Finite` then names. The dropout of a step
    depends on the seed, the step and `batching` (of `batch_gradient`) alone.
    """
    gradient_of = functools.partial(batch_gradient, mesh=mesh, **batching)
    train_step = make_train_step(graphdef, optimizer, objective, gradient_of)
    everywhere = replicated(mesh or one_device())

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

    Its arguments: weights, data, the examples of each batch int32 [K, B] and their
    weights float32 [K, B], how many ≤ K of these batches to take, totals, and the
    length to which examples are truncated, for each of which it is compiled.
    """
    everywhere = replicated(mesh or one_device())

    @functools.partial(jax.jit, static_argnames="length", out_shardings=everywhere)
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


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of a run; each is compiled when it is first called.

    init, train_chunk, eval_chunk: as of make_init, make_train_chunk, make_eval_chunk.
    """

    objective: Objective
    mesh: Mesh
    init: Any
    train_chunk: Any
    eval_chunk: Any

    @classmethod
    def make(
        cls,
        make_model: Callable[[nnx.Rngs], nnx.Module],
        objective: Objective,
        optimizer: optax.GradientTransformation,
        schedule: TrainConfig,
        mesh: Mesh | None = None,
        graphdef: nnx.GraphDef | None = None,
    ) -> "Programs":
        """On a mesh (None: one device); graphdef: of the models, if it is known."""
        mesh, graphdef = mesh or one_device(), graphdef or graphdef_of(make_model)
        parts, buckets = schedule.grad_accum_steps, schedule.length_buckets
        batching = {"grad_accum_steps": parts, "length_buckets": buckets}
        return cls(
            objective,
            mesh,
            make_init(make_model, optimizer, objective, mesh),
            make_train_chunk(graphdef, optimizer, objective, mesh, **batching),
            make_eval_chunk(graphdef, objective, mesh),
        )

    def compile(self, split: Any, batch_size: int) -> None:
        """Compiles what the first steps call, for any number of examples as in `split`.

        JAX keeps the programs: the first call of these functions finds them.
        """
        seed, batches = np.uint32(0), np.zeros((1, batch_size), np.int32)
        self.init.lower(seed).compile()
        chunk = HostData.of(split, self.mesh).chunk(batches)
        self.train_chunk.lower(self.init.eval_shape(seed), *chunk).compile()
