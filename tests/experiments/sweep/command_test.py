"""scripts/sweep.py as a person runs it: interrupted, resumed, retried, and misused."""

import json
import shlex
import signal
import time

import pytest
from etils import epath

from lra_tasks.task import get_task
from nystromformer.experiments.sweep.points import make_points, write_plan
from nystromformer.experiments.workdir import lock_workdir
from nystromformer.run_files import write_json
from tests.commands import ROOT, refused
from tests.small import SMALL, make_config

LISTOPS = f"--config={ROOT}/configs/listops.py:quick"
TINY = [x for x in SMALL if "num_landmarks" not in x]


@pytest.mark.slow
def test_sweep_is_interrupted_resumed_and_retried(commands, tmp_path):
    folder = commands.folder / "sweep"
    grid = "--grid=attention.name=nystrom,identity"
    args = [f"--workdir={folder}", "--tasks=listops", "--preset=quick", grid, *TINY]
    interrupted = folder / "listops-nystrom-seed0"
    failed = folder / "listops-identity-seed0"

    process = commands.start("sweep.py", *args)
    while not (interrupted / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    (line,) = err.split("\n")[1:-1]
    assert line.startswith("stopped by SIGINT as soon as all is saved; a second Ctrl-C")
    plan, *_, stopped = out.splitlines()
    assert plan == f"2 runs in {folder}: 2 to train"
    assert stopped == (
        "stopped by SIGINT; 0 of 2 done, 2 to train; the same command goes on"
    )
    assert "stopped by SIGTERM at step" in (interrupted / "log.txt").read_text()
    assert not failed.exists()
    done = commands.run("report.py", str(folder), f"--out={tmp_path}/report")
    assert done.stdout.startswith("0 of 2 runs are finished;"), done.stderr

    failed.mkdir()
    (failed / "failed.txt").write_text("status 2: error: no data")
    done = commands.run("sweep.py", *args)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        f"2 runs in {folder}: 1 failed, 1 to train",
        f"  to train  {interrupted.name}",
        f"  failed    {failed.name}: status 2: error: no data",
        f"{interrupted.name}: starts, its log is {interrupted}/log.txt",
    ]
    assert lines[-3].startswith(f"{interrupted.name}: done in 00:")
    assert lines[-2:] == [
        "1 of 2 done, 1 failed",
        "failed.txt in a run's folder says why; --retry runs it again",
    ]
    assert "resuming from step" in (interrupted / "log.txt").read_text()

    dry_run = commands.run("sweep.py", *args, "--retry", "--dry_run")
    *plan, command = dry_run.stdout.splitlines()
    assert plan == [
        f"# 2 runs in {folder}: 1 done, 1 to train",
        f"#   done      {interrupted.name}",
        f"#   to train  {failed.name}",
    ]
    assert failed.name in command
    before = (interrupted / "log.txt").stat().st_mtime_ns
    done = commands.run("sweep.py", *args, "--retry")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n2 of 2 done\n")
    assert (interrupted / "log.txt").stat().st_mtime_ns == before
    plan = json.loads((folder / "sweep.json").read_text())
    for run in (interrupted, failed):
        assert plan[run.name] == json.loads((run / "config.json").read_text())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([LISTOPS, "--tasks=text"], "give --config alone, or --tasks, --plan or both"),
        (["--tasks=chess"], "chess.py; configs are "),
        ([LISTOPS, "--config.train.num_step=5"], "known: train.num_steps"),
        ([LISTOPS, "--config.train.init_from=/no/run"], "/no/run is not a run"),
        (
            [LISTOPS, "--grid=init_from=pretrain"],
            "starts from listops-nystrom-pretrain-seed0, which this sweep does not tra",
        ),
        (
            [LISTOPS, "--grid=train.batch_size=8,16", "--config.train.batch_size=4"],
            "--grid and --config both set train.batch_size; leave one of them out",
        ),
        (
            ["--plan=landmarks", "--config.attention.num_landmarks=8"],
            "--plan and --config both set attention.num_landmarks",
        ),
        (
            ["--plan=landmarks", "--grid=attention.num_landmarks=8,16"],
            "--plan and --grid both set attention.num_landmarks",
        ),
        ([LISTOPS, "--workdir=gs://b/s"], "gs://b/s is not a local or mounted folder"),
        (
            ["--tasks=retrieval", "--config.task.data_dir=/no", "--seeds=2"],
            "no data for the runs of retrieval: /no has neither tsv_data nor ",
        ),
        ([LISTOPS, "--cluster=slurm", "--max_minutes=5"], "SLURM has --time"),
        ([LISTOPS, "--seed=1"], "Unknown command line flag 'seed'"),
        ([LISTOPS, "--time=30"], "--time is for SLURM: add --cluster=slurm"),
        ([LISTOPS, "--gpus=0"], "--gpus is for SLURM: add --cluster=slurm"),
        ([LISTOPS, "--script_line=x"], "--script_line is for SLURM: add --cluster=slu"),
    ],
)
def test_sweep_rejects_bad_input(commands, tmp_path, flags, message):
    done = commands.run("sweep.py", f"--workdir={tmp_path}/x", *flags)
    assert message in refused(done)
    assert not list(tmp_path.iterdir())


