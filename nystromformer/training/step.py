"""The training step and the evaluation step: pure functions, compiled once.

`nnx.split` once, `nnx.merge` inside. A chunk of steps is one device loop whose length
is an argument. So chunks of every length share one compiled program, and a step
computes the same numbers in whatever chunk it falls.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.training.data import Data
from nystromformer.training.devices import placement, program_bytes
from nystromformer.training.gradients import batch_gradient
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
        found = [] if self.loss else ["the loss"]
        leaves = named_leaves(self.gradients).items()
        return found + [f"the gradient of {name}" for name, ok in leaves if not ok]


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by name, as in encoder.positions."""
    name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name(path).removesuffix(".value"): leaf for path, leaf in leaves}


def split_weights(model: nnx.Module) -> tuple[nnx.GraphDef, Weights]:
    """The static part of a model and its numbers."""
    graphdef, params, variables = nnx.split(model, nnx.Param, ...)
    return graphdef, Weights(params, variables)


class Programs:
    """The compiled functions of a run; each is compiled when it is first called.

    init(seed uint32): the State at step 0.
    train_chunk(state, data, indices int32 [K, B], num_steps ≤ K): takes steps on the
      examples at indices, and donates the state. It stops after the first step at which
      something is not finite, which `Finite` then names. The dropout of a step depends
      on the seed, the step and `batching` alone.
    eval_chunk(weights, data, indices int32 [K, B], example_weights float32 [K, B],
      num_batches ≤ K, totals, length): adds batches, without dropout, to the totals;
      compiled for each length to which examples are truncated.

    Args:
      optimizer: None: for evaluation only.
      mesh, batching: as of `batch_gradient`.
    """

    def __init__(
        self,
        make_model: Callable[[nnx.Rngs], nnx.Module],
        objective: Objective,
        optimizer: optax.GradientTransformation | None = None,
        mesh: Mesh | None = None,
        **batching: int,
    ):
        self.make_model, self.objective, self.mesh = make_model, objective, mesh
        self.optimizer: Any = optimizer
        self.graphdef = nnx.graphdef(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))
        self.gradient = functools.partial(batch_gradient, mesh=mesh, **batching)
        jit = functools.partial(jax.jit, out_shardings=placement(mesh))
        self.init = jit(self._init)
        self.train_chunk = jit(self._train_chunk, donate_argnums=0)
        self.eval_chunk = jit(self._eval_chunk, static_argnames="length")

    def compile(self, data: Data, batch_size: int) -> int | None:
        """Compiles what the first steps call, for any number of examples as in `data`.

        JAX keeps the programs: the first call of these functions finds them. Returns
        the bytes that a chunk of training holds at once, None where they are unknown.
        """
        seed, batches = np.uint32(0), np.zeros((1, batch_size), np.int32)
        self.init.lower(seed).compile()
        arguments = self.init.eval_shape(seed), *data.chunk(batches, self.mesh)
        return program_bytes(self.train_chunk.lower(*arguments).compile())

    def _init(self, seed: jax.Array) -> State:
        _, weights = split_weights(self.make_model(nnx.Rngs(jax.random.key(seed))))
        optimizer_state = self.optimizer.init(weights.params)
        step, totals = jnp.zeros((), jnp.int32), Totals.zero(self.objective)
        return State(step, seed, weights, optimizer_state, totals)

    def _forward(self, params, variables, batch, key) -> tuple[Totals, Any]:
        """The totals of a batch, and the variables after it."""
        model = nnx.merge(self.graphdef, params, variables, copy=True)
        totals = Totals(self.objective(model, batch, key), batch.weights.sum())
        return totals, split_weights(model)[1].variables

    def train_step(
        self, state: State, data: Data, indices: jax.Array
    ) -> tuple[State, Finite]:
        """One step on the examples at indices [B], not compiled."""
        step, seed, (params, variables), optimizer, totals = state
        dropout_key = jax.random.fold_in(jax.random.key(seed), 1)
        key = jax.random.fold_in(dropout_key, step)
        found = self.gradient(self._forward, params, variables, data, indices, key)
        updates, optimizer = self.optimizer.update(found.params, optimizer, params)
        params: Any = optax.apply_updates(params, updates)
        weights, totals = Weights(params, found.variables), totals.plus(found.totals)
        finite = jax.tree.map(lambda x: jnp.isfinite(x).all(), found.params)
        loss_is_finite = jnp.isfinite(found.totals.sums["loss"][0])
        state = State(step + 1, seed, weights, optimizer, totals)
        return state, Finite(loss_is_finite, finite)

    def _train_chunk(self, state, data, indices, num_steps) -> tuple[State, Finite]:
        def go_on(carry: Any) -> jax.Array:
            i, _, finite = carry
            return (i < num_steps) & jnp.stack(jax.tree.leaves(finite)).all()

        def body(carry: Any) -> Any:
            i, state, _ = carry
            return i + 1, *self.train_step(state, data, indices[i])

        all_true = jax.tree.map(lambda _: jnp.array(True), state.weights.params)
        start = (jnp.zeros((), jnp.int32), state, Finite(jnp.array(True), all_true))
        _, state, finite = jax.lax.while_loop(go_on, body, start)
        return state, finite

    def _eval_chunk(
        self, weights, data, indices, example_weights, num_batches, totals, length
    ) -> Totals:
        def add(i: jax.Array, totals: Totals) -> Totals:
            # Copied, for a model may write to its variables also when it evaluates.
            model = nnx.merge(self.graphdef, *weights, copy=True)
            batch = data.take(indices[i], example_weights[i], length)
            found = Totals(self.objective(model, batch, None), batch.weights.sum())
            return totals.plus(found)

        return jax.lax.fori_loop(0, num_batches, add, totals)
