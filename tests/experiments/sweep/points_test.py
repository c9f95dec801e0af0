"""The points of a sweep: their names, their order, and which of them are equal."""

import json
import threading
from pathlib import Path

import pytest

from configs.plans import PLANS
from nystromformer.errors import ConfigError
from nystromformer.experiments.sweep.points import (
    Point,
    drop_duplicates,
    group_command,
    group_seeds,
    make_points,
    parse_grid,
    write_plan,
)
from tests.commands import ROOT

FILE = f"{ROOT}/configs/listops.py"


def grid_points(*grid, file=FILE, **options):
    return make_points([file], parse_grid(grid), **{"presets": "quick", **options})


def names(points):
    return [point.name for point in points]


def test_make_points_takes_each_combination_for_each_seed_in_turn():
    grid = "attention.name=nystrom,linear", "train.batch_size=8,16"
    points = grid_points(*grid, num_seeds=2)
    assert names(points) == [
        f"listops-{attention}-train.batch_size={size}-seed{seed}"
        for seed in (0, 1)
        for attention in ("nystrom", "linear")
        for size in (8, 16)
    ]
    sizes = [point.config.train.batch_size for point in points]
    assert sizes == [8, 16, 8, 16] * 2
    seeds = [point.config.train.seed for point in points]
    assert seeds == [0] * 4 + [1] * 4


def test_make_points_names_the_presets_of_a_file():
    files = [FILE, f"{ROOT}/configs/glue.py:mrpc"]
    points = make_points(files, [{}], presets="softmax,quick")
    assert names(points) == ["listops-softmax-seed0", "glue-softmax-mrpc-seed0"]
    assert points[1].config.task.options["subset"] == "mrpc"


def test_make_points_takes_the_attention_of_single_layers():
    grid = "attention.by_layer=None,0=softmax 1.num_landmarks=3"
    nystrom, mixed = grid_points(grid)
    assert nystrom.config.attention.by_layer is None
    assert mixed.name == "listops-nystrom-by_layer=0=softmax_1.num_landmarks=3-seed0"
    assert "--config.attention.by_layer=0=softmax 1.num_landmarks=3" in mixed.flags
    assert [x.name for x in mixed.config.attentions()] == ["softmax", "nystrom"]


def test_drop_duplicates_keeps_one_point_of_equal_configs():
    first = grid_points("attention.num_landmarks=4,6", "attention.name=nystrom,linear")
    second = grid_points("attention.name=nystrom,softmax")  # the preset has 6
    assert names(drop_duplicates([*first, *second])) == [
        "listops-nystrom-num_landmarks=4-seed0",
        "listops-linear-seed0",
        "listops-nystrom-num_landmarks=6-seed0",
        "listops-softmax-seed0",
    ]


def test_drop_duplicates_rejects_two_settings_of_one_name():
    # The preset has other settings, which the name does not show.
    points = grid_points() + grid_points(presets="")
    with pytest.raises(ConfigError, match="would be named listops-nystrom-seed0: "):
        drop_duplicates(points)


def test_drop_duplicates_keeps_fine_tuning_apart_from_that_of_a_pretrained_run():
    variants = PLANS["self_pretraining"]["variants"][:3]
    points = drop_duplicates(
        make_points([FILE], variants, presets="quick", num_seeds=2)
    )
    assert names(points)[:3] == [
        "listops-nystrom-pretrain-seed0",
        "listops-nystrom-finetune-seed0",
        "listops-nystrom-finetune-init_from_pretrain-seed0",
    ]
    for source, scratch, tuned in (points[:3], points[3:]):
        assert scratch.source is None
        assert tuned.source == source.name
        assert f"--config.train.init_from=/s/{source.name}" in tuned.command(Path("/s"))


def test_make_points_starts_each_from_its_source_where_only_that_has_the_key():
    """Pre-training masks tokens; fine-tuning has no such option."""
    changes = [{"objective.mlm_probability": share} for share in (0.1, 0.3)]
    variants = [
        {**variant, **change}
        for variant in PLANS["self_pretraining"]["variants"][:3]
        for change in changes
    ]
    points = drop_duplicates(make_points([f"{FILE}:quick"], variants))
    points_by_name = {point.name: point for point in points}
    tuned_points = [point for point in points if point.source]
    assert len(points) == 5
    for point, share in zip(tuned_points, (0.1, 0.3), strict=True):
        assert f"mlm_probability={share}" in point.name
        source = points_by_name[point.source]
        assert source.config.objective.options["mlm_probability"] == share


def test_make_points_applies_changes_to_all_and_names_only_keys_of_the_grid():
    changes = {"train.num_steps": "700", "train.seed": "5", "attention.window": "4"}
    grid = "attention.name=nystrom,longformer", "train.num_steps=600"
    points = grid_points(*grid, changes=changes, num_seeds=2)
    assert names(points)[1:3] == [
        "listops-longformer-train.num_steps=700-seed5",
        "listops-nystrom-train.num_steps=700-seed6",
    ]
    assert {point.config.train.num_steps for point in points} == {700}
    assert points[1].config.attention.options["window"] == 4
    assert not any("window" in word for word in points[0].flags)


