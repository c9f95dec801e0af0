"""Bags of feature vectors: the page's commands, what a folder may hold, and scores."""

import contextlib
import csv
import importlib.util
import pickle
import re
import shlex
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from absl import flags
from absl.testing import flagsaver
from flax import nnx

from lra_tasks.errors import DataError
from tests.commands import ROOT, Commands, refused
from tests.tolerance import TOLERANCE

COMMANDS = re.findall(
    r"^    python examples/bags.py (.*)$",
    (ROOT / "docs/bags.md").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def bags():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("bags", ROOT / "examples/bags.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # In a reader's own program JAX promotes ranks.
    with jax.numpy_rank_promotion("allow"):
        yield module


def test_the_commands_of_the_page_make_train_and_read_bags(
    bags, commands, tmp_path, monkeypatch, capsys
):
    """With few bags, landmarks, lengths and penalties, in one process."""
    monkeypatch.setattr(bags, "LANDMARKS", 8)
    monkeypatch.setattr(bags, "LENGTH_BUCKETS", 1)
    monkeypatch.setattr(bags, "MADE_BAGS", 30)
    monkeypatch.setattr(bags, "PENALTIES", (1e-2,))
    monkeypatch.chdir(tmp_path)
    make, train, read, _ = map(shlex.split, COMMANDS)

    def printed_by(*words):
        with flagsaver.flagsaver():
            flags.FLAGS(["bags.py", *words])
            bags.main()
        return capsys.readouterr().out

    printed_by(*make)
    printed = printed_by(*train, "--num_steps=10", "--batch_size=2")
    rows = re.findall(r"^(.+?)  +[\d.]+ +[\d.]+ +[\d.]+$", printed, re.MULTILINE)
    floors = ["majority class", "mean vector, logistic regression"]
    assert rows == [*floors, "[CLS], 8 landmarks"]
    assert (tmp_path / "runs/bags/result.json").exists()

    assert re.match(
        r"bag\.npz: (tumour|normal) 0\.\d{3}, (tumour|normal) ",
        printed_by(*read, "--out=new/heat"),
    )
    with (
        np.load(tmp_path / "bags/new/bag.npz") as bag,
        (tmp_path / "new/heat.csv").open() as f,
    ):
        lines = list(csv.DictReader(f))
        assert [float(line["x"]) for line in lines] == bag["coords"][:, 0].tolist()
    assert np.isfinite([float(line["weight"]) for line in lines]).all()
    with PIL.Image.open(tmp_path / "new/heat.png") as picture:
        assert picture.size == (720, 600)

    in_its_folder = Commands(tmp_path, commands.programs)
    script = str(ROOT / "examples/bags.py")
    other = in_its_folder.run(script, *train, "--num_steps=20")
    assert "runs/bags holds a run with another config" in refused(other)


LINES = ["bag,label,group"]
LINES += [f"bag{i},{'ab'[i % 2]},patient{i // 4}" for i in range(24)]


@pytest.fixture
def folder(tmp_path):
    """Bags of five vectors of three numbers, four of each patient."""
    rng = np.random.default_rng(0)
    for number in range(24):
        features = rng.random((5, 3), np.float32)
        if number % 2:
            np.save(tmp_path / f"bag{number}.npy", features)
        else:
            np.savez(tmp_path / f"bag{number}.npz", features=features)
    (tmp_path / "labels.csv").write_text("\n".join(LINES))
    return tmp_path


def test_no_group_is_in_two_splits(bags, folder):
    found, classes = bags.read_folder(folder, seed=0)
    assert classes == ["a", "b"]
    assert [bag.label for bag in found] == [i % 2 for i in range(24)]
    splits_of_group = {}
    for bag in found:
        splits_of_group.setdefault(bag.group, set()).add(bag.split)
    assert all(len(splits) == 1 for splits in splits_of_group.values())
    assert {bag.split for bag in found} == {"train", "validation", "test"}
    np.testing.assert_allclose(
        found[3].mean, np.load(folder / "bag3.npy").mean(0), rtol=1e-6
    )


def test_splits_of_the_file_are_kept_and_only_what_is_missing_is_drawn(bags):
    groups = [str(number) for number in range(20)]
    labels = [number % 2 for number in range(20)]
    given = ["test"] * 4 + ["train"] * 16
    splits = bags.draw_splits(groups, labels, given, seed=0)
    assert splits[:4] == ["test"] * 4
    # Of eight groups of each class a fifth is drawn.
    assert sorted(splits[4:]) == ["train"] * 12 + ["validation"] * 4
    with pytest.raises(DataError, match="has the group g in two splits"):
        bags.draw_splits(["g", "g"], [0, 1], ["train", "test"], seed=0)
    with pytest.raises(DataError, match="has the split 'dev': name"):
        bags.draw_splits(["g", "h"], [0, 1], ["train", "dev"], seed=0)
    with pytest.raises(DataError, match="a class has no bag left in train"):
        bags.draw_splits(["g", "h"], [0, 1], ["", ""], seed=0)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("bag3.npy", None, r"labels\.csv names 1 bags without a file, first bag3: add"),
        (
            "bag3.npy",
            np.ones((5, 4)),
            r"bag3\.npy has vectors of 4 numbers, and .*bag0",
        ),
        (
            "bag3.npy",
            np.full((5, 3), np.nan),
            r"bag3\.npy has NaN or infinite features",
        ),
        ("bag3.npy", np.ones((0, 3)), r"bag3\.npy is an empty bag: remove it from lab"),
        ("bag3.npy", np.ones(3), r"bag3\.npy: features must be numbers \[vectors, wid"),
        ("bag3.npy", np.array([{}]), r"bag3\.npy cannot be read: it holds Python obj"),
        ("bag3.npy", pickle.dumps([1]), r"bag3\.npy cannot be read: it holds Python o"),
        ("bag2.npz", b"PK", r"bag2\.npz cannot be read: "),
        ("bag3.npz", b"", r"bag3\.npy and .*bag3\.npz are one bag: remove one"),
        ("labels.csv", None, r"has no labels\.csv with the columns bag and label"),
        ("labels.csv", b"bag,class\n", r"labels\.csv has no column label"),
        (
            "labels.csv",
            b"bag,label\nbag1,a",
            r"labels\.csv has one class alone, a: giv",
        ),
        ("labels.csv", b"bag,label\nb,x\nb,y", r"names the bag b twice: remove a line"),
    ],
)
def test_what_is_wrong_in_a_folder_is_one_line(bags, folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    elif isinstance(content, bytes):
        (folder / file).write_bytes(content)
    else:
        np.save(folder / file, content)
    with pytest.raises(DataError, match=message) as caught:
        bags.read_folder(folder, seed=0)
    assert "\n" not in str(caught.value)


def test_h5_needs_h5py_and_has_features_and_coords(bags, tmp_path, monkeypatch):
    """A stand-in for h5py, whose files are mappings of names to arrays."""
    arrays = {"features": np.ones((2, 3)), "coords": np.ones((2, 2)), "other": None}
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"a\.h5 needs h5py: pip install h5py, or save"):
        bags.read_bag(tmp_path / "a.h5")
    file = contextlib.nullcontext(arrays)
    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=lambda path: file))
    features, coords = bags.read_bag(tmp_path / "a.h5")
    assert (features.shape, coords.shape) == ((2, 3), (2, 2))


