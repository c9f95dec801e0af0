"""Every attention on this machine's device, beside the same in float64 on its host."""

import functools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.attention import ATTENTIONS, make_attention
from nystromformer.experiments.provenance import num_cores

NUM_HEADS = 2
HEAD_DIM = 32
LENGTHS = (501, 217)  # of the two sequences of a batch
HOLE_DISTANCE = 7  # where a mask has holes, one token of seven is masked

# These options are smaller than 501 tokens, so that each attention approximates.
# Attentions without an entry have their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {"num_landmarks": 64, "conv_kernel_size": 35},
    "linformer": {"projection_dim": 128},
    "performer": {"num_features": 128},
    "longformer": {"window": 64},
    "bigbird": {"block_size": 32},
    "reformer": {"bucket_size": 32},
}
# The largest error that passes. In float32 a GPU multiplies in TF32, of 10 bits, unless
# it is asked for the highest precision.
LIMITS = {"float32": 2e-2, "float32, highest": 1e-4, "bfloat16": 1e-1}


class Case(NamedTuple):
    """An attention that is checked.

    name, options: as for `make_attention`.
    mode: a key of LIMITS.
    lengths: tokens of each sequence, before its padding.
    has_holes: whether some of these tokens are masked too, so that the mask is more
      than a length.
    """

    name: str
    options: dict[str, Any]
    mode: str
    lengths: tuple[int, ...]
    has_holes: bool = False

    @property
    def label(self) -> str:
        """As in "nystrom, fused=True, bfloat16, 501 and 217 tokens"."""
        options = [f"{key}={value}" for key, value in self.options.items()]
        tokens = " and ".join(map(str, self.lengths)) + " tokens"
        if self.has_holes:
            tokens = f"{tokens} with holes"
        return ", ".join([self.name, *options, self.mode, tokens])


def list_cases() -> list[Case]:
    """Returns what is checked, what matters most first."""
    nystrom = OPTIONS["nystrom"]
    fused_nystrom = {**nystrom, "fused": True}
    cases = [
        Case("nystrom", nystrom, "float32, highest", LENGTHS),
        Case("softmax", {}, "float32, highest", LENGTHS),
        Case("softmax", {}, "bfloat16", LENGTHS),
        Case("softmax", {}, "bfloat16", (512, 512)),
        Case("softmax", {"fused": False}, "bfloat16", LENGTHS),
        Case("nystrom", fused_nystrom, "bfloat16", LENGTHS),
        Case("nystrom", nystrom, "float32", (512, 512)),
        Case("nystrom", nystrom, "bfloat16", (48, 48)),  # exact attention
        Case("softmax", {}, "bfloat16", LENGTHS, has_holes=True),
        Case("nystrom", fused_nystrom, "bfloat16", LENGTHS, has_holes=True),
        Case("softmax", {}, "bfloat16", (501, 0)),  # a sequence of padding alone
        Case("nystrom", fused_nystrom, "bfloat16", (501, 0)),
    ]
    for mode in ("bfloat16", "float32"):
        for name in ATTENTIONS:
            case = Case(name, OPTIONS.get(name, {}), mode, LENGTHS)
            if case not in cases:
                cases.append(case)
    return cases


