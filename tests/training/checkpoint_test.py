"""Checkpoints: back comes what was saved, or an older whole one, or an error."""

import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from nystromformer.training.arrays import CheckpointError, digest, save_arrays
from nystromformer.training.checkpoint import Checkpoints, read_best
from tests.archive_server import full_disk
from tests.training.states import ABSTRACT, best_of, make_state


@pytest.fixture
def saved(tmp_path):
    """The checkpoints of steps 10 and 20 (5 was saved first and is gone)."""
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 20):
        checkpoints.save(step, make_state(step), {"note": f"at {step}"}, best_of(step))
    return tmp_path / "checkpoints"


def restore(directory: Path, abstract: Any = ABSTRACT):
    return Checkpoints(directory.parent).restore(abstract)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_of_two_comes_back_bit_for_bit(saved):
    assert names(saved) == ["10.safetensors", "20.safetensors"]
    state, meta, best = restore(saved)
    assert meta == {"note": "at 20"}
    assert digest(state) == digest(make_state(20))
    assert best[0] == 15
    assert digest(best[1]) == digest(best_of(20)[1])


def test_a_folder_without_checkpoints_gives_none(tmp_path):
    assert restore(tmp_path / "checkpoints") is None


def test_before_any_validation_there_is_no_best(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, make_state(3), {})
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
    checkpoints.save_best(best_of(40))
    checkpoints.finish(35)
    assert names(best) == ["35.safetensors"]
    assert names(saved) == []
    step, weights = read_best(saved.parent, ABSTRACT.weights)
    assert (step, digest(weights)) == (35, digest(best_of(40)[1]))


def test_a_step_saved_again_leaves_the_older_checkpoint_whole(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step, best in ((20, 16), (40, 32), (40, 40)):
        weights = make_state(best).weights
        checkpoints.save(step, make_state(step), {}, (best, weights))
    flip_a_bit(tmp_path / "checkpoints" / "40.safetensors")
    _, _, best = restore(tmp_path / "checkpoints")
    assert best[0] == 16


def test_what_a_killed_run_left_is_not_taken_for_the_best(saved):
    """Its best weights were on disk before its checkpoint."""
    best = saved.parent / "best"
    save_arrays(best / "25.safetensors", best_of(99)[1])
    checkpoints = Checkpoints(saved.parent)
    _, _, (step, _) = checkpoints.restore(ABSTRACT)
    assert step == 15
    checkpoints.save(30, make_state(30), {}, best_of(30))
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


def test_finished_runs_of_the_layout_before_are_read_and_unfinished_ones_refused(
    tmp_path,
):
    """Their best weights lie within the state of their last checkpoint."""
    leaves = jax.tree_util.tree_leaves_with_path(make_state(7).weights)
    named = {f".best{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    with ocp.StandardCheckpointer() as checkpointer:
        folder = tmp_path / "checkpoints" / "40" / "state"
        checkpointer.save(folder, {**named, ".best_step": jnp.int32(7)})
    step, weights = read_best(tmp_path, ABSTRACT.weights)
    assert (step, digest(weights)) == (7, digest(make_state(7).weights))
    with pytest.raises(CheckpointError, match="of an earlier version: finish the run"):
        restore(tmp_path / "checkpoints")


def test_a_flipped_bit_makes_it_go_back_to_the_older_one_and_say_so(saved, capsys):
    flip_a_bit(saved / "20.safetensors")
    state, _, _ = restore(saved)
    assert digest(state) == digest(make_state(10))
    assert "checkpoint 20" in capsys.readouterr().out
    assert names(saved) == ["10.safetensors"]
    assert (saved.parent / "damaged-20.safetensors").is_file()


def test_a_changed_meta_is_noticed_too(saved):
    path = saved / "20.safetensors"
    path.write_bytes(path.read_bytes().replace(b"at 20", b"at 21"))
    _, meta, _ = restore(saved)
    assert meta == {"note": "at 10"}


def test_every_flipped_bit_and_truncation_is_noticed(saved):
    rng = random.Random(0)
    file, aside = saved / "20.safetensors", saved.parent / "damaged-20.safetensors"
    best = saved.parent / "best" / "15.safetensors"
    originals = {path: path.read_bytes() for path in (file, best)}
    for damaged in (file, best) * 20:
        content = bytearray(originals[damaged])
        if rng.random() < 0.3:
            content = content[: rng.randrange(len(content))]
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(content)
        state, meta, _ = restore(saved)
        assert digest(state) == digest(make_state(10))
        assert meta == {"note": "at 10"}
        assert aside.is_file()
        file.write_bytes(originals[file])
        best.write_bytes(originals[best])


def test_a_file_that_cannot_be_read_is_no_damage(saved):
    file = saved / "20.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        restore(saved)
    file.unlink()
    file.write_bytes(content)
    state, _, _ = restore(saved)
    assert digest(state) == digest(make_state(20))


def test_when_none_is_whole_it_refuses(saved):
    for step in ("10", "20"):
        flip_a_bit(saved / f"{step}.safetensors")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint .*20, 10"):
        restore(saved)
    assert names(saved) == ["10.safetensors", "20.safetensors"]


def test_a_half_written_step_is_ignored(saved):
    (saved / "30.safetensors.tmp").write_bytes(b"half")
    state, _, _ = restore(saved)
    assert digest(state) == digest(make_state(20))
    for step in (10, 20):  # it was the first
        (saved / f"{step}.safetensors").unlink()
    assert restore(saved) is None


def test_another_model_is_named_and_is_no_damage(saved):
    other = ABSTRACT._replace(step=jax.ShapeDtypeStruct((2,), jnp.int32))
    with pytest.raises(CheckpointError, match=r"20\.safetensors: step is int32"):
        restore(saved, other)
    assert names(saved) == ["10.safetensors", "20.safetensors"]


def test_a_full_disk_leaves_the_older_checkpoint_whole(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1), {})
    said = pytest.raises(CheckpointError, match=r"could not save step 2 .*intact")
    with full_disk(1009), said:
        checkpoints.save(2, make_state(2), {})
    state, _, _ = restore(tmp_path / "checkpoints")
    assert digest(state) == digest(make_state(1))
