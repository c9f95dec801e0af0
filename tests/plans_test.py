"""The named sweeps: what they compare, and that every point of them can run."""

import re

import pytest

from configs.plans import PLANS
from nystromformer.experiments.sweep.grid import Base, check_points, make_points, merged
from tests.commands import ROOT

# How ml_collections reads a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


def points(name, *, tasks=None, preset=None, seeds=1):
    plan = PLANS[name]
    words = (preset or plan.get("preset", "paper"),)
    files = [f"{ROOT}/configs/{task}.py" for task in tasks or plan["tasks"]]
    bases = [Base(file, words) for file in files]
    return make_points(bases, plan["variants"], seeds)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_every_point_can_run(name, tmp_path):
    check_points(points(name), tmp_path)


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_passes_the_door(name):
    found = points(name, seeds=PLANS[name]["seeds"])
    variants, tasks = PLANS[name]["variants"], PLANS[name]["tasks"]
    assert len(found) == len(variants) * len(tasks) * PLANS[name]["seeds"]


def test_the_table_is_complete_and_useful_before_it_is():
    found = points("table3", seeds=PLANS["table3"]["seeds"])
    tasks = ["listops", "text", "retrieval", "image", "pathfinder"]
    assert [p.name for p in found[:5]] == [f"{t}-nystrom-seed0" for t in tasks]
    assert [p.name for p in found[5:10]] == [f"{t}-softmax-seed0" for t in tasks]
    assert len(found) == 5 * 6 * 3
    assert {p.config.train.seed for p in found[:30]} == {0}
    options = {p.name: p.config.attention.options for p in found if "image" in p.name}
    assert options["image-nystrom-seed0"]["num_landmarks"] == 128
    assert options["image-nystrom-num_landmarks=64-seed0"]["num_landmarks"] == 64
    assert options["image-linformer-seed0"]["projection_dim"] == 256
    assert options["image-performer-seed0"]["num_features"] == 256
    assert options["image-reformer-seed0"]["num_hashes"] == 2


def test_landmarks_has_softmax_beside_five_counts_on_any_task():
    found = points("landmarks", tasks=["pathfinder"])
    counts = {p.config.attention.options.get("num_landmarks") for p in found}
    assert counts == {16, 32, 64, 128, 256, None}


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_self_pretraining_begins_each_seed_with_its_own_source_in_equal_time(preset):
    found = {p.name: p for p in points("self_pretraining", preset=preset, seeds=2)}
    assert len(found) == 5 * 3 * 4 * 2
    for name, point in found.items():
        if "-finetune-init_from_pretrain-" not in name:
            assert point.source is None
            continue
        source = found[name.replace("finetune-init_from_pretrain", "pretrain")]
        assert point.source == point.config.train.init_from == source.name
        assert source.config.objective.name == "mlm"
        assert source.config.train.seed == point.config.train.seed
        assert source.config.model == point.config.model
        assert source.config.task == point.config.task
        scratch = found[name.replace("init_from_pretrain-", "")].config
        assert scratch.model_dump() == {
            **point.config.model_dump(),
            "train": {**point.config.train.model_dump(), "init_from": None},
        }
        total = found[
            name.replace("finetune-init_from_pretrain", "scratch_matched")
        ].config.train
        both = point.config.train, source.config.train
        for length in ("num_epochs",) if total.num_epochs else ("num_steps",):
            assert getattr(total, length) == sum(getattr(x, length) for x in both)
        words = point.command(ROOT)
        assert f"--config.train.init_from={ROOT / source.name}" in words


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_an_ablation_changes_one_thing(preset):
    for task in ("listops", "image"):
        found = points("ablations", tasks=[task], preset=preset)
        configs = [p.config.attention.options for p in found]
        baseline = points("table3", tasks=[task], preset=preset)[0].config
        base = baseline.attention.options
        assert base in configs
        changed = [{k for k in base if base[k] != config[k]} for config in configs]
        assert all(len(keys) <= 1 for keys in changed)
        assert {
            "conv_kernel_size",
            "landmarks",
            "inverse",
            "landmark_padding",
        } == set().union(*changed)


def test_a_plan_runs_on_a_small_preset(tmp_path):
    found = points("table3", preset="quick", tasks=["listops", "image"])
    assert {p.config.train.num_steps for p in found} == {12_000, 1_000}
    check_points(found, tmp_path)


def test_the_paper_is_all_plans_of_its_preset_and_trains_nothing_twice():
    makefile = (ROOT / "Makefile").read_text()
    [listed] = re.findall("^PLANS := (.*)$", makefile, re.MULTILINE)
    names = listed.split()
    of_table = {x for x in PLANS if "preset" not in PLANS[x]} - {"self_pretraining"}
    assert sorted(names) == sorted(of_table)
    seeds = {PLANS[name]["seeds"] for name in names}
    assert seeds == {3}
    table, more = 5 * 6, 2 * 3 + 2 * 6  # three counts of landmarks, six ablations
    assert len(merged(points(name) for name in names)) == table + more
