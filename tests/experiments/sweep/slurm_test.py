"""The path through SLURM, on a cluster of one machine."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.sweep import slurm
from nystromformer.experiments.sweep.process import failure
from nystromformer.experiments.sweep.slurm import Job, run_on_slurm
from nystromformer.experiments.sweep.status import Status, state
from tests.experiments.sweep import fake_slurm
from tests.experiments.sweep.conftest import LONG

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The commands on PATH; gives the folder of their jobs."""
    bin_folder = tmp_path / "cluster" / "bin"
    bin_folder.mkdir(parents=True)
    program = Path(fake_slurm.__file__).read_text()
    for name in ("sbatch", "srun", "squeue", "sacct", "scontrol"):
        (bin_folder / name).write_text(f"#!{sys.executable}\n{program}")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(bin_folder.parent))
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_LOOKS", 0.2)
    return bin_folder.parent


def run(points, folder):
    job = {"partition": "gpu", "time": 90, "gpus_per_node": 1}
    line = Status(points, folder)
    try:
        run_on_slurm(points, folder, line, job, None)
    finally:
        line.bar.close()


def test_an_array_saves_when_it_has_to_leave_and_comes_back(
    stub, tmp_path, cluster, capsys
):
    folder = tmp_path / "sweep"
    points = [stub("a", LONG), stub("b", "raise SystemExit('error: no data')")]

    def when_started(act):
        while not (folder / "a" / "started").exists():
            time.sleep(0.05)
        act()

    leave = threading.Thread(
        target=when_started, args=[lambda: os.kill(os.getpid(), signal.SIGINT)]
    )
    leave.start()
    with pytest.raises(SystemExit, match="130"):  # Ctrl-C leaves the jobs
        run(points, folder)
    leave.join()
    assert "scancel 100 saves and stops them" in capsys.readouterr().out
    # Its time is up.
    os.kill(int((cluster / "100_0.pid").read_text()), signal.SIGUSR2)
    run(points, folder)  # watches, and submits what has ended
    assert (folder / "a" / "saved").exists()
    assert [state(folder / point.name) for point in points] == ["done", "failed"]
    assert failure(folder / "b") == "error: no data"
    script = (cluster / "100.sbatch").read_text()
    for line in (
        *("--array=0-1%2", "--partition=gpu", "--time=90", "--gpus-per-node=1"),
        *("--requeue", "--signal=USR2@120", "--job-name=sweep"),
    ):
        assert f"#SBATCH {line}\n" in script


def test_what_slurm_refuses_or_ends_without_a_word_is_one_line(stub, tmp_path, cluster):
    srun = "#!/bin/sh\nexit 1\n"  # a node without this Python, say
    (cluster / "bin" / "srun").write_text(srun)
    run([stub("a")], tmp_path / "sweep")
    assert failure(tmp_path / "sweep" / "a") == "SLURM job 100: FAILED"
    refusing = "#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2\nexit 1\n"
    (cluster / "bin" / "sbatch").write_text(refusing)
    with pytest.raises(ConfigError, match=r"^[^\n]*invalid partition: gpu[^\n]*$"):
        run([stub("b")], tmp_path / "sweep")


def test_a_job_waits_for_slurm_after_its_sigterm_and_fails_as_its_run(
    tmp_path, monkeypatch
):
    waited = []
    monkeypatch.setattr(slurm.time, "sleep", waited.append)
    for status, last in ((142, 0.5), (143, slurm.SECONDS_TO_SAVE), (2, 0.5)):
        job = Job([sys.executable, "-c", f"raise SystemExit({status})"], tmp_path)
        with contextlib.suppress(SystemExit):
            job()
            assert status != 2
        assert waited[-1] == last
