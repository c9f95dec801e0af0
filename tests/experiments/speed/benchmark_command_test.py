"""scripts/benchmark.py as a person starts it, but for the times that it measures."""

import itertools
import json

import pytest

from tests.commands import refused

# A module for --load: JAX's plain attention stands in for cuDNN's kernel.
CUDNN = """
import jax
from nystromformer.experiments.speed import attentions

attend = jax.nn.dot_product_attention
jax.nn.dot_product_attention = lambda *qkv, implementation: attend(*qkv)
attentions.can_fuse = lambda *qkv: True
"""


def run_benchmark(commands, out, *flags):
    """Runs the command, and returns its benchmark.json."""
    done = commands.run("benchmark.py", f"--out={out}", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "benchmark.json").read_text())


def test_benchmark_writes_tables_json_and_a_figure(commands, tmp_path):
    results = run_benchmark(
        commands,
        tmp_path,
        "--attention=softmax",
        "--attention=linear",
        "--length=64",
        "--length=32",
        "--dtype=bfloat16",
        "--batch_size=2",
        "--num_heads=3",
        "--head_dim=4",
        "--repeats=2",
    )
    programs = []
    sizes = {"batch_size": 2, "num_heads": 3, "head_dim": 4, "dtype": "bfloat16"}
    for row in results["rows"]:
        key = row["key"]
        programs.append((key["what"], key["attention"], key["length"]))
        assert key.items() >= sizes.items()
        assert min(row["seconds"]) > 0
    passes = ("forward", "forward+backward")
    expected = itertools.product(passes, ("softmax", "linear"), (32, 64))
    assert sorted(programs) == sorted(expected)

    page = (tmp_path / "README.md").read_text()
    assert "| attention | 32 | 64 |" in page
    assert "- Computed by XLA: softmax; linear" in page
    assert f"- Command: `{results['command']}`" in page
    assert (tmp_path / "attention.png").stat().st_size > 10_000


def test_benchmark_without_rounds_measures_memory_alone(commands, tmp_path):
    results = run_benchmark(
        commands,
        tmp_path,
        "--attention=softmax_all_scores",
        "--attention=nystrom-8,conv_kernel_size=0",
        "--attention=nystrom-4",
        "--length=64",
        "--repeats=0",
    )
    rows = results["rows"]
    assert [row["seconds"] for row in rows] == 6 * [[]]
    assert all(row["peak_bytes"] > 0 for row in rows)
    # Each attention has a row for each of its two passes.
    labels = ["softmax_all_scores", "nystrom-8", "nystrom-4 + convolution of 35"]
    assert [row["key"]["attention"] for row in rows[::2]] == labels

    page = (tmp_path / "README.md").read_text()
    assert "MiB" in page
    assert ": ms" not in page
    assert (tmp_path / "landmarks.png").stat().st_size > 10_000


def test_benchmark_measures_cudnn_where_it_is(commands, tmp_path):
    module = tmp_path / "cudnn.py"
    module.write_text(CUDNN)
    results = run_benchmark(
        commands,
        tmp_path / "out",
        f"--load={module}",
        "--attention=softmax",
        "--length=32",
        "--repeats=0",
    )
    labels = [row["key"]["attention"] for row in results["rows"]]
    assert sorted(labels) == ["cudnn-softmax"] * 2 + ["softmax"] * 2


@pytest.mark.slow
def test_benchmark_measures_train_steps(commands, tmp_path):
    results = run_benchmark(
        commands,
        tmp_path,
        "--train_step",
        "--task=retrieval",
        "--attention=linear",
        "--batch_size=2",
        "--length=32",
        "--grad_accum_steps=1",
        "--grad_accum_steps=2",
        "--repeats=2",
    )
    rows = results["rows"]
    assert [row["key"]["attention"] for row in rows] == ["linear", "linear in 2"]
    assert all(min(row["seconds"]) > 0 for row in rows)
    page = (tmp_path / "README.md").read_text()
    assert "## Train step: ms" in page
    assert "retrieval 2 × 32" in page
    assert not (tmp_path / "attention.png").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attention=nystrm-64"], "unknown attention 'nystrm'"),
        (["--attention=nystrom,x=0"], "--attention=nystrom,x=0: "),
        (["--table=paper", "--dtype=bfloat16"], "--dtype has no effect on --table="),
        (["--train_step", "--task=text", "--grad_accum_steps=3"], "grad_accum_steps"),
        (["--train_step", "--length=8", "--length=16"], "takes one --length"),
        (["--peers", "--repeats=0"], "--peers measures time alone"),
        (
            ["--attention=linformer-256", "--length=64"],
            "linformer-256 at 64: projection",
        ),
        (["--task=text"], "--task is for whole train steps: add --train_step"),
        (["--train_step", "--num_heads=4"], "--num_heads is for an attention alone"),
    ],
)
def test_benchmark_rejects_in_one_line_and_writes_nothing(
    commands, tmp_path, flags, message
):
    done = commands.run("benchmark.py", f"--out={tmp_path}/out", *flags)
    assert message in refused(done)
    assert not (tmp_path / "out").exists()


def test_benchmark_names_the_library_that_peers_needs(commands, tmp_path):
    module = tmp_path / "hidden.py"
    module.write_text('import sys\nsys.modules["torch"] = None\n')
    load = f"--load={module}"
    done = commands.run("benchmark.py", f"--out={tmp_path}/out", "--peers", load)
    assert "--peers needs torch: pip install -r requirements-parity" in refused(done)


def test_benchmark_writes_into_no_folder_with_other_files(commands, tmp_path):
    (tmp_path / "thesis.md").touch()
    done = commands.run(
        "benchmark.py", f"--out={tmp_path}", "--attention=linear", "--length=8"
    )
    assert "contains files of something else" in refused(done)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]
