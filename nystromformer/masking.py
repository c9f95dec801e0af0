"""What a mask may say to an attention that never forms the [T, S] matrix."""

import jax
import jax.numpy as jnp


def key_mask(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    bias: jax.Array | None,
    mask: jax.Array | None,
    is_causal: bool,
) -> jax.Array | None:
    """The [B, S] mask of the keys, after every check that shapes allow.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, H].
      bias: must be None; it would be an object of T × S numbers.
      mask: None, or boolean and broadcastable to [B, 1, 1, S]; True = attend.
      is_causal: must be False.

    Raises:
      ValueError: for whatever cannot be honoured; nothing is ignored in silence.
    """
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise ValueError(
            "query, key and value must be [B, T, N, H], [B, S, N, H], [B, S, N, H]; "
            f"got {query.shape}, {key.shape}, {value.shape}"
        )
    batch, length = key.shape[:2]
    same_heads = query.shape[2:] == key.shape[2:] and value.shape[2] == key.shape[2]
    if query.shape[0] != batch or not same_heads or value.shape[:2] != key.shape[:2]:
        raise ValueError(
            "query, key and value disagree in batch, heads, head dim or length: "
            f"{query.shape}, {key.shape}, {value.shape}"
        )
    if bias is not None:
        raise ValueError(
            f"a bias (here of shape {jnp.shape(bias)}) needs the [T, S] matrix that "
            "this attention avoids; use attention 'softmax'"
        )
    if is_causal:
        raise ValueError(
            "is_causal=True (shapes "
            f"{query.shape}, {key.shape}) is not possible: this attention looks at "
            "keys of the future too; use attention 'softmax'"
        )
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise ValueError(f"mask must be boolean (True = attend), got {mask.dtype}")
    padded = (1,) * (4 - mask.ndim) + mask.shape
    fits = all(n in (1, m) for n, m in zip(padded, (batch, 1, 1, length), strict=False))
    if len(padded) != 4 or not fits:
        raise ValueError(
            f"mask of shape {mask.shape} does not broadcast to [B, 1, 1, S] = "
            f"{(batch, 1, 1, length)}: it must not vary over queries or heads; for "
            "padding pass mask[:, None, None, :]"
        )
    return jnp.broadcast_to(mask.reshape(padded)[:, 0, 0, :], (batch, length))


def zero_padding(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Zeros where mask [B, S] is False, so that not even a NaN there has influence.

    With T = S the queries are taken for the same tokens and zeroed too: a NaN times
    the zero cotangent of a padded output would be NaN.
    """
    if mask is None:
        return query, key, value
    keep = mask[:, :, None, None]
    if query.shape[1] == key.shape[1]:
        query = jnp.where(keep, query, 0)
    return query, jnp.where(keep, key, 0), jnp.where(keep, value, 0)


def refuse_weights(
    name: str, *, dropout_rate: float, deterministic: bool, module: object
) -> None:
    """Refuses what needs the [T, S] weights: dropout on them, and sowing them.

    Raises:
      ValueError: naming the attention.
    """
    if dropout_rate > 0 and not deterministic:
        raise ValueError(
            f"dropout_rate={dropout_rate}: dropout on attention weights is not defined "
            f"for {name}, which never forms them; set it to 0"
        )
    if module is not None:
        raise ValueError(f"{name} never forms the [T, S] weights that sow_weights asks")


def admit(
    name: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    dropout_rate: float,
    deterministic: bool,
    dtype: jax.typing.DTypeLike | None,
    module: object,
    is_causal: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """All of the above: how an attention without [T, S] weights begins.

    Args:
      name: of the attention, for the messages.
      query, …: as the attention was called.

    Returns:
      query, key and value in dtype (None = their own), with padding zeroed, and the
      mask [B, S] or None.

    Raises:
      ValueError: for whatever cannot be honoured.
    """
    mask = key_mask(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
    refuse_weights(
        name, dropout_rate=dropout_rate, deterministic=deterministic, module=module
    )
    dtype = dtype or jnp.result_type(query, key, value)
    query, key, value = zero_padding(query, key, value, mask)
    return query.astype(dtype), key.astype(dtype), value.astype(dtype), mask
