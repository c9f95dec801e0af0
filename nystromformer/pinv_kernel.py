"""The iterations of the pseudo-inverse as one kernel of an NVIDIA GPU.

XLA computes each product of the iterations, and of their gradient, by a kernel of its
own, more than a hundred for a layer. They are small: a matrix of 64 × 64 fits in the
registers of one block of threads, which here does all iterations on it. Written in
Pallas and compiled by Triton. The kernel is compiled for an H200 and interpreted on a
CPU in the tests; no GPU has run it yet, and so nothing takes it unless asked.

Letters: M landmarks.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.precision import is_before_ampere

# A kernel's blocks have sizes that are powers of two, and its products 16 rows or more.
SIZES = (16, 32, 64)

# One iteration: A, Z and the precision of the products to the next Z.
Step = Callable[[jax.Array, jax.Array, Any], jax.Array]


def can_iterate(a: jax.Array) -> bool:
    """Whether there is a GPU, and the kernel takes matrices A [..., M, M] as these.

    With several devices the answer is False: the matrices may be sharded over them, and
    XLA would gather them all for a kernel.
    """
    return (
        a.dtype == jnp.float32
        and a.shape[-1] in SIZES
        and jax.default_backend() == "gpu"
        and jax.device_count() == 1
        and not is_before_ampere()
    )


def iterate(
    a: jax.Array, z_0: jax.Array, step: Step, num_iters: int, interpret: bool = False
) -> jax.Array:
    """Z after a number of steps from Z₀, in one kernel; and in two for its gradient.

    The gradient is that of the steps as computed. Derivatives of the gradient are
    computed by XLA, without a kernel. There is no forward mode.

    Args:
      a: A [..., M, M] in float32, M in `SIZES`.
      z_0: Z₀ [..., M, M] in float32.
      step: a function of A, Z and a precision to the next Z, all [M, M].
      num_iters: the number of steps.
      interpret: whether to compute it step by step on any device, for tests.

    Returns:
      Z [..., M, M].
    """
    iterate_one = functools.partial(
        _iterate, step=step, num_iters=num_iters, interpret=interpret
    )
    for _ in range(a.ndim - 2):
        iterate_one = jax.vmap(iterate_one)
    return iterate_one(a, z_0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _iterate(
    a: jax.Array, z_0: jax.Array, step: Step, num_iters: int, interpret: bool
) -> jax.Array:
    kernel = functools.partial(
        _iterate_kernel, step=_with_precision(step, interpret), num_iters=num_iters
    )
    return _run_kernel(kernel, [a, z_0], [a.shape], interpret)[0]


def _iterate_forward(
    a: jax.Array, z_0: jax.Array, step: Step, num_iters: int, interpret: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _iterate(a, z_0, step, num_iters, interpret), (a, z_0)


def _iterate_backward(
    step: Step,
    num_iters: int,
    interpret: bool,
    residuals: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    return _pull_back(*residuals, gradient, step, num_iters, interpret)


_iterate.defvjp(_iterate_forward, _iterate_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _pull_back(
    a: jax.Array,
    z_0: jax.Array,
    gradient: jax.Array,
    step: Step,
    num_iters: int,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """The gradients of A and Z₀ from that of the last Z.

    One kernel computes all Z again, and another one goes back through them.
    """
    step = _with_precision(step, interpret)
    kernel = functools.partial(_all_iterates_kernel, step=step)
    (iterates,) = _run_kernel(kernel, [a, z_0], [(num_iters, *a.shape)], interpret)
    kernel = functools.partial(_pull_back_kernel, step=step)
    gradient_a, gradient_z_0 = _run_kernel(
        kernel, [a, gradient, iterates], [a.shape, a.shape], interpret
    )
    return gradient_a, gradient_z_0


def _pull_back_forward(
    a: jax.Array,
    z_0: jax.Array,
    gradient: jax.Array,
    step: Step,
    num_iters: int,
    interpret: bool,
) -> tuple[Any, Any]:
    out = _pull_back(a, z_0, gradient, step, num_iters, interpret)
    return out, (a, z_0, gradient)


def _pull_back_backward(
    step: Step, num_iters: int, interpret: bool, residuals: Any, gradients: Any
) -> Any:
    def pull_back_by_xla(a: jax.Array, z_0: jax.Array, gradient: jax.Array) -> Any:
        def iterate_by_xla(a: jax.Array, z: jax.Array) -> jax.Array:
            for _ in range(num_iters):
                z = step(a, z, "highest")
            return z

        return jax.vjp(iterate_by_xla, a, z_0)[1](gradient)

    return jax.vjp(pull_back_by_xla, *residuals)[1](gradients)


_pull_back.defvjp(_pull_back_forward, _pull_back_backward)


def _iterate_kernel(a_ref: Any, z_0_ref: Any, z_ref: Any, *, step: Any, num_iters: int):
    a = a_ref[...]
    z_ref[...] = lax.fori_loop(0, num_iters, lambda _, z: step(a, z), z_0_ref[...])


def _all_iterates_kernel(a_ref: Any, z_0_ref: Any, iterates_ref: Any, *, step: Any):
    """Stores Z₀ and those that follow, without the last one."""
    a = a_ref[...]

    def store(j: jax.Array, z: jax.Array) -> jax.Array:
        iterates_ref[j] = z
        return step(a, z)

    lax.fori_loop(0, iterates_ref.shape[0], store, z_0_ref[...])


def _pull_back_kernel(
    a_ref: Any,
    gradient_ref: Any,
    iterates_ref: Any,
    gradient_a_ref: Any,
    gradient_z_ref: Any,
    *,
    step: Any,
):
    a = a_ref[...]
    num_iters = iterates_ref.shape[0]

    def go_back(i: jax.Array, gradients: tuple[Any, Any]) -> tuple[Any, Any]:
        gradient_a, gradient_z = gradients
        z = iterates_ref[num_iters - 1 - i]
        _, pull_back = jax.vjp(step, a, z)
        more_of_a, gradient_z = pull_back(gradient_z)
        return gradient_a + more_of_a, gradient_z

    start = (jnp.zeros_like(a), gradient_ref[...])
    gradient_a_ref[...], gradient_z_ref[...] = lax.fori_loop(
        0, num_iters, go_back, start
    )


def _with_precision(step: Step, interpret: bool) -> Callable[..., jax.Array]:
    """The step with float32's accuracy, by the tensor cores of a GPU."""
    precision = "highest" if interpret else lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    return lambda a, z: step(a, z, precision)


def _run_kernel(
    kernel: Callable[..., None],
    inputs: list[jax.Array],
    out_shapes: list[tuple[int, ...]],
    interpret: bool,
) -> list[jax.Array]:
    """Runs a kernel on whole arrays; jax.vmap makes a block of threads of each."""
    # Imported here, since only who has such a GPU needs them.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    return pallas.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in out_shapes],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
    )(*inputs)
