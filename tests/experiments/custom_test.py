"""An attention, a task and an objective of a user's own: examples/custom.py."""

import json
import os
import shutil

import pytest

from tests.commands import ROOT, refused
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.text_test import PER_CLASS, REVIEWS
from tests.small import SMALL, numbers

# The example on as many reviews as there are here.
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
LOADED = f"{ROOT}/examples/custom.py"


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


@pytest.mark.slow
def test_commands_know_what_a_config_registers(commands, tmp_path):
    write(tmp_path / "texts", REVIEWS)
    (tmp_path / "mine.py").write_text(CONFIG)
    run, workdir = tmp_path / "run", f"--workdir={tmp_path}/run"
    words = os.path.relpath(tmp_path / "texts", commands.folder)
    words = f"--config.task.source_dir={words}"
    mine = os.path.relpath(tmp_path / "mine.py", commands.folder)
    args = (f"--config={mine}", workdir, words, *SHORT)
    args += ("--config.task.data_dir=of_words",)
    done = commands.run("train.py", *args)
    assert done.returncode == 0, done.stderr
    assert "words with average: " in done.stdout
    config = read(run / "config.json")
    assert config["attention"] == {"name": "average", "by_layer": None, "scale": 2.0}
    changed = {"attention.scale": 2.0, "optimizer.warmup_steps": 2}
    changed["optimizer.cycle_b1"] = False
    assert config["overrides"].items() >= changed.items()
    assert len(config["overrides"]) == len(SHORT) + 2  # the folders
    assert [*map(os.path.realpath, config["load"])] == [f"{tmp_path}/mine.py"]
    assert config["task"]["data_dir"] == f"{commands.folder}/of_words"
    assert os.path.realpath(config["task"]["source_dir"]) == f"{tmp_path}/texts"

    result, *rows = numbers(run)
    scores = [row["loss"] for row in rows if row["split"] == "validation"]
    assert (result["task"], result["metric"]) == ("words", "loss")
    assert result["validation_loss"] == min(scores) < scores[0]

    moved = (tmp_path / "texts").rename(tmp_path / "moved")
    # It imports what config.json names.
    again = commands.run("evaluate.py", workdir, f"--source_dir={moved}")
    assert f"loss {result['test_loss']:.4f}" in again.stdout, again.stderr
    report = commands.run("report.py", str(run), f"--out={tmp_path}/out")
    assert report.returncode == 0, report.stderr
    assert f"{result['test_loss']:.2f}" in (tmp_path / "out" / "report.md").read_text()


def test_evaluate_knows_what_a_config_has_registered_unasked(commands, tmp_path):
    (tmp_path / "mine.py").write_text(REGISTERS)
    workdir = f"--workdir={tmp_path}/run"
    tiny = [*SMALL, "--config.train.num_steps=10"]
    args = f"--config={tmp_path}/mine.py:identity,quick", workdir, *tiny
    args = [x for x in args if "num_landmarks" not in x]
    done = commands.run("train.py", *args)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "run" / "config.json")["load"] == [f"{tmp_path}/mine.py"]
    done = commands.run("evaluate.py", workdir)
    assert "short with identity (finished run" in done.stdout, done.stderr


def test_load_puts_an_attention_into_a_sweep(commands, tmp_path):
    tiny = [x for x in SMALL if "num_landmarks" not in x and "num_steps" not in x]
    config, grid = f"{ROOT}/configs/listops.py:quick", "--grid=attention.name=average"
    args = (f"--config={config}", grid, f"--workdir={tmp_path}", *tiny)
    args += ("--config.train.num_steps=20",)
    assert "average" in refused(commands.run("sweep.py", *args))
    mine = shutil.copy(LOADED, tmp_path)
    done = commands.run("sweep.py", f"--load={mine}", *args)
    assert done.stdout == "listops-average-seed0: done\n1 done\n", done.stderr
    workdir = tmp_path / "listops-average-seed0"
    assert read(workdir / "config.json")["load"] == [mine]
    os.remove(mine)
    gone = commands.run("evaluate.py", f"--workdir={workdir}")
    assert "place now, under the same name" in refused(gone)
    again = commands.run("evaluate.py", f"--workdir={workdir}", f"--load={LOADED}")
    assert "listops with average (finished run" in again.stdout, again.stderr
