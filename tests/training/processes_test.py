"""What several real processes make of one folder of checkpoints."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from pathlib import Path
import jax, numpy as np
from nystromformer.training.checkpoint import CheckpointError, Checkpoints

workdir, port, process_id, what = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process_id))
if what == "another folder" and process_id == "1":
    workdir += "-of-its-own"
state = {"x": jax.ShapeDtypeStruct((5,), np.float32)}
checkpoints = Checkpoints(Path(workdir) / "checkpoints")
if what == "gone" and process_id == "1":
    os._exit(0)
time.sleep(what == "gone")
try:
    checkpoints.restore(state)
except CheckpointError as error:
    print(error)
except Exception as error:
    print("not a matter of checkpoints:", error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def workdir(tmp_path):
    """With a checkpoint of step 7, which one process has saved."""
    program = """
import sys, numpy as np
from pathlib import Path
from nystromformer.training.checkpoint import Checkpoints
state = {"x": np.arange(5, dtype=np.float32)}
Checkpoints(Path(sys.argv[1]) / "checkpoints").save(7, state, {})
"""
    path = tmp_path / "run"
    path.mkdir()
    (tmp_path / "run-of-its-own" / "checkpoints").mkdir(parents=True)
    subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=True)
    return path


def said_by_two(workdir, what):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, workdir, port, str(process_id), what],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for process_id in range(2)
    ]
    return [process.communicate(timeout=300)[0] for process in processes]


@pytest.mark.slow
def test_a_folder_that_not_every_process_sees_is_no_start(workdir):
    for said in said_by_two(workdir, "another folder"):
        assert "is not the same for all processes" in said


@pytest.mark.slow
def test_a_checkpoint_is_not_damaged_because_a_process_is_gone(workdir):
    first, _ = said_by_two(workdir, "gone")
    assert "not a matter of checkpoints" in first
    assert "damaged" not in first
