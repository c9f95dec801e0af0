"""Classification and denoising at once, from one pass over a masked input.

The public code of Miralles-González et al., "On the locality bias and results in the
Long Range Arena", 2025, does so: a stage of pre-training folded into the training.
There the second loss is a mean over all tokens; here it is one over the masked tokens,
as any other token can be copied. Their weight of 1 is about mlm_probability here.

Letters: B batch, L length, C classes, K masked positions of a text at most.
"""

from typing import Any

import jax

from nystromformer.training.data import Batch
from nystromformer.training.masked import MaskedTokens, dropout_key, mean_of_examples
from nystromformer.training.metrics import Sums, label_sums


class ClassificationDenoising(MaskedTokens):
    """Cross-entropy of the class, plus that of the masked tokens.

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
        masked, padding_mask = self.mask_batch(batch, key)
        dropout_rng = dropout_key(key)
        vectors, vectors_mask = model.encoder(masked.inputs, padding_mask, dropout_rng)
        if key is None:
            logits = model(batch.inputs, batch.mask)
        else:
            logits = model.read(vectors, vectors_mask, dropout_rng)
        classification = label_sums(logits, batch.labels, batch.weights)
        class_loss, num_examples = classification["loss"]

        # The encoder may have put the vector of [CLS] in front of the tokens.
        num_extra = vectors.shape[1] - masked.inputs.shape[1]
        losses, is_correct = self.token_losses(model, vectors[:, num_extra:], masked)
        num_tokens = masked.weights.sum()
        mean_losses = mean_of_examples(losses, masked.weights, len(batch.labels))
        loss = class_loss + self.denoising_weight * mean_losses.sum()
        return {
            "loss": (loss, num_examples),
            "classification_loss": classification["loss"],
            "accuracy": classification["accuracy"],
            "denoising_loss": (losses.sum(), num_tokens),
            "denoising_accuracy": (is_correct.sum(), num_tokens),
        }
