"""scripts/gpu_check.py on a CPU: what is right, what is wrong, and how fast."""

import json

from tests.commands import refused

# A module for --load: an attention that is a tenth off, but in float64 right.
WRONG = """
import jax.numpy as jnp
from nystromformer.attention import find_attention
right = find_attention("linear").attend

def attend(self, query, *args, **kwargs):
    out = right(self, query, *args, **kwargs)
    return out if query.dtype == jnp.float64 else 1.2 * out

find_attention("linear").attend = attend
"""


def test_gpu_check_finds_what_is_wrong_and_measures_all_the_same(commands, tmp_path):
    module = tmp_path / "wrong.py"
    module.write_text(WRONG)
    out = tmp_path / "check"
    done = commands.run(
        "gpu_check.py",
        f"--out={out}",
        f"--load={module}",
        "--attention=linear",
        "--attention=identity",
        "--length=16",
    )
    assert done.returncode == 1, done.stderr
    lines = (out / "correctness.jsonl").read_text().splitlines()
    passed = {row["case"]: row["passed"] for row in map(json.loads, lines)}
    wrong_cases = [case for case, is_right in passed.items() if not is_right]
    assert wrong_cases
    assert len(passed) == 2 * len(wrong_cases)
    assert all(case.startswith("linear") for case in wrong_cases)
    assert "correctness FAILED:\nlinear" in done.stderr
    assert "ok: identity" in done.stdout
    assert "FAILED: linear" in done.stdout
    results = json.loads((out / "speed" / "benchmark.json").read_text())
    measured = {row["key"]["attention"] for row in results["rows"]}
    assert measured == {"softmax", "nystrom-64"}


def test_gpu_check_rejects_in_one_line(commands, tmp_path):
    out = f"--out={tmp_path}/new"
    done = commands.run("gpu_check.py", out, "--attention=nystrm")
    assert "--attention=nystrm: no such attention; known: nystrom," in refused(done)
    assert not (tmp_path / "new").exists()

    (tmp_path / "thesis.md").touch()
    done = commands.run("gpu_check.py", f"--out={tmp_path}")
    assert "contains files of something else" in refused(done)
