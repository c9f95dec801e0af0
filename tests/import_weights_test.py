"""Published weights become a workdir, from which other runs start."""

import shutil

import numpy as np
import pytest
from flax import nnx

import nystromformer
from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.transfer import carry_over
from nystromformer.huggingface import load_pretrained
from tests import bert_folder
from tests.bert_folder import EPSILON
from tests.commands import refused
from tests.published_folder import V, make_published_folder
from tests.small import make_config
from tests.tolerance import TOLERANCE, relative_error

tokenizers = pytest.importorskip("tokenizers")


def make_tokenizer():
    """A tokenizer of V words, special tokens first, as published."""
    names = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    names += [f"w{i}" for i in range(V - len(names))]
    ids = {name: i for i, name in enumerate(names)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))


def test_import_weights_makes_a_workdir(commands, tmp_path):
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    make_published_folder(source, hidden_dropout_prob=0.3, hidden_act="gelu")
    make_tokenizer().save(str(source / "tokenizer.json"))
    flags = (f"--from={source}", f"--workdir={workdir}")
    done = commands.run("import_weights.py", *flags)
    assert done.returncode == 0, done.stderr

    run = nystromformer.load_run(workdir)
    inputs = np.array([[2, 5, 4, 7, 3]])
    expected = nnx.jit(load_pretrained(source))(inputs)
    assert relative_error(nnx.jit(run.model)(inputs), expected) < TOLERANCE["float32"]
    assert run.config.model.dropout_rate == 0.3
    assert run.config.model.gelu == "erf"

    second_time = commands.run("import_weights.py", *flags)
    assert "choose a new or empty folder as workdir" in refused(second_time)


def test_import_weights_refuses_the_tokenizer_of_another_model(commands, tmp_path):
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    make_published_folder(source)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["one more"])
    tokenizer.save(str(source / "tokenizer.json"))
    done = commands.run("import_weights.py", f"--from={source}", f"--workdir={workdir}")
    assert f"tokenizer.json has {V + 1} tokens, the model {V}" in refused(done)
    assert not workdir.exists()


def test_import_weights_refuses_a_folder_without_tokenizer_json(commands, tmp_path):
    """Older folders have a vocab.txt alone."""
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    make_published_folder(source)
    done = commands.run("import_weights.py", f"--from={source}", f"--workdir={workdir}")
    message = refused(done)
    assert (
        f"{source} has no tokenizer.json: download it, or let transformers" in message
    )
    assert not workdir.exists()


@pytest.fixture(scope="module")
def bert(commands, tmp_path_factory):
    """The published folder of a BERT, and the workdir made of it."""
    folder = tmp_path_factory.mktemp("bert")
    source = folder / "published"
    workdir = folder / "run"
    bert_folder.make_folder(source)
    make_tokenizer().save(str(source / "tokenizer.json"))
    done = commands.run("import_weights.py", f"--from={source}", f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return source, workdir


def test_import_weights_makes_a_run_of_softmax_from_bert(bert):
    source, workdir = bert
    run = nystromformer.load_run(workdir)
    assert run.config.attention.name == "softmax"
    inputs = bert_folder.INPUTS
    types = bert_folder.token_types_of("bert")
    expected = nnx.jit(load_pretrained(source))(inputs, token_types=types)
    logits = nnx.jit(run.model)(inputs, token_types=types)
    assert relative_error(logits, expected) < TOLERANCE["float32"]


def nystrom_experiment(bert, **changes):
    """An experiment with Nyström attention that starts from the run of BERT."""
    source, workdir = bert
    tokenizer = shutil.copy(source / "tokenizer.json", source.parent)
    settings = {
        "task__tokenizer": str(tokenizer),
        "task__max_length": 2 * bert_folder.L,
        "train__position_repeats": 2,
        "model__num_layers": 2,
        "model__num_heads": bert_folder.N,
        "model__model_dim": bert_folder.D,
        "model__mlp_dim": bert_folder.F,
        "model__gelu": "erf",
        "model__norm_epsilon": EPSILON,
        "attention__conv_kernel_size": 3,
        "train__init_from": str(workdir),
    }
    return Experiment(make_config("nystrom", "corpus", **(settings | changes)))


def test_nystrom_starts_from_bert_with_a_new_convolution(bert):
    _, workdir = bert
    run = nystromformer.load_run(workdir)
    carried_names = carry_over(run, nystrom_experiment(bert))
    attention = "params.encoder.blocks.1.attention"
    assert f"{attention}.project.kernel" in carried_names
    assert f"{attention}.attention.conv_kernel" not in carried_names


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model__gelu", "tanh", "has gelu erf, and this run tanh: take the same"),
        ("model__norm_epsilon", 1e-5, "norm_epsilon 0.01, and this run 1e-05: take"),
    ],
)
def test_nystrom_starts_from_bert_with_its_gelu_and_epsilon_alone(
    key, value, message, bert
):
    _, workdir = bert
    run = nystromformer.load_run(workdir)
    experiment = nystrom_experiment(bert, **{key: value})
    with pytest.raises(ConfigError, match=message):
        carry_over(run, experiment)
