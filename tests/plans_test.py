"""The named sweeps: what they compare, and that every point of them can run."""

import itertools

import pytest

from configs.plans import PLANS
from lra_tasks import LRA
from nystromformer.experiments.points import drop_duplicates, make_points
from tests.commands import ROOT


def plan_points(name, *, tasks=None, preset="", num_seeds=1):
    """The points of a plan, or of the plan on other tasks."""
    plan = PLANS[name]
    files = []
    for task in tasks or plan["tasks"]:
        file, _, presets = task.partition(":")
        files.append(f"{ROOT}/configs/{file}.py:{presets}")
    plan_presets = filter(None, [preset, plan.get("preset")])
    return make_points(
        files, plan["variants"], presets=",".join(plan_presets), num_seeds=num_seeds
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_plan_has_a_point_for_each_setting_on_all_tasks_in_turn(name):
    plan = PLANS[name]
    points = drop_duplicates(plan_points(name, num_seeds=plan["seeds"]))
    num_settings = len(plan["variants"]) * plan["seeds"]
    assert len(points) == num_settings * len(plan["tasks"])
    tasks = [task.partition(":")[0] for task in plan["tasks"]]
    assert [point.config.task.name for point in points] == tasks * num_settings


# The paper's sizes take longest: recipe_presets_test holds them.
PRESETS = [pytest.param("", marks=pytest.mark.slow), "quick"]


@pytest.mark.parametrize("preset", PRESETS)
def test_self_pretraining_trains_from_scratch_for_as_long_as_both_stages(preset):
    tasks = ["listops", "image"]
    points = plan_points("self_pretraining", preset=preset, tasks=tasks)
    point_of_name = {point.name: point for point in points}
    fine_tuned = [point for point in points if point.source]
    assert len(fine_tuned) == 3 * len(tasks)
    for point in fine_tuned:
        source = point_of_name[str(point.source)]
        assert source.config.objective.name == "mlm"
        assert source.config.model == point.config.model
        assert source.config.task == point.config.task

        name_from_scratch = source.name.replace("pretrain", "scratch_matched")
        train = point_of_name[name_from_scratch].config.train
        stages = [source.config.train, point.config.train]
        length = "num_epochs" if train.num_epochs else "num_steps"
        assert getattr(train, length) == sum(getattr(x, length) for x in stages)


SEARCHED_KEYS = ("train.batch_size", "optimizer.learning_rate")


@pytest.mark.parametrize("number", range(3))
def test_mrpc_search_has_each_batch_and_rate_for_each_row_of_table_2(number):
    variants = PLANS["mrpc_search"]["variants"]
    assert len(variants) == 36
    row = PLANS["table2"]["variants"][number]
    searched_values = set()
    for variant in variants[12 * number : 12 * (number + 1)]:
        assert variant.items() >= row.items()
        assert variant.keys() == row.keys() | set(SEARCHED_KEYS)
        searched_values.add(tuple(variant[key] for key in SEARCHED_KEYS))
    batch_sizes = (8, 16, 32)
    rates = (2e-5, 3e-5, 4e-5, 5e-5)
    assert searched_values == set(itertools.product(batch_sizes, rates))


def test_mrpc_search_ends_with_long_texts_and_the_largest_values():
    variants = PLANS["mrpc_search"]["variants"]
    [point] = make_points([f"{ROOT}/configs/glue.py:mrpc"], variants[-1:])
    config = point.config
    assert config.task.options["subset"] == "mrpc"
    assert config.task.options["max_length"] == 1_024
    assert config.train.batch_size == 32
    assert config.optimizer.learning_rate == 5e-5


def nystrom(**options):
    """The variant of Nyström attention with these options."""
    variant = {"attention.name": "nystrom"}
    for key, value in options.items():
        variant[f"attention.{key}"] = value
    return variant


def test_table_3_has_the_papers_attentions_and_tasks():
    names = ("nystrom", "softmax", "linformer", "performer", "reformer")
    assert PLANS["table3"] == {
        "tasks": LRA,
        "seeds": 3,
        "variants": tuple({"attention.name": name} for name in names),
    }


def test_table_2_has_the_papers_tasks():
    assert set(PLANS["table2"]["tasks"]) == {
        "glue",
        "glue:mrpc",
        "glue:qnli",
        "glue:qqp",
        "glue:mnli",
        "text:subwords",
    }


def test_landmarks_compares_their_numbers_with_exact_attention():
    assert PLANS["landmarks"]["variants"] == (
        nystrom(num_landmarks=64),
        {"attention.name": "softmax"},
        nystrom(num_landmarks=16),
        nystrom(num_landmarks=256),
        nystrom(num_landmarks=32),
        nystrom(num_landmarks=128),
    )


def test_equal_footing_takes_dropout_and_convolution_out_of_a_comparison():
    """On every task exact attention has the convolution of nystrom's own row."""
    points = plan_points("equal_footing", tasks=LRA)
    assert len(points) == 3 * len(LRA)
    for point in points:
        config = point.config
        options = config.attention.options
        if config.attention.name == "softmax":
            assert options["dropout_rate"] == 0
        elif config.attention.name == "nystrom":
            assert options["conv_kernel_size"] == 35
            assert options["num_landmarks"] >= config.task.options["max_length"]
        else:
            assert config.attention.name == "identity"
            assert config.model.short_conv == 35


def test_quick_has_the_rows_of_equal_footing():
    """A landmark for each of 48 tokens is exact attention."""
    softmax, _, identity = PLANS["equal_footing"]["variants"]
    variants = PLANS["quick"]["variants"]
    assert variants[-2:] == (softmax, identity)
    assert nystrom(num_landmarks=48) in variants


@pytest.mark.parametrize(
    "variant",
    [
        nystrom(conv_kernel_size=35),
        nystrom(conv_kernel_size=0),
        nystrom(landmarks="random"),
        nystrom(landmarks="kmeans"),
        nystrom(pinv="identity"),
        nystrom(pinv="exact"),
    ],
)
def test_ablations_have_the_parts_of_nystrom_attention(variant):
    assert variant in PLANS["ablations"]["variants"]
