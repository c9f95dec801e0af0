"""Masked language modelling: the model predicts tokens that are masked in its input.

Devlin et al., "BERT", 2019; on a task's own inputs, Amos et al. 2023. Beside it the
model may learn the order of two texts, or the class of an example.

Letters: B batch, L length, D width, K masked positions of a text at most, V ids,
C classes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nystromformer.dropout import STREAM_OF_DROPOUT
from nystromformer.training.data import Batch
from nystromformer.training.objective import Sums, label_sums

# With corruption="mask_or_random" this share of the masked tokens becomes mask_token,
# and the rest become random tokens.
MASK_SHARE = 0.67


class Masked(NamedTuple):
    """Inputs with masked tokens, and the positions and ids of these tokens.

    B counts texts: a pair is two of them.
    """

    inputs: jax.Array  # int [B, L]
    positions: jax.Array  # int32 [B, K]
    targets: jax.Array  # int [B, K], the ids before masking
    weights: jax.Array  # float32 [B, K], 0 where an example has fewer than K


class MaskedPass(NamedTuple):
    """One pass of a model over inputs with masked tokens.

    B counts texts: a pair is two of them.
    Losses, is_correct and weights are 0 where an example has fewer than K.
    """

    vectors: jax.Array  # [B, L, D], of the encoder; L + 1 with a CLS token
    vectors_mask: jax.Array | None  # [B, L], as long as they are
    losses: jax.Array  # [B, K], in nats
    is_correct: jax.Array  # [B, K]
    weights: jax.Array  # [B, K]


class MaskedTokens:
    """Cross-entropy and accuracy on the masked tokens.

    In training the masked positions depend on (seed, step), the part of the batch and
    the example; in an evaluation they depend on the example alone. Texts of a pair are
    two examples.

    Args:
      vocab_size: V; a random token is one of these ids that is not special.
      mask_token: the id that stands for a masked token.
      special_tokens: ids that are never masked.
      mlm_probability: the fraction of the valid tokens that is masked, at least one.
      corruption: "bert": 80 % of the masked tokens become mask_token, 10 % a random
        token and 10 % stay; "mask_only": all become mask_token; "mask_or_random": 67 %
        become mask_token and 33 % a random token.

    Raises:
      ValueError: mlm_probability is not in (0, 1], or corruption is unknown.
    """

    corruptions = ("bert", "mask_only", "mask_or_random")
    reads_labels = False
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
        self.mask_token = mask_token
        self.special_tokens = special_tokens
        self.mlm_probability = mlm_probability
        self.corruption = corruption
        self.random_tokens = np.setdiff1d(np.arange(vocab_size), special_tokens)

    def mask_tokens(
        self, inputs: jax.Array, padding_mask: jax.Array | None, keys: jax.Array
    ) -> Masked:
        """Masks random tokens.

        Args:
          inputs: int [B, L].
          padding_mask: bool [B, L], False = padding; None = no padding.
          keys: [B], from which each example draws.
        """
        is_candidate = padding_mask
        if is_candidate is None:
            is_candidate = jnp.ones(inputs.shape, bool)
        for token in self.special_tokens:
            is_candidate &= inputs != token
        max_masked = self._max_masked(inputs.shape[1])
        num_masked = self._num_masked(is_candidate.sum(1), max_masked)

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            scores_key, kinds_key, tokens_key = jax.random.split(key, 3)
            scores = jax.random.uniform(scores_key, inputs.shape[1:])
            kinds = jax.random.uniform(kinds_key, (max_masked,))
            tokens = jax.random.choice(tokens_key, self.random_tokens, (max_masked,))
            return scores, kinds, tokens

        # The candidates with the highest scores are masked. In a row with fewer than K
        # the last positions are not masked, and their tokens stay.
        scores, kinds, random_tokens = jax.vmap(draw)(keys)
        scores = jnp.where(is_candidate, scores, -1.0)
        _, positions = jax.lax.top_k(scores, max_masked)  # [B, K]
        is_masked = jnp.arange(max_masked)[None] < num_masked[:, None]
        targets = jnp.take_along_axis(inputs, positions, axis=1)

        corrupted = self._corrupt(targets, kinds, random_tokens.astype(targets.dtype))
        new_tokens = jnp.where(is_masked, corrupted, targets)
        rows = jnp.arange(len(inputs))[:, None]
        masked_inputs = inputs.at[rows, positions].set(new_tokens)
        weights = is_masked.astype(jnp.float32)
        return Masked(masked_inputs, positions, targets, weights)

    def _max_masked(self, length: int) -> int:
        """K, the number of masked tokens of a row without padding."""
        fraction = np.float32(self.mlm_probability)
        return max(1, int(np.round(fraction * np.float32(length))))

    def _num_masked(self, num_candidates: jax.Array, max_masked: int) -> jax.Array:
        """The number of masked tokens of each row, float32 [B]; 0 without candidates.

        It is rounded in float32, as K is, so that a row has as many masked tokens with
        padding behind it as without.
        """
        fraction = np.float32(self.mlm_probability)
        num_masked = jnp.clip(jnp.round(fraction * num_candidates), 1, max_masked)
        return jnp.minimum(num_masked, num_candidates)

    def _corrupt(
        self, targets: jax.Array, kinds: jax.Array, tokens: jax.Array
    ) -> jax.Array:
        """The ids [B, K] that stand in the input instead of the targets.

        kinds: uniform in [0, 1); tokens: random ids.
        """
        masks = jnp.full_like(targets, self.mask_token)
        if self.corruption == "mask_only":
            return masks
        if self.corruption == "mask_or_random":
            return jnp.where(kinds < MASK_SHARE, masks, tokens)
        return jnp.where(kinds < 0.8, masks, jnp.where(kinds < 0.9, tokens, targets))

    def mask_batch(
        self, batch: Batch, key: jax.Array | None
    ) -> tuple[Masked, jax.Array | None]:
        """Masks tokens of a batch, whose pairs become texts one after the other.

        Args:
          key: the key of the step; None in an evaluation.

        Returns:
          The masked texts, whose weights are 0 for a filler row, too; and their padding
          mask [B, L], False = padding.
        """
        length = batch.inputs.shape[-1]
        texts_per_example = batch.inputs.shape[1] if batch.inputs.ndim == 3 else 1
        inputs = batch.inputs.reshape(-1, length)
        padding_mask = None if batch.mask is None else batch.mask.reshape(-1, length)

        text_numbers = texts_per_example * batch.example_ids[:, None]
        text_numbers += jnp.arange(texts_per_example)[None]
        base_key = jax.random.key(0) if key is None else key
        keys = jax.vmap(jax.random.fold_in, (None, 0))(base_key, text_numbers.ravel())

        masked = self.mask_tokens(inputs, padding_mask, keys)
        text_weights = jnp.repeat(batch.weights, texts_per_example)
        masked = masked._replace(weights=masked.weights * text_weights[:, None])
        return masked, padding_mask

    def token_losses(
        self, model: Any, vectors: jax.Array, masked: Masked
    ) -> tuple[jax.Array, jax.Array]:
        """For each masked token [B, K] its loss (nats) and whether the model is right.

        Both are 0 where the weight is 0. The model has `decode`, which makes token
        logits of vectors [B, L, D].
        """
        positions = masked.positions[:, :, None]
        masked_vectors = jnp.take_along_axis(vectors, positions, axis=1)
        logits = model.decode(masked_vectors)  # [B, K, V]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, masked.targets)
        weights = masked.weights
        is_correct = (logits.argmax(-1) == masked.targets) * weights
        return jnp.where(weights > 0, losses * weights, 0), is_correct

    def masked_pass(
        self, model: Any, batch: Batch, key: jax.Array | None
    ) -> MaskedPass:
        """Masks tokens of a batch and lets the model predict them."""
        masked, padding_mask = self.mask_batch(batch, key)
        vectors, vectors_mask = model.encoder(
            masked.inputs, padding_mask, dropout_key(key)
        )
        # The encoder may have put the vector of [CLS] in front of the tokens.
        num_extra = vectors.shape[1] - masked.inputs.shape[1]
        losses, is_correct = self.token_losses(model, vectors[:, num_extra:], masked)
        return MaskedPass(vectors, vectors_mask, losses, is_correct, masked.weights)

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """loss (nats) and mlm_accuracy (0 to 1) over the masked tokens.

        The model has an `encoder`, and `decode` for its vectors.
        """
        predicted = self.masked_pass(model, batch, key)
        num_tokens = predicted.weights.sum()
        return {
            "loss": (predicted.losses.sum(), num_tokens),
            "mlm_accuracy": (predicted.is_correct.sum(), num_tokens),
        }


class MaskedOrder(MaskedTokens):
    """Masked tokens, and whether the two parts of an example are in their order.

    Lan et al., "ALBERT", 2020. The loss is the mean over examples of the mean over the
    masked tokens of the example, plus the loss of its order, whose label is 1 or 0.
    """

    reads_labels = True
    metrics = ("loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
    select = "mlm_accuracy"
    higher_is_better = True

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """MLM over the masked tokens, SOP over the examples; losses in nats.

        Beside `encoder` and `decode` the model has `order`: vectors to logits [B, 2].
        """
        predicted = self.masked_pass(model, batch, key)
        num_tokens = predicted.weights.sum()
        mean_losses = mean_of_examples(
            predicted.losses, predicted.weights, len(batch.labels)
        )

        logits = model.order(predicted.vectors)
        order = label_sums(logits, batch.labels, batch.weights)
        order_loss, num_examples = order["loss"]
        return {
            "loss": (mean_losses.sum() + order_loss, num_examples),
            "mlm_loss": (predicted.losses.sum(), num_tokens),
            "mlm_accuracy": (predicted.is_correct.sum(), num_tokens),
            "sop_loss": order["loss"],
            "sop_accuracy": order["accuracy"],
        }


class ClassificationDenoising(MaskedTokens):
    """Cross-entropy of the class, plus that of the masked tokens, from one pass.

    The public code of Miralles-González et al., "On the locality bias and results in
    the Long Range Arena", 2025, does so: a stage of pre-training folded into the
    training. There the second loss is a mean over all tokens; here it is one over the
    masked tokens, as any other token can be copied. So their weight of 1 is a
    `denoising_weight` of about `mlm_probability`.

    In training both come from one pass over the masked input, in which a masked token
    is left as it was only if a random one happens to be the same. In an evaluation the
    class is read from the input as it is, and the masked tokens are predicted in a
    second pass, over the masked input.

    The loss is a mean over the examples: of the loss of the class, plus
    `denoising_weight` times the mean loss of the example's masked tokens. So it is a
    sum of what each example contributes, whatever the parts of a batch.

    Args:
      denoising_weight: the weight of the second loss, at least 0.
      options: the options of `MaskedTokens`. Here mlm_probability and corruption have
        different defaults.

    Raises:
      ValueError: denoising_weight or an option of `MaskedTokens` is out of its range.
    """

    corruptions = ("mask_or_random", "mask_only")
    reads_labels = True
    metrics = (
        "loss",
        "classification_loss",
        "accuracy",
        "denoising_loss",
        "denoising_accuracy",
    )
    select = "accuracy"
    higher_is_better = True

    def __init__(
        self,
        *,
        denoising_weight: float = 1.0,
        mlm_probability: float = 0.3,
        corruption: str = "mask_or_random",
        **options: Any,
    ):
        super().__init__(
            mlm_probability=mlm_probability, corruption=corruption, **options
        )
        if denoising_weight < 0:
            raise ValueError(f"denoising_weight={denoising_weight} must be at least 0")
        self.denoising_weight = denoising_weight

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """Losses in nats, accuracies from 0 to 1.

        Those of the class are over the examples, those of denoising over the masked
        tokens. The model has an `encoder`; `read`, which makes class logits [B, C] of
        its vectors and their mask; and `decode`, which makes token logits of vectors.
        """
        predicted = self.masked_pass(model, batch, key)
        if key is None:
            logits = model(batch.inputs, batch.mask)
        else:
            logits = model.read(
                predicted.vectors, predicted.vectors_mask, dropout_key(key)
            )
        classification = label_sums(logits, batch.labels, batch.weights)
        class_loss, num_examples = classification["loss"]

        num_tokens = predicted.weights.sum()
        mean_losses = mean_of_examples(
            predicted.losses, predicted.weights, len(batch.labels)
        )
        loss = class_loss + self.denoising_weight * mean_losses.sum()
        return {
            "loss": (loss, num_examples),
            "classification_loss": classification["loss"],
            "accuracy": classification["accuracy"],
            "denoising_loss": (predicted.losses.sum(), num_tokens),
            "denoising_accuracy": (predicted.is_correct.sum(), num_tokens),
        }


def mean_of_examples(
    losses: jax.Array, weights: jax.Array, num_examples: int
) -> jax.Array:
    """The mean loss of the masked tokens of each example.

    Args:
      losses, weights: [B, K], or [2 B, K] with the two texts of a pair one after the
        other.
      num_examples: B.

    Returns:
      [B]; 0 where all weights of an example are 0.
    """
    totals = losses.reshape(num_examples, -1).sum(1)
    counts = weights.reshape(num_examples, -1).sum(1)
    return totals / jnp.maximum(counts, 1)


def dropout_key(key: jax.Array | None) -> jax.Array | None:
    """The key of the dropout beside an objective's own draws; None = no dropout."""
    return None if key is None else jax.random.fold_in(key, STREAM_OF_DROPOUT)
