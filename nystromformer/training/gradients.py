"""The gradient of a batch: at once, or in parts with little padding.

The batch is sorted by length and divided into parts. Each part is cut to the shortest
of a few lengths that holds its longest sequence. Padding changes nothing, and gradients
add up, so the sum over the parts is the gradient of the whole batch; it takes less
memory and, where lengths differ, less time. Only random numbers differ: dropout, masked
tokens, augmentation. Where an example's result depends on its batch
(`Attention.batch_sensitive`) the parts would not add up, and the config refuses them.

Letters: B batch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from nystromformer.training.data import Batch, DeviceRows
from nystromformer.training.devices import DATA, placement
from nystromformer.training.metrics import Totals

# (parameters, variables, batch, random key) -> (totals, variables after it)
Forward = Callable[[Any, Any, Batch, jax.Array], tuple[Totals, Any]]


class Gradient(NamedTuple):
    """A gradient, the totals of its examples, and the variables after them."""

    params: nnx.State
    totals: Totals
    variables: nnx.State


# (variables, places of a part, random key) -> the gradient of the part's summed loss
PartGradient = Callable[[Any, jax.Array, jax.Array], Gradient]


def bucket_lengths(max_length: int, num_buckets: int) -> tuple[int, ...]:
    """At most num_buckets lengths in even steps, up to max_length."""
    steps = range(1, num_buckets + 1)
    return tuple(sorted({-(-max_length * i // num_buckets) for i in steps}))


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
    lengths = bucket_lengths(rows.inputs.shape[-1], num_lengths)
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
