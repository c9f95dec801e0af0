"""The named sweeps: what their runs have in common, and that each can begin.

presets.txt has all of these runs.
"""

import re
import shlex
from pathlib import Path

import pytest

from configs.plans import PLANS
from nystromformer.experiments.sweep import points
from tests.commands import ROOT
from tests.page_tables import read_table


def plan_points(name, *, tasks=None, preset=""):
    """The points of a plan, or of the plan on other tasks, with one seed."""
    plan = PLANS[name]
    files = []
    for task in tasks or plan["tasks"]:
        file, _, presets = task.partition(":")
        files.append(f"{ROOT}/configs/{file}.py:{presets}")
    plan_presets = filter(None, [preset, plan.get("preset")])
    return points.make_points(files, plan["variants"], presets=",".join(plan_presets))


def describe(command):
    """A command of train.py in short, as in "listops:quick,nystrom train.log_every=5".

    The seed and the folder of the sweep are left out.
    """
    parts = []
    for word in command:
        flag, _, value = word.partition("=")
        if flag == "--config":
            parts.append(re.sub(r".*?(\w+)\.py", r"\1", value))
        elif flag == "--config.train.init_from":
            source = re.sub(r"-seed\d+$", "", Path(value).name)
            parts.append(f"train.init_from={source}")
        elif flag.startswith("--config.") and flag != "--config.train.seed":
            parts.append(word.removeprefix("--config."))
    return " ".join(parts)


def list_runs(name):
    """A line for each run of one seed of a plan, in the order of the sweep."""
    unique_points = points.drop_duplicates(plan_points(name))
    return [describe(point.command(Path("sweep"))) for point in unique_points]


def list_all_runs():
    """A title for each plan, and its runs below."""
    with pytest.MonkeyPatch.context() as patch:
        # The runs are listed and not checked: making their models takes a minute.
        patch.setattr(points, "build_experiment", lambda config: None)
        lines = []
        for name, plan in PLANS.items():
            lines.append(f"[plan {name}, seeds: {plan['seeds']}]")
            lines.extend(list_runs(name))
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_sweep_can_begin_each_run_of_a_plan_with_all_seeds_in_turn(
    commands, tmp_path, name
):
    done = commands.run(
        "sweep.py", f"--workdir={tmp_path}", f"--plan={name}", "--dry_run"
    )
    assert done.returncode == 0, done.stderr
    printed = [shlex.split(line) for line in done.stdout.splitlines() if line[0] != "#"]
    runs = list_runs(name)
    seeds = range(PLANS[name]["seeds"])
    assert [describe(command) for command in printed] == len(seeds) * runs
    suffixes = [f"-seed{seed}" for seed in seeds for _ in runs]
    for command, suffix in zip(printed, suffixes, strict=True):
        assert command[-1].endswith(suffix)


# The paper's sizes take longest.
PRESETS = [pytest.param("", marks=pytest.mark.slow), "quick"]


@pytest.mark.parametrize("preset", PRESETS)
def test_self_pretraining_trains_from_scratch_for_as_long_as_both_stages(preset):
    tasks = ["listops", "image"]
    all_points = plan_points("self_pretraining", preset=preset, tasks=tasks)
    point_of_name = {point.name: point for point in all_points}
    fine_tuned = [point for point in all_points if point.source]
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


def test_equal_footing_takes_dropout_and_convolution_out_of_a_comparison():
    """Each task has softmax without dropout on its weights, exact attention with the
    convolution of V, nystrom without it, and the convolution alone.
    """
    tasks = ("listops", "text", "retrieval", "image", "pathfinder")
    equal_points = plan_points("equal_footing", tasks=tasks)
    kinds = []
    for point in equal_points:
        config = point.config
        options = config.attention.options
        if config.attention.name == "softmax":
            assert options["dropout_rate"] == 0
            kinds.append("softmax")
        elif config.attention.name == "nystrom":
            is_exact = options["num_landmarks"] >= config.task.options["max_length"]
            assert options["conv_kernel_size"] == (35 if is_exact else 0)
            kinds.append("exact" if is_exact else "nystrom")
        else:
            assert config.attention.name == "identity"
            assert config.model.short_conv == 35
            kinds.append("convolution")
    expected = ["softmax", "exact", "nystrom", "convolution"] * len(tasks)
    assert sorted(kinds) == sorted(expected)


def test_page_says_how_many_runs_each_plan_has():
    _, *sections = (ROOT / "tests/presets.txt").read_text().split("\n[plan ")
    num_runs = {}
    for section in sections:
        title, *lines = section.strip().splitlines()
        name, _ = title.split(", ")
        num_runs[f"`{name}`"] = len(lines) * PLANS[name]["seeds"]
    table = read_table("docs/sweeps.md", "## Plans")
    assert table["runs"].astype(int).to_dict() == num_runs
