"""Runs that are exported, loaded by transformers, and compute there what they did."""

import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx

from lra_tasks import subwords
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.export import export_run
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.huggingface import load_pretrained
from nystromformer.training.step import split_weights
from tests.small import make_config
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

L = 24
SIZES = {
    "task__max_length": L,
    "task__tokenizer": "byte",
    "model__num_layers": 2,
    "model__num_heads": 3,
    "model__model_dim": 12,
    "model__mlp_dim": 20,
}
GELU = {"model__pooling": "gelu_pooler"}
FEW = {**GELU, "attention__num_landmarks": 6, "attention__pinv_init": "per_batch"}
TEXTS = "labelled_texts"
# Attention, task, settings; and whether padding changes nothing there.
RUNS = {
    "classifier": ("softmax", TEXTS, {"model__gelu": "erf"}, True),
    "masked_order": ("softmax", "corpus", {}, True),
    "masked_lm": ("softmax", "corpus", {"objective__name": "mlm"}, True),
    "encoder": ("softmax", TEXTS, {"objective__name": "encoder"}, True),
    "exact": ("nystrom", TEXTS, GELU | {"attention__num_landmarks": L}, False),
    "landmarks": ("nystrom", TEXTS, FEW, False),
    "no_conv": ("nystrom", TEXTS, FEW | {"attention__conv_kernel_size": 0}, False),
    "nystrom_lm": ("nystrom", "corpus", FEW, False),
}


def make_run(attention: str, task: str, changes: dict) -> TrainedRun:
    """A run with random weights, whose attention is uneven and no bias zero."""
    arg = f"{attention},quick"
    if task == TEXTS:
        arg += ",subwords"
        changes = {"task__labels": "ham,spam", **changes}
    experiment = Experiment(make_config(arg, task, **SIZES | changes))
    _, weights = split_weights(experiment.make_model(nnx.Rngs(0)))
    rng = np.random.default_rng(0)

    def add_noise(x: jax.Array) -> np.ndarray:
        return np.asarray(x) + 0.3 * rng.normal(size=x.shape).astype("f4")

    params = jax.tree.map(add_noise, weights.params)
    return TrainedRun(experiment, weights._replace(params=params), None)


@pytest.mark.parametrize(
    ("attention", "task", "changes", "padded"), RUNS.values(), ids=RUNS
)
def test_transformers_computes_what_was_exported(
    attention, task, changes, padded, tmp_path
):
    run = make_run(attention, task, changes)
    out = tmp_path / "out"
    export_run(run, epath.Path(tmp_path), out, "transformers")
    name = transformers.AutoConfig.from_pretrained(out).architectures[0]
    theirs, report = getattr(transformers, name).from_pretrained(
        out, output_loading_info=True
    )
    # The pooler of an encoder alone is new: nothing is read from it here.
    missing = {key for key in report["missing_keys"] if "pooler" not in key}
    assert not missing
    assert not report["unexpected_keys"]

    inputs = np.random.default_rng(1).integers(5, 200, (3, L))
    mask = np.ones((3, L), bool)
    if padded:
        mask = np.arange(L) < np.array([[L], [17], [5]])
    types = np.tile(np.arange(L) > 4, (3, 1)).astype(int)
    with torch.no_grad():
        expected = theirs.eval()(
            input_ids=torch.from_numpy(inputs),
            attention_mask=torch.from_numpy(mask.astype(int)),
            token_type_ids=torch.from_numpy(types),
        )[0].numpy()
    actual = np.asarray(nnx.jit(run.model)(inputs, mask, token_types=types))
    if expected.ndim == 3:
        expected = expected[mask]
        actual = actual[mask]
    assert relative_error(actual, expected) < TOLERANCE["float32"]


def test_the_exported_folder_is_read_again(tmp_path):
    run = make_run(*RUNS["landmarks"][:3])
    out = tmp_path / "out"
    export_run(run, epath.Path(tmp_path), out, "transformers")
    model = load_pretrained(out, head="classification")
    inputs = np.random.default_rng(1).integers(5, 200, (3, L))
    error = relative_error(nnx.jit(model)(inputs), nnx.jit(run.model)(inputs))
    assert error < TOLERANCE["float32"]


def test_the_exported_tokenizer_makes_the_rows_of_the_task(tmp_path):
    file = tmp_path / "tokenizer.json"
    subwords.train([9 * "a film, a good one. "], 270, file)
    run = make_run("softmax", TEXTS, {"task__tokenizer": str(file)})
    out = tmp_path / "out"
    export_run(run, epath.Path(tmp_path), out, "transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    texts = ["a good film", "one " * 30]
    ids, lengths = run.task.encode(texts)
    theirs = tokenizer(texts, truncation=True)["input_ids"]
    assert [len(row) for row in theirs] == lengths.tolist()
    for row, their_row in zip(ids, theirs, strict=True):
        assert row[: len(their_row)].tolist() == their_row
