"""The loss of a masked language model against the number of landmarks.

No weight is trained: the same model attends with another number of landmarks.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


def masked_losses(
    model: Any,
    inputs: np.ndarray,
    lengths: np.ndarray,
    *,
    mask_token: int,
    special_tokens: Sequence[int] = (),
    landmarks: Sequence[int],
    share: float = 0.15,
    seed: int = 0,
) -> list[dict[str, float]]:
    """The loss on hidden tokens for each number of landmarks, on the same tokens.

    Args:
      model: inputs [B, L] and mask [B, L] to logits [B, L, V], with Nyström attention,
        whose num_landmarks this changes while it runs.
      inputs, lengths: int [B, L] and [B].
      mask_token, special_tokens: what stands for a hidden token; never hidden.
      landmarks: numbers of them; as many as tokens, or more, is exact attention.
      share: of the tokens that are hidden, drawn with `seed`.

    Returns:
      A row for each: num_landmarks, loss (nats a token), accuracy (0 to 1), and tokens.
    """
    valid = np.arange(inputs.shape[1]) < np.asarray(lengths)[:, None]
    draws = np.random.default_rng(seed).random(inputs.shape)
    hidden = valid & ~np.isin(inputs, special_tokens) & (draws < share)
    if not hidden.any():
        raise ValueError(f"a share of {share} hides none of {valid.sum()} tokens")
    seen = np.where(hidden, mask_token, inputs)
    attentions = [block.attention.attention for block in model.encoder.blocks]
    before = [attention.num_landmarks for attention in attentions]

    @nnx.jit
    def sums(model: Any) -> tuple[jax.Array, jax.Array]:
        logits = model(seen, valid)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, inputs)
        correct = logits.argmax(-1) == inputs
        return jnp.sum(loss, where=hidden), jnp.sum(correct, where=hidden)

    rows = []
    try:
        for count in landmarks:
            for attention in attentions:
                attention.num_landmarks = count
            loss, correct = (float(x) / hidden.sum() for x in sums(model))
            rows.append({"num_landmarks": count, "loss": loss, "accuracy": correct})
    finally:
        for attention, count in zip(attentions, before, strict=True):
            attention.num_landmarks = count
    return [{**row, "tokens": int(hidden.sum())} for row in rows]