def test_sweep_ends_with_status_1_while_another_one_trains_a_run(commands, tmp_path):
    with lock_workdir(epath.Path(tmp_path / "listops-nystrom-seed0")):
        done = commands.run("sweep.py", f"--workdir={tmp_path}", LISTOPS)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        f"1 run in {tmp_path}: 1 in progress elsewhere",
        "  in progress elsewhere  listops-nystrom-seed0",
        "0 of 1 done, 1 in progress elsewhere",
    ]


def test_sweep_refuses_the_finished_run_of_another_config(commands, tmp_path):
    finished = tmp_path / "listops-softmax-seed0"
    finished.mkdir()
    write_json(finished / "config.json", make_config("softmax,quick").to_mapping())
    result = {"metric": "accuracy", "test_accuracy": 0.5}
    write_json(finished / "result.json", result)
    args = [f"--workdir={tmp_path}", "--tasks=listops", "--grid=attention.name=softmax"]
    assert "max_args is 6 there, 10 here" in refused(commands.run("sweep.py", *args))
    done = commands.run("sweep.py", *args, "--preset=quick")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n1 of 1 done\n")


@pytest.mark.slow
def test_sweep_leaves_out_the_runs_without_data(commands, tmp_path):
    """Prepared data need no source: the other run starts, and finds them damaged."""
    folder = tmp_path / "sweep"
    args = ["--tasks=retrieval,text", "--preset=smoke", f"--workdir={folder}"]
    args += [f"--config.task.data_dir={tmp_path}/data", "--seeds=2"]
    get_task("text").folder(tmp_path / "data").mkdir(parents=True)
    done = commands.run("sweep.py", *args)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("error: no data for the runs of retrieval: ") == 1
    assert "retrieval-nystrom-seed0: starts" not in done.stdout
    assert "text-nystrom-seed0: starts" in done.stdout
    assert "is damaged or no dataset of text" in done.stdout
    assert "0 of 4 done, 4 failed" in done.stdout
    reason = (folder / "retrieval-nystrom-seed1/failed.txt").read_text()
    assert reason.startswith("no data for the runs of retrieval: ")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.train.init_from=/no/run", "/no/run is not a run"),
        ("--cluster=slurm", "this machine has no sbatch"),
    ],
)
def test_sweep_that_cannot_retry_keeps_the_record_of_the_failure(
    commands, tmp_path, flag, message
):
    record = tmp_path / "listops-nystrom-seed0" / "failed.txt"
    record.parent.mkdir()
    record.write_text("status 2: error: no data")
    workdir = f"--workdir={tmp_path}"
    commands = commands.with_env(PATH="")  # a machine without SLURM
    done = commands.run("sweep.py", workdir, LISTOPS, flag, "--retry")
    assert message in refused(done)
    assert record.exists()


# Keeps the script of the job, as SLURM would.
SBATCH = """#!/bin/sh
/bin/cat "$1" >> "$SUBMITTED"
echo Submitted batch job 7
"""


