"""A run spread over devices is the same run, and they tell each other little."""

import json
import socket

import jax
import jax.numpy as jnp
import pytest

from nystromformer.training.devices import make_mesh, peak_bytes, program_bytes
from tests.commands import ROOT, Commands

PROGRAMS = ROOT / ".pytest_cache" / "programs"
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("linear", "linformer", "performer")
]


def start(*what):
    commands = Commands(ROOT, PROGRAMS, {"JAX_PLATFORMS": "cpu"})
    return commands.start(f"{ROOT}/tests/training/eight_devices.py", *map(str, what))


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def on_eight_devices(*what):
    return finish(start(*what))


@pytest.fixture(scope="module")
def alone():
    return on_eight_devices("losses", 1, 1)


@pytest.mark.parametrize(
    "shape",
    [
        (2, 4),
        pytest.param((8, 1), marks=pytest.mark.slow),
        pytest.param((1, 8), marks=pytest.mark.slow),
    ],
)
def test_train_chunk_on_a_mesh_has_the_losses_of_one_device(alone, shape):
    assert len(alone) == 50
    assert alone[-1] < alone[0] - 0.1
    assert on_eight_devices("losses", *shape) == pytest.approx(alone, abs=1e-6)


@pytest.mark.slow
def test_train_chunk_in_parts_on_a_mesh_has_the_losses_of_one_device():
    alone = on_eight_devices("losses", 1, 1, 2)
    assert on_eight_devices("losses", 4, 1, 2) == pytest.approx(alone, abs=1e-6)


def test_evaluate_masked_is_the_same_on_any_devices_in_any_batches():
    for alone, spread in on_eight_devices("masked"):
        assert alone["examples"] == 103
        assert spread == pytest.approx(alone, rel=1e-6)


def test_trainer_resumes_on_another_number_of_devices(tmp_path):
    alone, moved = on_eight_devices("resumed", tmp_path)
    assert moved == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("texts", [("one", "one"), ("one", "another")])
def test_check_same_on_all_hosts_names_what_differs(texts):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start("same", f"{port}", i, text) for i, text in enumerate(texts)]
    said = "the processes of this run do not have the same config: start all"
    for process in processes:
        found = finish(process)
        assert found.startswith("the same" if len({*texts}) == 1 else said)


@pytest.mark.parametrize("parts", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_train_chunk_spreads_a_batch_and_its_parts_over_the_devices(parts):
    alone, four = (on_eight_devices("operations", shards, parts) for shards in (1, 4))
    assert four < alone / 3


@pytest.mark.parametrize("name", ["nystrom", *SLOW])
@pytest.mark.parametrize("length", [1031, pytest.param(1024, marks=pytest.mark.slow)])
def test_attention_over_shards_is_the_attention(name, length):
    assert on_eight_devices("difference", name, length, 1) <= 1e-10


@pytest.mark.parametrize("name", ["nystrom", *SLOW])
def test_attention_communication_does_not_grow_and_memory_falls(name):
    short = on_eight_devices("cost", name, 65_536, 8)
    long = on_eight_devices("cost", name, 262_144, 8)
    fewer = on_eight_devices("cost", name, 262_144, 2)
    assert 0 < long["told"] <= short["told"]
    assert long["temporaries"] < 0.3 * fewer["temporaries"]


@pytest.mark.parametrize("donated", [False, True])
def test_program_bytes_counts_what_is_donated_once(donated):
    add = jax.jit(jnp.add, donate_argnums=0 if donated else ())
    arrays = [jax.ShapeDtypeStruct((1009,), jnp.float32)] * 2
    held = program_bytes(add.lower(*arrays).compile())
    arrays_held = 2 if donated else 3
    assert held is not None
    assert 0 <= held - arrays_held * 4 * 1009 < 100
    assert peak_bytes() is None  # a CPU does not count


@pytest.mark.parametrize(
    ("batch_size", "length", "sequence_parallelism", "text"),
    [
        (8, 7, 2, "max_length=7 .* sequence_parallelism=2: change"),
        (3, 8, 1, "batches of 3 .* over 2 devices"),
        (4, 9, 3, "2 devices with sequence_parallelism=3"),
    ],
)
def test_make_mesh_refuses_what_cannot_be_split(
    batch_size, length, sequence_parallelism, text
):
    devices = jax.devices()[:1] * 2
    with pytest.raises(ValueError, match=text):
        make_mesh(
            batch_size,
            length,
            sequence_parallelism=sequence_parallelism,
            devices=devices,
        )
