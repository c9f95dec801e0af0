"""A cluster of one machine: sbatch, srun, squeue, sacct, scancel and scontrol.

One file under six names on PATH. It keeps one JSON file a job in $FAKE_SLURM and does
what the real ones do for arrays, states, signals, preemption and requeuing; a signal to
a job reaches every process of its step, as with SLURM's control groups.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ.get("FAKE_SLURM", "."))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"}


def read(job: str) -> dict:
    return json.loads((ROOT / f"{job}.json").read_text())


def update(job: str, **changes: object) -> None:
    path = ROOT / f"{job}.json"
    record = json.loads(path.read_text()) if path.exists() else {"starts": 0}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({**record, **changes}))
    temporary.replace(path)


def jobs() -> dict[str, dict]:
    return {path.stem: read(path.stem) for path in sorted(ROOT.glob("*.json"))}


def descendants(pid: int) -> list[int]:
    """All processes below one, the nearest first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, level = [], [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def send(job: str, signum: int) -> None:
    """To what srun has started, whichever sessions it has made since."""
    for pid in descendants(read(job)["step"]):
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def preempt(job: str, grace: float) -> None:
    """SIGCONT and SIGTERM, SIGKILL after the grace time, and back into the queue.

    A job that has ended by then has ended.
    """
    send(job, signal.SIGCONT)
    send(job, signal.SIGTERM)
    time.sleep(grace)
    if read(job)["state"] == "RUNNING":
        update(job, requeue=True)
        send(job, signal.SIGKILL)


def sbatch(script: str) -> None:
    text = Path(script).read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    number = str(100 + len(list(ROOT.glob("*.sbatch"))))
    (ROOT / f"{number}.sbatch").write_text(text)
    tasks, limit = [""], 1
    if array := re.fullmatch(r"'?0-(\d+)%(\d+)'?", options.get("array", "")):
        tasks, limit = [f"_{i}" for i in range(int(array[1]) + 1)], int(array[2])
    for task in tasks:
        update(number + task, state="PENDING")
    controller = [sys.executable, __file__, "control", number, str(limit)]
    with open(ROOT / "control.log", "ab") as log:
        subprocess.Popen(controller, stdout=log, stderr=log, start_new_session=True)
    print(f"Submitted batch job {number}")


def control(number: str, limit: str) -> None:
    """Starts the pending tasks of a job, and follows them to their end."""
    running: dict[str, subprocess.Popen] = {}
    while True:
        ours = {k: v for k, v in jobs().items() if k.split("_")[0] == number}
        for job, record in ours.items():
            if record["state"] == "PENDING" and len(running) < int(limit):
                running[job] = start(job)
        for job, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            record = read(job)
            if record.get("requeue"):
                update(job, state="PENDING", requeue=False)
            elif record["state"] not in ENDED:
                state = "FAILED" if process.returncode else "COMPLETED"
                update(job, state=state)
        if all(record["state"] in ENDED for record in ours.values()):
            return
        time.sleep(0.05)


def start(job: str) -> subprocess.Popen:
    number, _, task = job.partition("_")
    env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_PROCID": "0"}
    if task:
        env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task}
        env["SLURM_JOB_ID"] = str(1000 + int(task))  # each task has one of its own
    update(job, state="RUNNING", starts=read(job)["starts"] + 1)
    script = ["bash", str(ROOT / f"{number}.sbatch")]
    return subprocess.Popen(script, env=env, start_new_session=True)


def srun(*words: str) -> None:
    """Runs the command with its output in the files that the options name."""
    rest = list(words)
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option in ("--output", "--error"):
            name = rest.pop(0).replace("%t", "0")
            name = name.replace("%A", os.environ.get("SLURM_ARRAY_JOB_ID", ""))
            name = name.replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", ""))
            name = name.replace("%j", os.environ["SLURM_JOB_ID"])
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1 if option == "--output" else 2)
    array, task = (os.environ.get(f"SLURM_ARRAY_{x}_ID") for x in ("JOB", "TASK"))
    update(f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"], step=os.getpid())
    sys.exit(subprocess.run(rest, check=False).returncode % 256)


def squeue(*options: str) -> None:
    assert options == ("--me", "--array", "--noheader", "--format=%i %T"), options
    for job, record in jobs().items():
        if record["state"] not in ENDED:
            print(job, record["state"])
    (ROOT / "squeue.called").touch()


def sacct(*options: str) -> None:
    assert options[:3] == ("-o", "JobID,State,NodeList", "--parsable2"), options
    print("JobID|State|NodeList")
    for job, record in jobs().items():
        if job.split("_")[0] in options:
            by = " by 0" if record["state"] == "CANCELLED" else ""
            print(f"{job}|{record['state']}{by}|node1")
            print(f"{job}.batch|{record['state']}|node1")


def scancel(number: str) -> None:
    for job, record in jobs().items():
        if number in (job, job.split("_")[0]) and record["state"] not in ENDED:
            update(job, state="CANCELLED")
            if record["state"] == "RUNNING":
                send(job, signal.SIGCONT)
                send(job, signal.SIGTERM)
                time.sleep(1.0)
                send(job, signal.SIGKILL)


def scontrol(verb: str, job: str) -> None:
    assert verb == "requeue"
    assert read(job)["state"] == "RUNNING"
    update(job, requeue=True)


if __name__ == "__main__":
    command, words = Path(sys.argv[0]).name, sys.argv[1:]
    if words[0] == "control":
        command, *words = words
    globals()[command](*words)
