"""Rows made by hand; and real compilers where COMPILERS names their folder."""

import json
import os

import pytest

from nystromformer.experiments.bench.estimates import estimate, tables
from nystromformer.experiments.bench.programs import Program
from nystromformer.experiments.bench.targets import TARGETS
from nystromformer.experiments.bench.variants import every_label

TEXT = """\
ENTRY %main (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  %y = f32[1000]{0} negate(%x)
  ROOT %z = f32[1000]{0} negate(%y)
}
"""


class Compiled:
    def as_text(self):
        return TEXT


@pytest.mark.parametrize("flops", [None, 1e12])
def test_an_estimate_is_that_of_its_kernels_and_above_its_floors(flops):
    cost = {"peak_bytes": 6, "flops": flops, "compile_seconds": 9}
    key = {"what": "forward", "attention": "identity", "length": 64, "dtype": "float32"}
    program = Program(key, run=print, cost=cost, compiled=Compiled())
    row = estimate(program, TARGETS["h200"])
    assert (row["kernels"], row["bytes"], row["memory_bytes"]) == (2, 16_000, 6)
    assert row["bytes_floor_seconds"] == pytest.approx(16_000 / 4.8e12)
    floor = (flops or 0) / 495e12
    assert row["flops_floor_seconds"] == pytest.approx(floor)
    assert row["estimated_seconds"] == pytest.approx(max(2 * 2.2e-6, floor))
    text = "\n".join(tables([row]))
    assert "## Forward: estimated ms (floors: bytes / FLOPs)" in text
    assert f"| identity | {'—' if flops is None else '1000'} |" in text


@pytest.mark.slow
@pytest.mark.skipif("COMPILERS" not in os.environ, reason="COMPILERS names no folder")
@pytest.mark.parametrize("name", ["h200", "v5e"])
@pytest.mark.parametrize("label", every_label())
def test_every_train_step_compiles_for_a_device_that_is_not_there(
    label, name, commands, tmp_path
):
    out, folder = tmp_path / "out", os.environ["COMPILERS"]
    device = (f"--compile_for={name}", f"--compilers={folder}", "--dtype=bfloat16")
    step = ("--train_step", "--task=text", "--batch_size=2", "--length=512")
    done = commands.run(
        "benchmark.py", f"--out={out}", *device, *step, f"--attention={label}"
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "estimates.json").read_text())
    [row] = results["rows"]
    assert 50 < row["kernels"] < 4000
    assert row["estimated_seconds"] >= row["bytes_floor_seconds"] > 0
    assert row["flops"] is None or row["flops"] > 1e8
    assert results["compiled_for"] == name
    assert "Nothing here was measured" in (out / "README.md").read_text()
