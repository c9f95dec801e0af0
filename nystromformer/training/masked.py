"""Masked language modelling: the model predicts tokens that are hidden from it.

Devlin et al., "BERT", 2019; on a task's own inputs, Amos et al. 2023.

Letters: B batch, L length, K masked positions of an example at most, V ids.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nystromformer.streams import DROPOUT_BESIDE_MASKS
from nystromformer.training.data import Batch
from nystromformer.training.metrics import Sums, label_sums

MASK_SHARE = 0.67  # of the corrupted, with corruption="mask_or_random"


class Masked(NamedTuple):
    """Inputs with tokens hidden, and where and what these are."""

    inputs: jax.Array  # [B, L]
    positions: jax.Array  # [B, K]
    targets: jax.Array  # [B, K]
    weights: jax.Array  # [B, K], 0 where an example has fewer than K


class MaskedTokens:
    """Cross-entropy and accuracy on the masked tokens.

    The choice depends on (seed, step), the part of the batch and the example in
    training, on the example alone in an evaluation. Texts of a pair are two examples.

    Args:
      mask_token: the id that hides a token.
      special_tokens: ids that are never chosen.
      mlm_probability: the fraction of the valid tokens that is chosen, at least one.
      corruption: "bert": 80 % of the chosen become mask_token, 10 % a random token and
        10 % stay; "mask_only": all become mask_token; "mask_or_random": 67 % become
        mask_token and 33 % a random token.
    """

    corruptions = ("bert", "mask_only", "mask_or_random")
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
            raise ValueError(f"mlm_probability={mlm_probability} is not in (0, 1]")
        if corruption not in self.corruptions:
            raise ValueError(
                f"corruption={corruption!r} is not one of {', '.join(self.corruptions)}"
            )
        self.mask_token, self.special_tokens = mask_token, special_tokens
        self.mlm_probability, self.corruption = mlm_probability, corruption
        self.ordinary = np.setdiff1d(np.arange(vocab_size), special_tokens)

    def mask_tokens(
        self, inputs: jax.Array, mask: jax.Array | None, keys: jax.Array
    ) -> Masked:
        """Chooses and hides tokens: inputs [B, L], mask [B, L] or None, keys [B]."""
        candidates = jnp.ones(inputs.shape, bool) if mask is None else mask
        for token in self.special_tokens:
            candidates &= inputs != token
        counts = candidates.sum(1)
        # Rounded as `wanted` is, or a full row would depend on its padding.
        fraction = np.float32(self.mlm_probability)
        largest = max(1, int(np.round(fraction * np.float32(inputs.shape[1]))))
        wanted = jnp.clip(jnp.round(fraction * counts), 1, largest)

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            for_positions, for_kinds, for_tokens = jax.random.split(key, 3)
            kinds = jax.random.uniform(for_kinds, (largest,))
            tokens = jax.random.choice(for_tokens, self.ordinary, (largest,))
            return jax.random.uniform(for_positions, inputs.shape[1:]), kinds, tokens

        scores, kinds, tokens = jax.vmap(draw)(keys)
        _, positions = jax.lax.top_k(jnp.where(candidates, scores, -1.0), largest)
        weights = jnp.arange(largest)[None] < jnp.minimum(wanted, counts)[:, None]
        targets = jnp.take_along_axis(inputs, positions, axis=1)
        hidden = jnp.full_like(targets, self.mask_token)
        tokens = tokens.astype(targets.dtype)
        if self.corruption == "bert":
            kept = jnp.where(kinds < 0.9, tokens, targets)
            hidden = jnp.where(kinds < 0.8, hidden, kept)
        elif self.corruption == "mask_or_random":
            hidden = jnp.where(kinds < MASK_SHARE, hidden, tokens)
        rows = jnp.arange(len(inputs))[:, None]
        inputs = inputs.at[rows, positions].set(jnp.where(weights, hidden, targets))
        return Masked(inputs, positions, targets, weights.astype(jnp.float32))

    def hide(
        self, batch: Batch, key: jax.Array | None
    ) -> tuple[Masked, jax.Array | None]:
        """The batch's texts with tokens hidden, and their mask [B, L]; pairs in a row.

        The weights are those of the batch's examples, 0 for a filler row.
        """
        *outer, length = batch.inputs.shape
        texts = outer[1] if len(outer) == 2 else 1  # of an example
        inputs = batch.inputs.reshape(-1, length)
        mask = None if batch.mask is None else batch.mask.reshape(-1, length)
        indices = texts * batch.indices[:, None] + jnp.arange(texts)[None]
        base = jax.random.key(0) if key is None else key
        keys = jax.vmap(jax.random.fold_in, (None, 0))(base, indices.ravel())
        masked = self.mask_tokens(inputs, mask, keys)
        weights = masked.weights * jnp.repeat(batch.weights, texts)[:, None]
        return masked._replace(weights=weights), mask

    def token_losses(
        self, model: Any, x: jax.Array, masked: Masked
    ) -> tuple[jax.Array, jax.Array]:
        """For each masked token [B, K] its loss (nats) and whether the model is right.

        Both are 0 where the weight is 0. The model has `decode`; x [B, L, D] are the
        vectors of the tokens.
        """
        hidden = jnp.take_along_axis(x, masked.positions[:, :, None], axis=1)
        logits = model.decode(hidden)  # [B, K, V]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, masked.targets)
        weights = masked.weights
        correct = (logits.argmax(-1) == masked.targets) * weights
        return jnp.where(weights > 0, losses * weights, 0), correct

    def mlm_losses(
        self, model: Any, batch: Batch, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The encoder's vectors [B, L, D], and for each masked token [B, K] its loss
        (nats), whether the model is right, and its weight; 0 where the weight is 0.
        """
        masked, mask = self.hide(batch, key)
        x, _ = model.encoder(masked.inputs, mask, dropout_key(key))
        losses, correct = self.token_losses(model, x, masked)
        return x, losses, correct, masked.weights

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """loss (nats) and mlm_accuracy (0 to 1) over the masked tokens.

        The model has an `encoder`, and `decode` for its vectors.
        """
        _, losses, correct, weights = self.mlm_losses(model, batch, key)
        total = weights.sum()
        return {"loss": (losses.sum(), total), "mlm_accuracy": (correct.sum(), total)}


class MaskedOrder(MaskedTokens):
    """Masked tokens, and whether the two parts of an example are in their order.

    Lan et al., "ALBERT", 2020. The loss is the mean over examples of the mean over the
    masked tokens of the example, plus the loss of its order, whose label is 1 or 0.
    """

    metrics = ("loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
    select = "mlm_accuracy"
    higher_is_better = True

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """MLM over the masked tokens, SOP over the examples; losses in nats.

        Beside `encoder` and `decode` the model has `order`: vectors to logits [B, 2].
        """
        x, losses, correct, weights = self.mlm_losses(model, batch, key)
        sop = label_sums(model.order(x), batch.labels, batch.weights)
        order, examples = sop["loss"]
        tokens, of_example = weights.sum(), jnp.maximum(weights.sum(1), 1)
        return {
            "loss": ((losses.sum(1) / of_example).sum() + order, examples),
            "mlm_loss": (losses.sum(), tokens),
            "mlm_accuracy": (correct.sum(), tokens),
            **{f"sop_{name}": pair for name, pair in sop.items()},
        }


def dropout_key(key: jax.Array | None) -> jax.Array | None:
    """The key of the dropout beside an objective's own draws; None = no dropout."""
    return None if key is None else jax.random.fold_in(key, DROPOUT_BESIDE_MASKS)
