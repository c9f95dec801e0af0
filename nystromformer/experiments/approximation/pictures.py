"""Pictures of the matrices of heads: S, what replaces it, and the inverses."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from matplotlib.figure import Figure

from nystromformer.experiments.approximation import measurements
from nystromformer.experiments.approximation.drawings import (
    draw_pictures,
    evenly_spaced,
)
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.factors import (
    nystrom_factors,
    nystrom_rows,
    softmax_matrix,
    standard_nystrom,
)
from nystromformer.landmarks import LANDMARKS

LABELS = {name: name.replace("_", " ") for name in LANDMARKS} | {"kmeans": "k-means"}
PICTURED_HEADS = 6


def draw_matrices(
    layers: Sequence[AttentionInputs], counts: Sequence[int], pictured_count: int
) -> dict[str, Figure]:
    """Draws heads of the first sequence, as the supplement does.

    Args:
      layers: the inputs of each layer's attention.
      counts: numbers of landmarks in ascending order; "numbers" shows the last three.
      pictured_count: the number of landmarks in the other three figures.

    Returns:
      Figures by name:
        choices: S and Ŝ by the choice of landmarks; the last two are of the standard
          Nyström method, which samples S after the softmax.
        numbers: S and Ŝ by the number of landmarks.
        iterates: S and Ŝ by the inverse.
        inverses: the inverses themselves.
    """

    def approximate(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        options = {"num_landmarks": pictured_count, **options}
        return nystrom_rows(query, key, slice(None), mask, **options)

    def scaled_inverse(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        # Inverses differ by orders of magnitude and share one scale of colours.
        _, z, _ = nystrom_factors(
            query, key, mask, num_landmarks=pictured_count, **options
        )
        return z / abs(z).max()

    standard = functools.partial(standard_nystrom, num_landmarks=pictured_count)
    standard_options = {"after softmax": {}, "after, iterated": {"pinv": "iterative"}}
    choice_options = {label: {"landmarks": name} for name, label in LABELS.items()}
    count_options = {f"{n} landmarks": {"num_landmarks": n} for n in counts[-3:]}
    inverse_options: dict[str, dict[str, Any]] = {"exact inverse": {"pinv": "exact"}}
    for n in (2, 4, 6):
        inverse_options[f"{n} iterations"] = {"num_pinv_iters": n}
    iterate_options = inverse_options | {"double softmax": {"pinv": "identity"}}

    exact = {"exact": softmax_matrix}
    choices = _variants(approximate, choice_options)
    choices |= _variants(standard, standard_options)
    numbers = _variants(approximate, count_options)
    iterates = _variants(approximate, iterate_options)
    return {
        "choices": _draw(layers, exact | choices),
        "numbers": _draw(layers, exact | numbers),
        "iterates": _draw(layers, exact | iterates),
        "inverses": _draw(layers, _variants(scaled_inverse, inverse_options)),
    }


def _variants(
    function: Callable[..., Any], options_of_title: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[..., Any]]:
    """The function with each of these options."""
    return {
        title: functools.partial(function, **options)
        for title, options in options_of_title.items()
    }


def _draw(
    layers: Sequence[AttentionInputs], functions: Mapping[str, Callable[..., Any]]
) -> Figure:
    """Draws what functions of a head give for some heads of the first sequence."""
    compiled = {
        title: measurements.vmap_heads(function)
        for title, function in functions.items()
    }
    matrices_of_head = measurements.compute_matrices(layers, 0, compiled)
    heads = evenly_spaced(list(matrices_of_head), PICTURED_HEADS)
    return draw_pictures({head: matrices_of_head[head] for head in heads})
