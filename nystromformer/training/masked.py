"""Masked tokens: the model predicts tokens that are hidden from it.

Devlin et al., "BERT", 2019; on a task's own inputs, Amos et al., "Never Train from
Scratch", 2023.

Letters: B batch, L length, K masked places of an example at most, V ids.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nystromformer.training.data import Batch
from nystromformer.training.objective import Sums

CORRUPTIONS = ("bert", "mask_only")
EVALUATION_SEED = 0


class Masked(NamedTuple):
    """inputs [B, L] with tokens hidden; places [B, K], targets [B, K], weights [B, K].

    weights: 1 where a place was chosen, 0 where an example has fewer than K.
    """

    inputs: jax.Array
    places: jax.Array
    targets: jax.Array
    weights: jax.Array


class MaskedTokens:
    """Cross-entropy of the hidden tokens, and the share that is told right.

    Of each example `share` of its valid tokens is chosen, at least one. What is chosen
    depends on (seed, step) and the example in training, on the example alone in an
    evaluation.

    Args:
      vocab_size: V; ids of the data.
      mask_token: the id that hides a token.
      special_tokens: ids that are never chosen.
      mlm_probability: in (0, 1].
      corruption: "bert": 80 % of the chosen become mask_token, 10 % a random token and
        10 % stay; "mask_only": all become mask_token.
    """

    metrics = ("loss", "mlm_accuracy")
    select = "loss"
    higher_is_better = False

    def __init__(
        self,
        *,
        vocab_size: int,
        mask_token: int,
        special_tokens: tuple[int, ...] = (),
        mlm_probability: float = 0.15,
        corruption: str = "bert",
    ):
        if not 0 < mlm_probability <= 1:
            raise ValueError(
                f"mlm_probability must be in (0, 1], got {mlm_probability}"
            )
        if corruption not in CORRUPTIONS:
            raise ValueError(
                f"corruption must be one of {CORRUPTIONS}, got {corruption!r}"
            )
        self.mask_token, self.special_tokens = mask_token, special_tokens
        self.mlm_probability, self.corruption = mlm_probability, corruption
        self.ordinary = np.setdiff1d(np.arange(vocab_size), special_tokens)

    def hide(
        self, inputs: jax.Array, mask: jax.Array | None, keys: jax.Array
    ) -> Masked:
        """Chooses and hides: inputs [B, L], mask [B, L] or None, keys [B]."""
        candidates = jnp.ones(inputs.shape, bool) if mask is None else mask
        for token in self.special_tokens:
            candidates &= inputs != token
        counts = candidates.sum(1)
        # Rounded as `wanted` is, or a full row would depend on its padding.
        mlm_probability = np.float32(self.mlm_probability)
        largest = max(1, int(np.round(mlm_probability * np.float32(inputs.shape[1]))))
        wanted = jnp.clip(jnp.round(mlm_probability * counts), 1, largest)

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            of_places, of_kinds, of_tokens = jax.random.split(key, 3)
            kinds = jax.random.uniform(of_kinds, (largest,))
            tokens = jax.random.choice(of_tokens, self.ordinary, (largest,))
            return jax.random.uniform(of_places, inputs.shape[1:]), kinds, tokens

        scores, kinds, tokens = jax.vmap(draw)(keys)
        _, places = jax.lax.top_k(jnp.where(candidates, scores, -1.0), largest)
        weights = jnp.arange(largest)[None] < jnp.minimum(wanted, counts)[:, None]
        targets = jnp.take_along_axis(inputs, places, axis=1)
        hidden = jnp.full_like(targets, self.mask_token)
        if self.corruption == "bert":
            kept = jnp.where(kinds < 0.9, tokens.astype(targets.dtype), targets)
            hidden = jnp.where(kinds < 0.8, hidden, kept)
        rows = jnp.arange(len(inputs))[:, None]
        inputs = inputs.at[rows, places].set(jnp.where(weights, hidden, targets))
        return Masked(inputs, places, targets, weights.astype(jnp.float32))

    def fill_in(
        self, model: Any, batch: Batch, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The encoder's vectors, and of each hidden token what the model makes of it.

        Returns:
          x [B, L, D]; losses (nats), correct and weights, each [B, K], the first two
          0 where the weight is.
        """
        base = jax.random.key(EVALUATION_SEED) if key is None else key
        inputs, mask, weights, indices = _single(batch)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(base, indices)
        masked = self.hide(inputs, mask, keys)
        dropout_rng = None if key is None else jax.random.fold_in(key, 2**31)
        x, _ = model.encoder(masked.inputs, mask, dropout_rng)
        hidden = jnp.take_along_axis(x, masked.places[:, :, None], axis=1)
        logits = model.decode(hidden)  # [B, K, V]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, masked.targets)
        weights = masked.weights * weights[:, None]
        correct = (logits.argmax(-1) == masked.targets) * weights
        return x, jnp.where(weights > 0, losses * weights, 0), correct, weights

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """loss (nats) and mlm_accuracy (0 to 1) over the hidden tokens.

        The model has an `encoder`, and `decode` for its vectors. Both texts of a pair
        are examples of their own.
        """
        _, losses, correct, weights = self.fill_in(model, batch, key)
        total = weights.sum()
        return {"loss": (losses.sum(), total), "mlm_accuracy": (correct.sum(), total)}


class MaskedOrder(MaskedTokens):
    """Masked tokens, and whether the two parts of an example stand in their order.

    Lan et al., "ALBERT", 2020. The loss is the mean over examples of the mean over an
    example's hidden tokens, plus that of its order, whose label is 1 or 0.
    """

    metrics = ("loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
    select = "mlm_accuracy"
    higher_is_better = True

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """MLM over the hidden tokens, SOP over the examples; losses in nats.

        Beside `encoder` and `decode` the model has `order`: vectors to logits [B, 2].
        """
        x, losses, correct, weights = self.fill_in(model, batch, key)
        labels, present = batch.labels, batch.weights
        logits = model.order(x)
        order = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        order = jnp.where(present > 0, order * present, 0)
        told = (logits.argmax(-1) == labels) * present
        tokens, examples = weights.sum(), present.sum()
        each = losses.sum(1) / jnp.maximum(weights.sum(1), 1) + order
        return {
            "loss": (each.sum(), examples),
            "mlm_loss": (losses.sum(), tokens),
            "mlm_accuracy": (correct.sum(), tokens),
            "sop_loss": (order.sum(), examples),
            "sop_accuracy": (told.sum(), examples),
        }


def _single(batch: Batch) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array]:
    """inputs, mask, weights and indices; the texts of pairs [B, 2, L] one by one."""
    if batch.inputs.ndim == 2:
        return batch.inputs, batch.mask, batch.weights, batch.indices
    length = batch.inputs.shape[-1]
    mask = None if batch.mask is None else batch.mask.reshape(-1, length)
    indices = 2 * batch.indices[:, None] + jnp.arange(2)[None]
    weights = jnp.repeat(batch.weights, 2)
    return batch.inputs.reshape(-1, length), mask, weights, indices.reshape(-1)
