"""Every command computes without XLA's fusions on CPUs, which are wrong in places."""

import os

import pytest

from nystromformer.experiments.xla_flags import (
    add_no_fusions_flag,
    find_xla_libraries,
    turn_off_cpu_fusions,
)
from tests.commands import SCRIPTS
from tests.small import result_of

OFF = "--xla_cpu_experimental_ynn_fusion_type="

# The module prints the largest relative error of a sum and ends the command that loads
# it. With the fusions of jaxlib 0.10.2 this error is more than a thousand.
KNOWN_CASE = """
import sys
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
matrix = rng.normal(size=(3, 3))
rows = rng.normal(size=(40_000, 3))
sum_of_squares = lambda row: jnp.sum((jnp.float32(matrix) @ row) ** 2)
sums = jax.jit(jax.vmap(sum_of_squares))(jnp.float32(rows))
exact_sums = np.sum((rows @ matrix.T) ** 2, axis=-1)
print(np.max(np.abs(sums - exact_sums) / exact_sums))
sys.exit()
"""


# What some commands ask for before they load a module, and others do not know.
FLAGS = (
    *("--config=x", "--workdir=x", "--out=x", "--from=x"),
    "--undefok=config,workdir,out,from",
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_sums_over_many_rows_right(commands, tmp_path, script):
    module = tmp_path / "known_case.py"
    module.write_text(KNOWN_CASE)
    words = ["RUNS"] if script == "report.py" else []
    command = commands.with_env(XLA_FLAGS="")
    done = command.run(script, f"--load={module}", *FLAGS, *words)
    assert float(done.stdout) < 1e-5, done.stderr


@pytest.fixture
def library(tmp_path):
    """A library of an unknown release, whose table of flags has that of the fusions."""
    path = tmp_path / "library.so"
    path.write_bytes(b"help\0xla_cpu_experimental_ynn_fusion_type\0xla_b\0")
    return path


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", OFF),
        ("--xla_a=1 --xla_b=2", f"--xla_a=1 --xla_b=2 {OFF}"),
        (f"{OFF}reduce --xla_a=1", f"{OFF}reduce --xla_a=1"),
    ],
)
def test_flags_of_the_user_stay(library, flags, expected):
    assert add_no_fusions_flag(flags, [library]) == expected


def test_flags_of_a_file_of_the_user_stay(library, tmp_path):
    file = tmp_path / "flags"
    file.write_text("--xla_a=1\n--xla_b=2")
    flags = add_no_fusions_flag(str(file), [library])
    assert flags == f"--xla_a=1\n--xla_b=2 {OFF}"


def test_the_installed_libraries_know_the_flag(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    turn_off_cpu_fusions()
    assert os.environ["XLA_FLAGS"] == f"--xla_a=1 {OFF}"


def test_no_library_gets_a_flag_that_it_does_not_know(library, tmp_path):
    """In the second, a field of XLA's options has the name, and no flag."""
    other = tmp_path / "other.so"
    other.write_bytes(b"help\0xla_b\0")
    with_field = tmp_path / "with_field.so"
    with_field.write_bytes(b"help\0xla_b\0\n$xla_cpu_experimental_ynn_fusion_type\x18")
    for path in (other, with_field, tmp_path / "missing.so"):
        assert add_no_fusions_flag("--xla_a=1", [library, path]) == "--xla_a=1"


def test_a_run_records_the_flags_that_it_was_computed_with(finished):
    flags = os.environ.get("XLA_FLAGS", "")
    expected = add_no_fusions_flag(flags, find_xla_libraries())
    assert result_of(finished[0])["versions"]["XLA_FLAGS"] == (expected or "none")
