"""The plan of a sweep: what it keeps, and the names that a later sweep takes."""

import dataclasses
import json

from etils import epath

from configs.plans import PLANS
from nystromformer.experiments.points import make_points, parse_grid
from nystromformer.experiments.run import check_workdir, write_json
from nystromformer.experiments.sweep_plan import keep_planned_names, write_plan
from tests.commands import ROOT

FILE = f"{ROOT}/configs/listops.py"


def grid_points(*grid, num_seeds=1):
    return make_points([FILE], parse_grid(grid), presets="quick", num_seeds=num_seeds)


def names(points):
    return [point.name for point in points]


def test_write_plan_has_the_config_that_each_run_will_write(tmp_path):
    variants = PLANS["self_pretraining"]["variants"][:3]
    changes = {"train.batch_size": "16"}
    points = make_points([FILE], variants, presets="quick", changes=changes)
    write_plan(points, tmp_path / "sweep")
    plan = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert list(plan) == names(points)
    pretrain, finetune, tuned = plan.values()
    assert pretrain["objective"]["name"] == "mlm"
    assert finetune["overrides"] == {"train.batch_size": 16, "train.seed": 0}
    source = f"{tmp_path}/sweep/listops-nystrom-pretrain-seed0"
    assert tuned["train"]["init_from"] == source
    assert tuned["overrides"] == {**finetune["overrides"], "train.init_from": source}


def test_write_plan_keeps_what_an_earlier_sweep_has_planned(tmp_path):
    write_plan(grid_points("attention.name=nystrom,softmax"), tmp_path)
    write_plan(grid_points("attention.name=softmax,linear"), tmp_path)
    plan = json.loads((tmp_path / "sweep.json").read_text())
    attentions = [config["attention"]["name"] for config in plan.values()]
    assert attentions == ["nystrom", "softmax", "linear"]


def test_a_run_keeps_the_name_that_an_earlier_sweep_has_given_it(tmp_path):
    write_plan(grid_points("attention.name=nystrom,softmax"), tmp_path)
    # The preset has 6 landmarks.
    points = grid_points("attention.num_landmarks=4,6", num_seeds=2)
    assert names(keep_planned_names(points, tmp_path)) == [
        "listops-nystrom-num_landmarks=4-seed0",
        "listops-nystrom-seed0",
        "listops-nystrom-num_landmarks=4-seed1",
        "listops-nystrom-num_landmarks=6-seed1",
    ]


def test_a_run_and_its_source_keep_their_names_together(tmp_path):
    stages = PLANS["self_pretraining"]["variants"][:3]
    planned = make_points([FILE], stages, presets="quick")
    write_plan(planned, tmp_path)
    variants = [{**stage, "attention.num_landmarks": 6} for stage in stages]
    points = make_points([FILE], variants, presets="quick")
    assert points[2].source == "listops-nystrom-pretrain-num_landmarks=6-seed0"
    # A point may stand before its source.
    kept = keep_planned_names(points[::-1], tmp_path)
    assert names(kept) == names(planned[::-1])
    assert kept[0].source == "listops-nystrom-pretrain-seed0"
    # The run that has begun goes on.
    workdir = tmp_path / kept[0].name
    workdir.mkdir()
    write_json(workdir / "config.json", planned[2].planned_config(tmp_path))
    check_workdir(epath.Path(workdir), kept[0].config)


def test_a_name_of_ones_own_is_kept_where_two_sweeps_have_trained_a_run_twice(tmp_path):
    [point] = grid_points("attention.name=nystrom")
    write_plan([point, dataclasses.replace(point, name="again")], tmp_path)
    assert names(keep_planned_names([point], tmp_path)) == [point.name]
    # Under a name that is not planned it is the first of them.
    other = dataclasses.replace(point, name="other")
    assert names(keep_planned_names([other], tmp_path)) == [point.name]


def test_runs_that_log_more_often_are_the_same_and_those_of_other_texts_are_not(
    tmp_path,
):
    [point] = grid_points("train.log_every=50")
    write_plan([point], tmp_path)
    for key, name in (("train.log_every", point.name), ("task.source_dir", "mine")):
        changes = {key: "10" if key == "train.log_every" else "/texts"}
        [other] = make_points([FILE], [{}], presets="quick", changes=changes)
        other = dataclasses.replace(other, name="mine")
        assert names(keep_planned_names([other], tmp_path)) == [name]


def test_a_run_from_another_source_has_a_name_of_its_own(tmp_path):
    [point] = grid_points("attention.name=nystrom")
    write_plan([dataclasses.replace(point, source="a")], tmp_path)
    [other] = keep_planned_names(
        [dataclasses.replace(point, name="mine", source="b")], tmp_path
    )
    assert (other.name, other.source) == ("mine", "b")
