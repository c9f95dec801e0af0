"""The best weights of a run, their predictions, and folders that are no run."""

import json
import re
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nystromformer
from lra_tasks.errors import DataError
from nystromformer.errors import CheckpointError, ConfigError
from nystromformer.experiments.objectives import OBJECTIVES
from nystromformer.factors import nystrom_factors, softmax_matrix
from nystromformer.training.checkpoint import (
    load_weights,
    save_weights,
    weights_sha256,
)
from nystromformer.training.step import split_weights
from tests.commands import ROOT
from tests.small import prefixed, result_of, untrained
from tests.tolerance import TOLERANCE, relative_error


@pytest.fixture(scope="module")
def workdir(finished):
    workdir, _ = finished
    return workdir


@pytest.fixture(scope="module")
def run(workdir):
    return nystromformer.load_run(str(workdir))


@pytest.fixture(scope="module")
def test_split(workdir, run):
    return run.task.load("test", workdir.parent / "data")


def test_load_run_has_the_weights_that_were_tested(workdir, run):
    assert run.result == result_of(workdir)
    assert str(run.folder) == str(workdir)
    # A prediction changes no weight.
    run.predict(["[MAX 2 3 ]"])
    _, weights = split_weights(run.model)
    assert weights_sha256(jax.device_get(weights)) == run.result["params_sha256"]


def test_evaluate_says_where_a_split_is_not_the_runs(workdir, capsys):
    run = nystromformer.load_run(workdir)
    data_dir = workdir.parent / "data"
    for split in ("validation", "test"):
        run.evaluate(split, data_dir)
    assert capsys.readouterr().err == ""

    run.result["data_sha256"]["test"] = "another"
    run.evaluate("test", data_dir)
    assert capsys.readouterr().err == "note: this test split is not the run's\n"


def test_predict_is_as_good_as_its_result_says(run, test_split):
    prediction = run.predict(test_split.inputs, test_split.lengths)
    probabilities = prediction.probabilities
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    accuracy = np.mean(prediction.classes == test_split.labels)
    assert accuracy == pytest.approx(run.result["test_accuracy"])
    label_columns = test_split.labels[:, None]
    label_probabilities = np.take_along_axis(probabilities, label_columns, axis=1)
    loss = -np.log(label_probabilities).mean()
    assert loss == pytest.approx(run.result["test_loss"], rel=1e-4)


def test_predict_takes_texts_as_their_token_ids(run, test_split):
    texts = []
    for row, length in zip(test_split.inputs, test_split.lengths, strict=True):
        texts.append(run.task.decode(row[:length]))
    # Both are the same ids in one program, which takes 32 examples at a time.
    by_text = run.predict(texts).probabilities
    by_ids = run.predict(test_split.inputs, test_split.lengths).probabilities
    np.testing.assert_array_equal(by_text, by_ids)
    # An array without axes is one text.
    (by_one_text,) = run.predict(np.array(texts[0])).probabilities
    assert relative_error(by_one_text, by_ids[0]) <= TOLERANCE["same"]


def test_predict_of_one_example_without_padding_is_that_among_others(run, test_split):
    among_others = run.predict(test_split.inputs, test_split.lengths).probabilities
    tokens = test_split.inputs[:1, : test_split.lengths[0]]
    alone = run.predict(tokens).probabilities
    np.testing.assert_allclose(alone, among_others[:1], rtol=1e-5)


def test_predict_and_layers_reject_what_is_no_example(run):
    """The tests of prepare_inputs have all cases."""
    tokens, _ = run.task.encode(["[MAX 2 3 ]"])
    for method in (run.predict, run.layers):
        with pytest.raises(DataError, match="'x' is not a token of ListOps"):
            method(["[MAX 2 x ]"])
        with pytest.raises(ValueError, match="end in 0, the padding: give lengths"):
            method(tokens)


TINY = {"model__num_layers": 1, "model__model_dim": 8, "task__max_length": 16}


@pytest.mark.parametrize(
    ("task", "options", "names"),
    [
        ("text", {}, ["negative", "positive"]),
        ("labelled_texts", {"task__labels": "ham,spam"}, ["ham", "spam"]),
    ],
)
def test_predict_names_the_classes(task, options, names):
    run = untrained("identity,quick", task, **TINY, **options)
    prediction = run.predict([f"film {i}" for i in range(20)])
    expected = [names[number] for number in prediction.classes]
    assert prediction.labels.tolist() == expected


def test_predict_takes_pairs_of_texts_as_their_token_ids():
    run = untrained("identity,quick", "retrieval", **TINY)
    texts = ["one", "another", "a third", "ö" * 40]
    tokens, lengths = run.task.encode(texts)
    by_ids = run.predict(tokens.reshape(2, 2, 16), lengths.reshape(2, 2))
    with pytest.warns(UserWarning, match="1 of 4 texts are cut") as caught:
        by_text = run.predict([texts[:2], texts[2:]])
    assert caught[0].filename == __file__
    assert by_ids.probabilities.shape == (2, 2)
    np.testing.assert_array_equal(by_text.probabilities, by_ids.probabilities)
    expected = [str(number) for number in by_text.classes]
    assert by_text.labels.tolist() == expected


