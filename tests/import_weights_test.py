"""Published weights become a workdir, from which other runs start."""

import json
import shutil

import numpy as np
import pytest
from etils import epath
from flax import nnx

import nystromformer
from nystromformer.errors import ConfigError
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.transfer import carry_over, follow_source
from nystromformer.huggingface import load_pretrained
from nystromformer.training.step import leaves_by_name
from tests import bert_folder, published_folder
from tests.bert_folder import EPSILON
from tests.commands import ROOT, refused
from tests.published_folder import V, make_published_folder
from tests.small import make_config
from tests.tolerance import TOLERANCE, relative_error

tokenizers = pytest.importorskip("tokenizers")


def make_tokenizer(*special):
    """A tokenizer of V words, special tokens first, as published."""
    names = list(special or ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
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
    assert done.stdout == (
        f"{workdir} holds nystromformer (masked_lm): 2 layers of {published_folder.D}, "
        f"{V} tokens; train from it with --config.train.init_from={workdir}\n"
    )

    run = nystromformer.load_run(workdir)
    inputs = np.array([[2, 5, 4, 7, 3]])
    expected = nnx.jit(load_pretrained(source))(inputs)
    assert relative_error(nnx.jit(run.model)(inputs), expected) < TOLERANCE["float32"]
    assert run.config.model.dropout_rate == 0.3
    assert run.config.model.gelu == "erf"

    second_time = commands.run("import_weights.py", *flags)
    message = (
        f"{workdir} holds imported weights already: delete it or name a new folder"
    )
    assert message in refused(second_time)


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


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def write_classifier(folder, kind, **settings):
    """Writes a classifier as published, with its tokenizer."""
    if kind == "nystromformer":
        make_published_folder(folder, "classification", **settings)
    else:
        tensors = bert_folder.random_tensors(kind, bert_folder.CLASSIFIER_SHAPES[kind])
        bert_folder.write_folder(folder, kind, tensors, **settings)
    tokenizer = make_tokenizer(*(ROBERTA if kind == "roberta" else ()))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


NAMES = {"0": "politics", "1": "sport", "2": "art", "3": "science, weather"}


@pytest.mark.parametrize(
    ("kind", "settings", "class_names"),
    [
        ("bert", {"id2label": NAMES}, list(NAMES.values())),
        ("roberta", {"id2label": {**NAMES, "3": "art"}}, ["0", "1", "2", "3"]),
        ("nystromformer", {}, [str(number) for number in range(published_folder.C)]),
    ],
)
def test_import_weights_makes_a_run_that_predicts_of_a_classifier(
    kind, settings, class_names, commands, tmp_path
):
    """Its classes are numbers where two have one name."""
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    write_classifier(source, kind, **settings)
    done = commands.run(
        "import_weights.py",
        f"--from={source}",
        f"--workdir={workdir}",
        "--head=classification",
    )
    assert done.returncode == 0, done.stderr
    run = nystromformer.load_run(workdir)
    assert run.task.class_names == class_names
    prediction = run.predict(["w1 w2 w3"])
    tokens, lengths = run.task.encode(["w1 w2 w3"])
    assert tokens[0, 0] == (0 if kind == "roberta" else 2)  # <s> or [CLS]
    model = load_pretrained(source, head="classification")
    logits = nnx.jit(model)(tokens[:, : lengths[0]].astype(int))
    expected = nnx.softmax(logits)
    assert relative_error(prediction.probabilities, expected) < TOLERANCE["float32"]


def test_evaluate_says_that_weights_are_imported(commands, tmp_path):
    """They are of no run that goes on."""
    source = tmp_path / "published"
    write_classifier(source, "nystromformer")
    flags = (f"--workdir={tmp_path / 'run'}", "--head=classification")
    done = commands.run("import_weights.py", f"--from={source}", *flags)
    assert done.returncode == 0, done.stderr
    for number, split in enumerate(("train", "validation", "test")):
        table = f"text,label\nw{number} w1,0\nw{number} w2,1\n"
        (tmp_path / f"{split}.csv").write_text(table)
    done = commands.run("evaluate.py", flags[0], f"--source_dir={tmp_path}")
    expected = "labelled_texts with nystrom (imported or exported weights): test "
    assert done.stdout.startswith(expected), done.stderr


def test_import_weights_makes_a_run_of_an_encoder_alone(commands, tmp_path):
    """It is a source of others, has layers to look at, and predicts nothing."""
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    write_classifier(source, "roberta")
    flags = (f"--from={source}", f"--workdir={workdir}")
    message = refused(commands.run("import_weights.py", *flags))
    assert "has a tensor classifier.dense.bias, which the model does not" in message
    assert "name another head: masked_lm, classification or none" in message

    done = commands.run("import_weights.py", *flags, "--head=none")
    assert done.returncode == 0, done.stderr
    run = nystromformer.load_run(workdir)
    expected, _ = nnx.jit(load_pretrained(source, head=None))(bert_folder.INPUTS)
    vectors = nnx.jit(run.model)(bert_folder.INPUTS)
    assert relative_error(vectors, expected) < TOLERANCE["float32"]
    assert len(run.layers([("w1 w2", "w3")])) == 2
    with pytest.raises(ValueError, match="encoder predicts no classes"):
        run.predict([("w1 w2", "w3")])


def fine_tuning(workdir, arg, **changes):
    """The config of a run on labelled texts that starts from another one."""
    config = load_config(
        f"{ROOT}/configs/labelled_texts.py:{arg}",
        {"train.init_from": workdir, "task.labels": "ham,spam", **changes},
    )
    return follow_source(config)


def test_a_run_takes_sizes_tokenizer_and_positions_of_its_source(bert, capsys):
    """And a preset of its own for the rest."""
    _, workdir = bert
    experiment = Experiment(fine_tuning(workdir, "softmax,subwords"))
    taken = capsys.readouterr().out
    assert "as its source has it: model.gelu=erf, model.mlp_dim=17" in taken
    assert "task.max_length=13" in taken
    assert experiment.task.vocab_size == V
    assert experiment.config.optimizer.learning_rate == 3e-5
    carried = carry_over(nystromformer.load_run(workdir), experiment)
    names = {name for name in carried if name.startswith("params.encoder.")}
    assert names == carried.keys()
    assert len(names) == 29


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.num_layers": 3}, r"blocks\.2.* missing there: take the source's"),
        ({"model.num_heads": 2}, "has num_heads 3, and this run 2: take the same"),
        (
            {"task.max_length": 20},
            "13 positions, and task.max_length is 20: take "
            "--config.task.max_length=13, or .* --config.train.position_repeats=2$",
        ),
        ({"task.tokenizer": "byte"}, "has vocabulary 23 of .*, and this run 261"),
    ],
    ids=str,
)
def test_what_the_command_line_says_against_the_source_is_an_error(
    changes, message, bert
):
    _, workdir = bert
    experiment = Experiment(fine_tuning(workdir, "softmax,subwords", **changes))
    with pytest.raises(ConfigError, match=message):
        carry_over(nystromformer.load_run(workdir), experiment)


