"""The named sweeps: what they compare, and that every point of them can run."""

import pytest

from configs.plans import PLANS
from nystromformer.experiments.points import make_points, merge
from tests.commands import ROOT


def points(name, *, tasks=None, preset="", seeds=1):
    plan = PLANS[name]
    split = (task.partition(":") for task in tasks or plan["tasks"])
    files = [f"{ROOT}/configs/{task}.py:{words}" for task, _, words in split]
    words = ",".join(filter(None, [preset, plan.get("preset")]))
    return make_points(files, plan["variants"], presets=words, num_seeds=seeds)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_plan_has_a_point_for_each_setting_on_all_tasks_in_turn(name):
    plan = PLANS[name]
    found = merge(points(name, seeds=plan["seeds"]))
    assert len(found) == len(plan["variants"]) * len(plan["tasks"]) * plan["seeds"]
    tasks = [task.partition(":")[0] for task in plan["tasks"]]  # before the next
    assert [x.config.task.name for x in found] == tasks * (len(found) // len(tasks))


@pytest.mark.parametrize("preset", ["", "quick"])
def test_self_pretraining_trains_from_scratch_for_as_long_as_both_stages(preset):
    found = points("self_pretraining", preset=preset, tasks=["listops", "image"])
    by_name = {p.name: p for p in found}
    tuned = [p for p in found if p.source]
    assert len(tuned) == 3 * 2
    for point in tuned:
        source = by_name[str(point.source)]
        assert source.config.objective.name == "mlm"
        assert source.config.model == point.config.model
        assert source.config.task == point.config.task
        matched = by_name[source.name.replace("pretrain", "scratch_matched")].config
        length = "num_epochs" if matched.train.num_epochs else "num_steps"
        both = [getattr(x.config.train, length) for x in (source, point)]
        assert getattr(matched.train, length) == sum(both)