def test_make_points_starts_each_from_a_run_of_its_attention_and_length():
    files = [f"{ROOT}/configs/glue.py:mrpc", f"{ROOT}/configs/text.py:subwords"]
    # Each point is checked by making its model.
    small = {"model.num_layers": 1}
    changes = {**small, "train.init_from": "/bert/{attention}-{max_length}"}
    points = make_points(files, PLANS["table2"]["variants"], changes=changes)
    assert {x.name: x.config.train.init_from for x in points} == {
        "glue-nystrom-mrpc-seed0": "/bert/nystrom-512",
        "text-nystrom-subwords-seed0": "/bert/nystrom-512",
        "glue-softmax-mrpc-seed0": "/bert/softmax-512",
        "text-softmax-subwords-seed0": "/bert/softmax-512",
        "glue-nystrom-mrpc_seq1024-seed0": "/bert/nystrom-1024",
        "text-nystrom-subwords_seq1024-seed0": "/bert/nystrom-1024",
    }
    for point in points:
        source = point.config.train.init_from
        assert f"--config.train.init_from={source}" in point.flags
    same = make_points(files, [{}], changes={**small, "train.init_from": "/bert"})
    assert {x.config.train.init_from for x in same} == {"/bert"}


@pytest.mark.parametrize("key", ["init_from", "presets"])
def test_make_points_takes_no_key_of_variants_for_one_of_configs(key):
    """--config.init_from=DIR would else train from scratch."""
    with pytest.raises(ConfigError, match=f"no run has the key {key}; known: "):
        grid_points(changes={key: "pretrain"})


def test_make_points_takes_no_seed_without_a_value():
    with pytest.raises(ConfigError, match=r"--config\.train\.seed needs a value: "):
        grid_points(changes={"train.seed": True})


BAD = {
    ("attention.name=",): "attention.name=: give KEY=VALUE,VALUE$",
    ("train.batch_size=8", "train.batch_size=16"): "train.batch_size is given twice",
    ("train.seed=1,2",): "=1,2: for seeds take --seeds",
    (
        "attention.by_layer=2=softmax",
    ): "listops.py: .*no layer 2 .*the 2 layers are 0 t",
    ("attention.num_landmark=4",): r"no run has .*landmark; known: attention\.num_land",
    ("train.batch_size=many",): "listops.py: .*must be an integer",
    ("train.batch_size=0",): "batch_size",
    ("attention.num_landmarks=4,0",): "num_landmarks",
    ("train.num_epochs=2.0",): "give config.train.num_steps or num_epochs, 0 for",
    ("train.z=1", "train.y=1", "train.x=1"): "no run has the key train.x;",
}


@pytest.mark.parametrize("grid", BAD, ids="+".join)
def test_make_points_rejects_a_grid_that_cannot_run(grid):
    with pytest.raises(ConfigError, match=BAD[grid]):
        grid_points(*grid)


def test_write_plan_has_the_config_that_each_run_will_write(tmp_path):
    variants = PLANS["self_pretraining"]["variants"][:3]
    changes = {"train.batch_size": "16"}
    points = make_points(
        [f"{ROOT}/configs/listops.py"], variants, presets="quick", changes=changes
    )
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


def test_write_plan_keeps_what_another_sweep_plans_meanwhile(tmp_path):
    (other_point,) = grid_points("attention.name=softmax")
    other_sweep = threading.Thread(target=write_plan, args=([other_point], tmp_path))

    class SlowPoint(Point):
        def planned_config(self, folder):
            other_sweep.start()
            other_sweep.join(timeout=0.2)
            return {}

    write_plan([SlowPoint("slow", (), other_point.config)], tmp_path)
    other_sweep.join()
    plan = json.loads((tmp_path / "sweep.json").read_text())
    assert list(plan) == ["slow", other_point.name]


def test_write_plan_names_a_damaged_plan(tmp_path):
    (tmp_path / "sweep.json").write_text('{"run": {')
    with pytest.raises(ConfigError, match=f"{tmp_path}/sweep.json cannot be used, it "):
        write_plan([], tmp_path)


def test_group_seeds_groups_what_differs_in_the_seed_alone(tmp_path):
    points = grid_points("attention.num_landmarks=10,16", num_seeds=3)
    groups = group_seeds(points, tmp_path)
    assert [names(group) for group in groups] == [
        [f"listops-nystrom-num_landmarks={size}-seed{seed}" for seed in (0, 1, 2)]
        for size in (10, 16)
    ]
    command = group_command(groups[0], tmp_path)
    assert command[-2:] == [
        "--seeds=0,1,2",
        f"--workdir={tmp_path}/listops-nystrom-num_landmarks=10-seed{{seed}}",
    ]
    alone = points[0].command(tmp_path)
    assert set(alone) - set(command) == {"--config.train.seed=0", alone[-1]}


def test_group_seeds_leaves_alone_what_has_not_begun_together(tmp_path):
    points = grid_points(num_seeds=4)
    saved = {"seed0": (20, 40), "seed1": (40, 53)}
    for point in points:
        for step in saved.get(point.name.rpartition("-")[2], ()):
            (tmp_path / point.name / "checkpoints" / str(step)).mkdir(parents=True)
    assert group_seeds(points, tmp_path) == [points[:2], points[2:]]


def test_group_seeds_leaves_alone_what_starts_from_runs_of_the_sweep(tmp_path):
    variants = [{"presets": "pretrain"}, {"init_from": "pretrain"}]
    points = make_points([FILE], variants, presets="quick", num_seeds=2)
    sizes = [len(group) for group in group_seeds(points, tmp_path)]
    assert sizes == [2, 1, 1]


def test_group_seeds_refuses_several_lengths(tmp_path):
    changes = {"train.length_buckets": 4}
    one, two = grid_points(changes=changes, num_seeds=2)
    assert group_seeds([one], tmp_path) == [[one]]
    message = "--seeds_together: listops-nystrom-seed1: seeds cannot be .* to 1, or"
    with pytest.raises(ConfigError, match=message):
        group_seeds([one, two], tmp_path)
