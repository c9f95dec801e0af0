"""scripts/gpu_check.py: every part of it on a CPU, and when it fails."""

import json

import pytest

from nystromformer.experiments.check_results import format_rows, list_failures

# A module for --load: an attention that is a tenth off, but in float64 right.
WRONG = """
import jax.numpy as jnp
from nystromformer.attention import ATTENTIONS
right = ATTENTIONS["linear"].attend

def attend(self, query, *args, **kwargs):
    out = right(self, query, *args, **kwargs)
    return out if query.dtype == jnp.float64 else 1.1 * out

ATTENTIONS["linear"].attend = attend
"""


def check(error=1e-3, **changes):
    """A row of a check of correctness."""
    errors = {"output": 1e-6, "query": error}
    row = {"case": "mine", "errors": errors, "limit": 1e-2, "passed": True}
    return {"stage": "correctness", **row, **changes}


def test_list_failures_has_what_failed_and_what_did_not_end():
    begin = {"stage": "correctness", "num_cases": 2}
    assert list_failures([begin, check(), check()]) == []
    assert list_failures([begin, check(), check(passed=False)]) == ["mine"]
    assert list_failures([begin, check()]) == ["only 1 of 2 cases ended in time"]
    assert list_failures([]) == ["only 0 of 0 cases ended in time"]


def test_format_rows_shows_the_largest_error_and_why_there_is_none():
    rows = [
        {"stage": "device", "command": "python scripts/gpu_check.py"},
        {"stage": "steps", "command": "steps", "status": "ok", "seconds": 1.0},
        check(),
        check(error=float("nan")),
        {**check(), "failure": "no kernel"},
    ]
    text = "\n".join(format_rows(rows))
    assert "| steps | ok | 1 |" in text
    assert "1.0e-03 (query)" in text
    assert "nan (query)" in text
    assert "no kernel" in text


@pytest.mark.slow
def test_gpu_check_goes_through_all_stages_on_a_cpu(commands, tmp_path):
    """Outside git, with libraries alone; what is wrong in one stage stops no other."""
    module = tmp_path / "wrong.py"
    module.write_text(WRONG)
    out = tmp_path / "check"
    process = commands.start(
        "gpu_check.py", f"--out={out}", "--smoke", f"--load={module}"
    )
    stdout, stderr = process.communicate(timeout=600)
    rows = [
        json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()
    ]
    failed = {row["case"]: row["passed"] for row in rows if "case" in row}
    assert sum(failed.values()) == 2
    assert not failed["linear, float32, highest, 61 and 40 tokens"]
    assert process.returncode == 1, stderr
    assert "correctness FAILED:\nlinear" in stderr
    assert "train step, bfloat16" in stdout

    ended = {row["command"]: row["status"] for row in rows if "status" in row}
    assert set(ended.values()) == {"ok"}, ended
    measured = {"attention", "steps", "wide", "float32"}
    assert measured | {"device", "correctness", "train_listops"} <= set(ended)
    times = [row for row in rows if "ms" in row]
    assert {row["stage"] for row in times} == measured
    assert all(row["ms"] > 0 for row in times)
    assert (out / "runs/listops/result.json").exists()
