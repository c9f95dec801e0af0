"""The command as a person starts it, on a trained run."""

import csv
import json
import re

import jax
import numpy as np
import pandas as pd
import pytest

from nystromformer.experiments.approximation.study import measure_all
from nystromformer.experiments.trained_run import load_run
from tests import paper
from tests.commands import refused
from tests.page_tables import split_row


@pytest.fixture(scope="module")
def out(commands, finished, tmp_path_factory):
    """The page of the longest example and four landmarks."""
    out = tmp_path_factory.mktemp("approximation") / "out"
    done = commands.run(
        "approximation.py",
        f"--workdir={finished[0]}",
        f"--out={out}",
        "--examples=1",
        "--landmarks=4",
    )
    assert done.returncode == 0, done.stderr
    assert "measuring landmarks: " in done.stdout
    return out


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_approximation_measures_a_run(finished, out):
    result = json.loads((finished[0] / "result.json").read_text())
    page = (out / "README.md").read_text()
    assert "by the choice of 4 landmarks" in page
    assert f"best weights of step {result['best_step']:,}" in page
    names = re.findall(r"!\[(\w+)\]\(\1[.]png\)", page)
    assert set(names) > {"landmarks", "causes", "limits", "spectrum", "iterates"}
    for name in names:
        assert (out / f"{name}.png").is_file()
        assert (out / f"{name}.svg").is_file()

    rows = read_rows(out / "landmarks.csv")
    assert {(row["layer"], row["head"]) for row in rows} == {("0", "0"), ("0", "1")}
    methods = {row["method"] for row in rows}
    assert {"random", "k-means", "double softmax", "linformer", "performer"} < methods
    for row in rows:
        if row["method"] == "segment means":
            assert 0 < float(row["distance"]) <= float(row["bound"])


ITERATIONS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)


def expected_errors(query, key, value):
    """‖ŜV − SV‖ / ‖SV‖ of one head with 4 landmarks, by the paper in numpy.

    Returns:
      The errors by the method, and by the number of iterations or "exact".
    """
    everyone = list(range(len(query)))
    means = [paper.segment_means(x, everyone, 4) for x in (query, key)]
    pairs = zip((query, key), means, strict=True)
    clusters = [paper.lloyd(x, start, num_steps=3) for x, start in pairs]
    exact = paper.attention(query, key, value, everyone)

    def error(inverse, landmarks=means):
        f, a, b = paper.kernels_of(*landmarks, query, key)
        difference = f @ inverse(a) @ b @ value - exact
        return np.linalg.norm(difference) / np.linalg.norm(exact)

    def iterate(num_iters):
        return lambda a: paper.pinv(a, num_iters)

    errors_by_iterations = {count: error(iterate(count)) for count in ITERATIONS}
    errors_by_iterations["exact"] = error(np.linalg.pinv)
    errors_by_method = {
        "segment means": errors_by_iterations[6],
        "k-means": error(iterate(6), clusters),
        "double softmax": error(lambda a: np.eye(len(a))),
    }
    return errors_by_method, errors_by_iterations


def layers_of_longest(workdir):
    """The layers of a run on the longest example of validation."""
    run = load_run(workdir)
    validation = run.task.load("validation", workdir.parent / "data")
    longest = [validation.lengths.argmax()]
    return run.layers(validation.inputs[longest], validation.lengths[longest])


def errors_by_method(rows, head):
    """The errors of one head, of which methods that draw have one for each seed."""
    errors = {}
    for row in rows:
        if int(row["head"]) == head:
            errors.setdefault(row["method"], []).append(float(row["error"]))
    return errors


def errors_by_iterations(rows, head):
    """The errors of one head by the number of iterations, or "exact"."""
    errors = {}
    for row in rows:
        if int(row["head"]) == head:
            is_exact = row["pinv"] == "exact"
            count = "exact" if is_exact else int(float(row["num_pinv_iters"]))
            errors[count] = float(row["error"])
    return errors


def check_errors(rows_of_landmarks, rows_of_iterations, layers):
    """Every error by the paper in numpy, from queries and keys of the run."""
    *qkv, mask = layers[0].example(0)
    for head in (0, 1):
        query, key, value = [x[mask, head] for x in qkv]
        expected_by_method, expected_by_iterations = expected_errors(query, key, value)

        by_iterations = errors_by_iterations(rows_of_iterations, head)
        assert by_iterations == pytest.approx(expected_by_iterations, rel=1e-4)

        by_method = errors_by_method(rows_of_landmarks, head)
        errors_by_seed = by_method.pop("random")
        assert len(errors_by_seed) == 8
        assert len(set(errors_by_seed)) > 4
        for baseline in ("linformer", "performer"):
            assert len(set(by_method.pop(baseline))) == 8
        by_method = {method: error for method, [error] in by_method.items()}
        assert by_method == pytest.approx(expected_by_method, rel=1e-4)


# measurements_test holds the errors by the paper without a run.
@pytest.mark.slow
def test_measured_errors_of_a_run_are_those_of_the_paper(finished):
    layers = layers_of_longest(finished[0])
    with jax.enable_x64(True):
        tables = measure_all(layers, [4])
    check_errors(
        tables["landmarks"].to_dict("records"),
        tables["iterations"].to_dict("records"),
        layers,
    )


@pytest.mark.slow
def test_approximation_is_of_the_longest_examples_of_validation(finished, out):
    check_errors(
        read_rows(out / "landmarks.csv"),
        read_rows(out / "iterations.csv"),
        layers_of_longest(finished[0]),
    )


# These methods of causes.csv have the errors of those of landmarks.csv.
SAME_METHODS = {
    "nystrom": "segment means",
    "no inverse": "double softmax",
    "k-means landmarks": "k-means",
    "random landmarks": "random",
    "performer": "performer",
}


@pytest.mark.slow
def test_approximation_splits_the_error_of_each_head_into_causes(out):
    landmarks = pd.read_csv(out / "landmarks.csv").groupby(["head", "method"])["error"]
    all_causes = pd.read_csv(out / "causes.csv")
    assert set(all_causes["method"]) > SAME_METHODS.keys()
    for place, rows in all_causes.groupby(["head", "method"]):
        head, cause = place
        if cause in SAME_METHODS:
            expected = landmarks.get_group((head, SAME_METHODS[cause])).tolist()
            assert rows["error"].tolist() == pytest.approx(expected, rel=1e-4)

    page = (out / "README.md").read_text()
    *_, table = page.split("## Table of causes")
    header, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    cells = pd.DataFrame(map(split_row, rows), columns=split_row(header))
    assert cells[["layer", "head", "M"]].to_numpy().tolist() == [
        ["0", "0", "4"],
        ["0", "1", "4"],
    ]
    for head, row in cells.iterrows():
        errors = all_causes[all_causes["head"] == head].groupby("method")["error"]
        assert row["best rank"] == f"{errors.median()['best rank']:.2g}"
        spread = errors.max()["performer"] / errors.min()["performer"]
        assert row["Performer"] == f"{errors.median()['performer']:.2g} (×{spread:.2g})"


def test_approximation_rejects_in_one_line(commands, finished, tmp_path):
    out = f"--out={tmp_path}/out"
    done = commands.run("approximation.py", f"--workdir={tmp_path}", out)
    assert "is not a run" in refused(done)

    workdir = f"--workdir={finished[0]}"
    done = commands.run("approximation.py", workdir, "--landmarks=512", out)
    message = "--landmarks=512 is exact attention here: the longest sequence has"
    assert message in refused(done)
    assert not (tmp_path / "out").exists()
