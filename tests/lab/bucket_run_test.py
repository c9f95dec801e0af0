"""A run in a bucket as a person starts it, through the real gcsfs and tensorstore."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.commands import ROOT
from tests.fake_gcs import serve
from tests.small import result_of

RUN = "gs://bucket/run"
FEW = "--config.train.checkpoint_every=100"  # each waits for the metrics, a second
SAVED = "run/checkpoints/{}.safetensors"


@pytest.fixture
def bucket():
    with serve() as empty:
        yield empty


@pytest.fixture
def ours(bucket, commands):
    """The commands, where gs://bucket is the fake one."""
    return commands.with_env(**bucket.env())


@pytest.fixture(scope="module")
def whole(commands):
    """A bucket with a run that nothing interrupted, the commands, and what it said."""
    with serve() as bucket:
        ours = commands.with_env(**bucket.env())
        yield bucket, ours, ours.train(RUN, FEW)


def result_in(bucket):
    return json.loads(bucket.objects["run/result.json"])


def refused(done):
    """The one line of a command that could not go on."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    said = re.sub(r"I.*google_auth_provider.*\n", "", done.stderr)  # tensorstore's
    assert said.startswith("error: "), said
    assert said.count("\n") == 1, said
    return said


def assert_same(bucket, finished):
    """The same numbers as those of the run in a folder."""
    ours, theirs = result_in(bucket), result_of(finished[0])
    for key in ("params_sha256", "test_accuracy", "test_loss", "best_step"):
        assert ours[key] == theirs[key]


def started_until(ours, bucket, name):
    """A run that has just written this object."""
    process = ours.start("train.py", *ours.train_args(RUN, FEW))
    while name not in bucket.objects:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    return process


def stop(process, signum):
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out


def test_a_run_in_a_bucket_ends_as_one_in_a_folder(whole, finished):
    bucket, _, done = whole
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert_same(bucket, finished)
    lines = bucket.objects["run/metrics.jsonl"].decode().splitlines()
    assert len(lines) == 400 / 10 + 400 / 40 + 1
    left = {name.split("/")[1] for name in bucket.objects}
    assert left == {"config.json", "metrics.jsonl", "best", "result.json"}


@pytest.mark.slow
def test_a_finished_run_says_so_and_is_evaluated(whole):
    bucket, ours, _ = whole
    before = dict(bucket.objects)
    again = ours.train(RUN, FEW)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"{RUN} is finished; delete it" in again.stdout
    evaluated = ours.run("evaluate.py", f"--workdir={RUN}", "--split=test")
    accuracy = result_in(bucket)["test_accuracy"]
    assert f"test accuracy {accuracy:.2%}" in evaluated.stdout, evaluated.stderr
    assert bucket.objects == before


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on(bucket, ours, finished):
    process = started_until(ours, bucket, SAVED.format(100))
    status, out = stop(process, signal.SIGTERM)
    stopped = re.search(r"stopped by SIGTERM at step (\d+); saved", out)
    assert (status, bool(stopped)) == (143, True), out
    resumed = ours.train(RUN, FEW)
    assert f"going on from step {stopped[1]}\n" in resumed.stdout, resumed.stderr
    assert_same(bucket, finished)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_from_its_checkpoint(bucket, ours, finished):
    status, _ = stop(started_until(ours, bucket, SAVED.format(100)), signal.SIGKILL)
    assert status == -signal.SIGKILL
    resumed = ours.train(RUN, FEW)
    assert "going on from step 100" in resumed.stdout, resumed.stderr
    assert_same(bucket, finished)


@pytest.fixture
def two(bucket, ours):
    """The names of two checkpoints, the newer one first."""
    stop(started_until(ours, bucket, SAVED.format(100)), signal.SIGKILL)
    size = len(bucket.objects["run/metrics.jsonl"])
    process = ours.start("train.py", *ours.train_args(RUN, FEW))
    while len(bucket.objects["run/metrics.jsonl"]) <= size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    stop(process, signal.SIGTERM)
    names = [name for name in bucket.objects if "/checkpoints/" in name]
    assert len(names) == 2
    return sorted(names, key=lambda name: -int(re.findall(r"\d+", name)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_damaged_checkpoint_is_put_aside(bucket, ours, finished, two, damage):
    content = bucket.objects[two[0]]
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1]) + content[middle + 1 :]
    bucket.objects[two[0]] = content[:middle] + flipped * (damage == "flip")
    damaged = bucket.objects[two[0]]
    resumed = ours.train(RUN, FEW)
    assert f"in {RUN}/checkpoints is damaged" in resumed.stdout
    assert "going on from step 100" in resumed.stdout
    assert_same(bucket, finished)
    aside = [x for name, x in bucket.objects.items() if name.startswith("run/damaged-")]
    assert aside == [damaged]


@pytest.mark.slow
def test_a_checkpoint_that_may_not_be_read_is_not_damaged(bucket, ours, finished, two):
    before = dict(bucket.objects)
    bucket.refuses, bucket.status = f"GET {two[0]}", 403
    assert f"error: {RUN}/checkpoints" in refused(ours.train(RUN, FEW))
    assert bucket.objects == before
    bucket.refuses = "(?!)"
    assert "going on from step" in ours.train(RUN, FEW).stdout
    assert_same(bucket, finished)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        ("POST", 403, f"{RUN}/config.json: Forbidden: "),
        ("POST run/metrics.jsonl", 401, f"{RUN}/metrics.jsonl: no permission, 401"),
        ("POST run/checkpoints/100", 403, "could not save step 100 to"),
        ("POST run/best", 401, "could not save step 100 to"),
        ("DELETE run/checkpoints/100", 401, f"{RUN}/checkpoints: no permission"),
    ],
)
def test_what_a_bucket_refuses_is_one_line(
    bucket, ours, finished, what, status, message
):
    bucket.refuses, bucket.status = what, status
    assert f"error: {message}" in refused(ours.train(RUN, FEW))
    bucket.refuses = "(?!)"
    assert ours.train(RUN, FEW).returncode == 0
    assert_same(bucket, finished)


@pytest.mark.slow
def test_a_bucket_that_may_not_be_looked_at_is_one_line(whole, monkeypatch):
    bucket, ours, _ = whole
    nowhere = refused(ours.run("evaluate.py", "--workdir=gs://nowhere/run"))
    assert "there is no gs://nowhere, or no permission to look at it" in nowhere
    monkeypatch.setattr(bucket, "refuses", "GET /storage/v1/b/bucket$")
    denied = refused(ours.run("evaluate.py", f"--workdir={RUN}"))
    assert f"error: {RUN}" in denied
    assert "no permission" in denied


@pytest.mark.slow
def test_credentials_that_are_refused_are_one_line_and_at_once(bucket, ours, tmp_path):
    key = rsa.generate_private_key(65537, 2048)
    pem = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = {
        "type": "service_account",
        "client_email": "somebody@example.com",
        "private_key": key.private_bytes(*pem).decode(),
        "token_uri": f"{bucket.url}/token",  # which the fake does not know
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    del ours.env["FSSPEC_GS_TOKEN"]
    ours.env["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "account.json")
    ours.env["GOOGLE_CLOUD_PROJECT"] = "any"
    started = time.monotonic()
    line = refused(ours.run("evaluate.py", f"--workdir={RUN}"))
    assert line == f"error: --workdir={RUN}: Invalid Credentials, 401\n"
    assert time.monotonic() - started < 20


# More than gcsfs writes in one part.
LARGE = """
from etils import epath
from nystromformer.training.files import ObjectFile
file = ObjectFile(epath.Path("gs://bucket/run/metrics.jsonl"))
file.write(bytes(range(256)) * 50_000)
file.close()
"""


@pytest.mark.slow
def test_metrics_may_be_large(bucket, ours):
    subprocess.run([sys.executable, "-c", LARGE], cwd=ROOT, env=ours.env, check=True)
    assert bucket.objects == {"run/metrics.jsonl": bytes(range(256)) * 50_000}


def test_the_fake_replaces_only_the_generation_that_is_meant(bucket):
    upload = "/upload/storage/v1/b/bucket/o?uploadType=media&name=x&ifGenerationMatch="
    statuses = [bucket.answer("POST", f"{upload}{n}", {}, b"")[0] for n in (0, 0, 7, 1)]
    assert statuses == [200, 412, 412, 200]
