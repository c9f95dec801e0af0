"""Checkpoints: back comes what was saved, or an older whole one, or an error."""

import itertools
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.errors import CheckpointError
from nystromformer.training.checkpoint import (
    load_weights,
    read_weights_file,
    restore,
    save_step,
    save_weights,
    saved_steps,
    weights_sha256,
    write_weights_file,
)
from tests.full_disk import full_disk
from tests.training.conftest import flip_a_bit

# Where one of several arrays cannot be read orbax leaves coroutines behind.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def make_state(step):
    kernel = jax.random.normal(jax.random.key(step), (37, 41))
    return {"step": jnp.int32(step), "kernel": kernel, "bias": jnp.ones(5) * step}


LIKE = jax.eval_shape(lambda: make_state(0))
DAMAGED = "is damaged: a file in it is missing, cut short, changed or not yours to read"


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


def test_restore_notices_another_number_in_the_metadata(workdir):
    file = workdir / "checkpoints/20/meta/metadata"
    text = file.read_text()
    assert str(20 / 7) in text
    file.write_text(text.replace(str(20 / 7), str(21 / 7)))
    assert_is_step(10, restore(workdir, LIKE))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_restore_gives_a_random_key_of_its_own_kind(tmp_path, impl):
    key = jax.random.key(3, impl=impl)
    save_step(tmp_path, 5, key, None)
    state, _ = restore(tmp_path, jax.eval_shape(lambda: key))
    assert jax.random.key_impl(state) == jax.random.key_impl(key)
    assert jax.random.bits(state) == jax.random.bits(key)


@pytest.mark.parametrize("change", [{"more": LIKE["bias"]}, {"bias": LIKE["kernel"]}])
def test_restore_raises_where_no_step_is_of_this_model(workdir, change):
    with pytest.raises(CheckpointError, match=r"no checkpoint .* of this model"):
        restore(workdir, LIKE | change)


def test_restore_raises_where_no_step_is_whole(workdir, capsys):
    flip_a_bit(workdir / "checkpoints" / "20" / "meta" / "metadata")
    assert_is_step(10, restore(workdir, LIKE))
    (line,) = capsys.readouterr().out.splitlines()
    assert (
        line == f"checkpoint {workdir}/checkpoints/20 {DAMAGED}; going back to step 10"
    )

    flip_a_bit(workdir / "checkpoints" / "10" / "meta" / "metadata")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole .*delete"):
        restore(workdir, LIKE)


def test_load_weights_gives_what_was_saved_last(tmp_path):
    folder = tmp_path / "best"
    for step in (1, 2):
        save_weights(folder, make_state(step), {"value": step / 7})
    assert_is_step(2, load_weights(folder, LIKE))


class Killed(BaseException):
    """Ends a function as a kill ends a process."""


# The functions of `os` that change a folder.
CHANGES = ("rename", "replace", "remove", "unlink", "rmdir")


def save_and_die(folder, step, num_changes):
    """`save_weights`, killed after so many changes of a folder; whether it had more."""
    changes_left = num_changes

    def kill_before(change):
        def change_or_die(*args, **kwargs):
            nonlocal changes_left
            if changes_left == 0:
                raise Killed
            changes_left -= 1
            return change(*args, **kwargs)

        return change_or_die

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, kill_before(getattr(os, name)))
        try:
            save_weights(folder, make_state(step), {"value": step / 7})
        except Killed:
            return True
    return False


def test_save_weights_that_is_killed_leaves_the_old_or_the_new_ones(tmp_path):
    folder = tmp_path / "best"
    save_and_die(folder, 0, 1000)
    last_step = 0
    for step in itertools.count(1):
        is_killed = save_and_die(folder, step, num_changes=2 * step)
        restored = load_weights(folder, LIKE)
        found_step = int(restored[0]["step"])
        assert found_step in (last_step, step)
        assert_is_step(found_step, restored)
        last_step = found_step
        if not is_killed:
            break
    assert last_step == step > 10
    assert os.listdir(tmp_path) == ["best"]