@pytest.mark.parametrize(
    ("tokenizer", "lengths"),
    [
        (None, [7, 10]),
        # [CLS], a leading space and [SEP] are three tokens more.
        ("byte", [10, 13]),
    ],
)
def test_predict_reads_the_lines_of_a_file_as_training_reads_texts(tokenizer, lengths):
    run = untrained("nystrom,quick", "text", **TINY, task__tokenizer=tokenizer)
    lines = ["A film.\n", "\ta fine one \r\n"]
    texts = ["A film.", "a fine one"]
    probabilities = run.predict(lines).probabilities
    np.testing.assert_array_equal(probabilities, run.predict(texts).probabilities)
    first_layer, *_ = run.layers(lines)
    assert first_layer.mask.sum(axis=1).tolist() == lengths


def test_the_page_on_training_reads_a_run_as_it_says(workdir, monkeypatch, tmp_path):
    """It reads ids with their lengths, and rows of the matrix with their mask."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/listops-quick").symlink_to(workdir)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/training.md").read_text()
    (code,) = re.findall(r"```python notest\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    by_text = names["run"].predict(names["texts"]).probabilities
    np.testing.assert_array_equal(names["by_ids"].probabilities, by_text)
    np.testing.assert_allclose(names["same"], names["rows"][0], atol=1e-6)
    assert names["same"].shape == (1, 48)


def test_load_run_rejects_what_is_no_trained_run(workdir, tmp_path):
    with pytest.raises(ConfigError, match="is not a run"):
        nystromformer.load_run(tmp_path)

    shutil.copy(workdir / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match="not validated"):
        nystromformer.load_run(tmp_path)

    shutil.copy(workdir / "result.json", tmp_path)
    message = "best is missing.*; copy this folder again, or train the run anew$"
    with pytest.raises(CheckpointError, match=message):
        nystromformer.load_run(tmp_path)


def cut_in_half(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def delete_arrays(run):
    """Deletes the files of all arrays, which orbax reads at once."""
    shutil.rmtree(run / "best" / "state" / "d")


DAMAGES = {
    "config": (lambda run: cut_in_half(run / "config.json"), "config.json cannot be u"),
    "result": (lambda run: cut_in_half(run / "result.json"), "result.json cannot be u"),
    "arrays": (delete_arrays, "best is damaged: a file in it is missing"),
    "metadata": (
        lambda run: cut_in_half(run / "best/meta/metadata"),
        "best is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_load_run_of_a_damaged_folder_is_one_error_of_one_line(
    workdir, tmp_path, commands, damage
):
    """A notebook shows the tracebacks of all errors from which an error was raised."""
    run = shutil.copytree(workdir, tmp_path / "run")
    inflict, message = DAMAGES[damage]
    inflict(run)
    script = tmp_path / "cell.py"
    script.write_text(f"import nystromformer; nystromformer.load_run({str(run)!r})")
    done = commands.run(str(script))
    assert done.stderr.count("Traceback") == 1, done.stderr
    *_, line = done.stderr.splitlines()
    assert message in line


def test_load_run_rejects_best_weights_of_another_seed(workdir, tmp_path):
    """The two that are copied are enough to see it; where data lay says nothing."""
    shutil.copytree(workdir / "best", tmp_path / "best")
    config = json.loads((workdir / "config.json").read_text())
    config["task"]["data_dir"] = "/elsewhere"
    (tmp_path / "config.json").write_text(json.dumps(config))
    nystromformer.load_run(tmp_path)

    config["train"]["seed"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = r"best is of another run than config\.json .*: train\.seed is 0 there, 1"
    with pytest.raises(CheckpointError, match=message):
        nystromformer.load_run(tmp_path)


def test_load_run_takes_a_run_that_is_older_than_a_setting(workdir, run, tmp_path):
    weights, settings = load_weights(workdir / "best", run.weights)
    del settings["model.short_conv"]
    save_weights(tmp_path / "best", weights, settings)
    config = json.loads((workdir / "config.json").read_text())
    del config["model"]["short_conv"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert nystromformer.load_run(tmp_path).config.model.short_conv == 0


def test_load_run_finds_weights_that_a_kill_has_left_beside_their_place(
    workdir, tmp_path
):
    shutil.copy(workdir / "config.json", tmp_path)
    shutil.copytree(workdir / "best", tmp_path / "best.new")
    sha256 = weights_sha256(nystromformer.load_run(tmp_path).weights)
    assert sha256 == result_of(workdir)["params_sha256"]


def test_predict_takes_classifiers_of_any_objective_alone(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "mine", OBJECTIVES["classification"])
    run = untrained("identity,quick", objective__name="mine")
    assert run.predict(["[MAX 2 3 ]"]).probabilities.shape == (1, 10)
    with pytest.raises(ValueError, match="mlm predicts no classes"):
        untrained("identity,quick,pretrain").predict(["[MAX 2 3 ]"])


SHORT = {"task__max_length": 8, "task__max_tokens": 8, "task__min_tokens": 4}
TOKENS = np.array([[1, 5, 7, 2, 9, 3, 4, 6], [2, 7, 8, 5, 5, 5, 5, 5]])


@pytest.fixture(scope="module", params=["softmax", "nystrom"])
def matrix_run(request):
    """A run on eight tokens whose attention has a matrix."""
    if request.param == "softmax":
        return untrained("softmax", **SHORT)
    return untrained("nystrom", **SHORT, attention__num_landmarks=3)


def test_attention_gives_rows_of_the_matrix_of_queries_and_keys(matrix_run):
    """The attention applies this matrix, as factors_test tests."""
    tokens = TOKENS[:1]
    rows = matrix_run.attention(tokens, layer=0, head=1, rows=[0, 5], lengths=[7])
    layer, *_ = matrix_run.layers(tokens, [7])
    mask = jnp.arange(8) < 7
    np.testing.assert_array_equal(layer.mask[0], mask)

    query = jnp.float32(layer.query[0, :, 1])
    key = jnp.float32(layer.key[0, :, 1])
    if matrix_run.config.attention.name == "nystrom":
        compute_factors = jax.jit(partial(nystrom_factors, num_landmarks=3))
        f, z, b = map(np.asarray, compute_factors(query, key, mask))
        matrix = f @ z @ b
    else:
        matrix = np.asarray(jax.jit(softmax_matrix)(query, key, mask))
    np.testing.assert_allclose(rows[0], matrix[[0, 5]], atol=1e-5)
    assert not rows[0, :, 7].any()

    one_row = matrix_run.attention(tokens, layer=0, head=1, rows=5, lengths=[7])
    assert relative_error(one_row[:, 0], rows[:, 1]) <= TOLERANCE["same"]


@pytest.mark.parametrize(
    ("layer", "head", "rows", "message"),
    [
        (0, 1, [8], "rows must be from 0 to 7"),
        (0, 1, [-1], "rows must be from 0 to 7"),
        (0, 1, [0, 9], "rows must be from 0 to 7"),
        (0, 1, 8, "rows must be from 0 to 7"),
        (0, 1, [0.5], "rows must be from 0 to 7"),
        (9, 0, [0], "layer must be at most 1, got 9"),
        (0, 2, [0], "head must be at most 1, got 2"),
    ],
)
def test_attention_rejects_a_row_layer_or_head_that_is_not_there(
    matrix_run, layer, head, rows, message
):
    with pytest.raises(ValueError, match=message):
        matrix_run.attention(TOKENS[:1], layer=layer, head=head, rows=rows)


@pytest.mark.parametrize(
    "options",
    [
        {"num_pinv_iters": 2, "landmarks": "random", "landmark_seed": 3},
        {"landmark_padding": "count", "pinv": "identity"},
    ],
    ids=str,
)
def test_attention_gives_rows_of_what_the_model_applies(options):
    """The rows times the values are the output of the attention."""
    run = untrained(
        "nystrom",
        model__num_layers=1,
        attention__num_landmarks=3,
        attention__conv_kernel_size=0,
        **SHORT,
        **prefixed("attention", options),
    )
    lengths = [8, 6]
    (layer,) = run.layers(TOKENS, lengths)
    attention = run.model.encoder.blocks[0].attention.attention

    @jax.jit
    def attend(query, key, value, mask):
        return attention(query, key, value, mask=mask[:, None, None])

    expected = attend(layer.query, layer.key, layer.value, layer.mask)
    for head in (0, 1):
        rows = run.attention(TOKENS, layer=0, head=head, rows=[4, 1], lengths=lengths)
        output = np.einsum("brs,bsh->brh", rows, layer.value[:, :, head])
        np.testing.assert_allclose(output, expected[:, [4, 1], head], atol=1e-5)


def test_attention_gives_rows_of_the_attention_of_the_layer():
    run = untrained(
        "nystrom",
        **SHORT,
        model__num_layers=3,
        attention__num_landmarks=3,
        attention__by_layer="0=softmax 1=linear",
    )
    layers = run.layers(TOKENS)

    def nystrom_matrix(query, key):
        f, z, b = nystrom_factors(query, key, num_landmarks=3)
        return f @ z @ b

    for number, make_matrix in ((0, softmax_matrix), (2, nystrom_matrix)):
        rows = run.attention(TOKENS, layer=number, head=1, rows=[0, 5])
        query = jnp.float32(layers[number].query[0, :, 1])
        key = jnp.float32(layers[number].key[0, :, 1])
        expected = jax.jit(make_matrix)(query, key)
        np.testing.assert_allclose(rows[0], expected[jnp.array([0, 5])], atol=1e-5)
    with pytest.raises(ValueError, match="rows need softmax"):
        run.attention(TOKENS, layer=1, head=1, rows=[0])


@pytest.mark.parametrize("arg", ["linear", "nystrom,as_published"])
def test_attention_rejects_one_without_a_matrix(arg):
    with pytest.raises(ValueError, match="rows need softmax"):
        untrained(arg).attention(np.ones((1, 4), int), layer=0, head=0, rows=[0])
