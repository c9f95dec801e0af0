"""scripts/gpu_check.py: every part of it on a CPU, and when it fails."""

import json
import signal
import time
from pathlib import Path

import pytest

from nystromformer.experiments.check_results import (
    format_rows,
    list_failures,
    read_benchmark,
    read_rows,
)
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.stages import Command, run_command, run_stage
from tests.commands import refused

# A module for --load: an attention that is a tenth off, but in float64 right.
WRONG = """
import jax.numpy as jnp
from nystromformer.attention import find_attention
right = find_attention("linear").attend

def attend(self, query, *args, **kwargs):
    out = right(self, query, *args, **kwargs)
    return out if query.dtype == jnp.float64 else 1.1 * out

find_attention("linear").attend = attend
"""


# A module for --load: the machine has an accelerator, and PyTorch sees it. A stage
# becomes a row with its commands, which do not run.
PLAN = """
import __main__

def plan_stage(stage, commands, limit, out, stop, num_at_once):
    words = {{x.name: [*x.words[1:], x.missing] for x in commands}}
    row = {{"stage": stage, "limit": limit, "num_at_once": num_at_once, "words": words}}
    __main__.add_row(out, row)

__main__.run_stage = plan_stage
__main__.find_platform = lambda takes_cpu: {platform!r}
__main__.has_peers = lambda: True
"""
# What the stages of the full size measure, all by scripts/benchmark.py.
FULL_BENCHMARKS = {
    "attention": """
        --attention=softmax --attention=softmax,fused=false
        --attention=nystrom-64,conv_kernel_size=0
        --attention=nystrom-64,conv_kernel_size=0,fused=true
        --length=512 --length=2048 --length=8192
        --batch_size=2 --num_heads=8 --head_dim=64 --dtype=bfloat16
        --repeats=5 --peers
        """,
    "steps": """
        --attention=nystrom-64 --task=listops --task=text --task=retrieval
        --task=image --task=pathfinder --train_step --dtype=bfloat16
        --repeats=5 --peers
        """,
    "wide": """
        --attention=nystrom-64,conv_kernel_size=0
        --attention=nystrom-64,conv_kernel_size=0,fused=true
        --attention=nystrom-256,conv_kernel_size=0,fused=true
        --length=4096 --length=131072
        --batch_size=4 --num_heads=16 --head_dim=128 --dtype=bfloat16
        --repeats=5 --peers
        """,
    "float32": """
        --attention=softmax --attention=nystrom-64,conv_kernel_size=0
        --length=512 --length=2048 --batch_size=2 --num_heads=8 --head_dim=64
        --repeats=5 --peers
        """,
}


def check_row(error=1e-3, **changes):
    """A row of a check of correctness."""
    errors = {"output": 1e-6, "query": error}
    row = {"case": "mine", "errors": errors, "limit": 1e-2, "passed": True}
    return {"stage": "correctness", **row, **changes}


def test_list_failures_has_what_failed_and_what_did_not_end():
    begin = {"stage": "correctness", "num_cases": 2}
    assert list_failures([begin, check_row(), check_row()]) == []
    assert list_failures([begin, check_row(), check_row(passed=False)]) == ["mine"]
    assert list_failures([begin, check_row()]) == ["only 1 of 2 cases ended in time"]
    not_begun = ["the checks did not begin: see logs/correctness.txt"]
    assert list_failures([]) == not_begun


def test_format_rows_shows_the_largest_error_and_why_there_is_none():
    rows = [
        {"stage": "device", "device": "1 × H200", "versions": {"jax": "0.10.2"}},
        {"stage": "steps", "command": "steps", "status": "ok", "seconds": 1.0},
        check_row(same_bits=False),
        check_row(error=float("nan"), same_bits=True),
        {**check_row(), "failure": "no kernel"},
    ]
    text = "\n".join(format_rows(rows))
    assert text.startswith("1 × H200, jax 0.10.2\n")
    assert "| steps | ok | 1 |" in text
    assert "| 1.0e-03 (query) | 1e-02 | ok | no |" in text
    assert "| nan (query) | 1e-02 | ok | yes |" in text
    assert "| no kernel | 1e-02 | ok |  |" in text


def test_read_benchmark_gives_the_median_of_the_times(tmp_path):
    key = {"what": "forward", "attention": "linear", "length": 8, "dtype": "float32"}
    times = [
        {"key": key, "seconds": [0.001, 0.007, 0.002]},
        {"key": key, "seconds": []},
    ]
    (tmp_path / "benchmark.json").write_text(json.dumps({"rows": times}))
    assert [row["ms"] for row in read_benchmark(tmp_path)] == [2.0, None]


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_gpu_check_plans_the_stages_of_the_full_size(commands, tmp_path, platform):
    module = tmp_path / "plan.py"
    module.write_text(PLAN.format(platform=platform))
    out = tmp_path / "check"
    data = tmp_path / "data"
    done = commands.run(
        "gpu_check.py", f"--out={out}", f"--load={module}", f"--data_dir={data}"
    )
    assert "the checks did not begin" in done.stderr
    rows = read_rows(out)
    # A TPU admits one process at a time.
    assert all((row["num_at_once"] == 1) == (platform == "tpu") for row in rows)
    commands_of = {row["stage"]: row["words"] for row in rows}
    assert list(commands_of) == ["device", "correctness", *FULL_BENCHMARKS, "train"]
    for stage, flags in FULL_BENCHMARKS.items():
        script, *words, missing = commands_of[stage][stage]
        assert Path(script).name == "benchmark.py"
        assert words == [f"--out={out}/benchmark/{stage}", *flags.split()]
        assert not missing

    # What is left of 570 seconds, but for the time in which the runs save.
    assert 540 < rows[-1]["limit"] <= 550
    for task in ("listops", "text", "image"):
        _, config, *words, missing = commands_of["train"][f"train_{task}"]
        assert config.endswith(f"configs/{task}.py:nystrom")
        assert words == [
            "--config.model.dtype=bfloat16",
            f"--workdir={out}/runs/{task}",
            f"--config.task.data_dir={data}",
        ]
        # ListOps is generated.
        assert (f"no prepared data in {data}" in missing) == (task != "listops")


