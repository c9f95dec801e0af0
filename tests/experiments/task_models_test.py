"""Each task with an objective has the model that one would make by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from nystromformer import classifiers, token_models
from nystromformer.encoder import EncoderConfig
from tests.experiments.model_form import form_by_hand, form_of_experiment
from tests.small import make_config, prefixed


def make_pair_classifier(config, rngs):
    return classifiers.PairClassifier(config, num_classes=2, pooling="max", rngs=rngs)


def make_bert_classifier(config, rngs):
    """Makes BERT's pooler and MNLI's three classes."""
    return classifiers.FirstTokenClassifier(
        config, num_classes=3, activation="tanh", rngs=rngs
    )


def make_two_classes(config, rngs):
    return classifiers.SequenceClassifier(config, num_classes=2, rngs=rngs)


def make_ten_classes(config, rngs):
    return classifiers.SequenceClassifier(config, num_classes=10, rngs=rngs)


def make_each_token(config, rngs):
    return classifiers.TokenClassifier(config, num_classes=30, rngs=rngs)


def make_last_of_thirty(config, rngs):
    return classifiers.SequenceClassifier(
        config, num_classes=30, pooling="last", rngs=rngs
    )


def make_denoising(config, rngs):
    return token_models.DenoisingClassifier(config, num_classes=10, rngs=rngs)


def make_denoising_pair(config, rngs):
    return token_models.DenoisingPairClassifier(
        config, num_classes=2, pooling="max", rngs=rngs
    )


def make_masked(config, rngs):
    return token_models.MaskedLanguageModel(config, rngs=rngs)


def make_masked_order(config, rngs):
    return token_models.MaskedOrderModel(config, rngs=rngs)


@dataclasses.dataclass
class Case:
    """A task and presets, and the model that they make.

    Attributes:
      task: the task, whose config file is loaded.
      make: makes the model of an encoder's config.
      vocab_size: the encoder's. There are 256 bytes; before them stand padding or five
        special tokens. An embedding of [MASK] is added where the task has no [MASK].
      max_length: the encoder's.
      encoder: what the encoder has beside SIZES and these two.
      presets: the presets of the config.
      changes: changes of the config.
    """

    task: str
    make: Callable
    vocab_size: int
    max_length: int
    encoder: dict[str, Any] = dataclasses.field(default_factory=dict)
    presets: str = ""
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.task}-{self.make.__name__.removeprefix('make_')}"


BERT = {
    "norm": "post",
    "gelu": "tanh",
    "embedding_norm": True,
    "num_token_types": 2,
    "separator": 3,
}
# The vocabulary is 20 keys, 30 values, 5 distractors and padding.
RECALL = {
    "task__num_keys": 20,
    "task__num_values": 30,
    "task__num_distractors": 5,
    "task__max_length": 64,
    "task__num_pairs": 8,
    "task__num_queries": 4,
    "model__dropout_rate": 0.1,
    "model__short_conv": 0,
}
BLACK_IGNORED = {"ignore_id": 0}
CASES = [
    Case("listops", make_ten_classes, vocab_size=16, max_length=2000),
    Case(
        "image",
        make_ten_classes,
        vocab_size=256,
        max_length=1024,
        encoder=BLACK_IGNORED,
    ),
    Case(
        "pathfinder",
        make_two_classes,
        vocab_size=256,
        max_length=1024,
        encoder=BLACK_IGNORED,
    ),
    Case("text", make_two_classes, vocab_size=257, max_length=4000),
    Case(
        "retrieval",
        make_pair_classifier,
        vocab_size=257,
        max_length=4000,
        changes={"model__pooling": "max"},
    ),
    Case(
        "glue",
        make_bert_classifier,
        vocab_size=261,
        max_length=128,
        encoder=BERT,
        presets="quick,mnli",
    ),
    Case(
        "corpus",
        make_masked_order,
        vocab_size=300,
        max_length=64,
        encoder=BERT,
        presets="quick",
        changes={"task__vocab_size": 300},
    ),
    Case(
        "corpus",
        make_masked,
        vocab_size=8192,
        max_length=64,
        encoder=BERT,
        presets="quick",
        changes={"objective__name": "mlm"},
    ),
    Case("recall", make_each_token, vocab_size=56, max_length=64, changes=RECALL),
    Case(
        "recall",
        make_last_of_thirty,
        vocab_size=56,
        max_length=64,
        presets="one_query",
        changes=RECALL | {"task__num_queries": 1},
    ),
    Case(
        "listops",
        make_denoising,
        vocab_size=17,
        max_length=2000,
        changes={"objective__name": "classification_denoising"},
    ),
    Case(
        "retrieval",
        make_denoising_pair,
        vocab_size=258,
        max_length=4000,
        changes={
            "objective__name": "classification_denoising",
            "model__pooling": "max",
        },
    ),
    Case(
        "listops", make_masked, vocab_size=17, max_length=48, presets="quick,pretrain"
    ),
    Case(
        "image", make_masked, vocab_size=257, max_length=1024, presets="quick,pretrain"
    ),
]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "mlp_dim": 16}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_task_and_an_objective_have_their_model(case):
    config = make_config(
        f"identity,{case.presets}",
        case.task,
        **prefixed("model", SIZES),
        **case.changes,
    )
    encoder_config = EncoderConfig(
        vocab_size=case.vocab_size,
        max_length=case.max_length,
        attention="identity",
        **SIZES,
        **case.encoder,
    )
    expected = form_by_hand(lambda rngs: case.make(encoder_config, rngs))
    assert form_of_experiment(config) == expected
