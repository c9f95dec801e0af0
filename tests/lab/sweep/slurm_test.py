"""The path through SLURM, on a cluster that behaves like the real one."""

import json
import os
import pickle
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.sweep import slurm
from nystromformer.lab.sweep.process import failure
from nystromformer.lab.sweep.slurm import Job, check_slurm, run_on_slurm
from nystromformer.lab.sweep.status import state
from tests.lab.sweep import fake_slurm
from tests.lab.sweep.conftest import FINISH

pytestmark = pytest.mark.slow

# Is stopped at its first start, when it saves; goes on at its second.
LONG = f"""
import os, signal, sys, time
def save(*_):
    open(workdir + "/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(workdir + "/started", "w").close()
if not os.path.exists(workdir + "/saved"):
    time.sleep(120)
{FINISH}
"""


@pytest.fixture(autouse=True)
def cluster(tmp_path, monkeypatch):
    """The commands on PATH; gives the folder of their jobs."""
    folder = tmp_path / "cluster"
    (folder / "bin").mkdir(parents=True)
    program = Path(fake_slurm.__file__).read_text()
    for name in ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol"):
        path = folder / "bin" / name
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    monkeypatch.setattr(fake_slurm, "ROOT", folder)
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_LOOKS", 0.2)
    yield folder
    for job, record in fake_slurm.jobs().items():
        if record["state"] == "RUNNING":
            fake_slurm.send(job, signal.SIGKILL)
            fake_slurm.update(job, state="FAILED")


def when(path: Path, action) -> threading.Thread:
    """Does it, in a thread, as soon as there is such a file."""

    def wait_and_act():
        while not path.exists():
            time.sleep(0.05)
        action()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


def run(points, folder, status, **parameters):
    folder.mkdir(exist_ok=True)
    line = status(points)
    line.folder = folder
    run_on_slurm(points, folder, line, parameters, max_minutes=None)


def test_an_array_is_run_and_what_fails_says_why(stub, status, tmp_path, cluster):
    folder = tmp_path / "sweep"
    points = [stub("a"), stub("b", "raise SystemExit('error: no data')"), stub("c")]
    run(points, folder, status, partition="gpu", time=90, gpus_per_node=1)
    assert [state(folder / p.name) for p in points] == ["done", "failed", "done"]
    assert failure(folder / "b") == "error: no data"
    states = {job: record["state"] for job, record in fake_slurm.jobs().items()}
    assert states == {"100_0": "COMPLETED", "100_1": "FAILED", "100_2": "COMPLETED"}

    script = (cluster / "100.sbatch").read_text()
    for line in (
        "--array=0-2%3",
        "--partition=gpu",
        "--time=90",
        "--gpus-per-node=1",
        "--requeue",
        "--signal=USR2@120",
        "--job-name=sweep",
    ):
        assert f"#SBATCH {line}\n" in script


@pytest.mark.parametrize("how", ["preempted", "out of time"])
def test_a_job_that_has_to_leave_saves_and_comes_back(
    stub, status, tmp_path, cluster, how
):
    folder = tmp_path / "sweep"
    points = [stub("a", LONG), stub("b")]
    if how == "preempted":
        act = lambda: fake_slurm.preempt("100_0", grace=4.0)  # noqa: E731
    else:
        act = lambda: fake_slurm.send("100_0", signal.SIGUSR2)  # noqa: E731
    thread = when(folder / "a" / "started", act)
    run(points, folder, status, array_parallelism=1)
    thread.join()
    assert (folder / "a" / "saved").exists()
    assert [state(folder / p.name) for p in points] == ["done", "done"]
    records = fake_slurm.jobs()
    assert (records["100_0"]["starts"], records["100_1"]["starts"]) == (2, 1)
    assert "#SBATCH --array=0-1%1\n" in (cluster / "100.sbatch").read_text()


def test_ctrl_c_leaves_the_jobs_and_the_same_command_watches_them_again(
    stub, status, tmp_path, cluster, capsys
):
    folder = tmp_path / "sweep"
    points = [stub("a", LONG), stub("b")]
    thread = when(folder / "a" / "started", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit) as left:
        run(points, folder, status)
    thread.join()
    assert left.value.code == 130
    assert "scancel 100 stops them" in capsys.readouterr().out
    assert fake_slurm.read("100_0")["state"] == "RUNNING"

    (cluster / "squeue.called").unlink()
    thread = when(cluster / "squeue.called", lambda: fake_slurm.scancel("100"))
    run(points[:1], folder, status)  # b may be done; watches until it is cancelled
    thread.join()
    assert len(list(cluster.glob("*.sbatch"))) == 1
    assert (folder / "a" / "saved").exists()
    assert state(folder / "a") == "waiting"  # to be submitted again

    run(points[:1], folder, status)
    assert state(folder / "a") == "done"
    assert json.loads((folder / "slurm" / "jobs.json").read_text())["a"] == "101"


