"""A cluster of one machine: its commands in one file, its jobs' states in others.

A job that was put back into the queue is started again.
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
        (ROOT / f"{number}{task}.state").write_text("RUNNING")
        follow = [sys.executable, __file__, "follow", number + task]
        with open(ROOT / "log", "ab") as log:
            subprocess.Popen(follow, stdout=log, stderr=log, start_new_session=True)
    print(f"Submitted batch job {number}")


def follow(job: str) -> None:
    number, _, task = job.partition("_")
    env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_PROCID": "0", "JOB": job}
    if task:
        env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task}
    state = "REQUEUED"
    while state == "REQUEUED":
        (ROOT / f"{job}.state").write_text("RUNNING")
        failed = subprocess.call(["bash", ROOT / f"{number}.sbatch"], env=env)
        if (state := (ROOT / f"{job}.state").read_text()) == "RUNNING":
            state = "FAILED" if failed else "COMPLETED"
            (ROOT / f"{job}.state").write_text(state)


def srun(*words: str) -> None:
    """Becomes the command; what it writes goes into the log."""
    rest = list(words)
    while rest[0].startswith("--"):
        if rest.pop(0) in ("--output", "--error"):
            rest.pop(0)
    (ROOT / f"{os.environ['JOB']}.pid").write_text(str(os.getpid()))
    os.execvp(rest[0], rest)


def squeue(*_: str) -> None:
    for path in ROOT.glob("*.state"):
        if path.read_text() in ("RUNNING", "REQUEUED"):
            print(path.stem, path.read_text())


def sacct(*_: str) -> None:
    print("JobID|State|NodeList")
    for path in ROOT.glob("*.state"):
        print(f"{path.stem}|{path.read_text()}|node1")


def scontrol(verb: str, job: str) -> None:
    (ROOT / f"{job}.state").write_text("REQUEUED")


if __name__ == "__main__":
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if words[0] == "follow":
        name, *words = words
    globals()[name](*words)
