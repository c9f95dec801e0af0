"""Checkpoints: back comes what was saved, or an older whole one, or an error."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.errors import CheckpointError
from nystromformer.training.checkpoint import (
    load_weights,
    restore,
    save_step,
    save_weights,
    saved_steps,
    weights_sha256,
)
from tests.training.conftest import flip_a_bit

# Where one of several arrays cannot be read orbax leaves coroutines behind.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def make_state(step):
    kernel = jax.random.normal(jax.random.key(step), (37, 41))
    return {"step": jnp.int32(step), "kernel": kernel, "bias": jnp.ones(5) * step}


LIKE = jax.eval_shape(lambda: make_state(0))


@pytest.fixture
def workdir(tmp_path):
    """The folder of a run that has saved the steps 5, 10 and 20, and keeps two."""
    for step in (5, 10, 20):
        save_step(tmp_path, step, make_state(step), {"value": step / 7})
    return tmp_path


def assert_is_step(step, restored):
    """Checks that the state and the metadata are those of a step, bit for bit."""
    state, meta = restored
    assert meta == {"value": step / 7}
    assert weights_sha256(state) == weights_sha256(make_state(step))


def test_restore_gives_the_newest_of_two_bit_for_bit(workdir):
    assert saved_steps(workdir) == [20, 10]
    assert_is_step(20, restore(workdir, LIKE))


def test_restore_gives_nothing_where_nothing_was_saved(tmp_path):
    assert restore(tmp_path / "new", LIKE) is None


def test_restore_gives_an_older_step_where_one_was_killed_while_it_was_saved(workdir):
    folder = workdir / "checkpoints"
    (folder / "20").rename(folder / "20.orbax-checkpoint-tmp")
    assert_is_step(10, restore(workdir, LIKE))
    save_step(workdir, 20, make_state(20), {"value": 20 / 7})
    assert_is_step(20, restore(workdir, LIKE))


def test_restore_notices_a_flipped_bit_in_any_file(workdir, tmp_path_factory):
    """Some files orbax does not need; the array data it would read without a word."""
    steps = []
    for file in (workdir / "checkpoints" / "20").rglob("*"):
        if not file.is_file():
            continue
        copy = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(workdir, copy)
        flip_a_bit(copy / file.relative_to(workdir))
        state, meta = restore(copy, LIKE)
        step = int(state["step"])
        assert_is_step(step, (state, meta))
        steps.append(step)
    assert steps.count(10) >= 4


@pytest.mark.parametrize("change", [{"more": LIKE["bias"]}, {"bias": LIKE["kernel"]}])
def test_restore_raises_where_no_step_is_of_this_model(workdir, change):
    with pytest.raises(CheckpointError, match=r"no checkpoint .* of this model"):
        restore(workdir, LIKE | change)


def test_restore_raises_where_no_step_is_whole(workdir, capsys):
    flip_a_bit(workdir / "checkpoints" / "20" / "meta" / "metadata")
    assert_is_step(10, restore(workdir, LIKE))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"checkpoint {workdir}/checkpoints/20 is missing, damaged")
    assert line.endswith("; going back to step 10")

    flip_a_bit(workdir / "checkpoints" / "10" / "meta" / "metadata")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole .*delete"):
        restore(workdir, LIKE)


# Without the class of an error, and whatever stands in its brackets.
PLAIN_REASON = r"best is missing, damaged, or of another model \([\w' /-]+\)$"


def test_load_weights_gives_what_was_saved_last_or_names_what_is_damaged(tmp_path):
    folder = tmp_path / "best"
    with pytest.raises(CheckpointError, match=PLAIN_REASON):
        load_weights(folder, LIKE)
    for step in (1, 2):
        save_weights(folder, make_state(step), {"value": step / 7})
    assert_is_step(2, load_weights(folder, LIKE))
    flip_a_bit(folder)
    with pytest.raises(CheckpointError, match=PLAIN_REASON):
        load_weights(folder, LIKE)


def test_weights_sha256_sees_names_shapes_dtypes_and_values():
    zeros = np.zeros((2, 3), np.float32)
    hashes = {
        weights_sha256({"a": zeros}),
        weights_sha256({"b": zeros}),
        weights_sha256({"a": zeros.T}),
        weights_sha256({"a": np.int32(zeros)}),
        weights_sha256({"a": zeros + 1e-45}),
    }
    assert len(hashes) == 5
    assert weights_sha256({"a": jnp.zeros((2, 3))}) == weights_sha256({"a": zeros})
