"""The best weights of a run, what they predict, and what is no run."""

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
from nystromformer.training.checkpoint import weights_sha256
from nystromformer.training.step import split_weights
from tests.commands import ROOT
from tests.small import result_of, untrained


@pytest.fixture(scope="module")
def run(finished):
    return nystromformer.load_run(str(finished[0]))


@pytest.fixture(scope="module")
def test_split(finished, run):
    return run.task.load("test", finished[0].parent / "data")


def test_load_run_has_the_weights_that_were_tested(finished, run):
    assert run.result == result_of(finished[0])
    run.predict(["[MAX 2 3 ]"])  # after which the model still serves
    _, weights = split_weights(run.model)
    assert weights_sha256(jax.device_get(weights)) == run.result["params_sha256"]


def test_evaluate_says_where_a_split_is_not_the_runs(finished, capsys):
    run = nystromformer.load_run(finished[0])
    data = finished[0].parent / "data"
    for sha in (run.result["data_sha256"]["test"], "another"):
        run.result["data_sha256"]["test"] = sha
        run.evaluate("test", data)
    assert capsys.readouterr().err == "note: this test split is not the run's\n"


def test_predict_is_as_good_as_its_result_says(run, test_split):
    prediction = run.predict(test_split.inputs, test_split.lengths)
    probabilities = prediction.probabilities
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    accuracy = np.mean(prediction.classes == test_split.labels)
    assert accuracy == pytest.approx(run.result["test_accuracy"])
    of_labels = probabilities[np.arange(len(test_split.labels)), test_split.labels]
    assert -np.log(of_labels).mean() == pytest.approx(run.result["test_loss"], rel=1e-4)


def test_predict_takes_texts_as_their_token_ids(run, test_split):
    rows = [slice(0, n) for n in test_split.lengths]
    ids = [x[row] for x, row in zip(test_split.inputs, rows, strict=True)]
    by_text = run.predict([run.task.decode(tokens) for tokens in ids])
    by_ids = run.predict(test_split.inputs, test_split.lengths)
    np.testing.assert_array_equal(by_text.probabilities, by_ids.probabilities)
    [alone] = run.predict(ids[0][None]).probabilities  # neither padded nor with others
    np.testing.assert_allclose(alone, by_ids.probabilities[0], rtol=1e-5)
    [one] = run.predict(np.array(run.task.decode(ids[0]))).probabilities  # no list
    np.testing.assert_array_equal(one, by_ids.probabilities[0])


def test_predict_and_layers_reject_what_is_no_example(run):
    """As prepare_inputs does, whose test has all cases."""
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
    texts = [["one", "another"], ["a third", "ö" * 40]]
    tokens, lengths = run.task.encode([text for pair in texts for text in pair])
    by_ids = run.predict(tokens.reshape(2, 2, 16), lengths.reshape(2, 2))
    by_text = run.predict(texts)
    assert by_ids.probabilities.shape == (2, 2)
    np.testing.assert_array_equal(by_text.probabilities, by_ids.probabilities)
    expected = [str(number) for number in by_text.classes]
    assert by_text.labels.tolist() == expected


def test_predict_reads_the_lines_of_a_file_as_training_reads_texts():
    lines = ["A film.\n", "\ta fine one \r\n"]
    for tokenizer in (None, "byte"):
        run = untrained("nystrom,quick", "text", **TINY, task__tokenizer=tokenizer)
        probabilities = run.predict(lines).probabilities
        stripped = run.predict([line.strip() for line in lines]).probabilities
        np.testing.assert_array_equal(probabilities, stripped)
        lengths = run.layers(lines)[0].mask.sum(axis=1)
        assert lengths.tolist() == ([7, 10] if tokenizer is None else [10, 13])


