"""Weights of BERT and RoBERTa, beside the model of their papers in numpy.

The folders are written here by the names of transformers, with random numbers.
"""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

import nystromformer
from nystromformer.errors import ConfigError, PretrainedError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.transfer import carry_over
from nystromformer.huggingface import load_pretrained
from tests import paper
from tests.huggingface_test import make_tokenizer
from tests.small import make_config
from tests.tolerance import TOLERANCE, relative_error

V, L, D, F, N, C = 23, 13, 6, 17, 3, 4
EPSILON = 0.01  # large enough to be seen
SETTINGS = {
    "bert": {
        "model_type": "bert",
        "max_position_embeddings": L,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    "roberta": {
        "model_type": "roberta",
        "max_position_embeddings": L + 2,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    },
}
COMMON_SETTINGS = {
    "vocab_size": V,
    "num_hidden_layers": 2,
    "num_attention_heads": N,
    "hidden_size": D,
    "intermediate_size": F,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "layer_norm_eps": EPSILON,
}
LAYER_SHAPES = {
    "attention.self.query": (D, D),
    "attention.self.key": (D, D),
    "attention.self.value": (D, D),
    "attention.output.dense": (D, D),
    "attention.output.LayerNorm": (D,),
    "intermediate.dense": (F, D),
    "output.dense": (D, F),
    "output.LayerNorm": (D,),
}
HEAD_SHAPES = {
    "bert": {
        "cls.predictions.transform.dense": (D, D),
        "cls.predictions.transform.LayerNorm": (D,),
        "bert.pooler.dense": (D, D),
        "cls.seq_relationship": (2, D),
    },
    "roberta": {"lm_head.dense": (D, D), "lm_head.layer_norm": (D,)},
}
CLASSIFIER_SHAPES = {
    "bert": {"bert.pooler.dense": (D, D), "classifier": (C, D)},
    "roberta": {"classifier.dense": (D, D), "classifier.out_proj": (C, D)},
}
DECODERS = {"bert": "cls.predictions", "roberta": "lm_head"}
RESERVED = {"bert": 0, "roberta": 2}
KINDS = tuple(SETTINGS)

INPUTS = np.random.default_rng(1).integers(2, V, (2, L))
LENGTHS = np.array([L, 8])
MASK = np.arange(L) < LENGTHS[:, None]


def random_tensors(kind, head_shapes):
    """The tensors of a file: weight and bias of each module, and the embeddings."""
    modules = dict(head_shapes)
    modules[f"{kind}.embeddings.LayerNorm"] = (D,)
    for layer in range(2):
        for name, shape in LAYER_SHAPES.items():
            modules[f"{kind}.encoder.layer.{layer}.{name}"] = shape
    settings = SETTINGS[kind]
    shapes = {
        f"{kind}.embeddings.word_embeddings.weight": (V, D),
        f"{kind}.embeddings.position_embeddings.weight": (
            settings["max_position_embeddings"],
            D,
        ),
        f"{kind}.embeddings.token_type_embeddings.weight": (
            settings["type_vocab_size"],
            D,
        ),
    }
    for name, shape in modules.items():
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.bias"] = shape[:1]
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def write_folder(folder, kind, tensors, **changed_settings):
    """Writes config.json and model.safetensors."""
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    settings = SETTINGS[kind] | COMMON_SETTINGS | changed_settings
    (folder / "config.json").write_text(json.dumps(settings))


def make_folder(folder, kind="bert", **changed_settings):
    """Writes a model of masked tokens, and returns its tensors."""
    tensors = random_tensors(kind, HEAD_SHAPES[kind])
    rng = np.random.default_rng(2)
    tensors[f"{DECODERS[kind]}.bias"] = rng.normal(size=V).astype("f4")
    write_folder(folder, kind, tensors, **changed_settings)
    return tensors


class Reference:
    """The encoder of one sequence without padding, in float64, by published names."""

    def __init__(self, tensors, kind):
        self.tensors = {name: np.float64(x) for name, x in tensors.items()}
        self.kind = kind

    def dense(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        scale = self.tensors[f"{name}.weight"]
        return centred / deviation * scale + self.tensors[f"{name}.bias"]

    def embed(self, inputs, token_types):
        def table(name):
            return self.tensors[f"{self.kind}.embeddings.{name}_embeddings.weight"]

        positions = RESERVED[self.kind] + np.arange(len(inputs))
        x = table("word")[inputs] + table("position")[positions]
        x = x + table("token_type")[token_types]
        return self.norm(f"{self.kind}.embeddings.LayerNorm", x)

    def layer(self, name, x):
        query, key, value = (
            self.dense(f"{name}.attention.self.{part}", x)
            for part in ("query", "key", "value")
        )
        heads = [slice(n * D // N, (n + 1) * D // N) for n in range(N)]
        everyone = list(range(len(x)))
        attended = np.concatenate(
            [
                paper.attention(query[:, h], key[:, h], value[:, h], everyone)
                for h in heads
            ],
            axis=-1,
        )
        x = x + self.dense(f"{name}.attention.output.dense", attended)
        x = self.norm(f"{name}.attention.output.LayerNorm", x)
        hidden = paper.gelu(self.dense(f"{name}.intermediate.dense", x), "erf")
        x = x + self.dense(f"{name}.output.dense", hidden)
        return self.norm(f"{name}.output.LayerNorm", x)

    def encode(self, inputs, token_types):
        x = self.embed(inputs, token_types)
        for layer in range(2):
            x = self.layer(f"{self.kind}.encoder.layer.{layer}", x)
        return x

    def tokens(self, x):
        """The logits of tokens."""
        is_bert = self.kind == "bert"
        dense = "cls.predictions.transform.dense" if is_bert else "lm_head.dense"
        norm = (
            "cls.predictions.transform.LayerNorm" if is_bert else "lm_head.layer_norm"
        )
        x = self.norm(norm, paper.gelu(self.dense(dense, x), "erf"))
        words = self.tensors[f"{self.kind}.embeddings.word_embeddings.weight"]
        return x @ words.T + self.tensors[f"{DECODERS[self.kind]}.bias"]

    def classes(self, x):
        """The logits of classes, from the first vector."""
        is_bert = self.kind == "bert"
        pooler = "bert.pooler.dense" if is_bert else "classifier.dense"
        out = "classifier" if is_bert else "classifier.out_proj"
        return self.dense(out, np.tanh(self.dense(pooler, x[0])))


def token_types_of(kind):
    """Types of both sequences; RoBERTa has one type alone."""
    return (np.arange(L) > 4) * np.ones((2, 1), int) * (kind == "bert")


@pytest.mark.parametrize("kind", KINDS)
def test_load_pretrained_computes_the_published_model(kind, tmp_path):
    """Also in a batch with padding, which changes nothing."""
    reference = Reference(make_folder(tmp_path, kind), kind)
    token_types = token_types_of(kind)
    model = nnx.jit(load_pretrained(tmp_path))
    logits = model(INPUTS, MASK, token_types=token_types)
    for row, length in enumerate(LENGTHS):
        vectors = reference.encode(INPUTS[row, :length], token_types[row, :length])
        expected = reference.tokens(vectors)
        error = relative_error(logits[row, :length], expected)
        assert error < TOLERANCE["float32"]


@pytest.mark.parametrize("kind", KINDS)
def test_load_pretrained_computes_the_published_classifier(kind, tmp_path):
    tensors = random_tensors(kind, CLASSIFIER_SHAPES[kind])
    write_folder(tmp_path, kind, tensors)
    model = nnx.jit(load_pretrained(tmp_path, head="classification"))
    logits = model(INPUTS, MASK)
    reference = Reference(tensors, kind)
    for row, length in enumerate(LENGTHS):
        vectors = reference.encode(INPUTS[row, :length], np.zeros(length, int))
        expected = reference.classes(vectors)
        assert relative_error(logits[row], expected) < TOLERANCE["float32"]


@pytest.mark.parametrize("kind", KINDS)
def test_load_pretrained_reads_an_encoder_without_the_prefix(kind, tmp_path):
    """With the pooler that transformers saves beside it."""
    head_shapes = {f"{kind}.pooler.dense": (D, D)}
    tensors = random_tensors(kind, head_shapes)
    alone = {name.removeprefix(f"{kind}."): x for name, x in tensors.items()}
    write_folder(tmp_path, kind, alone)
    vectors, _ = nnx.jit(load_pretrained(tmp_path, head=None))(INPUTS)
    expected = Reference(tensors, kind).encode(INPUTS[0], np.zeros(L, int))
    assert relative_error(vectors[0], expected) < TOLERANCE["float32"]


def test_load_pretrained_reads_the_names_of_the_first_bert_files(tmp_path):
    """Their LayerNorms have gamma and beta; copies of the decoder are tied."""
    tensors = make_folder(tmp_path)
    expected = nnx.state(load_pretrained(tmp_path))
    old = {}
    for name, x in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta")] = x
    old["bert.embeddings.position_ids"] = np.arange(L)[None]
    old["cls.predictions.decoder.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ].copy()
    write_folder(tmp_path, "bert", old)
    loaded = nnx.state(load_pretrained(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


def attentions_of(model):
    return [block.attention.attention for block in model.encoder.blocks]


def test_load_pretrained_puts_nystrom_in_place_of_softmax(tmp_path):
    """As many landmarks as tokens are exact attention, fewer are not."""
    make_folder(tmp_path)
    softmax = nnx.jit(load_pretrained(tmp_path))(INPUTS, MASK)
    errors = {}
    for count in (L, 4):
        model = load_pretrained(tmp_path, num_landmarks=count)
        assert {x.num_landmarks for x in attentions_of(model)} == {count}
        logits = nnx.jit(model)(INPUTS, MASK)
        errors[count] = relative_error(logits[MASK], softmax[MASK])
    assert errors[L] < TOLERANCE["float32"]
    assert errors[4] > 1e-3


def test_load_pretrained_starts_a_convolution_anew(tmp_path):
    """By the seed, each layer with another kernel; without it nothing has changed."""
    make_folder(tmp_path)
    options = {
        "attention": "nystrom",
        "attention_options": {"num_landmarks": L, "conv_kernel_size": 5},
    }
    model = load_pretrained(tmp_path, **options)
    first, second = [x.conv_kernel[...] for x in attentions_of(model)]
    assert first.shape == (5, N)
    assert 0.2 < np.abs(first).max() <= 5**-0.5
    assert relative_error(first, second) > 0.1
    for seed, is_same in ((0, True), (1, False)):
        again = load_pretrained(tmp_path, **options, seed=seed)
        kernel = attentions_of(again)[0].conv_kernel[...]
        assert np.array_equal(kernel, first) == is_same

    softmax = nnx.jit(load_pretrained(tmp_path))(INPUTS)
    assert relative_error(nnx.jit(model)(INPUTS), softmax) > 0.01
    for attention in attentions_of(model):
        attention.conv_kernel[...] = np.zeros((5, N))
    error = relative_error(nnx.jit(model)(INPUTS), softmax)
    assert error < TOLERANCE["float32"]


def test_load_pretrained_takes_an_attention_for_each_layer(tmp_path):
    """A layer of the folder's own keeps its dropout."""
    make_folder(tmp_path)
    by_layer = {0: "softmax", 1: {"num_landmarks": 3}}
    model = load_pretrained(tmp_path, num_landmarks=4, attention_by_layer=by_layer)
    softmax, nystrom = attentions_of(model)
    assert softmax.dropout_rate == 0.2
    assert nystrom.num_landmarks == 3

    linformer = {"name": "linformer", "projection_dim": 4}
    model = load_pretrained(tmp_path, attention_by_layer={1: linformer})
    softmax, linformer = attentions_of(model)
    assert softmax.dropout_rate == 0.2
    assert linformer.projection.shape == (4, L)


BAD_SETTINGS = {
    "more layers": (
        "bert",
        {"num_hidden_layers": 3},
        r"no tensor bert\.encoder\.layer\.2.*, which the encoder of its config\.json "
        "needs: download the folder again",
    ),
    "fewer layers": (
        "bert",
        {"num_hidden_layers": 1},
        r"has a tensor bert\.encoder\.layer\.1.*, which the encoder of its "
        r"config\.json does not have: download the folder again",
    ),
    "relative": (
        "bert",
        {"position_embedding_type": "relative_key"},
        r"not as published: .*position_embedding_type must be .*'relative_key'",
    ),
    "causal": ("bert", {"is_decoder": True}, "is_decoder must be one of .*, got True"),
    "padding": ("roberta", {"pad_token_id": 0}, "pad_token_id must be one of"),
    "positions": (
        "bert",
        {"max_position_embeddings": 2 * L},
        r"position_embeddings\.weight is \(13, 6\), but .* must be \(26, 6\)$",
    ),
    "roberta positions": (
        "roberta",
        {"max_position_embeddings": 2 * L + 2},
        r"position_embeddings\.weight is \(13, 6\), but .* must be \(26, 6\)$",
    ),
}


@pytest.mark.parametrize(("kind", "change", "message"), BAD_SETTINGS.values(), ids=str)
def test_load_pretrained_rejects_a_config_that_does_not_fit(
    kind, change, message, tmp_path
):
    make_folder(tmp_path, kind, **change)
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


BAD_OPTIONS = [
    ({"attention": "flash"}, "unknown attention 'flash'; known: nystrom, softmax"),
    ({"attention_options": {"num_landmarks": 4}}, "SoftmaxAttention has no option"),
    ({"attention_by_layer": {2: "nystrom"}}, "no layer 2 .*: the 2 layers are 0 to 1"),
    (
        {"attention": "linformer", "num_landmarks": 4},
        "num_landmarks=4 is for nystrom, and attention is 'linformer'",
    ),
    ({"head": "classification"}, r"no tensor classifier\.bias, .*name another head"),
    ({"attention": "identity"}, "identity has no projections of its own for query"),
    (
        {"attention_by_layer": {1: "reformer"}},
        "reformer has no projections of its own for query, .*: take another attention",
    ),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=str)
def test_load_pretrained_rejects_options_that_do_not_fit(options, message, tmp_path):
    make_folder(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load_pretrained(tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_an_input_that_is_longer_than_the_positions_is_refused(tmp_path):
    make_folder(tmp_path, "roberta")
    with pytest.raises(ValueError, match="length 14 is over max_length 13"):
        load_pretrained(tmp_path)(np.ones((1, 14), int))


def test_import_weights_makes_a_run_from_which_nystrom_starts(commands, tmp_path):
    """Its weights stay, the convolution is new; GELU and epsilon have to be its own."""
    tokenizers = pytest.importorskip("tokenizers")
    source = tmp_path / "published"
    workdir = tmp_path / "run"
    make_folder(source)
    make_tokenizer(tokenizers).save(str(source / "tokenizer.json"))
    done = commands.run("import_weights.py", f"--from={source}", f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    run = nystromformer.load_run(workdir)
    assert run.config.attention.name == "softmax"
    types = token_types_of("bert")
    expected = nnx.jit(load_pretrained(source))(INPUTS, token_types=types)
    logits = nnx.jit(run.model)(INPUTS, token_types=types)
    assert relative_error(logits, expected) < TOLERANCE["float32"]

    changes = {
        "task__tokenizer": str(shutil.copy(source / "tokenizer.json", tmp_path)),
        "task__max_length": 2 * L,
        "model__num_layers": 2,
        "model__num_heads": N,
        "model__model_dim": D,
        "model__mlp_dim": F,
        "attention__conv_kernel_size": 3,
        "train__init_from": str(workdir),
        "model__gelu": "erf",
        "model__norm_epsilon": EPSILON,
    }
    experiment = Experiment(make_config("nystrom", "corpus", **changes))
    carried = carry_over(run, experiment)
    kernel = "params.encoder.blocks.1.attention.attention.conv_kernel"
    assert kernel not in carried
    assert "params.encoder.blocks.1.attention.project.kernel" in carried
    for key, value, message in (
        ("model__gelu", "tanh", "has gelu erf, and this run tanh: take the same"),
        ("model__norm_epsilon", 1e-5, "norm_epsilon 0.01, and this run 1e-05: take"),
    ):
        other = Experiment(make_config("nystrom", "corpus", **{**changes, key: value}))
        with pytest.raises(ConfigError, match=message):
            carry_over(run, other)
