"""The commands of `make` are those that the pages promise, and CI runs the checks."""

import os
import re
import shlex
import subprocess

import pytest

from tests.commands import ROOT


def planned_commands(target: str, *settings: str) -> list[str]:
    """The scripts that a target would start, with the Python of this machine."""
    # What an outer make has left would change this one.
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    words = ["make", "--no-print-directory", "--dry-run", target, "RUN=python3"]
    done = subprocess.run(
        [*words, *settings],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.replace("\\\n", "").splitlines()
    scripts = [line for line in lines if line.startswith("python3 scripts/")]
    return [" ".join(shlex.split(line)) for line in scripts]


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (
            ["train"],
            [
                "train.py --config=configs/listops.py:nystrom,quick "
                "--workdir=runs/listops-quick",
            ],
        ),
        (
            ["paper", "DATA=/data", "SWEEP=--retry"],
            [
                "prepare_data.py --task=listops --task=text --task=retrieval "
                "--task=image --task=pathfinder --data_dir=/data",
                "sweep.py --workdir=runs/paper --plan=table3 --plan=landmarks "
                "--plan=ablations --config.task.data_dir=/data --retry",
                "report.py runs/paper --out=results/paper",
            ],
        ),
        (
            ["speed", "PEERS=--peers"],
            ["benchmark.py --table=paper --out=results/speed --peers"],
        ),
        (["gpu-check"], ["gpu_check.py --out=runs/gpu-check"]),
    ],
    ids=["train", "paper", "speed", "gpu-check"],
)
def test_make_starts_the_scripts(words, commands):
    assert planned_commands(*words) == [f"python3 scripts/{x}" for x in commands]


@pytest.mark.parametrize("target", ["lint", "test"])
def test_ci_runs_lint_and_all_fast_tests(target):
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    calls = [line for line in lines if not line.lstrip().startswith("#")]
    assert any(re.search(rf"\bmake (.* )?{target}( |$)", line) for line in calls)
