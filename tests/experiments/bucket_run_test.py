"""A run in a bucket as a person starts it, through the real gcsfs."""

import re
import signal
import time

import pytest

from tests.fake_gcs import serve
from tests.small import numbers

RUN = "gs://bucket/run"
FEW = "--config.train.checkpoint_every=100"  # each waits for the metrics, a second


@pytest.fixture
def bucket():
    with serve() as empty:
        yield empty


@pytest.fixture
def ours(bucket, commands):
    """The commands, where gs://bucket is the fake one."""
    return commands.with_env(**bucket.env())


def assert_same(bucket, finished, tmp_path):
    """The same numbers as those of the run in a folder."""
    for name in ("result.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes(bucket.objects[f"run/{name}"])
    assert numbers(tmp_path) == numbers(finished[0])


def refused(done):
    """The one line of a command that could not go on."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def stopped(ours, bucket, name, signum):
    """What a run prints that gets a signal when it has just written this object."""
    before = bucket.objects.get(name)
    process = ours.start("train.py", *ours.train_args(RUN, FEW))
    while bucket.objects.get(name) == before:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return out


def test_a_run_in_a_bucket_ends_as_one_in_a_folder(bucket, ours, finished, tmp_path):
    done = ours.train(RUN, FEW)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert_same(bucket, finished, tmp_path)
    before = dict(bucket.objects)
    left = {name.split("/")[1] for name in before}
    assert left == {"config.json", "metrics.jsonl", "best", "result.json"}
    again = ours.train(RUN, FEW)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"{RUN} is finished; delete it" in again.stdout
    assert bucket.objects == before


@pytest.mark.slow
def test_a_run_stopped_killed_and_damaged_goes_on(bucket, ours, finished, tmp_path):
    first = "run/checkpoints/100.safetensors"
    stopped(ours, bucket, first, signal.SIGKILL)
    out = stopped(ours, bucket, "run/metrics.jsonl", signal.SIGTERM)
    step = re.search(r"stopped by SIGTERM at step (\d+); saved", out)[1]
    newest = f"run/checkpoints/{step}.safetensors"
    whole = dict(bucket.objects)

    bucket.refuses = f"GET {newest}"
    assert f"error: {RUN}/checkpoints" in refused(ours.train(RUN, FEW))
    assert bucket.objects == whole  # what may not be read is not damaged
    bucket.refuses = "(?!)"

    damaged = whole[newest][:-1] + bytes([whole[newest][-1] ^ 1])
    bucket.objects[newest] = damaged
    resumed = ours.train(RUN, FEW)
    assert f"in {RUN}/checkpoints is damaged" in resumed.stdout
    assert "resuming from step 100" in resumed.stdout, resumed.stderr
    assert_same(bucket, finished, tmp_path)
    aside = [x for name, x in bucket.objects.items() if name.startswith("run/damaged-")]
    assert aside == [damaged]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        ("POST", 403, f"{RUN}/config.json: Forbidden: "),
        ("POST run/checkpoints/100", 403, "could not save step 100 to"),
        ("DELETE run/checkpoints/100", 401, f"{RUN}/checkpoints: no permission"),
    ],
)
def test_what_a_bucket_refuses_is_one_line(
    bucket, ours, finished, tmp_path, what, status, message
):
    bucket.refuses, bucket.status = what, status
    assert f"error: {message}" in refused(ours.train(RUN, FEW))
    bucket.refuses = "(?!)"
    assert ours.train(RUN, FEW).returncode == 0
    assert_same(bucket, finished, tmp_path)


@pytest.mark.slow
def test_a_bucket_that_is_not_there_or_may_not_be_seen_is_one_line(bucket, ours):
    nowhere = refused(ours.run("evaluate.py", "--workdir=gs://nowhere/run"))
    assert "gs://nowhere/run is not a run" in nowhere
    assert "error: gs://nowhere/run" in refused(ours.train("gs://nowhere/run"))
    bucket.refuses = "GET"
    assert "no permission" in refused(ours.run("evaluate.py", f"--workdir={RUN}"))
