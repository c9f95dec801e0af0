"""Attentions with parameters inside linen modules, which would never train them."""

import jax
from flax import nnx
from flax.linen import module as linen_module


def refuse_linen(attention: nnx.Module) -> None:
    """Refuses an attention with parameters if the caller is a linen module.

    linen sees no nnx.Param. flax has no public way to ask which module is running.

    Raises:
      ValueError: a linen module runs, and the attention has parameters.
    """
    caller = linen_module._context.module_stack[-1]  # noqa: SLF001
    if caller is None or isinstance(caller, nnx.bridge.ToLinen):
        return
    parameters = jax.tree.leaves(nnx.state(attention, nnx.Param))
    if parameters:
        num_parameters = sum(parameter.size for parameter in parameters)
        raise ValueError(
            f"{type(attention).__name__} has {num_parameters:,} parameters, which "
            f"linen's {type(caller).__name__} would never train: use flax.nnx, or the "
            "whole nnx model by flax.nnx.bridge.ToLinen"
        )
