"""cuDNN's flash attention: exact attention in O(T + S) memory, where it applies."""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp


def cuda_capability() -> float:
    """The compute capability of the default device; 0 if it is not a CUDA GPU."""
    capability = getattr(jax.devices()[0], "compute_capability", "0")
    return float(capability) if capability.replace(".", "").isdigit() else 0.0  # gfx90a


def flash_obstacle(
    capability: float, dtype: jax.typing.DTypeLike, head_dim: int, asked: Sequence[str]
) -> str | None:
    """What cuDNN's flash attention lacks here, or None if it applies.

    `capability` is that of the GPU; `asked` names what the kernel does not do.
    """
    if asked:
        return f"a call without {', '.join(asked)}"
    if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return f"bfloat16 or float16, got {jnp.dtype(dtype)}"
    if head_dim > 128 or head_dim % 8:
        return f"a head dim that is a multiple of 8 up to 128, got {head_dim}"
    if capability < 8:
        got = f"one of {capability}" if capability else "none"
        return f"a CUDA GPU of compute capability 8.0 or more, got {got}"
    return None


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    is_causal: bool = False,
    implementation: Literal["xla", "cudnn"] = "cudnn",
) -> jax.Array:
    """Exact attention to the first valid keys, whose number the kernel gets.

    As a mask they would be a bias of [B, T, S] numbers with T and S even. But the order
    of keys does not matter, so those that count are moved to the front.

    Args:
      query: [B, T, N, H].
      key, value: [B, S, N, H], finite everywhere.
      mask: [B, S] bool, True = attend; None = all, as it must be with is_causal. Where
        nothing is True the first value is returned.
      is_causal: query t sees only keys ≤ t.
      implementation: "xla" runs anywhere, for comparison.

    Returns:
      [B, T, N, H].
    """
    num_valid = None
    if mask is not None:
        order = jnp.argsort(~mask, axis=1)[:, :, None, None]
        key, value = (jnp.take_along_axis(x, order, axis=1) for x in (key, value))
        num_valid = jnp.maximum(mask.sum(1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        is_causal=is_causal,
        key_value_seq_lengths=num_valid,
        implementation=implementation,
    )
