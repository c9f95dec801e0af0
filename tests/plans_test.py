"""The named sweeps: what they compare, and that every point of them can run."""

import pytest

from configs.plans import PLANS
from nystromformer.experiments.points import make_points, merge
from tests.commands import ROOT


def plan_points(name, *, tasks=None, preset="", num_seeds=1):
    """The points of a plan, or of the plan on other tasks."""
    plan = PLANS[name]
    files = []
    for task in tasks or plan["tasks"]:
        file, _, presets = task.partition(":")
        files.append(f"{ROOT}/configs/{file}.py:{presets}")
    presets = [words for words in (preset, plan.get("preset")) if words]
    return make_points(
        files, plan["variants"], presets=",".join(presets), num_seeds=num_seeds
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_plan_has_a_point_for_each_setting_on_all_tasks_in_turn(name):
    plan = PLANS[name]
    points = merge(plan_points(name, num_seeds=plan["seeds"]))
    num_settings = len(plan["variants"]) * plan["seeds"]
    assert len(points) == num_settings * len(plan["tasks"])
    tasks = [task.partition(":")[0] for task in plan["tasks"]]
    assert [point.config.task.name for point in points] == tasks * num_settings


@pytest.mark.parametrize("preset", ["", "quick"])
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


def test_mrpc_search_has_each_batch_and_rate_for_each_row_of_table_2():
    variants = PLANS["mrpc_search"]["variants"]
    searched = ("train.batch_size", "optimizer.learning_rate")
    for number, row in enumerate(PLANS["table2"]["variants"]):
        of_row = variants[12 * number : 12 * (number + 1)]
        cells = {tuple(variant[key] for key in searched) for variant in of_row}
        assert cells == {(b, r) for b in (8, 16, 32) for r in (2e-5, 3e-5, 4e-5, 5e-5)}
        for variant in of_row:
            assert {key: variant[key] for key in variant if key not in searched} == row
    assert len(variants) == 36

    file = f"{ROOT}/configs/glue.py:mrpc"
    [point] = make_points([file], variants[-1:])
    config = point.config
    assert (config.task.options["subset"], config.task.options["max_length"]) == (
        "mrpc",
        1_024,
    )
    assert (config.train.batch_size, config.optimizer.learning_rate) == (32, 5e-5)
