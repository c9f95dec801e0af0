"""The form of a model: all of it but its numbers."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from nystromformer.config import Config
from nystromformer.experiments.experiment import Experiment
from nystromformer.training.step import split_weights


def form(graphdef: Any, weights: Any) -> tuple[Any, Any]:
    """The modules of a model with their options, and the shapes of its weights."""
    return graphdef, jax.tree.map(lambda x: (x.shape, x.dtype), weights)


def form_of_module(module: nnx.Module) -> tuple[Any, Any]:
    graphdef, weights = split_weights(module)
    return form(graphdef, weights)


def form_of_experiment(config: Config) -> tuple[Any, Any]:
    experiment = Experiment(config)
    return form(experiment.graphdef, experiment.weight_shapes)


def form_by_hand(make: Callable[[nnx.Rngs], nnx.Module]) -> tuple[Any, Any]:
    """The form of the module that `make` returns for random numbers."""
    return form_of_module(nnx.eval_shape(lambda: make(nnx.Rngs(0))))
