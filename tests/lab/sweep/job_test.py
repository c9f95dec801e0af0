"""What runs inside a job; how SLURM stops one and brings it back: slurm_test."""

import pickle
import sys

import pytest

from nystromformer.lab.sweep import job
from nystromformer.lab.sweep.job import Job
from nystromformer.lab.sweep.process import failure


def run(workdir, program: str) -> None:
    Job([sys.executable, "-c", program], workdir)()


def test_the_status_of_a_job_is_that_of_a_run_that_failed(tmp_path, monkeypatch):
    waited = []
    sleep = job.time.sleep

    def count(seconds):
        waited.append(seconds)
        sleep(min(seconds, 0.1))

    monkeypatch.setattr(job.time, "sleep", count)
    run(tmp_path / "new", "print('done')")
    assert (tmp_path / "new" / "log.txt").read_text() == "done\n"
    run(tmp_path, "raise SystemExit(142)")  # its own time limit: to be carried on
    assert job.SECONDS_TO_SAVE not in waited
    for program in ("raise SystemExit(143)", "import os; os.kill(os.getpid(), 15)"):
        waited.clear()
        run(tmp_path, program)  # SLURM's doing, which follows it up
        assert waited[-1] == job.SECONDS_TO_SAVE
    for program, status in (("raise SystemExit(2)", 2), ("import os; os.abort()", 6)):
        with pytest.raises(SystemExit) as left:
            run(tmp_path, program)
        assert left.value.code == status
    assert failure(tmp_path) == "killed by SIGABRT"


def test_what_is_queued_again_is_the_same_command_not_begun(tmp_path):
    first = Job([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    submission = first.checkpoint()  # warned before it has started
    again = pickle.loads(pickle.dumps(submission.function))
    assert (again.command, again.workdir) == (first.command, first.workdir)
    assert again.process is None