def test_a_run_repeats_positions_where_the_command_line_allows_it(bert):
    _, workdir = bert
    changes = {"train.position_repeats": 2}
    config = fine_tuning(workdir, "softmax,subwords", **changes)
    assert config.task.options["max_length"] == 26


def test_a_run_that_has_begun_needs_its_source_no_more(bert, tmp_path):
    _, workdir = bert
    config = fine_tuning(workdir, "softmax,subwords")
    (tmp_path / "config.json").write_text(json.dumps(config.to_mapping()))
    shutil.copy(workdir / "tokenizer.json", tmp_path)
    again = load_config(
        f"{ROOT}/configs/labelled_texts.py:softmax,subwords",
        {"train.init_from": "/gone/run", "task.labels": "ham,spam"},
    )
    again = follow_source(again, epath.Path(tmp_path))
    assert again.model == config.model
    assert again.task.options["max_length"] == 13
    assert again.task.options["tokenizer"] == str(tmp_path / "tokenizer.json")


def test_a_classifier_goes_on_with_its_head(commands, tmp_path):
    """Nyströmformer's reads [CLS] by GELU, and its convolution has its own size."""
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    write_classifier(source, "nystromformer")
    flags = (f"--from={source}", f"--workdir={workdir}", "--head=classification")
    done = commands.run("import_weights.py", *flags)
    assert done.returncode == 0, done.stderr
    labels = ",".join(str(number) for number in range(published_folder.C))
    config = fine_tuning(workdir, "nystrom,subwords", **{"task.labels": labels})
    assert config.model.pooling == "gelu_pooler"
    assert config.attention.options["conv_kernel_size"] == published_folder.K
    experiment = Experiment(config)
    carried = carry_over(nystromformer.load_run(workdir), experiment)
    assert carried.keys() == leaves_by_name(experiment.weight_shapes).keys()
