"""An attention, a task and an objective of a user's own: examples/custom.py."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.commands import ROOT, refused
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.text_test import PER_CLASS, REVIEWS
from tests.small import SMALL, numbers

# The example, with the number of reviews that this test has.
CONFIG = f"""
from examples import custom

custom.__file__ = __file__
custom.Words.reviews_per_class = {PER_CLASS}
get_config = custom.get_config
"""
SHORT = (
    "--config.attention.scale=2.0",
    "--config.task.max_length=12",
    "-config.optimizer.warmup_steps=2",
    "--noconfig.optimizer.cycle_b1",
    "--config.train.batch_size=16",
    "--config.train.num_steps=80",
    "--config.train.eval_every=20",
)
EXAMPLE = f"{ROOT}/examples/custom.py"

# A task that its config file registers, without `load`.
REGISTERS = """
from configs.defaults import make_get_config
from configs.listops import PAPER, QUICK
from lra_tasks.listops import ListOps
from lra_tasks.task import register_task

class Short(ListOps):
    name = "short"

register_task("short", Short)
get_config = make_get_config("short", PAPER, {"quick": QUICK})
"""


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def words_run(commands, tmp_path_factory):
    """A folder with mine.py, its finished run, and its texts.

    The run was started with relative paths. Afterwards texts/ became moved/.
    """
    folder = Path(os.path.realpath(tmp_path_factory.mktemp("words")))
    write(folder / "texts", REVIEWS)
    (folder / "mine.py").write_text(CONFIG)
    relative_folder = os.path.relpath(folder, commands.folder)
    done = commands.run(
        "train.py",
        f"--config={relative_folder}/mine.py",
        f"--workdir={folder}/run",
        f"--config.task.source_dir={relative_folder}/texts",
        "--config.task.data_dir=data_of_words",
        *SHORT,
    )
    assert done.returncode == 0, done.stderr
    assert "words with average: " in done.stdout
    (folder / "texts").rename(folder / "moved")
    return folder


@pytest.mark.slow
def test_train_records_what_a_config_registers(commands, words_run):
    config = read(words_run / "run" / "config.json")
    assert config["attention"] == {"name": "average", "by_layer": None, "scale": 2.0}
    changes = {
        "attention.scale": 2.0,
        "optimizer.warmup_steps": 2,
        "optimizer.cycle_b1": False,
    }
    assert config["overrides"].items() >= changes.items()
    # The flags of task.source_dir and task.data_dir come on top.
    assert len(config["overrides"]) == len(SHORT) + 2
    (loaded_file,) = config["load"]
    assert os.path.realpath(loaded_file) == f"{words_run}/mine.py"
    assert os.path.realpath(config["task"]["source_dir"]) == f"{words_run}/texts"
    assert config["task"]["data_dir"] == f"{commands.folder}/data_of_words"

    result, *rows = numbers(words_run / "run")
    losses = [row["loss"] for row in rows if row["split"] == "validation"]
    assert result["task"] == "words"
    assert result["metric"] == "loss"
    assert result["validation_loss"] == min(losses) < losses[0]


@pytest.mark.slow
def test_commands_know_what_a_config_registers(commands, words_run, tmp_path):
    """They import the file that config.json names."""
    workdir = words_run / "run"
    result = read(workdir / "result.json")
    source_dir = f"--source_dir={words_run}/moved"
    done = commands.run("evaluate.py", f"--workdir={workdir}", source_dir)
    assert f"loss {result['test_loss']:.4f}" in done.stdout, done.stderr

    done = commands.run("report.py", str(workdir), f"--out={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert f"{result['test_loss']:.2f}" in (tmp_path / "out" / "README.md").read_text()


def test_evaluate_knows_the_task_of_a_config_file_and_what_training_measured(
    commands, tmp_path
):
    (tmp_path / "mine.py").write_text(REGISTERS)
    workdir = tmp_path / "run"
    settings = [flag for flag in SMALL if "num_landmarks" not in flag]
    done = commands.run(
        "train.py",
        f"--config={tmp_path}/mine.py:identity,quick",
        f"--workdir={workdir}",
        *settings,
        "--config.train.num_steps=10",
        "--config.train.max_eval_examples=20",
    )
    assert "(20 examples)" in done.stdout, done.stderr
    assert read(workdir / "config.json")["load"] == [f"{tmp_path}/mine.py"]
    done = commands.run("evaluate.py", f"--workdir={workdir}")
    assert "short with identity (finished run" in done.stdout, done.stderr
    assert done.stdout.endswith("50 examples; training measured 20 of them\n")


def sweep_of_average(workdir):
    """The arguments of a sweep whose attention --load registers."""
    tiny = [x for x in SMALL if "num_landmarks" not in x and "num_steps" not in x]
    return [
        f"--config={ROOT}/configs/listops.py:quick",
        "--grid=attention.name=average",
        f"--workdir={workdir}",
        *tiny,
        "--config.train.num_steps=20",
    ]


def test_sweep_knows_an_attention_by_load_alone(commands, tmp_path):
    args = sweep_of_average(tmp_path / "runs")
    assert "average" in refused(commands.run("sweep.py", *args))
    done = commands.run("sweep.py", f"--load={EXAMPLE}", *args, "--dry_run")
    assert done.returncode == 0, done.stderr
    assert f"--load={EXAMPLE}" in done.stdout
    assert not list(tmp_path.iterdir())


# The sweep's commands, and a run that evaluates what it has loaded, are fast tests.
@pytest.mark.slow
def test_load_puts_an_attention_into_a_sweep(commands, tmp_path):
    args = sweep_of_average(tmp_path)
    mine = shutil.copy(EXAMPLE, tmp_path)
    done = commands.run("sweep.py", f"--load={mine}", *args)
    assert done.stdout.endswith("\n1 of 1 done\n"), done.stderr
    workdir = tmp_path / "listops-average-seed0"
    assert read(workdir / "config.json")["load"] == [mine]
    os.remove(mine)
    gone = commands.run("evaluate.py", f"--workdir={workdir}")
    assert "place now, under the same name" in refused(gone)
    again = commands.run("evaluate.py", f"--workdir={workdir}", f"--load={EXAMPLE}")
    assert "listops with average (finished run" in again.stdout, again.stderr
