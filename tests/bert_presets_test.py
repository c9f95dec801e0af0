"""Presets of pre-training on text and of fine-tuning, written out as published.

Each table has every key that its preset changes: a change that is not in it fails.
"""

import pytest

from configs.defaults import attention, model, objective, optimizer, train
from tests.presets import check_settings, flat


def bert_encoder(num_layers, num_heads, model_dim):
    """BERT's encoder in a size: the MLP is four times as wide as the model."""
    return {
        **model(
            num_layers=num_layers,
            num_heads=num_heads,
            model_dim=model_dim,
            mlp_dim=4 * model_dim,
            norm="post",
            gelu="tanh",
            dropout_rate=0.1,
            embedding_norm=True,
            num_token_types=2,
            pooling="bert_pooler",
        ),
        **attention(conv_kernel_size=33, num_landmarks=64),
    }


BERT_SMALL = bert_encoder(num_layers=4, num_heads=8, model_dim=512)
BERT_BASE = bert_encoder(num_layers=12, num_heads=12, model_dim=768)
BERT_QUICK = bert_encoder(num_layers=4, num_heads=2, model_dim=128)
ADAM = optimizer(b1=0.9, b2=0.999, weight_decay=0.01, decay="linear")
PRETRAINING = {
    "task.max_length": 512,
    "task.vocab_size": 30_000,
    **objective(name="mlm_sop", mlm_probability=0.15, corruption="bert"),
    **ADAM,
    **optimizer(learning_rate=1e-4, warmup_steps=10_000),
    **train(batch_size=256, num_steps=100_000),
}
PRETRAINING_ON_1024_TOKENS = {
    "task.max_length": 1_024,
    **optimizer(learning_rate=1e-5, warmup_steps=0),
    **train(batch_size=128, num_steps=40_000),
}


def test_pretraining_of_text_is_the_papers():
    """The sizes are BERT-small's and -base's; 1,024 tokens are the supplement's."""
    every = train(eval_every=1_000, checkpoint_every=1_000)
    check_settings("corpus", "paper", PRETRAINING | BERT_SMALL | every)
    base = BERT_BASE | train(num_steps=500_000)
    check_settings("corpus", "bert_base", base)
    assert flat("corpus", "bert_base").items() >= ADAM.items()
    longer_base = BERT_BASE | PRETRAINING_ON_1024_TOKENS
    check_settings("corpus", "bert_base,seq1024", longer_base)
    check_settings("corpus", "seq1024", PRETRAINING_ON_1024_TOKENS)


FINE_TUNING = {
    **BERT_BASE,
    "task.max_length": 512,
    **optimizer(learning_rate=3e-5, weight_decay=0.01, warmup_steps=0, decay="none"),
    **train(batch_size=32, num_epochs=4.0, num_steps=0),
}
# The settings of a preset, and the number of its training examples.
GLUE = {
    "": ({"task.subset": "sst2"}, 67_349),
    "mrpc": ({"task.subset": "mrpc", "objective.f1": True}, 3_668),
    "qnli": ({"task.subset": "qnli"}, 104_743),
    "qqp": ({"task.subset": "qqp", "objective.select": "f1"}, 363_846),
    "mnli": ({"task.subset": "mnli"}, 392_702),
}


def check_intervals_are_half_an_epoch(config, num_train):
    """Checks them for nine tenths of the examples, and returns them as settings.

    Rounded to a number of steps, they are the config's own, which check_settings takes.
    """
    every = config["train.eval_every"]
    assert every == pytest.approx(0.9 * num_train / 32 / 2, abs=1)
    return train(eval_every=every, checkpoint_every=every)


@pytest.mark.parametrize("preset", GLUE)
def test_fine_tuning_on_glue_is_the_papers(preset):
    settings, num_train = GLUE[preset]
    intervals = check_intervals_are_half_an_epoch(flat("glue", preset), num_train)
    check_settings("glue", preset, FINE_TUNING | settings | intervals)
    assert flat("glue", preset)["objective.name"] == "classification"


@pytest.mark.parametrize("preset", GLUE)
def test_warmup_is_another_schedule_of_glue(preset):
    warmup = optimizer(warmup_steps=100, decay="linear")
    check_settings("glue", f"{preset},warmup", warmup, base=preset)


def quick_fine_tuning(max_length):
    """The settings that quick changes of fine-tuning: the sizes and the rate."""
    return {
        **BERT_QUICK,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-4),
        "task.max_length": max_length,
    }


@pytest.mark.parametrize("preset", GLUE)
def test_quick_on_glue_changes_sizes_and_the_rate(preset):
    quick = quick_fine_tuning(max_length=128)
    check_settings("glue", f"quick,{preset}", quick, base=preset)


FINE_TUNING_PRESETS = [("glue", preset) for preset in GLUE] + [("text", "subwords")]


@pytest.mark.parametrize(("task", "preset"), FINE_TUNING_PRESETS)
def test_seq1024_changes_the_length_of_fine_tuning_alone(task, preset):
    longer = {"task.max_length": 1_024}
    check_settings(task, f"{preset},seq1024", longer, base=preset)


@pytest.mark.parametrize(
    ("task", "preset", "length"), [("glue", "mrpc", 256), ("text", "subwords", 512)]
)
def test_seq1024_doubles_the_length_of_quick(task, preset, length):
    longer = {"task.max_length": length}
    check_settings(task, f"quick,{preset},seq1024", longer, base=f"quick,{preset}")


def test_fine_tuning_on_imdb_is_that_on_glue():
    """Its sub-words are bytes, unless the command line names another run's."""
    intervals = check_intervals_are_half_an_epoch(flat("text", "subwords"), 25_000)
    expected = FINE_TUNING | intervals | {"task.tokenizer": "byte"}
    check_settings("text", "subwords", expected)
    quick = quick_fine_tuning(max_length=256)
    check_settings("text", "quick,subwords", quick, base="subwords")


@pytest.mark.parametrize("preset", ["subwords", "quick,subwords"])
def test_fine_tuning_on_labelled_texts_is_that_on_imdb(preset):
    """Two settings carry a run of the corpus over: its folder and its tokens."""
    settings = flat("labelled_texts", preset)
    expected = flat("text", preset) | {
        "task.name": "labelled_texts",
        "train.eval_every": 100,
        "train.checkpoint_every": 100,
    }
    assert settings.items() >= expected.items()
