"""The best weights of a run, what they predict, and what is no run."""

import re
import shutil

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
    run, data = nystromformer.load_run(finished[0]), finished[0].parent / "data"
    for sha in (run.result["data_sha256"]["test"], "another"):
        run.result["data_sha256"]["test"] = sha
        run.evaluate("test", data)
    assert capsys.readouterr().err == "note: this test split is not the run's\n"


def test_predict_is_as_good_as_its_result_says(run, test_split):
    found = run.predict(test_split.inputs, test_split.lengths)
    np.testing.assert_allclose(found.probabilities.sum(-1), 1, rtol=1e-5)
    accuracy = np.mean(found.classes == test_split.labels)
    assert accuracy == pytest.approx(run.result["test_accuracy"])
    right = found.probabilities[np.arange(len(test_split.labels)), test_split.labels]
    assert -np.log(right).mean() == pytest.approx(run.result["test_loss"], rel=1e-4)


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


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["[MAX 2 x ]"], DataError, "'x' is not a token of ListOps"),
        (np.zeros((3, 2, 9), int), ValueError, r"must be \[B, L\] with L ≤ 48"),
        (np.zeros((3, 49), int), ValueError, r"with L ≤ 48, got \(3, 49\)"),
        (np.arange(1, 4), ValueError, r"must be \[B, L\].*got \(3,\)"),
        (np.full((3, 9), 16), ValueError, "token ids must be from 0 to 15"),
        ([("[MAX 2 3 ]", "4")], ValueError, "must be a list of texts"),
        ([[1, 2]], ValueError, r"or an array of token ids; got \[\[1, 2\]\]"),
        ([None], ValueError, r"must be a list of texts, .* got \[None\]"),
    ],
)
def test_predict_rejects_what_is_no_example(run, inputs, error, message):
    with pytest.raises(error, match=message):
        run.predict(inputs)


LENGTHS = r"lengths must be integers of shape \(2,\), one for each row of token ids"


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 10], "lengths must be from 0 to 9, .* got 3 to 10"),
        ([-1, 9], "lengths must be from 0 to 9, .* got -1 to 9"),
        ([9, 9, 9], LENGTHS),
        ([9], LENGTHS),  # else the first row's would count for all
        (9, LENGTHS),
        ([[9], [9]], LENGTHS),
        ([9.0, 4.0], LENGTHS),
        ([True, False], LENGTHS),
    ],
)
def test_predict_rejects_lengths_that_cannot_be(run, lengths, message):
    tokens = np.ones((2, 9), int)
    assert run.predict(tokens, [9, 0]).classes.shape == (2,)
    with pytest.raises(ValueError, match=message):
        run.predict(tokens, lengths)


def test_predict_takes_no_padding_for_a_token(run):
    tokens, lengths = run.task.encode(["[MAX 2 3 ]", "[MIN 2 [MAX 2 3 ] ]"])
    expected = run.predict(["[MAX 2 3 ]", "[MIN 2 [MAX 2 3 ] ]"]).probabilities
    found = run.predict(tokens, lengths).probabilities
    np.testing.assert_array_equal(found, expected)
    for columns in (tokens, tokens[:, :7]):  # the second row fills the seven
        with pytest.raises(ValueError, match="end in 0, the padding: give lengths"):
            run.predict(columns)
        with pytest.raises(ValueError, match="end in 0, the padding: give lengths"):
            run.layers(columns)
    assert run.predict(tokens[1:, :7]).classes.shape == (1,)
    with pytest.raises(ValueError, match="lengths are of token ids: leave them out"):
        run.predict(["[MAX 2 3 ]"], [4])
    recall = untrained("identity,quick", "recall")  # whose own sequences are full
    with pytest.raises(ValueError, match="end in 0, the padding: give lengths"):
        recall.predict(recall.task.encode(["k1 v2 k1"])[0])
    black = np.zeros((1, 1024), np.uint8)  # a pixel and no padding
    sizes = {"model__num_layers": 1, "model__model_dim": 8}
    image = untrained("identity,quick", "image", **sizes)
    assert image.predict(black).probabilities.shape == (1, 10)


def test_predict_names_the_classes():
    tiny = {"model__num_layers": 1, "model__model_dim": 8, "task__max_length": 16}
    for task, names in (("text", ["negative", "positive"]), ("retrieval", ["0", "1"])):
        run = untrained("identity,quick", task, **tiny)
        texts = [f"film {i}" for i in range(20)]
        inputs = texts if task == "text" else [[x, x[::-1]] for x in texts]
        found = run.predict(inputs)
        assert found.labels.tolist() == [names[i] for i in found.classes]
    run = untrained("identity,quick", "labelled_texts", **tiny, task__labels="ham,spam")
    found = run.predict(texts)
    assert found.labels.tolist() == [("ham", "spam")[i] for i in found.classes]