@pytest.mark.slow
def test_gpu_check_goes_through_all_stages_on_a_cpu(commands, tmp_path):
    """Outside git, with libraries alone; what is wrong in one stage stops no other."""
    module = tmp_path / "wrong.py"
    module.write_text(WRONG)
    out = tmp_path / "check"
    process = commands.start(
        "gpu_check.py", f"--out={out}", "--smoke", f"--load={module}"
    )
    stdout, stderr = process.communicate(timeout=600)
    rows = [
        json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()
    ]
    passed = {row["case"]: row["passed"] for row in rows if "case" in row}
    assert sum(passed.values()) == 2
    assert not passed["linear, float32, highest, 61 and 40 tokens"]
    assert process.returncode == 1, stderr
    assert "correctness FAILED:\nlinear" in stderr
    assert "train step, bfloat16" in stdout

    ended = {row["command"]: row["status"] for row in rows if "status" in row}
    for task in ("text", "image"):
        status = ended.pop(f"train_{task}")
        assert status.startswith("left out: no prepared data in ")
    assert set(ended.values()) == {"ok"}, ended
    measured = {"attention", "steps", "wide", "float32"}
    assert measured | {"device", "correctness", "train_listops"} <= set(ended)
    times = [row for row in rows if "ms" in row]
    assert {row["stage"] for row in times} == measured
    assert all(row["ms"] > 0 for row in times)
    assert (out / "runs/listops/result.json").exists()


def test_gpu_check_refuses_a_folder_with_results(commands, tmp_path):
    (tmp_path / "results.jsonl").touch()
    done = commands.run("gpu_check.py", f"--out={tmp_path}", "--smoke")
    assert "is not empty" in refused(done)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_gpu_check_refuses_a_machine_without_an_accelerator(commands, tmp_path):
    done = commands.run("gpu_check.py", f"--out={tmp_path}/new")
    assert "JAX has no accelerator here" in refused(done)
    assert not (tmp_path / "new").exists()


def test_gpu_check_stage_makes_its_folder(commands, tmp_path):
    out = tmp_path / "new"
    done = commands.run("gpu_check.py", f"--out={out}", "--stage=device")
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "results.jsonl").read_text())["stage"] == "device"


def test_gpu_check_leaves_no_command_behind_when_a_signal_stops_it(commands, tmp_path):
    out = tmp_path / "check"
    process = commands.start("gpu_check.py", f"--out={out}", "--smoke")
    log = out / "logs/device.txt"
    while not log.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    lines = (out / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    statuses = {row["command"]: row["status"] for row in rows}
    assert statuses["device"] == "stopped by SIGTERM"
    assert statuses["correctness"] == "not begun: a signal came"
    assert not commands_with(str(out))


def commands_with(text):
    """The command lines that have a text, of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text().replace("\0", " ")
        except OSError:  # The process has ended.
            continue
        if text in line:
            lines.append(line)
    return lines


def run_shell(script, tmp_path, seconds=30.0):
    """The row of a shell's script that has so many seconds."""
    (tmp_path / "logs").mkdir()
    command = Command("mine", ["sh", "-c", script])
    deadline = time.monotonic() + seconds
    return run_command(command, deadline, tmp_path, StopFlag())


def test_run_command_says_how_it_ended(tmp_path):
    row = run_shell("echo no such kernel; exit 3", tmp_path)
    assert row["status"] == "failed, status 3: no such kernel"


def test_run_command_leaves_memory_to_those_beside_it(tmp_path):
    row = run_shell("echo $XLA_PYTHON_CLIENT_PREALLOCATE; exit 3", tmp_path)
    assert row["status"] == "failed, status 3: false"


def test_run_command_kills_what_a_process_that_has_saved_leaves_behind(tmp_path):
    script = f"sleep 1001 & echo $! > {tmp_path}/child; trap 'exit 0' TERM; wait"
    row = run_shell(script, tmp_path, seconds=1.0)
    assert row["status"] == "stopped at its limit"
    child = Path("/proc", (tmp_path / "child").read_text().strip())
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(child)


def test_run_stage_runs_one_command_after_another_if_asked_to(tmp_path):
    """As on a TPU: each command fails if it finds the file of another one."""
    (tmp_path / "logs").mkdir()
    lock = tmp_path / "lock"
    script = f"test ! -e {lock} && touch {lock} && sleep 0.3 && rm {lock}"
    commands = [Command(name, ["sh", "-c", script]) for name in ("first", "second")]
    run_stage("mine", commands, 60.0, tmp_path, StopFlag(), num_at_once=1)
    assert [row["status"] for row in read_rows(tmp_path)] == ["ok", "ok"]
    run_stage("mine", commands, 60.0, tmp_path, StopFlag(), num_at_once=2)
    statuses = [row["status"] for row in read_rows(tmp_path)[2:]]
    assert sorted(status.partition(",")[0] for status in statuses) == ["failed", "ok"]


def is_running(process):
    """Whether the process of a folder in /proc runs, and is no zombie."""
    try:
        return " Z " not in (process / "stat").read_text()
    except OSError:
        return False
