"""A run that is given away: what is written, who reads it, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import tokenizers
from etils import epath
from safetensors.numpy import load_file, save_file

from lra_tasks.subwords import SPECIAL
from nystromformer.errors import CheckpointError, ConfigError
from nystromformer.experiments.export import FORMATS, export_run
from nystromformer.experiments.trained_run import load_run
from nystromformer.experiments.workdir import check_workdir
from nystromformer.training.step import leaves_by_name
from tests.commands import refused
from tests.full_disk import full_disk
from tests.small import result_of, untrained

EXPRESSIONS = ["[MAX 3 [MIN 8 5 ] ]", "[SM 1 2 ]"]


@pytest.fixture(scope="module")
def workdir(finished):
    workdir, _ = finished
    return workdir


@pytest.fixture(scope="module")
def exported(commands, workdir, tmp_path_factory):
    """The folder of scripts/export.py."""
    out = tmp_path_factory.mktemp("exported") / "out"
    done = commands.run("export.py", f"--workdir={workdir}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    return out


def test_no_run_trains_in_an_exported_folder(exported):
    config = load_run(exported).config
    with pytest.raises(ConfigError, match="holds a model that was exported"):
        check_workdir(epath.Path(exported), config)


def test_an_exported_run_is_the_run(workdir, exported):
    run = load_run(workdir)
    again = load_run(exported)
    expected = leaves_by_name(run.weights)
    for name, leaf in leaves_by_name(again.weights).items():
        np.testing.assert_array_equal(leaf, expected[name])
    assert again.result == run.result
    probabilities = run.predict(EXPRESSIONS).probabilities
    np.testing.assert_array_equal(
        again.predict(EXPRESSIONS).probabilities, probabilities
    )


def test_the_card_says_where_the_weights_are_from(workdir, exported):
    card = (exported / "README.md").read_text()
    result = result_of(workdir)
    for digest in (result["params_sha256"], *result["data_sha256"].values()):
        assert digest in card
    # The command named the config and the workdir by their whole paths.
    command = (
        "python scripts/train.py --config=configs/listops.py:nystrom,quick "
        f"--workdir={workdir.name} "
    )
    assert f"Command: `{command}" in card
    assert f"Commit: {result['commit']}" in card
    assert f"test accuracy {result['test_accuracy']:.2%}" in card
    assert "floor:" in card
    assert str(exported) not in card
    assert str(workdir) not in card


def test_weights_of_another_run_are_refused(exported, tmp_path):
    """They have the same shapes."""
    mixed = shutil.copytree(exported, tmp_path / "mixed")
    arrays = load_file(exported / "model.safetensors")
    arrays = {name: array[::-1].copy() for name, array in arrays.items()}
    save_file(arrays, mixed / "model.safetensors")
    (mixed / "result.json").unlink()
    with pytest.raises(CheckpointError, match=r"mixed are not those that its config"):
        load_run(mixed)


def test_damaged_weights_are_refused(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "damaged")
    file = tmp_path / "damaged" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    message = "safetensors is damaged: it is cut short or changed; copy this folder"
    with pytest.raises(CheckpointError, match=message):
        load_run(tmp_path / "damaged")


def test_best_weights_of_a_finished_run_are_those_of_its_result(workdir, tmp_path):
    copy = shutil.copytree(workdir, tmp_path / "copy")
    result = json.loads((copy / "result.json").read_text())
    result["params_sha256"] = "0"
    (copy / "result.json").write_text(json.dumps(result))
    with pytest.raises(CheckpointError, match=r"copy all files from the same run$"):
        load_run(copy)


def test_export_writes_to_an_empty_folder_alone(commands, workdir, exported):
    done = commands.run("export.py", f"--workdir={workdir}", f"--out={exported}")
    assert "holds files: name a new or empty folder" in refused(done)


TEXTS = {
    "task": "labelled_texts",
    "task__labels": "ham,spam",
    "task__tokenizer": "byte",
    "task__max_length": 24,
    "model__num_layers": 2,
    "model__model_dim": 8,
    "model__mlp_dim": 8,
}


@pytest.mark.parametrize(
    ("arg", "changes", "message"),
    [
        ("softmax,quick", {"task": "listops"}, "norm=pre: it has post alone"),
        ("linear,quick,subwords", TEXTS, "attention linear: it has softmax and nys"),
        (
            "softmax,quick,subwords",
            TEXTS | {"attention__by_layer": "1=linear"},
            "attentions that differ by layer",
        ),
        (
            "softmax,quick,subwords",
            TEXTS | {"model__positions": "rotary"},
            "positions=rotary: it has learned alone",
        ),
        (
            "nystrom,quick,subwords",
            TEXTS | {"attention__num_landmarks": 6},
            "attention.pinv_init=per_matrix: it has per_batch alone",
        ),
        (
            "nystrom,quick,subwords",
            TEXTS
            | {"attention__num_landmarks": 7, "attention__pinv_init": "per_batch"},
            "attention.num_landmarks=7 and max_length=24: its segments have equal",
        ),
        (
            "nystrom,quick,subwords",
            TEXTS | {"attention__num_landmarks": 24},
            r"tanh behind .* it has gelu there \(config.model.pooling\)",
        ),
        (
            "softmax,quick,subwords",
            TEXTS | {"model__pooling": "mean"},
            "the head of SequenceClassifier",
        ),
    ],
    ids=str,
)
def test_a_model_without_a_twin_in_transformers_is_refused(
    arg, changes, message, tmp_path
):
    run = untrained(arg, **changes)
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=message) as caught:
        export_run(run, epath.Path(tmp_path), out, "transformers")
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(
    ("num_bytes", "file"), [(1_000, "model.safetensors"), (100_000, "tokenizer.json")]
)
def test_a_full_disk_leaves_no_half_of_a_model(layout, num_bytes, file, tmp_path):
    """The tokenizer is written after the weights and has more bytes."""
    run = untrained("softmax,quick,subwords", **TEXTS)
    words = [*SPECIAL, *(f"word{i}" for i in range(10_000))]
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "out"
    message = f"File too large: '{out / file}'"
    with full_disk(num_bytes), pytest.raises(OSError, match=message):
        export_run(run, epath.Path(tmp_path), out, layout)
    assert not list(out.iterdir())
