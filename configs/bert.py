"""The encoder of texts, BERT's, and its fine-tuning: what several tasks share.

`configs/corpus.py` pretrains it; `configs/glue.py`, and the preset `subwords` of
`configs/text.py` and of `configs/labelled_texts.py`, fine-tune it.
"""

from typing import Any

from configs.defaults import attention, model, optimizer, train


def bert(num_layers: int, num_heads: int, model_dim: int) -> dict[str, Any]:
    """The paper's encoder of text, BERT's, in one size."""
    return {
        **model(
            num_layers=num_layers,
            num_heads=num_heads,
            model_dim=model_dim,
            mlp_dim=4 * model_dim,
            norm="post",
            gelu="tanh",
            embedding_norm=True,
            num_token_types=2,
            pooling="bert_pooler",  # A classifier reads [CLS] by Linear and tanh.
        ),
        **attention(conv_kernel_size=33, num_landmarks=64),
    }


BERT_BASE = bert(num_layers=12, num_heads=12, model_dim=768)
# The paper says that it has four layers, and not how wide they are.
BERT_SMALL = bert(num_layers=4, num_heads=8, model_dim=512)
BERT_QUICK = bert(num_layers=4, num_heads=2, model_dim=128)

FINE_TUNING = optimizer(
    learning_rate=3e-5, weight_decay=0.01, warmup_steps=0, decay="none"
)
# A quick run of configs/corpus.py reads windows of 64 tokens.
QUICK_FINE_TUNING = {
    **optimizer(learning_rate=1e-4),
    **attention(num_landmarks=32, projection_dim=64),
    **train(position_repeats=4),
}

# Texts as a run of configs/corpus.py reads them, whose tokenizer takes the place of
# this one.
SUBWORDS = {
    "task.max_length": 512,
    "task.tokenizer": "byte",
    **BERT_BASE,
    **FINE_TUNING,
}
QUICK_SUBWORDS = {
    **SUBWORDS,
    **BERT_QUICK,
    **QUICK_FINE_TUNING,
    "task.max_length": 256,
}

# Four epochs, however many examples there are.
FOUR_EPOCHS = train(batch_size=32, num_steps=0, num_epochs=4.0)


def four_epochs(num_train: int) -> dict[str, Any]:
    """Four epochs of `num_train` examples, with two validations in each.

    A run with other batches than 32 is validated after as many steps as one with 32.
    """
    steps_per_epoch = int(0.9 * num_train) // 32  # a tenth is held out for validation
    return {
        **FOUR_EPOCHS,
        **train(eval_every=steps_per_epoch // 2, checkpoint_every=steps_per_epoch // 2),
    }
