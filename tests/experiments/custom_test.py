"""An attention, a task and an objective of a user's own: examples/custom.py."""

import json
import signal
import time

from tests.archive_server import write
from tests.commands import ROOT
from tests.text_test import PER_CLASS, REVIEWS

# The example on as many reviews as there are here.
CONFIG = f"""
from examples import custom

custom.Words.reviews_per_class = {PER_CLASS}
get_config = custom.get_config
"""
SHORT = (
    "--config.attention.scale=2.0",
    "--config.task.max_length=12",
    "--config.optimizer.warmup_steps=2",
    "--config.train.batch_size=16",
    "--config.train.num_steps=400",
    "--config.train.eval_every=40",
    "--config.train.checkpoint_every=10",
)
LOADED = f"{ROOT}/examples/custom.py"


def read(path):
    return json.loads(path.read_text())


def test_commands_know_what_a_config_registers(commands, tmp_path):
    write(tmp_path, REVIEWS)
    (tmp_path / "mine.py").write_text(CONFIG)
    run, workdir = tmp_path / "run", f"--workdir={tmp_path}/run"
    args = (f"--config={tmp_path}/mine.py", workdir, *SHORT)
    args += (f"--config.task.source_dir={tmp_path}",)
    stopped = commands.start("train.py", *args)
    while not list(run.glob("checkpoints/*")):
        assert stopped.poll() is None, stopped.communicate()
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM
    done = commands.run("train.py", *args)
    assert done.returncode == 0, done.stderr
    assert "words with average: " in done.stdout
    assert "resuming from step" in done.stdout
    config = read(run / "config.json")
    assert config["attention"] == {"name": "average", "scale": 2.0}
    assert config["load"] == [LOADED]

    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    scores = {row["step"]: row["loss"] for row in rows if row["split"] == "validation"}
    result = read(run / "result.json")
    assert (result["task"], result["metric"]) == ("words", "loss")
    assert result["validation_loss"] == scores[result["best_step"]]
    assert result["validation_loss"] == min(scores.values()) < scores[40]

    again = commands.run("evaluate.py", workdir)  # imports what config.json names
    assert f"loss {result['test_loss']:.4f}" in again.stdout, again.stderr
    report = commands.run("report.py", str(run), f"--out={tmp_path}/out")
    assert report.returncode == 0, report.stderr
    assert f"{result['test_loss']:.2f}" in (tmp_path / "out" / "report.md").read_text()


def test_load_puts_an_attention_beside_any_config(commands, tmp_path):
    mine = commands.train_args(tmp_path, "--config.train.num_steps=40")
    mine = [word.replace(":nystrom,", ":average,") for word in mine]
    mine = [word for word in mine if "num_landmarks" not in word]
    unknown = commands.run("train.py", *mine)
    assert "unknown attention or preset 'average'" in unknown.stderr
    done = commands.run("train.py", *mine, f"--load={LOADED}")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "config.json")["load"] == [LOADED]
    again = commands.run("evaluate.py", f"--workdir={tmp_path}")
    assert "listops with average (finished run" in again.stdout, again.stderr
