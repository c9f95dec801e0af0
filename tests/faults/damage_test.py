"""Flipped bits and truncations in the files that the project reads.

Whoever reads a damaged file gets either what was written, to the last number, or one
line that names it. Never another number, never a traceback. Checkpoints are flipped in
training/checkpoint_test.
"""

import json
import random

import pytest

from lra_tasks.listops import ListOps
from lra_tasks.split import DataError
from nystromformer.config import ConfigError
from nystromformer.experiments.report.runs import read_run
from nystromformer.experiments.workdir import write_result
from tests.experiments.report.conftest import Runs

pytestmark = pytest.mark.slow


def dataset(folder):
    """The folder of a small ListOps, and a reader of it."""
    sizes = {"num_train": 307, "num_validation": 31, "num_test": 29}
    task = ListOps(max_length=64, min_length=10, **sizes)
    return folder, lambda: [
        task.load(name, folder).content_hash for name in ("train", "test")
    ]


def run(folder):
    """A finished run, and what report, evaluation and a second start read of it."""
    workdir = Runs(folder).finished("run")
    write_result(workdir, json.loads((workdir / "result.json").read_text()))
    known = (read_run(workdir, "run").result or {}).keys()

    def read():
        found = read_run(workdir, "run")
        result = {key: (found.result or {}).get(key) for key in known}
        return found.config, result, found.metrics

    return workdir, read


KINDS = (
    (dataset, "*.safetensors"),
    *((run, "config.json"), (run, "metrics.jsonl"), (run, "result.json")),
)


def flip(rng, content):
    damaged = bytearray(content)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def truncate(rng, content):
    return content[: rng.randrange(len(content))]


@pytest.mark.parametrize("times", [2, pytest.param(15, marks=pytest.mark.faults)])
@pytest.mark.parametrize(("kind", "pattern"), KINDS)
def test_damage_is_refused_or_changes_nothing(tmp_path, kind, pattern, times):
    folder, read = kind(tmp_path)
    expected, rng = read(), random.Random(times)
    files = [x for x in folder.rglob(pattern) if x.is_file() and x.stat().st_size]
    refused = 0
    for damage in (flip, flip, truncate) * times:
        path = rng.choice(sorted(files))
        original = path.read_bytes()
        path.write_bytes(damage(rng, original))
        said = ""
        try:
            assert read() == expected, (damage, path, path.read_bytes())
        except (ConfigError, DataError) as error:
            said = str(error)
        assert "\n" not in said
        refused += said != ""
        path.write_bytes(original)
    assert refused
    assert read() == expected  # what was put right is read again