def test_the_page_on_training_reads_a_run_as_it_says(finished, monkeypatch, tmp_path):
    """Ids with their lengths, and rows of the matrix with their mask."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/listops-quick").symlink_to(finished[0])
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/training.md").read_text()
    (code,) = re.findall(r"```text\n(from nystromformer .*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    by_text = names["run"].predict(names["texts"]).probabilities
    np.testing.assert_array_equal(names["by_ids"].probabilities, by_text)
    np.testing.assert_allclose(names["same"], names["rows"][0], atol=1e-6)
    assert names["same"].shape == (1, 48)


def test_load_run_rejects_what_is_no_trained_run(finished, tmp_path):
    with pytest.raises(ConfigError, match="is not a run"):
        nystromformer.load_run(tmp_path)
    for file, said in (("config.json", "not validated"), ("result.json", "is missing")):
        shutil.copy(finished[0] / file, tmp_path)
        with pytest.raises(CheckpointError, match=said):
            nystromformer.load_run(tmp_path)


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
    few = {"attention__num_landmarks": 3} if request.param == "nystrom" else {}
    return untrained(request.param, **SHORT, **few)


def test_attention_gives_rows_of_the_matrix_of_queries_and_keys(matrix_run):
    """That factors_test finds to be what the attention applies."""
    tokens = TOKENS[:1]
    rows = matrix_run.attention(tokens, 0, 1, [0, 5], [7])
    layer = matrix_run.layers(tokens, [7])[0]
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

    one_row = matrix_run.attention(tokens, 0, 1, 5, [7])
    np.testing.assert_array_equal(one_row[:, 0], rows[:, 1])


@pytest.mark.parametrize(
    ("layer", "head", "rows", "message"),
    [
        *[(0, 1, x, "rows must be from 0 to 7") for x in ([8], [-1], [0, 9], 8, [0.5])],
        (9, 0, [0], "layer must be at most 1, got 9"),
        (0, 2, [0], "head must be at most 1, got 2"),
    ],
)
def test_attention_rejects_a_row_layer_or_head_that_is_not_there(
    matrix_run, layer, head, rows, message
):
    with pytest.raises(ValueError, match=message):
        matrix_run.attention(TOKENS[:1], layer, head, rows)


@pytest.mark.parametrize(
    "options",
    [
        {"num_pinv_iters": 2, "landmarks": "random", "landmark_seed": 3},
        {"landmark_padding": "count", "pinv": "identity"},
    ],
    ids=str,
)
def test_attention_gives_rows_of_what_the_model_applies(options):
    """Times the values they are its output, with each of its options."""
    options = {"num_landmarks": 3, "conv_kernel_size": 0, **options}
    changes = {f"attention__{key}": value for key, value in options.items()}
    run = untrained("nystrom", model__num_layers=1, **SHORT, **changes)
    lengths = [8, 6]
    [layer] = run.layers(TOKENS, lengths)
    attention = run.model.encoder.blocks[0].attention.attention
    attend = jax.jit(lambda mask, *qkv: attention(*qkv, mask=mask[:, None, None]))
    qkv = [jnp.asarray(array) for array in (layer.query, layer.key, layer.value)]
    expected = attend(layer.mask, *qkv)
    for head in (0, 1):
        rows = run.attention(TOKENS, 0, head, [4, 1], lengths)
        output = np.einsum("brs,bsh->brh", rows, layer.value[:, :, head])
        np.testing.assert_allclose(output, expected[:, [4, 1], head], atol=1e-5)


def test_attention_gives_rows_of_the_attention_of_the_layer():
    options = {
        "model__num_layers": 3,
        "attention__num_landmarks": 3,
        "attention__by_layer": "0=softmax 1=linear",
    }
    run = untrained("nystrom", **SHORT, **options)
    layers = run.layers(TOKENS)

    def nystrom_matrix(query, key):
        f, z, b = nystrom_factors(query, key, num_landmarks=3)
        return f @ z @ b

    for number, matrix_of in (
        (0, softmax_matrix),
        (2, nystrom_matrix),
    ):
        rows = run.attention(TOKENS, number, 1, [0, 5])
        query = jnp.float32(layers[number].query[0, :, 1])
        key = jnp.float32(layers[number].key[0, :, 1])
        expected = matrix_of(query, key)
        np.testing.assert_allclose(rows[0], expected[jnp.array([0, 5])], atol=1e-5)
    with pytest.raises(ValueError, match="rows need softmax"):
        run.attention(TOKENS, 1, 1, [0])


@pytest.mark.parametrize("arg", ["linear", "nystrom,as_published"])
def test_attention_rejects_one_without_a_matrix(arg):
    with pytest.raises(ValueError, match="rows need softmax"):
        untrained(arg).attention(np.ones((1, 4), int), 0, 0, [0])
