"""The benchmark as a person starts it: what does not depend on the clock."""

import importlib.util
import json
import os
import statistics

import numpy as np
import pytest

from tests.commands import refused

PASSES = ("forward", "forward+backward")


def run(commands, out, *args):
    done = commands.run("benchmark.py", f"--out={out}", *args)
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "benchmark.json").read_text())
    rows = {}
    for row in results["rows"]:
        key = row["key"]
        rows[key["what"], key["attention"], key["length"]] = row
    return results, rows, (out / "README.md").read_text()


def test_costs_grow_as_they_should_and_over_the_budget_nothing_runs(commands, tmp_path):
    names = ("--attention=softmax", "--attention=nystrom-64")
    lengths = ("--length=2048", "--length=32768")
    results, rows, page = run(commands, tmp_path, "--memory_gb=0", *names, *lengths)
    assert len(rows) == page.count("over budget") == 2 * 2 * 2
    for row in results["rows"]:
        assert "over the budget of 0.00 GiB" in row["stopped"]
        assert row["seconds"] is None
    heads, head_dim, m = 2, 32, 64
    for which_pass in PASSES:

        def growth(name, part, which_pass=which_pass):
            costs = (rows[which_pass, name, n]["cost"][part] for n in (2048, 32768))
            short, long = costs
            return np.log(long / short) / np.log(16)

        for part in ("peak_bytes", "temp_bytes"):
            assert 0.9 <= growth("nystrom-64", part) <= 1.1
            assert growth("softmax", part) <= 1.6  # of so many scores not all are held
        assert growth("nystrom-64", "flops") <= 1.1
        assert growth("softmax", "flops") >= 2
        name = which_pass.replace("+", " and ").capitalize()
        line = page.split(f"## {name}: MiB")[1].split("| nystrom-64 ")[1]
        fitted = float(line.split("|\n")[0].split("|")[-1])
        assert abs(fitted - growth("nystrom-64", "peak_bytes")) <= 0.01
    for n in (2048, 32768):
        exact = 2 * 2 * heads * n * n * head_dim
        assert 1 <= rows["forward", "softmax", n]["cost"]["flops"] / exact <= 1.2
        landmarks = heads * (4 * 2 * n * m * head_dim + 6 * 4 * 2 * m**3)
        assert 1 <= rows["forward", "nystrom-64", n]["cost"]["flops"] / landmarks <= 3
        forward, both = (rows[p, "softmax", n]["cost"]["flops"] for p in PASSES)
        # Where they are many, the scores are made again for the gradient.
        assert both == (3.5 if n == 32768 else 3) * forward


@pytest.mark.slow
def test_rows_are_of_seven_rounds_and_a_result_equals_itself(commands, tmp_path):
    names = ("softmax", "nystrom-8", "linformer-16")
    args = [*(f"--attention={name}" for name in names), "--length=128", "--length=64"]
    args.append("--option=nystrom.conv_kernel_size=0")
    results, rows, page = run(commands, tmp_path, *args)
    assert rows.keys() == {(p, a, n) for p in PASSES for a in names for n in (64, 128)}
    for row in results["rows"]:
        assert row["stopped"] is None
        assert len(row["seconds"]) == 7
        assert min(row["seconds"]) > 0
        rate = row["cost"]["flops"] / statistics.median(row["seconds"])
        share = rate / row["matmul_flops_per_second"]
        assert row["matmul_share"] == pytest.approx(share)
    assert rows["forward", "nystrom-8", 64]["key"]["options"]["conv_kernel_size"] == 0
    assert "| attention | 64 | 128 |" in page
    assert f"- Command: `{results['command']}`" in page
    assert (tmp_path / "attention.png").stat().st_size > 10_000


@pytest.mark.slow
def test_train_steps_of_a_task_with_two_sequences(commands, tmp_path):
    sizes = ("--task=retrieval", "--batch_size=2", "--length=32")
    args = (*sizes, "--attention=linear", "--parts=1", "--parts=2")
    _, rows, page = run(commands, tmp_path, "--train_step", *args)
    steps = {("train step", label, 32) for label in ("linear", "linear in 2")}
    assert rows.keys() == steps
    for (_, label, _), row in rows.items():
        assert len(row["seconds"]) == 7
        # In parts the work is up to the lengths.
        assert (row["cost"]["flops"] is None) == label.endswith("in 2")
    assert "## Train steps a second" in page
    assert "retrieval 2 × 32" in page


def test_an_attention_of_a_users_own_is_measured(commands, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from nystromformer.attention import register_attention\n"
        "from nystromformer.attention.linear import LinearAttention\n"
        "register_attention('mine', LinearAttention)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    commands = commands.with_env(PYTHONPATH=path)
    args = ("--load=mine", "--attention=mine", "--length=16")
    _, rows, page = run(commands, tmp_path / "out", *args)
    assert rows.keys() == {(which, "mine", 16) for which in PASSES}
    assert page.count("\n| mine |") == 8


MISUSES = [
    (["--attention=nystrm-64"], "unknown attention 'nystrm'"),
    (["--train_step", "--task=text", "--parts=3"], "grad_accum_steps=3"),
    (["--parts=4"], "--data_dir and --parts are for --train_step"),
    (["--load=no_such_module"], "no_such_module"),
]
if importlib.util.find_spec("torch") is None:
    MISUSES.append((["--peers"], "needs torch: pip install"))


def test_bad_input_is_one_line_and_nothing_is_written(commands, tmp_path):
    for args, message in MISUSES:
        done = commands.run("benchmark.py", f"--out={tmp_path}/out", *args)
        assert message in refused(done)
        assert not (tmp_path / "out").exists()
    (tmp_path / "thesis.md").write_text("# Thesis\n")  # of another, so not written over
    done = commands.run("benchmark.py", "--out=")
    assert refused(done) == "error: flag --out=: is empty: name a folder\n"
    done = commands.run("benchmark.py", f"--out={tmp_path}", "--attention=linear")
    refused(done)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]
