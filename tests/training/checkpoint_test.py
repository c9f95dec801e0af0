"""Checkpoints: back comes what was saved, or an older whole one, or an error."""

import random
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from nystromformer.training.checkpoint import Checkpoints, read_best
from nystromformer.training.step import Weights
from nystromformer.training.weights import CheckpointError, digest, save_weights


class State(NamedTuple):
    step: jax.Array
    weights: Weights


def make_state(step: int) -> State:
    key = jax.random.key(step)
    params: Any = {"kernel": jax.random.normal(key, (37, 41))}
    return State(jnp.int32(step), Weights(params, {}))  # type: ignore[arg-type]


def best_of(step: int) -> tuple[int, Weights]:
    """As a run that was best five steps before."""
    return step - 5, jax.device_get(make_state(step - 5).weights)


# Orbax leaves coroutines behind when it fails, which Python reports at some later time.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)

ABSTRACT = jax.eval_shape(lambda: make_state(0))


@pytest.fixture
def saved(tmp_path):
    """The checkpoints of steps 10 and 20 (5 was saved first and is gone)."""
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 20):
        checkpoints.save(step, make_state(step), {"note": f"at {step}"}, best_of(step))
    checkpoints.close()
    return tmp_path / "checkpoints"


def restore(directory: Path, abstract: Any = ABSTRACT):
    checkpoints = Checkpoints(directory.parent)
    try:
        return checkpoints.restore(abstract)
    finally:
        checkpoints.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest_file(directory: Path) -> Path:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_the_newest_of_two_comes_back_bit_for_bit(saved):
    assert names(saved) == ["10", "20"]
    state, meta, best = restore(saved)
    assert meta == {"note": "at 20", "layout": 2, "best_step": 15}
    assert digest(state) == digest(make_state(20))
    assert best[0] == 15
    assert digest(best[1]) == digest(best_of(20)[1])


def test_a_folder_without_checkpoints_gives_none(tmp_path):
    assert restore(tmp_path / "checkpoints") is None


def test_before_any_validation_there_is_no_best(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, make_state(3), {})
    checkpoints.close()
    assert restore(tmp_path / "checkpoints")[2] is None
    assert read_best(tmp_path, ABSTRACT.weights) is None


def test_the_best_weights_of_both_checkpoints_are_kept_and_at_the_end_one(saved):
    best = saved.parent / "best"
    assert names(best) == ["15.safetensors", "5.safetensors"]
    checkpoints = Checkpoints(saved.parent)
    checkpoints.restore(ABSTRACT)
    checkpoints.save(30, make_state(30), {}, best_of(20))
    assert names(best) == ["15.safetensors", "5.safetensors"]
    assert read_best(saved.parent, ABSTRACT.weights)[0] == 15
    checkpoints.finish(best_of(40))
    checkpoints.close()
    assert names(best) == ["35.safetensors"]
    assert names(saved) == []
    step, weights = read_best(saved.parent, ABSTRACT.weights)
    assert (step, digest(weights)) == (35, digest(best_of(40)[1]))


def test_what_a_killed_run_left_is_not_taken_for_the_best(saved):
    """Its best weights were on disk before its checkpoint."""
    best = saved.parent / "best"
    save_weights(best / "25.safetensors", best_of(99)[1])
    checkpoints = Checkpoints(saved.parent)
    _, _, (step, _) = checkpoints.restore(ABSTRACT)
    assert step == 15
    checkpoints.save(30, make_state(30), {}, best_of(30))
    checkpoints.close()
    assert names(best) == ["15.safetensors", "25.safetensors"]
    assert digest(read_best(saved.parent, ABSTRACT.weights)[1]) == digest(
        best_of(30)[1]
    )


@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_a_checkpoint_is_whole_only_with_its_best_weights(saved, damage):
    file = saved.parent / "best" / "15.safetensors"
    flip_a_bit(file) if damage == "flip" else file.unlink()
    state, meta, (step, _) = restore(saved)
    assert (meta["note"], step) == ("at 10", 5)
    assert digest(state) == digest(make_state(10))


