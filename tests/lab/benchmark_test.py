"""The benchmark as a person starts it: what does not depend on the clock."""

import importlib.util
import json
import statistics

import numpy as np
import pytest

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


@pytest.fixture(scope="module")
def compiled(commands, tmp_path_factory):
    """Two attentions at lengths far apart, none of which may run."""
    names = ("--attention=softmax", "--attention=nystrom-64")
    lengths = ("--length=2048", "--length=8192", "--length=32768")
    out = tmp_path_factory.mktemp("compiled")
    return run(commands, out, "--memory_gb=0", *names, *lengths)


@pytest.mark.parametrize("which_pass", PASSES)
def test_memory_grows_with_the_length_and_the_work_of_softmax_with_its_square(
    compiled, which_pass
):
    _, rows, page = compiled

    def growth(name, part):
        short, long = (rows[which_pass, name, n]["cost"][part] for n in (2048, 32768))
        return np.log(long / short) / np.log(16)

    for part in ("peak_bytes", "temp_bytes"):
        assert 0.9 <= growth("nystrom-64", part) <= 1.1
        assert growth("softmax", part) <= 1.6  # of so many scores not all are held
    assert growth("nystrom-64", "flops") <= 1.1
    assert growth("softmax", "flops") >= 2
    table = page.split(f"## {which_pass.replace('+', ' and ').capitalize()}: MiB")[1]
    for name, bend in (("softmax", 0.3), ("nystrom-64", 0.1)):
        line = next(x for x in table.splitlines() if x.startswith(f"| {name} "))
        fitted = float(line.split("|")[-2])
        assert abs(fitted - growth(name, "peak_bytes")) <= bend


def test_over_the_budget_nothing_runs_and_the_table_says_so(compiled):
    results, rows, page = compiled
    assert len(rows) == 2 * 2 * 3
    for row in results["rows"]:
        assert "over the budget of 0.00 GiB" in row["stopped"]
        assert row["seconds"] is None
    assert page.count("over budget") == len(rows)


def test_operations_are_at_least_those_of_the_products(compiled):
    _, rows, _ = compiled
    heads, head_dim, m = 2, 32, 64
    for n in (2048, 32768):
        exact = 2 * 2 * heads * n * n * head_dim
        assert 1 <= rows["forward", "softmax", n]["cost"]["flops"] / exact <= 1.2
        landmarks = heads * (4 * 2 * n * m * head_dim + 6 * 4 * 2 * m**3)
        assert 1 <= rows["forward", "nystrom-64", n]["cost"]["flops"] / landmarks <= 3
        for name in ("softmax", "nystrom-64"):
            passes = (rows[p, name, n]["cost"]["flops"] for p in PASSES)
            forward, both = passes
            assert 2 * forward < both < 6 * forward
        forward, both = (rows[p, "softmax", n]["cost"]["flops"] for p in PASSES)
        # Where they are many, the scores are made again for the gradient.
        assert both == (3.5 if n == 32768 else 3) * forward


@pytest.fixture(scope="module")
def unoptimized(commands):
    """Programs that compile faster, where it does not matter what they cost."""
    return commands.with_env(JAX_DISABLE_MOST_OPTIMIZATIONS="1")


@pytest.fixture(scope="module")
def measured(unoptimized, tmp_path_factory):
    names = ("softmax", "nystrom-8", "linformer-16")
    args = [*(f"--attention={name}" for name in names), "--length=128", "--length=64"]
    args.append("--option=nystrom.conv_kernel_size=0")
    out = tmp_path_factory.mktemp("measured")
    return (*run(unoptimized, out, *args), out)


@pytest.mark.slow
def test_every_attention_pass_and_length_has_a_row_of_seven_rounds(measured):
    results, rows, page, _ = measured
    names = ("softmax", "nystrom-8", "linformer-16")
    assert rows.keys() == {(p, a, n) for p in PASSES for a in names for n in (64, 128)}
    for row in results["rows"]:
        assert row["stopped"] is None
        assert len(row["seconds"]) == 7
        assert min(row["seconds"]) > 0
        rate = row["cost"]["flops"] / statistics.median(row["seconds"])
        share = rate / row["matmul_flops_per_second"]
        assert row["matmul_share"] == pytest.approx(share)
    for name in names:
        assert page.count(f"\n| {name} |") == 8  # four tables of each pass
    assert rows["forward", "nystrom-8", 64]["key"]["options"]["conv_kernel_size"] == 0
    assert "| attention | 64 | 128 |" in page


@pytest.mark.slow
def test_a_result_says_where_it_comes_from_and_has_a_figure(measured):
    results, _, page, out = measured
    assert results["command"].startswith("python scripts/benchmark.py --out=")
    assert {"jax", "python"} <= results["versions"].keys()
    assert {"commit", "device", "memory_budget_bytes"} <= results.keys()
    assert f"- Command: `{results['command']}`" in page
    assert (out / "attention.png").stat().st_size > 10_000
    assert (out / "attention.svg").stat().st_size > 10_000


@pytest.mark.slow
def test_a_result_against_itself_is_one_and_measures_nothing(commands, measured):
    *_, out = measured
    before = (out / "benchmark.json").read_bytes()
    done = commands.run("benchmark.py", f"--out={out}", f"--against={out}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("time  1.000 memory  1.000") == 12
    assert (out / "benchmark.json").read_bytes() == before


@pytest.mark.slow
def test_train_steps_of_a_task_with_two_sequences(unoptimized, tmp_path):
    sizes = ("--task=retrieval", "--batch_size=2", "--length=32")
    names = ("--attention=linear", "--attention=none")
    parts = ("--parts=1", "--parts=2")
    _, rows, page = run(unoptimized, tmp_path, "--train_step", *sizes, *names, *parts)
    labels = ("linear", "linear in 2", "none", "none in 2")
    steps = {("train step", label, 32) for label in labels}
    assert rows.keys() == {*steps, ("input", "input", 32)}
    for (what, label, _), row in rows.items():
        assert len(row["seconds"]) == 7
        if what == "train step":  # in parts the work is up to the lengths
            assert (row["cost"]["flops"] is None) == label.endswith("in 2")
    assert "## Train steps a second" in page
    assert "retrieval 2 × 32" in page
    assert "| attention | retrieval |" in page.split("## Input side")[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--attention=nystrm-64"], "unknown attention 'nystrm'"),
        (["--length=0"], "length"),
        (["--train_step", "--task=listops", "--length=64"], "listops"),
        (["--train_step", "--task=text", "--parts=3"], "micro_batches=3"),
        (["--parts=4"], "--data_dir and --parts are for --train_step"),
        (["--against=benchmark.json"], "is not there; scripts/benchmark.py writes it"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    commands, tmp_path, args, message
):
    done = commands.run("benchmark.py", f"--out={tmp_path}/out", *args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_or_another_page_is_not_written_over(commands, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# Another\n")
    for out in (page, tmp_path):
        done = commands.run("benchmark.py", f"--out={out}", "--attention=linear")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "README.md" in done.stderr
    assert page.read_text() == "# Another\n"
    assert [*tmp_path.iterdir()] == [page]


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="torch is installed"
)
def test_without_torch_peers_are_one_line(commands, tmp_path):
    done = commands.run("benchmark.py", f"--out={tmp_path}/out", "--peers")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "needs torch: pip install" in done.stderr
    assert not (tmp_path / "out").exists()
