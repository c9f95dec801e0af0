"""Flipped bits and truncations in every kind of file that the project reads.

Whoever reads a damaged file gets either what was written, to the last number, or one
line that names it. Never another number, never a traceback.
"""

import collections
import contextlib
import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from lra_tasks import archives
from lra_tasks.listops import ListOps
from lra_tasks.split import DataError
from nystromformer.config import ConfigError
from nystromformer.lab.report.runs import read_run
from nystromformer.lab.workdir import write_result
from nystromformer.training.arrays import (
    CheckpointError,
    digest,
    load_arrays,
    save_arrays,
)
from tests.archive_server import tar_of
from tests.lab.report.conftest import Runs

ERRORS = (ConfigError, DataError, CheckpointError)

# A kind: the files that are damaged, and a reader of them that gives something that can
# be compared.
Kind = tuple[list[Path], Callable[[], Any]]


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    found = [path for path in sorted(folder.rglob(pattern)) if path.is_file()]
    return [path for path in found if path.stat().st_size]


def dataset(folder: Path, pattern: str) -> Kind:
    task = ListOps(
        max_length=64, min_length=10, num_train=307, num_validation=31, num_test=29
    )

    def read() -> Any:
        return [task.load(name, folder).content_hash() for name in ("train", "test")]

    read()
    return files_below(folder, pattern), read


def checkpoint(folder: Path) -> Kind:
    state = {"step": np.int32(20), "x": np.arange(99, dtype=np.float32)}
    path = folder / "20.safetensors"
    save_arrays(path, state, {"note": "whole"})
    shapes = jax.eval_shape(lambda: state)

    def read() -> Any:
        restored, meta = load_arrays(path, shapes)
        return digest(restored), meta

    return [path], read


def archive(folder: Path) -> Kind:
    names = [f"toy/a/{number}.txt" for number in range(20)]
    content = tar_of({name: name.encode() * 100 for name in names})
    path = folder / "toy.tar.gz"
    path.write_bytes(content)
    md5 = hashlib.md5(content).hexdigest()
    published = archives.Archive("http://127.0.0.1:1/toy.tar.gz", len(content), md5)

    def read() -> Any:
        found = archives.obtain([published], [], folder, source_dir=str(folder))
        with archives.open_members(found, r"a/(\d+)\.txt$") as members:
            return {match[1]: file.read() for match, file in members}

    return [path], read


def run(folder: Path, pattern: str) -> Kind:
    """What the report, the evaluation and a second start read of a finished run."""
    workdir = Runs(folder).finished("run")
    write_result(workdir, json.loads((workdir / "result.json").read_text()))
    original = read_run(workdir, "run")
    assert original.result
    known = original.result.keys()

    def read() -> Any:
        run = read_run(workdir, "run")
        result = {key: (run.result or {}).get(key) for key in known}
        return run.config, result, run.metrics

    return files_below(workdir, pattern), read


KINDS = (
    *("dataset *array_record*", "dataset *.json", "checkpoint", "archive"),
    *("run config.json", "run metrics.jsonl", "run result.json"),
)


def make_kind(name: str, folder: Path) -> Kind:
    folder.mkdir()
    makers = {"dataset": dataset, "checkpoint": checkpoint, "archive": archive}
    maker, *patterns = name.split()
    return {**makers, "run": run}[maker](folder, *patterns)


def flip(rng: random.Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


@contextlib.contextmanager
def damaged(path: Path, content: bytes) -> Iterator[None]:
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(original)


def verdict(read: Callable[[], Any], expected: Any) -> str:
    """exact, refused, or what went wrong."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return "exact" if read() == expected else "ANOTHER RESULT"
    except ERRORS as error:
        return "refused" if "\n" not in str(error) else f"MORE THAN A LINE: {error}"
    except Exception as error:
        return f"TRACEBACK: {error!r}"


def campaign(kind: Kind, seed: int, flips: int, truncations: int) -> dict[str, int]:
    """How often which verdict came, with the place of what went wrong."""
    files, read = kind
    expected = read()
    rng = random.Random(seed)
    found = collections.Counter[str]()
    for damage in [flip] * flips + [truncate] * truncations:
        path = rng.choice(files)
        content = damage(rng, path.read_bytes())
        with damaged(path, content):
            came = verdict(read, expected)
        if came not in ("exact", "refused"):
            came = f"{came}: {damage.__name__} of {path.name} to {content!r}"[:2000]
        found[came] += 1
    assert read() == expected  # the damage was put right: the next case is its own
    return dict(found)


@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith("run") else pytest.param(name, marks=pytest.mark.slow)
        for name in KINDS
    ],
)
def test_damage_is_refused_or_changes_nothing(tmp_path, name):
    kind = make_kind(name, tmp_path / "kind")
    found = campaign(kind, 0, flips=5, truncations=3)
    assert found.keys() <= {"exact", "refused"}
    assert found["refused"]


@pytest.mark.slow
@pytest.mark.faults
def test_much_damage(tmp_path, capsys):
    found = {}
    for number, name in enumerate(KINDS):
        kind = make_kind(name, tmp_path / str(number))
        found[name] = campaign(kind, number + 1, flips=30, truncations=15)
    with capsys.disabled():
        print("\n30 flipped bits and 15 truncations of each:")
        for name, counts in found.items():
            print(f"  {name}: {json.dumps(counts)}")
    assert {key for counts in found.values() for key in counts} <= {"exact", "refused"}
