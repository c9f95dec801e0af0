"""scripts/benchmark.py as a person starts it: what does not depend on the clock."""

import json

import pytest

from tests.commands import refused


def run(commands, out, *args):
    done = commands.run("benchmark.py", f"--out={out}", "--repeats=2", *args)
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "benchmark.json").read_text())
    keys = [row["key"] for row in results["rows"]]
    assert all(min(row["seconds"]) > 0 for row in results["rows"])
    return keys, results["command"], (out / "README.md").read_text()


def test_benchmark_writes_tables_json_and_a_figure(commands, tmp_path):
    names = ("softmax", "nystrom-8")
    args = [*(f"--attention={name}" for name in names), "--length=64", "--length=32"]
    args += ["--option=nystrom.conv_kernel_size=0", "--dtype=bfloat16"]
    args += ["--batch_size=2", "--num_heads=3", "--head_dim=4"]
    keys, command, page = run(commands, tmp_path, *args)
    found = {(key["what"], key["attention"], key["length"]) for key in keys}
    passes = ("forward", "forward+backward")
    assert found == {(p, a, n) for p in passes for a in names for n in (32, 64)}
    assert {key["options"].get("conv_kernel_size") for key in keys} == {None, 0}
    for key in keys:
        sizes = {"batch_size": 2, "num_heads": 3, "head_dim": 4, "dtype": "bfloat16"}
        assert key.items() >= sizes.items()
    assert "| attention | 32 | 64 |" in page
    assert f"- Command: `{command}`" in page
    assert (tmp_path / "attention.png").stat().st_size > 10_000


def test_benchmark_without_rounds_measures_memory_alone(commands, tmp_path):
    names = ("softmax_all_scores", "nystrom-8,conv_kernel_size=0", "nystrom-4")
    args = [*(f"--attention={name}" for name in names), "--length=64", "--repeats=0"]
    done = commands.run("benchmark.py", f"--out={tmp_path}", *args)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["seconds"] for row in rows] == 6 * [[]]
    assert all(row["peak_bytes"] > 0 for row in rows)
    labels = ["softmax_all_scores", "nystrom-8", "nystrom-4 + convolution of 35"]
    assert [row["key"]["attention"] for row in rows[::2]] == labels
    page = (tmp_path / "README.md").read_text()
    assert "MiB" in page
    assert ": ms" not in page
    assert (tmp_path / "landmarks.png").stat().st_size > 10_000


@pytest.mark.slow
def test_benchmark_measures_train_steps(commands, tmp_path):
    args = ("--train_step", "--task=retrieval", "--batch_size=2", "--length=32")
    args = (*args, "--attention=linear", "--grad_accum_steps=1", "--grad_accum_steps=2")
    keys, _, page = run(commands, tmp_path, *args)
    assert [key["attention"] for key in keys] == ["linear", "linear in 2"]
    assert "## Train step: ms" in page
    assert "retrieval 2 × 32" in page
    assert not (tmp_path / "attention.png").exists()


def test_benchmark_rejects_in_one_line_and_writes_nothing(commands, tmp_path):
    for args, message in (
        (["--attention=nystrm-64"], "unknown attention 'nystrm'"),
        (["--option=nystrom-64.pinv=0"], "no nystrom-64 is measured"),
        ([f"--option={x}.pinv=0" for x in "cdab"], "c.pinv=0: no c is measured"),
        (["--train_step", "--task=text", "--grad_accum_steps=3"], "grad_accum_steps"),
        (["--train_step", "--length=8", "--length=16"], "takes one --length"),
        (["--peers", "--repeats=0"], "--peers measures time alone"),
    ):
        done = commands.run("benchmark.py", f"--out={tmp_path}/out", *args)
        assert message in refused(done)
        assert not (tmp_path / "out").exists()
    (tmp_path / "thesis.md").touch()
    args = (f"--out={tmp_path}", "--attention=linear", "--length=8")
    assert "contains files of something else" in refused(
        commands.run("benchmark.py", *args)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]
