"""Checkpoints: back comes what was saved, or an older whole one, or an error."""

import resource
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.training import checkpoint
from nystromformer.training.checkpoint import (
    CheckpointError,
    Checkpoints,
    load_weights,
    save_weights,
    saved_steps,
    weights_sha256,
)

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
    """Of a run that has saved the steps 5, 10 and 20, and keeps two."""
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 20):
        checkpoints.save(step, make_state(step), {"value": step / 7})
    checkpoints.close()
    return tmp_path


def restore(workdir, like=LIKE):
    checkpoints = Checkpoints(workdir)
    try:
        return checkpoints.restore(like)
    finally:
        checkpoints.close()


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_restore_gives_the_newest_of_two_bit_for_bit(workdir):
    assert saved_steps(workdir) == [20, 10]
    state, meta = restore(workdir)
    assert meta == {"value": 20 / 7}
    assert weights_sha256(state) == weights_sha256(make_state(20))
    assert state["kernel"].dtype == np.float32


def test_restore_without_checkpoints_is_none(tmp_path):
    assert saved_steps(tmp_path) == []
    assert restore(tmp_path) is None


def test_absolute_leaves_the_name_of_a_bucket_as_it_is():
    assert str(checkpoint._absolute("gs://bucket/run")) == "gs://bucket/run"


def test_restore_notices_a_flipped_bit_in_any_file(workdir, tmp_path_factory, capsys):
    """Some files orbax does not need; the array data it would read without a word."""
    older = 0
    for file in files(workdir / "checkpoints" / "20"):
        copy = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(workdir, copy)
        flip_a_bit(copy / file.relative_to(workdir))
        state, meta = restore(copy)
        step = int(state["step"])
        assert weights_sha256(state) == weights_sha256(make_state(step)), file
        assert meta == {"value": step / 7}
        assert saved_steps(copy) == [step, 10][: 1 + (step == 20)]
        said = "checkpoint 20 is damaged: going on from step 10"
        assert (said in capsys.readouterr().out) == (step == 10)
        older += step == 10
    assert older >= 4


def test_restore_raises_where_no_step_is_whole(workdir):
    for step in ("10", "20"):
        flip_a_bit(workdir / "checkpoints" / step / "meta" / "metadata")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole .*delete"):
        restore(workdir)
    assert saved_steps(workdir) == [20, 10]


def test_restore_of_another_model_raises_and_deletes_nothing(workdir):
    for change in ({"more": LIKE["bias"]}, {"bias": LIKE["kernel"]}):
        with pytest.raises(CheckpointError, match="of this model"):
            restore(workdir, {**LIKE, **change})
    assert saved_steps(workdir) == [20, 10]


def test_restore_ignores_a_step_that_was_killed_on_the_way(workdir):
    folder = workdir / "checkpoints"
    (folder / "20").rename(folder / "20.orbax-checkpoint-tmp")
    state, _ = restore(workdir)
    assert int(state["step"]) == 10
    assert saved_steps(workdir) == [10]


def test_wait_raises_where_the_disk_is_full(workdir):
    checkpoints = Checkpoints(workdir)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1009, before[1]))
    try:
        checkpoints.save(30, make_state(30), {})
        with pytest.raises(CheckpointError, match=r"cannot save to .*free some space"):
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert int(restore(workdir)[0]["step"]) == 20


def test_close_deletes_checkpoints_when_asked(workdir):
    Checkpoints(workdir).close(delete=True)
    assert not (workdir / "checkpoints").exists()


def test_load_weights_gives_what_save_weights_was_given_last(tmp_path):
    for step in (1, 2):
        save_weights(tmp_path / "best", make_state(step))
    found = load_weights(tmp_path / "best", LIKE)
    assert weights_sha256(found) == weights_sha256(make_state(2))


def test_load_weights_names_what_is_missing_damaged_or_another_models(tmp_path):
    folder = tmp_path / "best"
    with pytest.raises(CheckpointError, match=r"there are no weights in .*best"):
        load_weights(folder, LIKE)
    save_weights(folder, make_state(1))
    with pytest.raises(CheckpointError, match=r"best is damaged, or of another model"):
        load_weights(folder, {"kernel": LIKE["kernel"]})
    flip_a_bit(max(files(folder), key=lambda path: path.stat().st_size))
    with pytest.raises(CheckpointError, match=r"best is damaged.*not what was saved"):
        load_weights(folder, LIKE)


def test_weights_sha256_sees_names_shapes_dtypes_and_values():
    base = {"a": np.zeros((2, 3), np.float32)}
    others = [
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.int32)},
        {"a": np.full((2, 3), 1e-45, np.float32)},
    ]
    assert weights_sha256(base) == weights_sha256({"a": jnp.zeros((2, 3))})
    assert len({weights_sha256(tree) for tree in [base, *others]}) == 5
