"""The compiled functions of a run."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.training.data import HostSplit
from nystromformer.training.devices import placement
from nystromformer.training.objective import Objective
from nystromformer.training.step import (
    MakeModel,
    StepDefinition,
    eval_chunk,
    init_state,
    train_chunk,
)


class Programs(NamedTuple):
    """The compiled functions of a run. Each is compiled when it is first called.

    Attributes:
      definition: the model, objective and settings of the functions.
      init: `init_state`, called with the seed.
      train_chunk: `train_chunk`, called with state and chunk. It donates the state.
      eval_chunk: `eval_chunk`, called with weights, chunk, example weights, totals and
        `length=`. It is compiled for each length.
    """

    definition: StepDefinition
    init: Any
    train_chunk: Any
    eval_chunk: Any

    @property
    def objective(self) -> Objective:
        return self.definition.objective

    @property
    def mesh(self) -> Mesh | None:
        return self.definition.mesh

    def compile(self, split: HostSplit, batch_size: int) -> int | None:
        """Compiles what the first steps call.

        JAX keeps the programs: the first call of these functions finds them.

        Args:
          split: any number of examples in the shapes and dtypes of the training data.

        Returns:
          The bytes that a chunk of training holds at once; None where the backend does
          not say.
        """
        seed = np.uint32(0)
        self.init.lower(seed).compile()
        state = self.init.eval_shape(seed)
        chunk = split.chunk(np.zeros((1, batch_size), np.int32), self.mesh)
        return program_bytes(self.train_chunk.lower(state, chunk).compile())


def jit_programs(
    make_model: MakeModel,
    objective: Objective,
    optimizer: optax.GradientTransformation | None = None,
    mesh: Mesh | None = None,
    *,
    grad_accum_steps: int = 1,
    length_buckets: int = 1,
) -> Programs:
    """Makes the compiled functions of a run.

    Args:
      make_model: makes a model with fresh weights.
      objective: computes the sums of a batch.
      optimizer: None = for evaluation only.
      mesh: the mesh of devices; None = one device.
      grad_accum_steps, length_buckets: as in `batch_gradient`.
    """
    definition = StepDefinition(
        make_model=make_model,
        graphdef=nnx.graphdef(nnx.eval_shape(lambda: make_model(nnx.Rngs(0)))),
        objective=objective,
        optimizer=optimizer,
        mesh=mesh,
        grad_accum_steps=grad_accum_steps,
        length_buckets=length_buckets,
    )
    replicated = placement(mesh)
    return Programs(
        definition=definition,
        init=jax.jit(
            functools.partial(init_state, definition), out_shardings=replicated
        ),
        train_chunk=jax.jit(
            functools.partial(train_chunk, definition),
            donate_argnums=0,
            out_shardings=replicated,
        ),
        eval_chunk=jax.jit(
            functools.partial(eval_chunk, definition),
            static_argnames="length",
            out_shardings=replicated,
        ),
    )


def program_bytes(compiled: Any) -> int | None:
    """The bytes that a compiled program holds at once, donated arguments once.

    None where the backend does not say.
    """
    usage = compiled.memory_analysis()
    if usage is None:
        return None
    new_results = usage.output_size_in_bytes - usage.alias_size_in_bytes
    return usage.argument_size_in_bytes + new_results + usage.temp_size_in_bytes
