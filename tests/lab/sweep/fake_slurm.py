"""A cluster of one machine: sbatch, srun, squeue, sacct and scontrol in one file.

It keeps the state of each job in a file of $FAKE_SLURM, and starts a job again that was
put back into the queue.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("FAKE_SLURM", "."))


def sbatch(script: str) -> None:
    text = Path(script).read_text()
    number = str(100 + len(list(ROOT.glob("*.sbatch"))))
    (ROOT / f"{number}.sbatch").write_text(text)
    array = re.search(r"--array='?0-(\d+)%", text)
    for task in [f"_{i}" for i in range(int(array[1]) + 1)] if array else [""]:
        (ROOT / f"{number}{task}.state").write_text("PENDING")
        follow = [sys.executable, __file__, "follow", number + task]
        with open(ROOT / "log", "ab") as log:
            subprocess.Popen(follow, stdout=log, stderr=log, start_new_session=True)
    print(f"Submitted batch job {number}")


def follow(job: str) -> None:
    number, _, task = job.partition("_")
    env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_PROCID": "0", "JOB": job}
    if task:
        env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task}
        env["SLURM_JOB_ID"] = str(1000 + int(task))  # each task has one of its own
    state, again = ROOT / f"{job}.state", ROOT / f"{job}.requeue"
    while state.read_text() == "PENDING":
        state.write_text("RUNNING")
        code = subprocess.call(["bash", ROOT / f"{number}.sbatch"], env=env)
        state.write_text(
            "PENDING" if again.exists() else "FAILED" if code else "COMPLETED"
        )
        again.unlink(missing_ok=True)


def srun(*words: str) -> None:
    """Becomes the command; what it writes goes into the log."""
    rest = list(words)
    while rest[0].startswith("--"):
        if rest.pop(0) in ("--output", "--error"):
            rest.pop(0)
    (ROOT / f"{os.environ['JOB']}.pid").write_text(str(os.getpid()))
    os.execvp(rest[0], rest)


def states() -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(ROOT.glob("*.state"))}


def squeue(*options: str) -> None:
    assert options == ("--me", "--array", "--noheader", "--format=%i %T"), options
    for job, state in states().items():
        if state in ("PENDING", "RUNNING"):
            print(job, state)


def sacct(*options: str) -> None:
    assert options[:3] == ("-o", "JobID,State,NodeList", "--parsable2"), options
    print("JobID|State|NodeList")
    for job, state in states().items():
        print(f"{job}|{state}|node1\n{job}.batch|{state}|node1")


def scontrol(verb: str, job: str) -> None:
    assert verb == "requeue"
    (ROOT / f"{job}.requeue").touch()


if __name__ == "__main__":
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if words[0] == "follow":
        name, *words = words
    globals()[name](*words)