def check_cases(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Checks cases in several threads, because compiling takes most of the time.

    Args:
      cases: what is checked.

    Yields:
      A row for each case, in the order in which they end:
        case: its label.
        limit: the largest error that passes.
        passed: whether every error is finite and within the limit.
        seconds: how long the check took, with compiling.
        errors, same_bits: as in `check_case`, unless it raised an error.
        failure: the text of that error.
    """
    # Each compilation has threads of its own.
    with ThreadPoolExecutor(1 + num_cores() // 3) as pool:
        futures = [pool.submit(_check_or_fail, case) for case in cases]
        for future in as_completed(futures):
            yield future.result()


def format_row(row: dict[str, Any]) -> str:
    """One line for a row of `check_cases`: the verdict, and the largest error."""
    verdict = "ok" if row["passed"] else "FAILED"
    if "failure" in row:
        return f"{verdict}: {row['case']}: {row['failure']}"
    errors = row["errors"]
    worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
    bits = "" if row["same_bits"] else "; a second call gives other bits"
    return (
        f"{verdict}: {row['case']}: error {errors[worst]:.1e} ({worst}), limit "
        f"{row['limit']:.0e}{bits}"
    )


def _check_or_fail(case: Case) -> dict[str, Any]:
    start = time.monotonic()
    row: dict[str, Any] = {"case": case.label, "limit": LIMITS[case.mode]}
    try:
        row |= check_case(case)
    except Exception as error:  # the other cases go on
        row |= {"passed": False, "failure": f"{type(error).__name__}: {error}"[:400]}
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def check_case(case: Case) -> dict[str, Any]:
    """Compares one attention with float64, in its output and in all gradients.

    Returns:
      errors: array name -> its largest difference over the largest value expected.
      passed: whether every error is finite and within the limit.
      same_bits: whether a second call returned the same bits.
    """
    attention = make_attention(
        case.name,
        num_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        max_length=max(case.lengths),
        rngs=nnx.Rngs(0),
        **case.options,
    )
    graphdef, params, other_state = nnx.split(attention, nnx.Param, ...)
    dtype, _, precision = case.mode.partition(", ")
    arguments = (params, other_state, *make_inputs(case, dtype))
    function = functools.partial(_attend_with_gradients, graphdef)

    with jax.default_matmul_precision(precision or "default"):
        lowered = jax.jit(function).lower(*arguments)
    # The check needs right numbers, not fast ones: without autotuning XLA compiles in a
    # quarter of the time.
    run = lowered.compile(compiler_options={"xla_gpu_autotune_level": "0"})
    first = jax.tree.map(np.asarray, run(*arguments))
    second = jax.tree.map(np.asarray, run(*arguments))

    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide_arguments = jax.tree.map(_to_float64, arguments)
        expected = jax.tree.map(np.asarray, jax.jit(function)(*wide_arguments))

    errors = {
        name: _largest_error(first[name], expected[name])
        for name in first
        if jax.tree.leaves(first[name])
    }
    is_within = all(error <= LIMITS[case.mode] for error in errors.values())
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return {
        "errors": errors,
        "passed": is_within,
        "same_bits": all(x.tobytes() == y.tobytes() for x, y in pairs),
    }


def make_inputs(case: Case, dtype: str) -> list[jax.Array]:
    """Returns the mask [B, S], then query, key, value and a cotangent [B, S, N, H].

    Their rows are smooth, plus noise: on noise alone an approximation is poor, and so
    is its conditioning.
    """
    length = max(case.lengths)
    shape = (4, len(case.lengths), length, NUM_HEADS, HEAD_DIM)
    noise = np.random.default_rng(0).normal(size=shape)
    smooth = noise.cumsum(2) / np.sqrt(1 + np.arange(length))[:, None, None]
    positions = np.arange(length)
    mask = positions < np.array(case.lengths)[:, None]
    if case.has_holes:
        mask &= positions % HOLE_DISTANCE != 1
    return [jnp.asarray(mask), *jnp.asarray(noise + smooth, dtype)]


def _attend_with_gradients(
    graphdef: Any,
    params: nnx.State,
    rest: nnx.State,
    mask: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    cotangent: jax.Array,
) -> dict[str, Any]:
    """The output at valid tokens, and the gradients of parameters and inputs."""

    def attend(params: nnx.State, *qkv: jax.Array) -> jax.Array:
        attention = nnx.merge(graphdef, params, rest)
        out = attention(*qkv, mask=mask[:, None, None, :], deterministic=True)
        return jnp.where(mask[:, :, None, None], out, 0)

    out, pull_back = jax.vjp(attend, params, query, key, value)
    names = ("parameters", "query", "key", "value")
    gradients = pull_back(cotangent.astype(out.dtype))
    return {"output": out, **dict(zip(names, gradients, strict=True))}


def _to_float64(x: jax.Array) -> jax.Array:
    array = np.asarray(x)
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.asarray(array.astype(np.float64) if is_float else array)


def _largest_error(actual: Any, expected: Any) -> float:
    """The largest difference of two trees, relative to the largest value of a leaf.

    It is not finite where a number is not finite, or where zeros were expected and not
    found.
    """
    errors = []
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        difference = np.abs(np.asarray(x, float) - np.asarray(y, float)).max()
        largest = np.abs(np.asarray(y, float)).max()
        if largest == 0:
            errors.append(np.inf if difference else 0.0)
        else:
            errors.append(difference / largest)
    return float(np.max(errors))