def test_finished_runs_of_the_layout_before_are_read(tmp_path):
    """Their best weights lie within the state of their last checkpoint."""

    class OldState(NamedTuple):
        best: Weights
        best_step: jax.Array

    old = OldState(make_state(7).weights, jnp.int32(7))
    Checkpoints(tmp_path).save(40, old, {})
    step, weights = read_best(tmp_path, ABSTRACT.weights)
    assert (step, digest(weights)) == (7, digest(make_state(7).weights))


def test_a_flipped_bit_makes_it_go_back_to_the_older_one_and_say_so(saved, capsys):
    flip_a_bit(largest_file(saved / "20"))
    state, _, _ = restore(saved)
    assert digest(state) == digest(make_state(10))
    assert "checkpoint 20" in capsys.readouterr().out
    assert not (saved / "20").exists()
    assert (saved.parent / "damaged-20").is_dir()


def test_a_changed_meta_is_noticed_too(saved):
    (path,) = (saved / "20" / "meta").glob("metadata")
    path.write_text(path.read_text().replace("at 20", "at 21"))
    _, meta, _ = restore(saved)
    assert meta["note"] == "at 10"


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?"])
def test_a_folder_that_orbax_cannot_read_back_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match=r"one of \* \? \[ in its name"):
        Checkpoints(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_and_truncation_is_noticed(saved):
    rng = random.Random(0)
    files = sorted(path for path in (saved / "20").rglob("*") if path.is_file())
    files.append(saved.parent / "best" / "15.safetensors")
    good = {"at 10": digest(make_state(10)), "at 20": digest(make_state(20))}
    went_back = 0
    originals = {path: path.read_bytes() for path in files}
    for path in rng.choices([p for p in files if originals[p]], k=12):
        content = bytearray(originals[path])
        if rng.random() < 0.3:
            content = content[: rng.randrange(len(content))]
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        state, meta, _ = restore(saved)
        assert digest(state) == good[meta["note"]], path
        if meta["note"] == "at 10":
            went_back += 1
            (saved.parent / "damaged-20").rename(saved / "20")
        path.write_bytes(originals[path])
    assert went_back > 0


def test_a_file_that_cannot_be_read_is_no_damage(saved):
    file = largest_file(saved / "20")
    content = file.read_bytes()
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(OSError, match=rf"symbolic links.*{file.name}"):
        restore(saved)
    file.unlink()
    file.write_bytes(content)
    state, _, _ = restore(saved)
    assert digest(state) == digest(make_state(20))


def test_when_none_is_whole_it_refuses(saved):
    for step in ("10", "20"):
        flip_a_bit(largest_file(saved / step))
    with pytest.raises(CheckpointError, match=r"no whole checkpoint .*20, 10"):
        restore(saved)
    assert (saved / "10").exists()


def test_a_half_written_step_is_ignored_and_swept_away(saved):
    (saved / "30.orbax-checkpoint-tmp").mkdir()
    (saved / "30.orbax-checkpoint-tmp" / "state").write_bytes(b"half")
    state, _, _ = restore(saved)
    assert digest(state) == digest(make_state(20))
    assert not (saved / "30.orbax-checkpoint-tmp").exists()


def test_another_shape_is_no_whole_checkpoint(saved):
    other = ABSTRACT._replace(step=jax.ShapeDtypeStruct((2,), jnp.int32))
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        restore(saved, other)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where this may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_the_older_checkpoint_whole(small_disk):
    checkpoints = Checkpoints(small_disk)
    checkpoints.save(1, make_state(1), {})
    filler = small_disk / "filler"
    free = 1 << 21
    with open(filler, "wb", buffering=0) as file:
        while free:
            try:
                file.write(b"x" * free)
            except OSError:
                free //= 2
    with pytest.raises(CheckpointError, match=r"could not save step 2 .*intact"):
        checkpoints.save(2, make_state(2), {})
    checkpoints.close()
    filler.unlink()
    state, _, _ = restore(small_disk / "checkpoints")
    assert digest(state) == digest(make_state(1))
