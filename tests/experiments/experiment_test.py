"""The objects of a config; an objective of a user's own is in custom_test."""

import numpy as np
import pytest

from lra_tasks.pathfinder.tasks import Pathfinder
from lra_tasks.split import Split
from nystromformer.attention import ATTENTIONS
from nystromformer.errors import ConfigError
from nystromformer.experiments.augmentations import AUGMENTATIONS
from nystromformer.experiments.experiment import Experiment, build_experiment
from nystromformer.experiments.objectives import (
    OBJECTIVES,
    ObjectiveSpec,
    make_classifier,
)
from nystromformer.experiments.provenance import num_cores
from nystromformer.training.objective import Classification
from tests.small import make_config, prefixed


def test_num_params_of_every_attention_is_about_that_of_softmax():
    names = ATTENTIONS.keys() - {"identity"}
    num_params = {name: Experiment(make_config(name)).num_params for name in names}
    num_params["linformer"] -= 2 * 256 * 2000  # a projection [k, max_length] a layer
    for name, number in num_params.items():
        assert abs(number / num_params["softmax"] - 1) <= 0.1, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention__num_landmarks": 0}, "num_landmarks must be at least 1"),
        ({"model__ignore_id": 16}, "ignore_id must be at most 15, got 16"),
        ({"model__ignore_id": -1}, "ignore_id must be at least 0, got -1"),
        (
            {"model__pooling": "bert_pooler"},
            r"reads \[CLS\], which listops does",
        ),
        ({"objective__name": "clasify"}, r"objective: name must be .*, got 'clasify'"),
        ({"objective__select": "F1"}, "select must be accuracy or f1, got 'F1'"),
        (
            {"objective__power": 2},
            r"classification: .* unexpected keyword argument 'power'",
        ),
        (
            {
                "objective__name": "classification_denoising",
                "model__pooling": "bert_pooler",
            },
            "has no model of masked tokens: take another",
        ),
    ],
)
def test_experiment_rejects_what_cannot_be_built(change, message):
    with pytest.raises(ConfigError, match=message):
        Experiment(make_config(**change))


def test_experiment_names_the_key_of_a_folder_that_a_task_needs():
    config = make_config("nystrom", "labelled_texts")
    with pytest.raises(
        ConfigError, match=r"^config\.task\.source_dir must name the fo"
    ):
        Experiment(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"objective__name": "classification"},
            '^recall labels .*name="positions"',
        ),
        ({"objective__name": "classification_denoising"}, "labels several tokens"),
        ({"task__num_queries": 1}, 'recall has one of .* take name="classification"'),
    ],
)
def test_experiment_rejects_labels_that_the_objective_cannot_read(change, message):
    with pytest.raises(ConfigError, match=message):
        Experiment(make_config("nystrom,quick", "recall", **change))


@pytest.mark.parametrize(
    ("arg", "task"),
    [
        ("nystrom,quick", "listops"),
        # These have pairs, or [SEP], and labels that say something else.
        ("nystrom,quick,mnli", "glue"),
        ("nystrom,quick,subwords", "text"),
    ],
)
def test_experiment_takes_no_other_label_for_the_order_of_two_texts(arg, task):
    config = make_config(arg, task, objective__name="mlm_sop")
    message = f'"mlm_sop" needs pairs of text whose .*; {task} has none: take'
    with pytest.raises(ConfigError, match=message):
        Experiment(config)


def test_experiment_shows_a_bug_in_an_objective_of_ones_own(monkeypatch):
    """As Python shows it, with the place where it is."""

    def make_objective(task, select):
        return Classification(1 + select)

    spec = ObjectiveSpec(make_objective, make_classifier)
    monkeypatch.setitem(OBJECTIVES, "mine", spec)
    with pytest.raises(TypeError, match="unsupported operand"):
        Experiment(make_config(objective__name="mine", objective__select="f1"))


def test_build_experiment_wants_steps_or_epochs_and_not_both():
    epochs = {"train__num_epochs": 2.0, "optimizer__warmup_steps": 1}
    build_experiment(make_config(train__num_steps=0, **epochs))
    with pytest.raises(ConfigError, match=r"give config\.train\.num_steps or num_ep"):
        build_experiment(make_config(train__num_steps=9, **epochs))


@pytest.mark.parametrize("name", ["mlm", "classification_denoising"])
def test_build_experiment_refuses_to_mask_tokens_that_are_padding(name):
    """A black pixel would be a target where the encoder has no vector."""
    options = {"task": "image", "objective__name": name}
    with pytest.raises(ConfigError, match=rf"{name} masks .*ignore_id=0 takes those"):
        build_experiment(make_config("nystrom,quick", **options))
    build_experiment(make_config("nystrom,quick,all_pixels", **options))


def test_build_experiment_takes_a_special_token_for_padding_beside_masked_ones():
    options = {"objective__name": "mlm", "model__ignore_id": 0}
    build_experiment(make_config("nystrom,quick", "glue", **options))