def test_predict_reads_the_lines_of_a_file_as_training_reads_texts():
    tiny = {"model__num_layers": 1, "model__model_dim": 8, "task__max_length": 16}
    lines = ["A film.\n", "\ta fine one \r\n"]
    for tokenizer in (None, "byte"):
        run = untrained("nystrom,quick", "text", **tiny, task__tokenizer=tokenizer)
        found = run.predict(lines).probabilities
        expected = run.predict([line.strip() for line in lines]).probabilities
        np.testing.assert_array_equal(found, expected)
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


@pytest.mark.parametrize("name", ["softmax", "nystrom"])
def test_attention_gives_rows_of_the_matrix_of_queries_and_keys(name):
    """That landmarks_test finds to be what the attention applies."""
    changes = {"task__max_length": 8, "task__max_tokens": 8, "task__min_tokens": 4}
    few = {"attention__num_landmarks": 3} if name == "nystrom" else {}
    run = untrained(name, **changes, **few)
    tokens = np.array([[1, 5, 7, 2, 9, 3, 4, 6]])
    found, mask = run.attention(tokens, 0, 1, [0, 5], [7]), jnp.arange(8) < 7
    layer = run.layers(tokens, [7])[0]
    np.testing.assert_array_equal(layer.mask[0], mask)
    query, key = (jnp.float32(x[0, :, 1]) for x in (layer.query, layer.key))
    matrix = softmax_matrix(query, key, mask)
    if name == "nystrom":
        f, z, b = nystrom_factors(query, key, mask, num_landmarks=3)
        matrix = f @ z @ b
    np.testing.assert_allclose(found[0], matrix[jnp.array([0, 5])], atol=1e-5)
    assert not found[0, :, 7].any()
    np.testing.assert_array_equal(
        run.attention(tokens, 0, 1, 5, [7])[:, 0], found[:, 1]
    )
    for rows in ([8], [-1], [0, 999], 8, [0.5]):
        with pytest.raises(ValueError, match="rows must be from 0 to 7"):
            run.attention(tokens, 0, 1, rows)
    for layer, head, message in (
        (9, 0, "layer must be at most 1, got 9"),
        (0, 2, "head must be at most 1, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            run.attention(tokens, layer, head, [0])


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
    changes = {"task__max_length": 8, "task__max_tokens": 8, "task__min_tokens": 4}
    options = {"num_landmarks": 3, "conv_kernel_size": 0, **options}
    changes |= {f"attention__{key}": value for key, value in options.items()}
    run = untrained("nystrom", model__num_layers=1, **changes)
    tokens, lengths = (
        np.array([[1, 5, 7, 2, 9, 3, 4, 6], [2, 7, 8, 5, 5, 5, 5, 5]]),
        [8, 6],
    )
    [layer] = run.layers(tokens, lengths)
    attention = run.model.encoder.blocks[0].attention.attention
    inputs = (jnp.asarray(x) for x in (layer.query, layer.key, layer.value))
    attend = jax.jit(lambda mask, *qkv: attention(*qkv, mask=mask[:, None, None]))
    expected = attend(layer.mask, *inputs)
    for head in (0, 1):
        rows = run.attention(tokens, 0, head, [4, 1], lengths)
        found = np.einsum("brs,bsh->brh", rows, layer.value[:, :, head])
        np.testing.assert_allclose(found, expected[:, [4, 1], head], atol=1e-5)


@pytest.mark.parametrize("arg", ["linear", "nystrom,as_published"])
def test_attention_rejects_one_without_a_matrix(arg):
    with pytest.raises(ValueError, match="rows need softmax"):
        untrained(arg).attention(np.ones((1, 4), int), 0, 0, [0])


def test_predict_takes_pairs_of_texts_as_their_token_ids():
    changes = {"task__max_length": 31, "attention__num_landmarks": 4}
    run = untrained("nystrom,quick", "retrieval", **changes)
    texts = [["one", "another"], ["a third", "ö" * 40]]
    tokens, lengths = run.task.encode([text for pair in texts for text in pair])
    by_ids = run.predict(tokens.reshape(2, 2, 31), lengths.reshape(2, 2)).probabilities
    assert by_ids.shape == (2, 2)
    np.testing.assert_array_equal(run.predict(texts).probabilities, by_ids)
    with pytest.raises(ValueError, match="must be a list of pairs of texts"):
        run.predict(("one", "another"))
