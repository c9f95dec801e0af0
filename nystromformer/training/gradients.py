"""The gradient of a batch: at once, or in parts with little padding.

A part holds sequences of similar length, truncated to the shortest of a few lengths
that has room for them. Padding changes nothing and the parts' gradients add up, so the
sum is the gradient of the whole batch, in less memory and, where lengths differ, in
less time. Only what is drawn differs: dropout, masked tokens, augmentation. Where an
example's result depends on its batch (`Attention.batch_sensitive`) the parts would not
add up: the config refuses it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from nystromformer.training.data import Batch, Data
from nystromformer.training.devices import DATA, placement
from nystromformer.training.objective import Totals

# (parameters, variables, batch, random key) -> (totals, variables after it)
Forward = Callable[[Any, Any, Batch, jax.Array], tuple[Totals, Any]]


class Gradient(NamedTuple):
    """The gradient of the mean loss, the batch's totals, and the variables after it."""

    params: nnx.State
    totals: Totals
    variables: nnx.State


def bucket_lengths(max_length: int, num_buckets: int) -> tuple[int, ...]:
    """At most num_buckets lengths in even steps, up to max_length."""
    steps = range(1, num_buckets + 1)
    return tuple(sorted({-(-max_length * i // num_buckets) for i in steps}))


def batch_gradient(
    forward: Forward,
    params: Any,
    variables: Any,
    data: Data,
    indices: jax.Array,
    key: jax.Array,
    mesh: Mesh | None = None,
    *,
    grad_accum_steps: int = 1,
    length_buckets: int = 1,
) -> Gradient:
    """The gradient of the mean loss over the examples at indices [B].

    Args:
      mesh: over which the batch, or each part of it, is split.
      grad_accum_steps: parts of the batch, one after another; a divisor of B.
      length_buckets: how many lengths a part may have; each is compiled by itself.
    """

    def part_gradient(
        length: int, variables: Any, indices: jax.Array, key: jax.Array
    ) -> Gradient:
        batch = data.take(indices, jnp.ones(indices.shape, jnp.float32), length)

        def summed(params: Any) -> tuple[jax.Array, tuple[Totals, Any]]:
            totals, after = forward(params, variables, batch, key)
            return totals.sums["loss"][0], (totals, after)

        gradients, rest = jax.grad(summed, has_aux=True)(params)
        return Gradient(gradients, *rest)

    def add_part(so_far: Gradient, part: Any) -> Any:
        number, indices = part
        found = jax.lax.switch(
            jnp.searchsorted(np.array(lengths), data.lengths_of(indices).max()),
            [functools.partial(part_gradient, length) for length in lengths],
            *(so_far.variables, indices, jax.random.fold_in(key, number)),
        )
        params = jax.tree.map(jnp.add, so_far.params, found.params)
        return Gradient(params, so_far.totals.plus(found.totals), found.variables), None

    lengths = bucket_lengths(data.inputs.shape[-1], length_buckets)
    if grad_accum_steps == len(lengths) == 1:
        gradient = part_gradient(lengths[0], variables, indices, key)
    else:
        by_length = indices[jnp.argsort(data.lengths_of(indices))]
        parts = jax.lax.with_sharding_constraint(
            by_length.reshape(grad_accum_steps, -1), placement(mesh, None, DATA)
        )
        first = functools.partial(part_gradient, lengths[0])
        shapes = jax.eval_shape(first, variables, parts[0], key)
        start = jax.tree.map(jnp.zeros_like, shapes)._replace(variables=variables)
        numbers = jnp.arange(grad_accum_steps)
        gradient, _ = jax.lax.scan(add_part, start, (numbers, parts))
    weight = gradient.totals.sums["loss"][1]
    return gradient._replace(params=jax.tree.map(lambda x: x / weight, gradient.params))
