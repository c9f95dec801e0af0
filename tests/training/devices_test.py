"""A run spread over devices is the same run, and the devices communicate little."""

import json
import socket

import jax
import pytest

from nystromformer.training.devices import make_mesh
from tests.commands import ROOT, Commands
from tests.tolerance import TOLERANCE

PROGRAMS = ROOT / ".pytest_cache" / "programs"


def start(name, *arguments):
    """Starts a process that computes a function of eight_devices.py."""
    commands = Commands(ROOT, PROGRAMS, {"JAX_PLATFORMS": "cpu"})
    script = f"{ROOT}/tests/training/eight_devices.py"
    return commands.start(script, name, *map(str, arguments))


def finish(process):
    """Waits for such a process, and returns the result that it prints."""
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


def on_eight_devices(name, *arguments):
    return finish(start(name, *arguments))


@pytest.mark.parametrize(
    ("data_shards", "sequence_parallelism", "parts"),
    [
        (2, 4, 1),
        pytest.param(8, 1, 1, marks=pytest.mark.slow),
        pytest.param(4, 1, 2, marks=pytest.mark.slow),
    ],
)
def test_train_chunk_on_a_mesh_has_the_losses_of_one_device(
    data_shards, sequence_parallelism, parts
):
    alone, spread = on_eight_devices("losses", data_shards, sequence_parallelism, parts)
    assert alone[-1] < alone[0] - 0.1
    assert spread == pytest.approx(alone, abs=1e-6)


def test_trainer_resumes_on_another_number_of_devices(tmp_path):
    expected, loss = on_eight_devices("resumed", tmp_path)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_check_same_on_all_hosts_names_what_differs():
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        _, port = free_socket.getsockname()
    processes = [start("same", port, i, f"text {i}") for i in range(2)]
    message = "the processes of this run do not have the same config: start all"
    for process in processes:
        assert finish(process).startswith(message)


# In parts the program takes three times as long to compile.
@pytest.mark.parametrize("parts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_train_chunk_spreads_a_batch_and_its_parts_over_the_devices(parts):
    operations_alone, operations_of_one_of_four = on_eight_devices("operations", parts)
    assert operations_of_one_of_four < operations_alone / 3


# The losses of Nyström attention on a mesh, and what the layer below communicates, are
# fast tests.
@pytest.mark.slow
def test_nystrom_communication_does_not_grow_with_length_and_memory_falls():
    costs = on_eight_devices("costs")
    long_cost = costs["long"]
    assert 0 < long_cost["communicated"] <= costs["short"]["communicated"]
    assert long_cost["temporaries"] < 0.3 * costs["long on fewer"]["temporaries"]


def test_short_conv_and_rotary_positions_are_the_same_on_a_sharded_sequence():
    shorter, longer = on_eight_devices("convolved_and_rotated")
    assert shorter["error"] <= TOLERANCE["float32"]
    assert longer["error"] <= TOLERANCE["float32"]
    assert 0 < longer["communicated"] <= shorter["communicated"]


@pytest.mark.parametrize(
    ("batch_size", "length", "parts", "message"),
    [
        (8, 7, 2, "max_length=7, sequence_parallelism=2 cannot"),
        (3, 8, 1, "batches of 3, .* 2 devices: change one, or JAX_NUM_CPU_DEVICES$"),
        (4, 9, 3, "sequence_parallelism=3 .* over 2 devices"),
    ],
)
def test_make_mesh_refuses_what_cannot_be_split(batch_size, length, parts, message):
    devices = [jax.devices()[0]] * 2
    with pytest.raises(ValueError, match=message):
        make_mesh(batch_size, length, sequence_parallelism=parts, devices=devices)
