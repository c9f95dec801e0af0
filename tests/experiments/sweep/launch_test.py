"""Sweeps of points whose process is a line of Python: here, and on a fake cluster."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import submitit

from nystromformer.errors import ConfigError, Interrupted
from nystromformer.experiments.sweep import progress
from nystromformer.experiments.sweep.launch import Job, run_locally
from nystromformer.experiments.sweep.points import Point
from nystromformer.experiments.sweep.progress import find_state
from nystromformer.experiments.sweep.slurm import (
    SlurmJob,
    check_slurm,
    run_on_slurm,
    slurm_scripts,
)
from nystromformer.experiments.workdir import lock_workdir
from tests.small import make_config

CONFIG = make_config("quick")
RESULT = '{"metric": "accuracy", "test_accuracy": 0.25}'
FINISH = f"open(workdir + '/result.json', 'w').write({RESULT!r})"


def lines_that_signal(signum: signal.Signals) -> str:
    """Their first start sends a signal to the sweep, and saves when asked to stop."""
    return f"""
import os, signal, sys, time
def save(*_):
    open(workdir + "/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
if not os.path.exists(workdir + "/saved"):
    os.kill(os.getppid(), {signum.value})
    time.sleep(60)
{FINISH}
"""


@dataclasses.dataclass(frozen=True)
class Stub(Point):
    """A point that runs these lines, in which `workdir` is its folder."""

    lines: str = FINISH

    def command(self, folder: Path) -> list[str]:
        program = f"workdir = {str(folder / self.name)!r}\n{self.lines}"
        return [sys.executable, "-c", program]


def stub(name: str, lines: str = FINISH, source: str | None = None) -> Stub:
    return Stub(name, (), CONFIG, source, lines)


def states(points, folder):
    return [find_state(folder / point.name) for point in points]


@pytest.fixture
def usual_output(monkeypatch):
    """Python writes stdout to a file late and stderr at once, unless this is set."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.mark.usefixtures("usual_output")
def test_run_locally_records_failures_and_runs_the_others(tmp_path, capfd):
    points = [
        stub("a", "print('one'); raise SystemExit('error: no data')"),
        stub("b"),
        stub("c", source="b"),
        stub("d", source="a"),
        stub("e", "print('step 5'); import os; os.kill(os.getpid(), 9)"),
        # This status says that a run has saved and can go on.
        stub("f", "raise SystemExit(142)"),
        # It is stopped before it can save, and can begin again.
        stub("g", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    ]
    run_locally(points, tmp_path)
    assert states(points, tmp_path) == [
        "failed",
        "done",
        "done",
        "waiting",
        "failed",
        "waiting",
        "waiting",
    ]
    assert (tmp_path / "a" / "failed.txt").read_text() == "status 1: error: no data"
    ends = {}
    for line in capfd.readouterr().out.splitlines():
        name, colon, text = line.partition(": ")
        if colon and not text.startswith("starts"):
            ends[name] = text
    assert ends["a"] == "failed: status 1: error: no data"
    assert ends["b"].startswith("done in 00:0")
    assert ends["b"].endswith(", test accuracy 25.00%")
    assert ends["c"] == ends["b"]
    assert ends["d"] == "left out, since a, from which it starts, is not done"
    killed = "failed: killed by SIGKILL, as systems do where memory runs out"
    assert ends["e"].startswith(killed)
    assert ends["e"].endswith("; its last line: step 5")
    assert ends["f"] == ends["g"] == "stopped; the same command goes on with it"


# It trains 5 of 20 steps, and waits until the sweep has said so.
TRAIN = f"""
import pathlib, time
folder = pathlib.Path(workdir)
(folder / "config.json").write_text('{{"train": {{"num_steps": 20}}}}')
(folder / "metrics.jsonl").write_text('{{"step": 2}}\\n{{"step": 5}}\\n{{"st')
time.sleep(0.6)
{FINISH}
"""


def test_run_locally_says_what_goes_on(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result.json").write_text(RESULT)
    run_locally([stub("a"), stub("b", TRAIN), stub("c")], tmp_path)
    lines = capfd.readouterr().out.splitlines()
    assert f"b: starts, its log is {tmp_path}/b/log.txt" in lines
    bars = [line for line in lines if "|" in line]
    assert bars[0].startswith("1 of 3 done |")
    assert bars[0].endswith(" ? left, b is starting")
    # An eighth of the two runs is done, as the bar and the time left say.
    at_step = next(line for line in bars if "b at step" in line)
    assert at_step.startswith("1 of 3 done |#2        | 00:0")
    assert at_step.endswith("b at step 5 of 20")
    assert any(line.startswith("2 of 3 done |#####     |") for line in bars)


@pytest.mark.parametrize("text", ["", RESULT[:9], "{}", "[]"])
def test_find_state_takes_no_damaged_result_for_a_run_that_is_done(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ConfigError, match=f"{tmp_path}/result.json .*: copy this fol"):
        find_state(tmp_path)


def test_run_locally_names_a_damaged_file_of_metrics(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    (tmp_path / "a" / "metrics.jsonl").write_text("\0\0\n")
    with pytest.raises(ConfigError, match=r"/a/metrics\.jsonl cannot be used, it is "):
        run_locally([stub("a")], tmp_path)


def test_run_locally_names_the_first_of_several_runs(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.0)
    run_locally([stub("a"), stub("b"), stub("c")], tmp_path, num_parallel=3)
    assert "left, a is starting and 2 more\n" in capfd.readouterr().out


# JAX adds a note to the errors of compiled functions.
ERROR_WITH_NOTE = """
try:
    {}["rows"]
except KeyError:
    error = ValueError("no\\nrows")
    error.add_note("Set X to see more.")
    raise error
"""
ERROR_BEFORE_NOISE = """
import sys
print("error: no data", file=sys.stderr)
print("E0000 cuda_executor.cc: no error", file=sys.stderr)
sys.exit(2)
"""


@pytest.mark.usefixtures("usual_output")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (ERROR_WITH_NOTE, "status 1: ValueError: no"),
        (ERROR_BEFORE_NOISE, "status 2: error: no data"),
        ("print('step 5'); raise SystemExit(3)", "status 3: step 5"),
        ("raise SystemExit(3)", "status 3: "),
    ],
)
def test_run_locally_finds_the_error_in_the_log(tmp_path, lines, reason):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.txt").write_text("error: of an earlier start\n")
    run_locally([stub("a", lines)], tmp_path)
    assert (tmp_path / "a" / "failed.txt").read_text() == reason
    log = (tmp_path / "a" / "log.txt").read_text()
    assert log.startswith("error: of an earlier start\n")


def test_run_locally_gives_each_run_at_a_time_a_gpu_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    # Each waits until the other has begun: they run at the same time. The second goes
    # on for longer, while the GPU of the first is free and the third waits.
    lines = f"""
import os, pathlib, time
folder = pathlib.Path(workdir)
(folder / "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
while len(list(folder.parent.glob("*/gpu"))) < 2:
    time.sleep(0.02)
if folder.name == "b":
    time.sleep(0.5)
{FINISH}"""
    points = [stub("a", lines), stub("b", lines), stub("c", lines, source="b")]
    run_locally(points, tmp_path)
    assert states(points, tmp_path) == ["done", "done", "done"]
    first, second, third = ((tmp_path / x / "gpu").read_text() for x in "abc")
    assert {first, second} == {"4", "7"}
    assert third in (first, second)


@pytest.mark.parametrize(("num_parallel", "preallocate"), [(1, ""), (2, "false")])
def test_run_locally_lets_runs_share_the_memory_of_a_gpu(
    tmp_path, monkeypatch, num_parallel, preallocate
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    lines = f"""
import os
value = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "")
open(workdir + "/value", "w").write(value)
{FINISH}"""
    run_locally([stub("a", lines), stub("b", lines)], tmp_path, num_parallel)
    assert (tmp_path / "a" / "value").read_text() == preallocate
    assert (tmp_path / "b" / "value").read_text() == preallocate


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGALRM])
def test_run_locally_lets_runs_save_and_goes_on(tmp_path, signum):
    points = [stub("a", lines_that_signal(signum)), stub("b")]
    with pytest.raises(Interrupted) as raised:
        run_locally(points, tmp_path)
    assert raised.value.signum == signum
    assert (tmp_path / "a" / "saved").exists()
    assert states(points, tmp_path) == ["waiting", "waiting"]
    assert not (tmp_path / "b").exists()
    run_locally(points, tmp_path)
    assert states(points, tmp_path) == ["done", "done"]


def test_job_checkpoint_returns_when_the_run_has_saved(tmp_path):
    point = stub("a", lines_that_signal(signal.SIGUSR2))
    workdir = tmp_path / "a"
    job = SlurmJob(point.command(tmp_path), workdir)
    resumptions = []

    def requeue(*_):
        resumptions.append(job.checkpoint())
        assert (workdir / "saved").exists()

    handler = signal.signal(signal.SIGUSR2, requeue)
    job()
    signal.signal(signal.SIGUSR2, handler)

    assert find_state(workdir) == "waiting"
    (resumption,) = resumptions
    resumption.function()
    assert find_state(workdir) == "done"


def test_job_checkpoint_before_its_process_has_started(tmp_path):
    job = SlurmJob(stub("a").command(tmp_path), tmp_path / "a")
    job.checkpoint().function()
    assert find_state(tmp_path / "a") == "done"


def test_job_records_no_failure_where_another_process_trains(tmp_path, capfd):
    """Two sweeps may start a run at the same moment: one of them is refused."""
    job = Job(stub("a", "raise SystemExit(2)").command(tmp_path), tmp_path / "a")
    job.start()
    with lock_workdir(tmp_path / "a"):
        job.finish()
    assert capfd.readouterr().out.endswith("a: in progress elsewhere\n")
    assert find_state(tmp_path / "a") == "waiting"


@pytest.mark.slow
def test_job_records_a_failure_in_utf_8_whatever_the_locale(tmp_path):
    """A failed run's last line is the reason, which may have any letter."""
    lines = "import sys; sys.stderr.buffer.write(bytes([0xc3, 0xa9])); sys.exit(1)"
    program = f"""
import pathlib, sys
from nystromformer.experiments.sweep.launch import Job
job = Job([sys.executable, "-c", {lines!r}], pathlib.Path({str(tmp_path)!r}))
job.start()
job.finish()
"""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env = {**os.environ, **locale, "PYTHONIOENCODING": "utf-8"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    assert (tmp_path / "failed.txt").read_text("utf-8") == "status 1: é"


def test_job_leaves_a_run_alone_that_another_process_trains(tmp_path):
    (tmp_path / "failed.txt").write_text("status 1: it was tried again by hand")
    with lock_workdir(tmp_path):
        assert find_state(tmp_path) == "running"
    (tmp_path / "failed.txt").unlink()
    with lock_workdir(tmp_path):
        SlurmJob(stub("a").command(tmp_path), tmp_path)()
    assert find_state(tmp_path) == "waiting"


@pytest.mark.slow
def test_submitit_goes_on_with_a_job_whose_time_is_over(tmp_path):
    """submitit itself, with a process of this machine as its cluster."""
    point = stub("a", lines_that_signal(signal.SIGUSR2))
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.submit(SlurmJob(point.command(tmp_path), tmp_path / "a")).result()
    assert (tmp_path / "a" / "saved").exists()
    assert find_state(tmp_path / "a") == "done"


# A cluster of one machine, which writes a line to a named pipe at an array's end.
SBATCH = """#!/bin/bash
number=$((100 + $(ls $CLUSTER | grep -c '[.]sh')))
cp $1 $CLUSTER/$number.sh
export SLURM_JOB_ID=$number SLURM_ARRAY_JOB_ID=$number SLURM_PROCID=0
(
    for task in $(seq 0 $(grep -oP 'array=0-\\K[0-9]+' $1)); do
        SLURM_ARRAY_TASK_ID=$task bash $CLUSTER/$number.sh
    done
    echo $number > $CLUSTER/ended
) < /dev/null >> $CLUSTER/log 2>&1 &
echo Submitted batch job $number
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    [[ $1 == --output || $1 == --error ]] && shift
    shift
done
exec "$@"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The folder of a cluster's scripts, whose commands are on PATH."""
    folder = tmp_path / "cluster"
    (folder / "bin").mkdir(parents=True)
    for name, program in {"sbatch": SBATCH, "srun": SRUN}.items():
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o755)
    os.mkfifo(folder / "ended")
    monkeypatch.setenv("CLUSTER", str(folder))
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    return folder


@pytest.mark.slow
def test_run_on_slurm_submits_an_array_and_one_that_waits(tmp_path, cluster, capfd):
    points = [
        stub("a"),
        stub("b", "raise SystemExit(2)"),
        stub("c", source="a"),
        stub("d", source="b"),
    ]
    with open(cluster / "ended", "rb+", buffering=0) as ended:
        run_on_slurm(
            [[point] for point in points],
            tmp_path / "sweep",
            partition="gpu",
            time=90,
            gpus_per_node=1,
            array_parallelism=8,
        )
        jobs = {ended.readline(), ended.readline()}
    assert jobs == {b"100\n", b"101\n"}
    out = capfd.readouterr().out
    assert "submitted 2 runs as job 101" in out
    assert f"  101_1  {tmp_path}/sweep/d/log.txt\n" in out
    log = (cluster / "log").read_text()
    ends = states(points, tmp_path / "sweep")
    assert ends == ["done", "failed", "done", "done"], log

    first = (cluster / "100.sh").read_text()
    for option in (
        "--array=0-1%2",
        "--partition=gpu",
        "--time=90",
        "--gpus-per-node=1",
        "--requeue",
        "--signal=USR2@120",
        "--job-name=sweep",
    ):
        assert f"#SBATCH {option}\n" in first
    assert "--dependency" not in first
    second = (cluster / "101.sh").read_text()
    assert "#SBATCH --dependency=afterany:100\n" in second


@pytest.mark.parametrize("names", ["a", "ab"])
def test_slurm_scripts_are_what_would_be_submitted(tmp_path, cluster, names):
    groups = [[stub(name)] for name in names]
    parameters = {
        "partition": "gpu",
        "setup": ["#SBATCH --exclude=n7", "module load x"],
    }
    (script,) = slurm_scripts(groups, tmp_path / "sweep", **parameters)
    assert not (tmp_path / "sweep").exists()

    keeping = "#!/bin/sh\ncp $1 $CLUSTER/job.sh\necho Submitted batch job 7\n"
    (cluster / "bin" / "sbatch").write_text(keeping)
    run_on_slurm(groups, tmp_path / "sweep", **parameters)
    title, _, script = script.partition("\n")
    assert title == f"# A job for {'1 run' if names == 'a' else '2 runs'}:"
    assert script == (cluster / "job.sh").read_text()
    assert "#SBATCH --exclude=n7\nmodule load x\n" in script


def test_slurm_scripts_are_shown_on_a_machine_without_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    _, second = slurm_scripts([[stub("a")], [stub("b", source="a")]], tmp_path)
    assert "#SBATCH --dependency=afterany:NUMBER_OF_THE_FIRST_JOB\n" in second


@pytest.mark.parametrize("program", ["sbatch", "srun"])
def test_check_slurm_needs_both_programs(cluster, monkeypatch, program):
    monkeypatch.setenv("PATH", str(cluster / "bin"))
    check_slurm()
    (cluster / "bin" / program).unlink()
    with pytest.raises(ConfigError, match=f"this machine has no {program}: start "):
        check_slurm()


def test_run_on_slurm_rejects_what_sbatch_does(tmp_path, cluster, capfd):
    refusing = "#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2\nexit 1\n"
    (cluster / "bin" / "sbatch").write_text(refusing)
    with pytest.raises(ConfigError, match=r"^[^\n]*invalid partition: gpu$"):
        run_on_slurm([[stub("a")]], tmp_path)
    assert capfd.readouterr().err == ""