def test_save_weights_on_a_full_disk_is_an_os_error_and_leaves_the_old_ones(
    tmp_path, caplog
):
    folder = tmp_path / "best"
    save_weights(folder, make_state(1), {"value": 1 / 7})
    large_state = {"kernel": np.random.default_rng(0).normal(size=(300, 300))}
    message = f"File too large: '{folder}.new'"
    with full_disk(), pytest.raises(OSError, match=message):
        save_weights(folder, large_state)
    assert_is_step(1, load_weights(folder, LIKE))
    assert not caplog.records  # above the line of the command


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """A folder of weights that are whole."""
    folder = tmp_path_factory.mktemp("run") / "best"
    save_weights(folder, make_state(1))
    return folder


def cut_short(folder):
    file = folder / "state" / "manifest.ocdbt"
    file.write_bytes(file.read_bytes()[:-9])


FAULTS = {
    shutil.rmtree: "is missing",
    flip_a_bit: DAMAGED,
    cut_short: DAMAGED,
    lambda folder: (folder / "state" / "manifest.ocdbt").unlink(): DAMAGED,
    lambda folder: (folder / "meta" / "metadata").unlink(): DAMAGED,
    lambda folder: (folder / "state" / "_METADATA").write_text("{"): DAMAGED,
}


@pytest.mark.parametrize(("damage", "words"), FAULTS.items())
def test_load_weights_says_what_is_wrong_in_words(best, tmp_path, damage, words):
    """Not in the codes of orbax, such as OUT_OF_RANGE or 'skip_deserialize'."""
    folder = shutil.copytree(best, tmp_path / "best")
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        load_weights(folder, LIKE)
    assert str(caught.value) == f"{folder} {words}"


# Loads weights of which no array can be read.
READS_NO_ARRAY = """
import gc, shutil, time
import numpy as np
from nystromformer.errors import CheckpointError
from nystromformer.training.checkpoint import load_weights, save_weights

weights = {f"layer{i}": np.ones(100 + i, np.float32) for i in range(40)}
save_weights("weights", weights)
shutil.rmtree("weights/state/d")
for _ in range(2):
    try:
        load_weights("weights", weights)
    except CheckpointError as error:
        print(error)
    gc.collect()
    time.sleep(0.1)
"""


def test_load_weights_prints_no_error_of_further_arrays(commands, tmp_path):
    """orbax reads all at once, and raises the first of their errors."""
    script = tmp_path / "script.py"
    script.write_text(READS_NO_ARRAY)
    done = commands.run(str(script))
    assert done.stdout == f"weights {DAMAGED}\n" * 2
    assert done.stderr == ""


WITHOUT_BIAS = {name: LIKE[name] for name in ("step", "kernel")}
OTHER_MODELS = {
    "more is missing there, float32 [5] here": LIKE | {"more": LIKE["bias"]},
    "bias is float32 [5] there, missing here": WITHOUT_BIAS,
    "bias is float32 [5] there, float32 [37, 41] here": LIKE | {"bias": LIKE["kernel"]},
    "bias is float32 [5] there, int32 [5] here": (
        LIKE | {"bias": jax.ShapeDtypeStruct((5,), jnp.int32)}
    ),
}


@pytest.mark.parametrize(("words", "like"), OTHER_MODELS.items())
def test_weights_of_another_model_are_told_by_their_first_array(
    best, tmp_path, words, like
):
    with pytest.raises(CheckpointError) as caught:
        load_weights(best, like)
    assert str(caught.value) == f"{best} is of another model: {words}"

    file = tmp_path / "model.safetensors"
    write_weights_file(file, make_state(1))
    with pytest.raises(CheckpointError) as caught:
        read_weights_file(file, like)
    assert str(caught.value) == f"{file} is of another model: {words}"


def test_a_file_of_weights_has_numbers_that_lie_in_another_order(tmp_path):
    """As a transposed array has them."""
    weights = {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3).T}
    write_weights_file(tmp_path / "model.safetensors", weights)
    like = {"kernel": jax.ShapeDtypeStruct((3, 2), jnp.float32)}
    read = read_weights_file(tmp_path / "model.safetensors", like)
    np.testing.assert_array_equal(read["kernel"], weights["kernel"])


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