def test_load_draws_pictures_on_all_cores_unless_told_otherwise(tmp_path, monkeypatch):
    num_workers = []
    draw = Pathfinder._draw

    def record(task, *pictures):
        num_workers.append(task.num_workers)
        return draw(task, *pictures)

    monkeypatch.setattr(Pathfinder, "_draw", record)
    options = {"task__num_examples": 20, "task__data_dir": str(tmp_path)}
    for changes in ({}, {"task__num_workers": 1, "task__seed": 1}):
        config = make_config("nystrom,quick", "pathfinder", **options, **changes)
        splits = Experiment(config).load()
        assert [x.num_examples for x in splits.values()] == [16, 2, 2]
        assert Experiment(config).task.folder(tmp_path).exists()
    assert num_workers == [num_cores(), 1]


def of_epochs(num_epochs):
    """An experiment of so many epochs with batches of eight."""
    config = make_config(
        train__num_epochs=num_epochs,
        train__batch_size=8,
        train__num_steps=0,
        optimizer__warmup_steps=1,
    )
    return Experiment(config)


def test_with_num_steps_counts_whole_batches():
    """43 examples are 5 batches an epoch."""
    for num_epochs, num_steps in ((2.5, 12), (1.9, 10), (0.05, 1)):
        counted = of_epochs(num_epochs).with_num_steps(43)
        assert counted.config.train.num_steps == num_steps
    experiment = of_epochs(2.5)
    experiment.with_num_steps(43)
    assert experiment.config.train.num_steps == 0  # It is that of all sizes.
    with pytest.raises(ConfigError, match="batch_size=8 is over the 7 training"):
        experiment.with_num_steps(7)


def texts_of_lengths(*lengths):
    """Texts of these lengths, 2,000 columns with padding."""
    is_token = np.arange(2_000) < np.array(lengths)[:, None]
    return Split(is_token.astype(np.uint8), np.array(lengths), np.zeros(len(lengths)))


def test_fraction_exact_counts_texts_no_longer_than_the_landmarks():
    texts = texts_of_lengths(3, 4, 5, 9)
    nystrom = Experiment(make_config("nystrom", attention__num_landmarks=4))
    assert nystrom.fraction_exact(texts) == 0.5
    assert Experiment(make_config("softmax")).fraction_exact(texts) is None
    padded = {"attention__num_landmarks": 4, "attention__landmark_padding": "count"}
    assert Experiment(make_config(**padded)).fraction_exact(texts) == 0
    padded["attention__num_landmarks"] = 2_000
    assert Experiment(make_config(**padded)).fraction_exact(texts) == 1


def test_fraction_exact_counts_no_token_that_is_ignored():
    """Of 1,024 pixels one, four and five are not black."""
    pictures = np.zeros((3, 1_024), np.uint8)
    for row, count in enumerate((1, 4, 5)):
        pictures[row, -count:] = 9
    split = Split.from_pictures(pictures, np.zeros(3))
    for arg, expected in (("nystrom", 2 / 3), ("nystrom,all_pixels", 0)):
        config = make_config(arg, "image", attention__num_landmarks=4)
        assert Experiment(config).fraction_exact(split) == expected

    # No text has the id 2, and what is behind a text is no token of it.
    texts = texts_of_lengths(3, 4, 5, 9)
    config = make_config("nystrom", attention__num_landmarks=4, model__ignore_id=2)
    assert Experiment(config).fraction_exact(texts) == 0.5


def test_fraction_exact_is_that_of_the_layer_with_the_fewest_landmarks():
    texts = texts_of_lengths(3, 4, 5, 9)
    for by_layer, expected in (("0=softmax", 0.5), ("1.num_landmarks=3", 0.25)):
        changes = {"attention__num_landmarks": 4, "attention__by_layer": by_layer}
        experiment = Experiment(make_config("nystrom", **changes))
        assert experiment.fraction_exact(texts) == expected


def test_augmentations_are_those_that_keep_a_tasks_labels():
    """Each option with each task of the paper is part of the step, or refused."""
    augmentations = {
        "listops": {"shuffle_arguments"},
        "text": set(),
        "retrieval": set(),
        "image": {"flip_horizontal"},
        "pathfinder": {"flip_horizontal", "flip_vertical"},
    }
    for task, names in augmentations.items():
        for name in AUGMENTATIONS:
            config = make_config("identity", task, **prefixed("train", {name: True}))
            if name in names:
                augment = Experiment(config).augment
                assert augment.args == ([AUGMENTATIONS[name]],)
            else:
                with pytest.raises(
                    ConfigError, match=f"{name} is not for {task}, which has "
                ):
                    Experiment(config)
        assert Experiment(make_config(task=task)).augment is None


# The size of the paper takes longer to build.
MODERN = [
    pytest.param("nystrom,modern", marks=pytest.mark.slow),
    "identity,quick,modern",
]


@pytest.mark.parametrize("arg", MODERN)
def test_the_modern_preset_can_be_built(arg):
    experiment = Experiment(make_config(arg, "text"))
    assert experiment.config.model.positions == "rotary"
    assert experiment.config.model.short_conv == 5
    assert experiment.objective.select == "accuracy"
