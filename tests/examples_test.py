"""The notebook prints what it keeps; bags are told apart."""

import re

import nbformat
import PIL.Image
import pytest
from nbclient import NotebookClient

from tests.commands import ROOT
from tests.tolerance import TOLERANCE

NOTEBOOK = ROOT / "examples" / "nystrom_in_pictures.ipynb"


def printed_text(notebook):
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text", ""))
    return "".join(texts)


@pytest.mark.slow
def test_notebook_runs_and_prints_what_it_keeps(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, 4)
    expected_text = printed_text(notebook)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert printed_text(notebook) == expected_text
    assert NOTEBOOK.stat().st_size < 500_000


# The example, with a few steps on short bags alone.
SHORT_BAGS = f"""
import sys

from absl import app

sys.path.insert(0, {str(ROOT / "examples")!r})
import bags

bags.BATCH_SIZES = {{1_250: 16}}
bags.LENGTHS = [1_250] * 20
weights_of_cls = bags.weights_of_cls


def print_size(model, bag):
    weights = weights_of_cls(model, bag)
    print(f"{{weights.shape}} weights of {{len(bag)}} patches")
    return weights


bags.weights_of_cls = print_size
app.run(bags.main)
"""


# Two parts of the example, with small models that are not trained.
PARTS_OF_BAGS = f'''
import dataclasses
import sys

import jax.numpy as jnp
import numpy as np
from absl import app
from flax import nnx

sys.path.insert(0, {str(ROOT / "examples")!r})
import bags

bags.BATCH_SIZES = {{1_250: 16}}
bags.LANDMARKS = 8


def swap_heads(param):
    """Swaps the two heads of queries, keys and values, 16 numbers each."""
    heads = jnp.reshape(param[...], (-1, 3, 2, 16))
    param[...] = jnp.flip(heads, axis=2).reshape(param.shape)


class EqualScores(nnx.Module):
    def __call__(self, inputs, mask):
        return jnp.zeros((len(inputs), 2))


def main(_):
    print(bags.area_under_curve(EqualScores(), num_bags_per_length=16))

    options = dict(num_landmarks=8)
    config = dataclasses.replace(bags.CONFIG, attention_options=options, max_length=64)
    model = bags.SequenceClassifier(
        config, num_classes=2, pooling="cls_token", rngs=nnx.Rngs(0)
    )
    bag, _ = bags.make_bag(np.random.default_rng(0), 64, label=1)
    weights = bags.weights_of_cls(model, bag)
    project = model.encoder.blocks[-1].attention.project
    swap_heads(project.kernel)
    swap_heads(project.bias)
    swapped_weights = bags.weights_of_cls(model, bag)
    print(np.max(np.abs(swapped_weights - weights)) / np.max(np.abs(weights)))


app.run(main)
'''


def test_bags_counts_ties_as_half_and_averages_over_heads(commands, tmp_path):
    script = tmp_path / "parts_of_bags.py"
    script.write_text(PARTS_OF_BAGS)
    done = commands.run(str(script))
    assert done.returncode == 0, done.stderr
    area, change_with_swapped_heads = map(float, done.stdout.split())
    assert area == 0.5
    assert change_with_swapped_heads <= TOLERANCE["float32"]


@pytest.mark.slow
def test_bags_trains_both_models_and_draws_the_weights_of_cls(commands, tmp_path):
    script = tmp_path / "short_bags.py"
    script.write_text(SHORT_BAGS)
    done = commands.run(str(script), f"--out={tmp_path}/bags.png")
    assert done.returncode == 0, done.stderr
    areas = re.findall(r"^(.+): AUC (\d\.\d{3}) after", done.stdout, re.MULTILINE)
    assert [name for name, _ in areas] == ["mean of patches", "[CLS]"]
    # Without training they are 0.58 and 0.59, and the weight is the mean one.
    assert all(float(area) > 0.65 for _, area in areas)
    ratio = re.search(r"with the signal (.+) times the mean weight", done.stdout)
    assert float(ratio[1]) > 2
    assert "(4096,) weights of 4096 patches" in done.stdout
    with PIL.Image.open(tmp_path / "bags.png") as picture:
        assert picture.size == (960, 480)