def test_coords_are_one_place_for_each_vector(bags, tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones((2, 3)), coords=np.ones((3, 2)))
    with pytest.raises(DataError, match=r"a\.npz: coords must be \[2, 2\]"):
        bags.read_bag(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", vectors=np.ones((2, 3)))
    with pytest.raises(
        DataError, match=r"a\.npz has no array features; it has vectors"
    ):
        bags.read_bag(tmp_path / "a.npz")


def test_scores_of_bags(bags):
    labels = np.array([0, 0, 0, 1])
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.6, 0.4]])
    assert bags.measure(labels, probabilities) == pytest.approx(
        {"accuracy": 1 / 2, "balanced accuracy": 1 / 3, "AUC": 2 / 3}
    )
    is_positive = labels == 1
    assert bags.area_under_curve(np.zeros(4), is_positive) == 0.5


def test_each_class_has_the_same_weight_in_the_loss(bags):
    logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    batch = SimpleNamespace(
        inputs=None, mask=None, labels=jnp.array([0, 0, 1]), weights=jnp.ones(3)
    )
    objective = bags.WeightedClasses(np.array([3 / 4, 3 / 2], np.float32))
    sums = objective(lambda inputs, mask, dropout_rng: logits, batch, None)
    loss, weight = sums["loss"]
    mean_of_classes = float(-np.log([0.9, 0.8]).mean() - np.log(0.6)) / 2
    assert float(loss / weight) == pytest.approx(mean_of_classes, rel=1e-5)
    correct, weight = sums["accuracy"]
    assert float(correct / weight) == 1


def test_the_regression_finds_the_feature_that_tells_the_classes_apart(bags):
    rng = np.random.default_rng(0)
    labels = (np.arange(60) % 3 == 0).astype(int)
    x = rng.standard_normal((60, 4), np.float32)
    x[:, 2] += 3 * labels
    weights, bias = bags.fit_logistic_regression(x, labels, 2, penalty=1e-2)
    assert np.abs(weights[:, 1] - weights[:, 0]).argmax() == 2
    assert ((x @ weights + bias).argmax(1) == labels).mean() > 0.9


def test_the_heat_map_is_the_mean_over_heads(bags, monkeypatch):
    monkeypatch.setattr(bags, "LANDMARKS", 32)
    model = bags.BagClassifier(3, 2, nnx.Rngs(0))
    features = np.random.default_rng(0).standard_normal((20, 3), np.float32)
    weights = bags.weights_of_cls(model, features)
    assert weights.shape == (20,)
    # With fewer vectors than landmarks the attention is exact: with [CLS] it sums to 1.
    assert 0 < weights.sum() < 1

    def swap_heads(param):
        heads = jnp.reshape(param[...], (-1, 3, 2, param.shape[-1] // 6))
        param[...] = jnp.flip(heads, axis=2).reshape(param.shape)

    project = model.classifier.encoder.blocks[-1].attention.project
    swap_heads(project.kernel)
    swap_heads(project.bias)
    swapped = bags.weights_of_cls(model, features)
    np.testing.assert_allclose(swapped, weights, atol=TOLERANCE["float32"])