@pytest.fixture
def slurm(commands, tmp_path):
    """The commands on a machine whose SLURM appends submitted scripts to job.sh."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(SBATCH)
        (programs / name).chmod(0o755)
    return commands.with_env(PATH=str(programs), SUBMITTED=f"{tmp_path}/job.sh")


def test_sweep_goes_on_with_a_begun_run_whose_source_is_gone(slurm, tmp_path):
    file = f"{ROOT}/configs/listops.py"
    init_from = {"train.init_from": "/gone"}
    [point] = make_points([file], [{}], presets="quick", changes=init_from)
    workdir = tmp_path / "sweep" / point.name
    args = [f"--workdir={workdir.parent}", LISTOPS, "--config.train.init_from=/gone"]
    args.append("--cluster=slurm")
    assert "/gone is not a run" in refused(slurm.run("sweep.py", *args))

    write_plan([point], workdir.parent)
    (workdir / "checkpoints" / "20").mkdir(parents=True)
    write_json(workdir / "config.json", point.planned_config(workdir.parent))
    done = slurm.run("sweep.py", *args)
    assert done.returncode == 0, done.stderr
    assert "\nsubmitted 1 run as job 7; squeue shows it\n" in done.stdout


def test_sweep_submits_to_slurm_what_its_flags_say(slurm, tmp_path):
    cluster = [
        *("--cluster=slurm", "--partition=gpu", "--time=30", "--gpus=2"),
        *("--account=lab", "--qos=long", "--constraint=a100", "--cpus=8"),
        *("--memory=64", "--script_line=module load cuda"),
    ]
    arguments = [LISTOPS, "--seeds=5", "--max_parallel=3", *cluster]
    arguments.append(f"--workdir={tmp_path}/sweep")
    dry_run = slurm.run("sweep.py", *arguments, "--dry_run")
    assert (dry_run.returncode, dry_run.stderr) == (0, "")
    assert not (tmp_path / "job.sh").exists()
    assert not (tmp_path / "sweep").exists()
    done = slurm.run("sweep.py", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    submitted = done.stdout.splitlines()[6:]
    assert submitted == [
        "submitted 5 runs as job 7; squeue shows it",
        *(
            f"  7_{seed}  {tmp_path}/sweep/listops-nystrom-seed{seed}/log.txt"
            for seed in range(5)
        ),
    ]
    script = (tmp_path / "job.sh").read_text()
    assert dry_run.stdout.endswith(f"\n# A job for 5 runs:\n{script}\n")
    lines = script.splitlines()
    assert "module load cuda" in lines
    options = {line.removeprefix("#SBATCH ") for line in lines if "SBATCH" in line}
    assert options >= {
        "--array=0-4%3",
        "--partition=gpu",
        "--time=30",
        "--gpus-per-node=2",
        "--account=lab",
        "--qos=long",
        "--constraint=a100",
        "--cpus-per-task=8",
        "--mem=64GB",
        "--job-name=sweep",
    }
    plan = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert list(plan) == [f"listops-nystrom-seed{seed}" for seed in range(5)]


def test_sweep_passes_changes_on_to_every_run(commands, tmp_path):
    changes = ["--config.train.num_steps=700", "--config.optimizer.cycle_b1=true"]
    done = commands.run(
        "sweep.py", f"--workdir={tmp_path}", *changes, "--dry_run", LISTOPS
    )
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout, comments=True)
    assert set(changes) < {word for word in words if word.startswith("--config.")}
    assert not list(tmp_path.iterdir())


def test_sweep_dry_run_prints_commands_that_can_be_copied(tmp_path, commands):
    done = commands.run(
        "sweep.py",
        f"--workdir={tmp_path}/x y",
        "--plan=table3",
        "--tasks=listops,image",
        "--preset=quick",
        "--dry_run",
        "--config.task.data_dir=/a b",
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"# 30 runs in {tmp_path}/x y: 30 to train"
    words = [shlex.split(line) for line in lines if not line.startswith("#")]
    attentions = ("nystrom", "softmax", "linformer", "performer", "reformer")
    rows = [f"{task}-{name}" for name in attentions for task in ("listops", "image")]
    names = [f"{row}-seed{seed}" for seed in (0, 1, 2) for row in rows]
    workdirs = [f"--workdir={tmp_path}/x y/{name}" for name in names]
    assert [line_words[-1] for line_words in words] == workdirs
    assert all("--config.task.data_dir=/a b" in line_words for line_words in words)
    assert not list(tmp_path.iterdir())


def test_sweep_says_which_seeds_go_together(commands, slurm, tmp_path):
    args = [f"--workdir={tmp_path}/x", LISTOPS, "--seeds=2", "--seeds_together"]
    args += ["--grid=attention.name=nystrom,linear", "--dry_run"]
    done = commands.run("sweep.py", *args)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[5:7] == [
        f"#   together: listops-{name}-seed0, listops-{name}-seed1"
        for name in ("nystrom", "linear")
    ]
    assert [shlex.split(line)[-2:] for line in lines[7:]] == [
        ["--seeds=0,1", f"--workdir={tmp_path}/x/listops-{name}-seed{{seed}}"]
        for name in ("nystrom", "linear")
    ]
    job = slurm.run("sweep.py", *args, "--cluster=slurm")
    assert "# A job for 4 runs:" in job.stdout, job.stderr
    assert "#SBATCH --array=0-1%2\n" in job.stdout


@pytest.mark.slow
def test_sweep_trains_seeds_together(commands, tmp_path):
    args = [f"--workdir={tmp_path}", LISTOPS, "--seeds=3", "--seeds_together", *TINY]
    names = [f"listops-nystrom-seed{seed}" for seed in range(3)]
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[0] / "failed.txt").write_text("status 2: error: no data")
    done = commands.run("sweep.py", *args)
    assert (done.returncode, done.stderr) == (1, "")
    log = tmp_path / names[1] / "log.txt"
    assert f"{names[1]}, {names[2]}: start together, their log is {log}" in done.stdout
    assert done.stdout.count(": done in 00:") == 2
    retried = commands.run("sweep.py", *args, "--retry")
    assert (retried.returncode, retried.stderr) == (0, "")
    assert retried.stdout.endswith("\n3 of 3 done\n")