def test_a_job_that_slurm_ends_without_a_word_has_failed(
    stub, status, tmp_path, cluster
):
    folder = tmp_path / "sweep"

    def run_out_of_memory():
        fake_slurm.update("100", state="OUT_OF_MEMORY")
        fake_slurm.send("100", signal.SIGKILL)

    thread = when(folder / "a" / "started", run_out_of_memory)
    run([stub("a", LONG)], folder, status)
    thread.join()
    assert failure(folder / "a") == "SLURM job 100: OUT_OF_MEMORY"


def test_a_job_that_fails_before_its_point_begins_is_recorded(
    status, stub, tmp_path, cluster
):
    folder = tmp_path / "sweep"
    refusing = "#!/bin/sh\nexit 1\n"  # a node without this Python, say
    (cluster / "bin" / "srun").write_text(refusing)
    run([stub("a")], folder, status)
    assert failure(folder / "a") == "SLURM job 100: FAILED"


def test_a_machine_without_slurm_is_an_error(monkeypatch, tmp_path):
    check_slurm()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="this machine has no sbatch, squeue, sacct"):
        check_slurm()


def test_what_slurm_refuses_is_one_line(stub, status, tmp_path, cluster, capsys):
    refusing = "#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2\nexit 1\n"
    (cluster / "bin" / "sbatch").write_text(refusing)
    with pytest.raises(ConfigError, match="sbatch: error: invalid partition: gpu") as e:
        run([stub("a")], tmp_path / "sweep", status, partition="gpu")
    assert re.fullmatch(r"[^\n]*", str(e.value))
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "sweep" / "slurm" / "jobs.json").exists()


def test_jobs_that_are_none_are_one_line(stub, status, tmp_path):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"jobs.json is no list of jobs; delete it"):
        run([stub("a")], tmp_path, status)


@pytest.mark.parametrize("failures", [slurm.FAILED_LOOKS, 1000])
def test_a_queue_that_does_not_answer_is_asked_again_for_a_while(
    stub, status, tmp_path, monkeypatch, failures
):
    answers, queue = [], slurm._queue

    def ask():
        answers.append(not 0 < len(answers) <= failures)
        if not answers[-1]:
            raise ConfigError("squeue: Unable to contact slurm controller")
        return queue()

    monkeypatch.setattr(slurm, "_queue", ask)
    if failures == slurm.FAILED_LOOKS:
        run([stub("a")], tmp_path / "sweep", status)
        assert state(tmp_path / "sweep" / "a") == "done"
    else:
        with pytest.raises(ConfigError, match="Unable to contact slurm controller"):
            run([stub("a")], tmp_path / "sweep", status)
    assert answers.count(False) == min(failures, slurm.FAILED_LOOKS + 1)


def run_job(workdir, program: str) -> None:
    Job([sys.executable, "-c", program], workdir)()


def test_the_status_of_a_job_is_that_of_a_run_that_failed(tmp_path, monkeypatch):
    waited = []
    sleep = slurm.time.sleep

    def count(seconds):
        waited.append(seconds)
        sleep(min(seconds, 0.1))

    monkeypatch.setattr(slurm.time, "sleep", count)
    run_job(tmp_path / "new", "print('done')")
    assert (tmp_path / "new" / "log.txt").read_text() == "done\n"
    run_job(tmp_path, "raise SystemExit(142)")  # its own time limit: to be carried on
    assert slurm.SECONDS_TO_SAVE not in waited
    for program in ("raise SystemExit(143)", "import os; os.kill(os.getpid(), 15)"):
        waited.clear()
        run_job(tmp_path, program)  # SLURM's doing, which follows it up
        assert waited[-1] == slurm.SECONDS_TO_SAVE
    for program, status in (("raise SystemExit(2)", 2), ("import os; os.abort()", 6)):
        with pytest.raises(SystemExit) as left:
            run_job(tmp_path, program)
        assert left.value.code == status
    assert failure(tmp_path) == "killed by SIGABRT"


def test_what_is_queued_again_is_the_same_command_not_begun(tmp_path):
    first = Job([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    submission = first.checkpoint()  # warned before it has started
    again = pickle.loads(pickle.dumps(submission.function))
    assert (again.command, again.workdir) == (first.command, first.workdir)
    assert again.process is None
