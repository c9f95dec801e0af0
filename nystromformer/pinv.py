"""The inverse of A: the paper's iteration and what may take its place.

The exact pseudo-inverse is in section B of the paper's supplement. The identity in
place of an inverse is not in the paper.

Letters: M landmarks, S columns of a matrix that is not square.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer import pinv_kernel
from nystromformer.precision import at_least_float32, tensor_core_precision


def iterative_pinv(
    matrix: jax.Array,
    num_iters: int = 6,
    scale_over: Sequence[str] = (),
    in_one_kernel: bool = False,
) -> jax.Array:
    """A⁺ by the third-order iteration of Razavi et al. (2014), eq. (14) of the paper.

        Z₀ = Aᵀ / (‖A‖₁ ‖A‖∞),
        Zⱼ₊₁ = ¼ Zⱼ (13 I − A Zⱼ (15 I − A Zⱼ (7 I − A Zⱼ)))

    With some 16 landmarks and more, six iterations are far from converged on softmax
    matrices and so a *regularised* inverse; with 4 or 8 the output can be that of A⁺
    to three digits. That is the method as published, and its gradient goes through the
    iterations.

    Args:
      matrix: A [..., M, M]; each is scaled by its own norms, the largest column sum
        and the largest row sum of absolute values.
      num_iters: the number of iterations. In float32 more than about 20 can diverge on
        a matrix of low rank: each enlarges the rounding errors in its null space. Equal
        landmarks make such a matrix: the landmarks of equal tokens, or of padding with
        landmark_padding="count".
      scale_over: names of vmapped axes. All matrices along them are scaled by the
        largest norms among them, as the published code does over batch and heads.
      in_one_kernel: whether an NVIDIA GPU does all iterations in one kernel, for the
        matrices that `pinv_kernel.can_iterate`. There it has no forward mode.

    Returns:
      Z [..., M, M] in at least float32.
    """
    a = matrix.astype(at_least_float32(matrix.dtype))
    norm_1 = jnp.abs(a).sum(-2).max(-1)
    norm_inf = jnp.abs(a).sum(-1).max(-1)
    for axis in scale_over:
        # lax.pmax has no derivative.
        norm_1 = lax.all_gather(norm_1, axis).max(0)
        norm_inf = lax.all_gather(norm_inf, axis).max(0)
    z_0 = a.mT / (norm_1 * norm_inf)[..., None, None]
    iterate = functools.partial(_iterate, num_iters=num_iters)
    if in_one_kernel and pinv_kernel.can_iterate(a):
        on_cuda = functools.partial(
            pinv_kernel.iterate, step=_razavi_step, num_iters=num_iters
        )
    else:
        precision = tensor_core_precision(a.dtype)
        on_cuda = functools.partial(iterate, precision=precision)
    return lax.platform_dependent(
        a,
        z_0,
        cpu=functools.partial(iterate, precision="highest"),
        cuda=on_cuda,
        default=functools.partial(_iterate_in_a_loop, num_iters=num_iters),
    )


def _iterate(
    a: jax.Array, z: jax.Array, num_iters: int, precision: lax.PrecisionLike
) -> jax.Array:
    for _ in range(num_iters):
        z = _razavi_step(a, z, precision)
    return z


@functools.partial(jax.jit, static_argnames="num_iters")
def _iterate_in_a_loop(a: jax.Array, z: jax.Array, num_iters: int) -> jax.Array:
    """`_iterate` as a loop, which saves a TPU's compiler half of its time.

    It would make a GPU copy more. Without the `jit` here, a caller that compiles
    nothing would compile the loop anew at each call.
    """

    def step(z: jax.Array, _: None) -> tuple[jax.Array, None]:
        return _razavi_step(a, z, "highest"), None

    return lax.scan(step, z, length=num_iters)[0]


def _razavi_step(a: jax.Array, z: jax.Array, precision: lax.PrecisionLike) -> jax.Array:
    """¼ Z (13 I − A Z (15 I − A Z (7 I − A Z)))."""
    matmul = functools.partial(jnp.matmul, precision=precision)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    az = matmul(a, z)
    inner = 15 * eye - matmul(az, 7 * eye - az)
    return 0.25 * matmul(z, 13 * eye - matmul(az, inner))


@jax.custom_jvp
def exact_pinv(a: jax.Array) -> jax.Array:
    """Computes the pseudo-inverse A⁺ by singular values; on a CPU one after another.

    On a CPU jaxlib 0.10.2 spreads a batch over the threads that compute the program,
    and waits for them. Two batches can be computed at once, such as those of two layers
    under `jax.checkpoint`, and then may wait for each other for ever. A single matrix
    is computed by the thread that needs it.

    Args:
      a: [..., M, S].

    Returns:
      [..., S, M].
    """
    invert = _pinv_of_matrix
    for _ in range(a.ndim - 2):
        invert = jax.vmap(invert)
    return invert(a)


@jax.custom_batching.custom_vmap
def _pinv_of_matrix(a: jax.Array) -> jax.Array:
    return jnp.linalg.pinv(a)


@_pinv_of_matrix.def_vmap
def _pinv_of_batch(
    axis_size: int, in_batched: list[bool], a: jax.Array
) -> tuple[jax.Array, bool]:
    return _pinv_of_each(a), True


@jax.jit
def _pinv_of_each(a: jax.Array) -> jax.Array:
    """A⁺ of each matrix [M, S] of a batch.

    Without the `jit` here, a caller that compiles nothing would compile the loop anew
    at each call.
    """
    return lax.platform_dependent(
        a, cpu=lambda a: lax.map(_pinv_of_matrix, a), default=jnp.linalg.pinv
    )


@exact_pinv.defjvp
@jax.default_matmul_precision("highest")
def _differentiate_pinv(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """dZ = −Z dA Z + Z Zᵀ dAᵀ (I − A Z) + (I − Z A) dAᵀ Zᵀ Z, with Z = A⁺.

    Golub and Pereyra, SIAM Journal on Numerical Analysis 10 (1973).
    """
    (a,) = primals
    (da,) = tangents
    z = exact_pinv(a)
    left = z @ z.mT @ da.mT
    right = da.mT @ z.mT @ z
    return z, left - left @ a @ z + right - z @ a @ right - z @ da @ z


# (A [M, M], num_iters) -> Z [M, M]. The identity stands for no inverse at all, the
# double softmax.
PINVS: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "iterative": iterative_pinv,
    "exact": lambda a, num_iters: exact_pinv(a),
    "identity": lambda a, num_iters: jnp.eye(a.shape[-1], dtype=a.dtype),
}
