"""A training step and an evaluation, as pure functions that are compiled once.

`Programs` has the compiled functions. A step of training goes from top to bottom:

    Programs.train_chunk                one step on each batch of a chunk
      └─ _train_step                    the gradient, the optimizer, the totals
           └─ batch_gradient            of the mean loss, at once or in parts
                └─ _sum_over_parts      the parts, one after another
                     └─ _part_gradient  of the summed loss of one part
                          └─ _forward   the augmentation, the model, the objective

A model is split once by `nnx.split`, into a static definition and arrays, and merged
again inside these functions. A chunk of steps is one loop on the device, whose length
is an argument. So chunks of every length share one compiled program, and a step
computes the same numbers in whatever chunk it falls.

The gradient of a batch is computed at once, or in parts with little padding. The batch
is sorted by length and divided into parts. Each part is cut to the shortest of a few
lengths that holds its longest sequence. Padding changes nothing, and gradients add up,
so the sum over the parts is the gradient of the whole batch; it takes less memory and,
where lengths differ, less time. Only random numbers differ: dropout, masked tokens,
augmentation. Where an example's result depends on its batch
(`Attention.batch_sensitive`) the parts would not add up, and the config refuses them.

Letters: B batch, K batches for which a chunk has room.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.dropout import STREAM_OF_AUGMENTATION, STREAM_OF_STEPS
from nystromformer.training.data import (
    Batch,
    Chunk,
    DeviceRows,
    HostSplit,
    bucket_lengths,
)
from nystromformer.training.devices import DATA, placement
from nystromformer.training.objective import Objective, Totals

MakeModel = Callable[[nnx.Rngs], nnx.Module]
# (batch, random key) -> the batch with its inputs in another form of the same labels
Augment = Callable[[Batch, jax.Array], Batch]
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


class Programs:
    """The compiled functions of a run. Each is compiled when it is first called.

    Args:
      make_model: makes a model with fresh weights.
      objective: computes the sums of a batch.
      optimizer: None = for evaluation only.
      mesh: the mesh over which a batch, or each part of it, is split; None = one
        device.
      augment: draws another form of a batch of training; None = it stays as it is.
      grad_accum_steps, length_buckets: as in `batch_gradient`.

    Attributes:
      init: called with the seed uint32, gives the state at step 0.
      train_chunk: called with state and chunk, takes one step on each batch, up to the
        first that is not finite. It donates the state, and gives a new one and what was
        finite at the last step.
      train_chunks: called with the states and the chunks of several runs, does for each
        what train_chunk does for one, side by side.
      eval_chunk: called with weights, chunk, example weights, totals and `length=`,
        adds the batches to the totals, without dropout. The example weights are float32
        [K, B], 0 for filler rows. The examples are cut to `length`, and each length is
        compiled by itself.
    """

    def __init__(
        self,
        make_model: MakeModel,
        objective: Objective,
        optimizer: optax.GradientTransformation | None = None,
        mesh: Mesh | None = None,
        *,
        augment: Augment | None = None,
        grad_accum_steps: int = 1,
        length_buckets: int = 1,
    ):
        self.make_model = make_model
        self.graphdef, _ = split_shapes(make_model)
        self.objective = objective
        self.optimizer: Any = optimizer
        self.mesh = mesh
        self.augment = augment
        self.grad_accum_steps = grad_accum_steps
        self.length_buckets = length_buckets

        # How the arguments are spread over the mesh is decided where they are made, by
        # `HostSplit.chunk`. All results are the same on every device.
        replicated = placement(mesh)
        self.init: Any = jax.jit(self._init, out_shardings=replicated)
        self.train_chunk: Any = jax.jit(
            self._train_chunk, donate_argnums=0, out_shardings=replicated
        )
        self.train_chunks: Any = jax.jit(
            self._train_chunks, donate_argnums=0, out_shardings=replicated
        )
        self.eval_chunk: Any = jax.jit(
            self._eval_chunk, static_argnames="length", out_shardings=replicated
        )

    def compile(
        self, split: HostSplit, batch_size: int, num_runs: int = 1
    ) -> int | None:
        """Compiles what the first steps call.

        JAX keeps the programs: the first call of these functions finds them.

        Args:
          split: any number of examples in the shapes and dtypes of the training data.
          num_runs: how many runs are trained together.

        Returns:
          The bytes that a chunk of training holds at once; None where the backend does
          not say.
        """
        seed = np.uint32(0)
        self.init.lower(seed).compile()
        state = self.init.eval_shape(seed)
        chunk = split.chunk(np.zeros((1, batch_size), np.int32), self.mesh)
        if num_runs == 1:
            lowered = self.train_chunk.lower(state, chunk)
        else:
            lowered = self.train_chunks.lower([state] * num_runs, [chunk] * num_runs)
        return program_bytes(lowered.compile())

    def _init(self, seed: jax.Array) -> State:
        rngs = nnx.Rngs(jax.random.key(seed))
        _, weights = split_weights(self.make_model(rngs))
        return State(
            step=jnp.zeros((), jnp.int32),
            seed=seed,
            weights=weights,
            optimizer=self.optimizer.init(weights.params),
            totals=Totals.zero(self.objective.metrics),
        )

    def _train_chunks(
        self, states: Sequence[State], chunks: Sequence[Chunk]
    ) -> list[tuple[State, Finite]]:
        def stack(*leaves: jax.Array) -> jax.Array:
            return jnp.stack(leaves)

        stacked = jax.vmap(self._train_chunk)(
            jax.tree.map(stack, *states), jax.tree.map(stack, *chunks)
        )
        return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(len(states))]

    def _train_chunk(self, state: State, chunk: Chunk) -> tuple[State, Finite]:
        def is_unfinished(carry: tuple[jax.Array, State, Finite]) -> jax.Array:
            i, _, finite = carry
            all_finite = jnp.stack(jax.tree.leaves(finite)).all()
            return (i < chunk.num_batches) & all_finite

        def take_step(
            carry: tuple[jax.Array, State, Finite],
        ) -> tuple[jax.Array, State, Finite]:
            i, state, _ = carry
            state, finite = self._train_step(state, chunk.rows, chunk.places[i])
            return i + 1, state, finite

        all_finite = Finite(
            loss=jnp.array(True),
            gradients=jax.tree.map(lambda _: jnp.array(True), state.weights.params),
        )
        start = (jnp.zeros((), jnp.int32), state, all_finite)
        _, state, finite = jax.lax.while_loop(is_unfinished, take_step, start)
        return state, finite

    def _train_step(
        self, state: State, rows: DeviceRows, places: jax.Array
    ) -> tuple[State, Finite]:
        """One optimizer step on the examples at places int32 [B] of the rows.

        All that it draws depends on the seed, the step, and the parts of the batch.
        """
        params, variables = state.weights
        steps_key = jax.random.fold_in(jax.random.key(state.seed), STREAM_OF_STEPS)
        forward = functools.partial(
            _forward,
            graphdef=self.graphdef,
            objective=self.objective,
            augment=self.augment,
        )
        gradient = batch_gradient(
            forward,
            params,
            variables,
            rows,
            places,
            key=jax.random.fold_in(steps_key, state.step),
            mesh=self.mesh,
            grad_accum_steps=self.grad_accum_steps,
            length_buckets=self.length_buckets,
        )
        updates, optimizer_state = self.optimizer.update(
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

    def _eval_chunk(
        self,
        weights: Weights,
        chunk: Chunk,
        example_weights: jax.Array,
        totals: Totals,
        length: int,
    ) -> Totals:
        def add_batch(i: jax.Array, totals: Totals) -> Totals:
            # Copied, for a model may write to its variables also when it evaluates.
            model = nnx.merge(self.graphdef, *weights, copy=True)
            batch = chunk.rows.take(chunk.places[i], example_weights[i], length)
            sums = self.objective(model, batch, None)
            return totals.plus(Totals(sums, batch.weights.sum()))

        return jax.lax.fori_loop(0, chunk.num_batches, add_batch, totals)


# (parameters, variables, batch, random key) -> (totals, variables after it)
Forward = Callable[[Any, Any, Batch, jax.Array], tuple[Totals, Any]]


class Gradient(NamedTuple):
    """A gradient, the totals of its examples, and the variables after them."""

    params: nnx.State
    totals: Totals
    variables: nnx.State


# (variables, places of a part, random key) -> the gradient of the part's summed loss
PartGradient = Callable[[Any, jax.Array, jax.Array], Gradient]


def batch_gradient(
    forward: Forward,
    params: Any,
    variables: Any,
    rows: DeviceRows,
    places: jax.Array,
    key: jax.Array,
    mesh: Mesh | None = None,
    *,
    grad_accum_steps: int = 1,
    length_buckets: int = 1,
) -> Gradient:
    """The gradient of the mean loss over a batch.

    Args:
      forward: computes the totals of some examples; their `loss` is differentiated.
      params: the parameters to differentiate by.
      variables: the other variables of the model, which a forward pass may change.
      rows: the examples from which the batch is taken.
      places: int32 [B], the places of the batch in `rows`.
      key: the key of all random numbers of the forward pass.
      mesh: the mesh over which the batch, or each part of it, is split.
      grad_accum_steps: the number of parts, computed one after another; it divides B.
      length_buckets: how many lengths a part may have, where examples have padding.
        Each is compiled by itself.
    """
    # Without padding all examples have the full length; pictures cannot be cut.
    num_lengths = 1 if rows.lengths is None else length_buckets
    lengths = bucket_lengths(rows.inputs.shape[1], num_lengths)
    part_gradients = [
        functools.partial(_part_gradient, forward, params, rows, length)
        for length in lengths
    ]
    if grad_accum_steps == 1 and len(lengths) == 1:
        gradient = part_gradients[0](variables, places, key)
    else:
        by_length = places[jnp.argsort(rows.example_lengths(places))]
        parts = jax.lax.with_sharding_constraint(
            by_length.reshape(grad_accum_steps, -1), placement(mesh, None, DATA)
        )
        gradient = _sum_over_parts(part_gradients, lengths, variables, rows, parts, key)
    _, weight = gradient.totals.sums["loss"]
    # Where nothing has weight, as in a batch without labels, the gradient is zero.
    divisor = jnp.where(weight > 0, weight, 1)
    mean = jax.tree.map(lambda x: x / divisor, gradient.params)
    return gradient._replace(params=mean)


def _sum_over_parts(
    part_gradients: Sequence[PartGradient],
    lengths: Sequence[int],
    variables: Any,
    rows: DeviceRows,
    parts: jax.Array,
    key: jax.Array,
) -> Gradient:
    """Adds the gradients of the parts, one after another.

    Args:
      part_gradients: one function for each of the lengths.
      parts: int32 [number of parts, examples of a part], their places in `rows`.
    """

    def add_part(
        so_far: Gradient, numbered_part: tuple[jax.Array, jax.Array]
    ) -> tuple[Gradient, None]:
        number, places = numbered_part
        longest = rows.example_lengths(places).max()
        gradient = jax.lax.switch(
            jnp.searchsorted(np.array(lengths), longest),
            part_gradients,
            so_far.variables,
            places,
            jax.random.fold_in(key, number),
        )
        total = Gradient(
            params=jax.tree.map(jnp.add, so_far.params, gradient.params),
            totals=so_far.totals.plus(gradient.totals),
            variables=gradient.variables,
        )
        return total, None

    shapes = jax.eval_shape(part_gradients[0], variables, parts[0], key)
    zero = jax.tree.map(jnp.zeros_like, shapes)
    start = zero._replace(variables=variables)
    gradient, _ = jax.lax.scan(add_part, start, (jnp.arange(len(parts)), parts))
    return gradient


def _part_gradient(
    forward: Forward,
    params: Any,
    rows: DeviceRows,
    length: int,
    variables: Any,
    places: jax.Array,
    key: jax.Array,
) -> Gradient:
    """The gradient of the summed loss of the examples at places, cut to a length."""
    batch = rows.take(places, jnp.ones(places.shape, jnp.float32), length)

    def summed_loss(params: Any) -> tuple[jax.Array, tuple[Totals, Any]]:
        totals, new_variables = forward(params, variables, batch, key)
        loss, _ = totals.sums["loss"]
        return loss, (totals, new_variables)

    gradient, (totals, new_variables) = jax.grad(summed_loss, has_aux=True)(params)
    return Gradient(gradient, totals, new_variables)


def _forward(
    params: Any,
    variables: Any,
    batch: Batch,
    key: jax.Array,
    *,
    graphdef: nnx.GraphDef,
    objective: Objective,
    augment: Augment | None,
) -> tuple[Totals, Any]:
    """The totals of some training examples, and the variables after them."""
    if augment is not None:
        batch = augment(batch, jax.random.fold_in(key, STREAM_OF_AUGMENTATION))
    # Copied, as the model writes to its variables.
    model = nnx.merge(graphdef, params, variables, copy=True)
    sums = objective(model, batch, key)
    _, weights = split_weights(model)
    return Totals(sums, batch.weights.sum()), weights.variables


def split_weights(model: nnx.Module) -> tuple[nnx.GraphDef, Weights]:
    """The static definition of a model, and its weights."""
    graphdef, params, variables = nnx.split(model, nnx.Param, ...)
    return graphdef, Weights(params, variables)


def split_shapes(make_model: MakeModel) -> tuple[nnx.GraphDef, Weights]:
    """`split_weights` of a new model, with shapes and dtypes in place of arrays."""
    return split_weights(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their names, such as "encoder.positions"."""
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        leaves[name.removesuffix(".value")] = leaf
    return leaves


def program_bytes(compiled: Any) -> int | None:
    """The bytes that a compiled program holds at once, donated arguments once.

    None where the backend does not say.
    """
    usage = compiled.memory_analysis()
    if usage is None:
        return None
    new_results = usage.output_size_in_bytes - usage.alias_size_in_bytes
    return usage.argument_size_in_bytes + new_results + usage.temp_size_in_bytes
