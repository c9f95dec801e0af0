"""Checkpoints: back comes what was saved, or an older whole one, or an error."""

import random
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.training.checkpoint import CheckpointError, Checkpoints, digest


def make_state(step: int) -> dict[str, jax.Array]:
    key = jax.random.key(step)
    return {"step": jnp.int32(step), "weights": jax.random.normal(key, (37, 41))}


# Orbax leaves coroutines behind when it fails, which Python reports at some later time.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)

ABSTRACT = jax.eval_shape(lambda: make_state(0))


@pytest.fixture
def saved(tmp_path):
    """A folder with steps 10 and 20 (5 was saved first and is gone)."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (5, 10, 20):
        checkpoints.save(step, make_state(step), {"note": f"at {step}"})
    checkpoints.close()
    return tmp_path / "checkpoints"


def restore(directory: Path, **options):
    checkpoints = Checkpoints(directory, **options)
    try:
        return checkpoints.restore(ABSTRACT)
    finally:
        checkpoints.close()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest_file(directory: Path) -> Path:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_the_newest_of_two_comes_back_bit_for_bit(saved):
    assert sorted(path.name for path in saved.iterdir()) == ["10", "20"]
    state, meta = restore(saved)
    assert meta == {"note": "at 20"}
    assert digest(state) == digest(make_state(20))
    assert isinstance(state["weights"], (np.ndarray, jax.Array))


def test_a_folder_without_checkpoints_gives_none(tmp_path):
    assert restore(tmp_path / "new") is None


def test_a_step_that_is_saved_again_is_replaced(saved):
    checkpoints = Checkpoints(saved)
    checkpoints.save(20, make_state(21), {"note": "again"})
    checkpoints.close()
    state, meta = restore(saved)
    assert meta == {"note": "again"}
    assert digest(state) == digest(make_state(21))


def test_only_a_step_that_is_replaced_is_looked_for_on_disk(saved, monkeypatch):
    checkpoints = Checkpoints(saved)
    looks = []
    reload = checkpoints.manager.reload
    monkeypatch.setattr(checkpoints.manager, "reload", lambda: looks.append(reload()))
    checkpoints.save(30, make_state(30), {})
    assert not looks
    checkpoints.save(30, make_state(31), {})
    assert len(looks) == 1
    checkpoints.close()
    assert digest(restore(saved)[0]) == digest(make_state(31))


def test_one_step_can_be_kept_alone(saved):
    checkpoints = Checkpoints(saved)
    checkpoints.keep_only(10)
    assert [path.name for path in saved.iterdir()] == ["10"]
    checkpoints.save(30, make_state(30), {})
    checkpoints.close()
    assert sorted(path.name for path in saved.iterdir()) == ["10", "30"]


def test_a_flipped_bit_makes_it_go_back_to_the_older_one_and_say_so(saved, capsys):
    flip_a_bit(largest_file(saved / "20"))
    state, _ = restore(saved)
    assert digest(state) == digest(make_state(10))
    assert "checkpoint 20" in capsys.readouterr().out
    assert not (saved / "20").exists()
    assert (saved.parent / "damaged-20").is_dir()


def test_a_changed_meta_is_noticed_too(saved):
    (path,) = (saved / "20" / "meta").glob("metadata")
    path.write_text(path.read_text().replace("at 20", "at 21"))
    _, meta = restore(saved)
    assert meta == {"note": "at 10"}


def test_a_step_that_cannot_be_replaced_stays(saved, monkeypatch):
    checkpoints = Checkpoints(saved)

    def fail(*args, **options):
        assert not (saved / "20").exists()
        raise OSError("no")

    monkeypatch.setattr(checkpoints.manager, "save", fail)
    with pytest.raises(CheckpointError, match="could not save step 20"):
        checkpoints.save(20, make_state(21), {})
    checkpoints.close()
    state, _ = restore(saved)
    assert digest(state) == digest(make_state(20))


def test_a_replacement_that_was_killed_half_way_is_taken_back(saved):
    (saved / "20").rename(saved.parent / "replaced-20")
    state, _ = restore(saved)
    assert digest(state) == digest(make_state(20))
    assert not (saved.parent / "replaced-20").exists()


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?"])
def test_a_folder_that_orbax_cannot_read_back_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match=r"one of \* \? \[ in its name"):
        Checkpoints(tmp_path / name / "checkpoints")
    assert not list(tmp_path.iterdir())


def test_reading_only_leaves_a_damaged_one_where_it_is(saved):
    flip_a_bit(largest_file(saved / "20"))
    state, _ = restore(saved, read_only=True)
    assert digest(state) == digest(make_state(10))
    assert (saved / "20").exists()


def test_every_flipped_bit_and_truncation_is_noticed(saved):
    rng = random.Random(0)
    files = sorted(path for path in (saved / "20").rglob("*") if path.is_file())
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
        state, meta = restore(saved, read_only=True)
        assert digest(state) == good[meta["note"]], path
        went_back += meta["note"] == "at 10"
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
    state, _ = restore(saved)
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
    state, _ = restore(saved)
    assert digest(state) == digest(make_state(20))
    assert not (saved / "30.orbax-checkpoint-tmp").exists()


def test_another_shape_is_no_whole_checkpoint(saved):
    checkpoints = Checkpoints(saved)
    other = {**ABSTRACT, "weights": jax.ShapeDtypeStruct((37, 43), jnp.float32)}
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        checkpoints.restore(other)
    checkpoints.close()


def test_the_digest_sees_names_shapes_dtypes_and_values():
    base = {"a": np.zeros((2, 3), np.float32)}
    others = [
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.int32)},
        {"a": np.full((2, 3), 1e-45, np.float32)},
    ]
    assert digest(base) == digest({"a": jnp.zeros((2, 3))})
    assert len({digest(tree) for tree in [base, *others]}) == 5


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
    checkpoints = Checkpoints(small_disk / "checkpoints")
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
    state, _ = restore(small_disk / "checkpoints")
    assert digest(state) == digest(make_state(1))
