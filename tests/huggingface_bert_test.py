"""Weights of BERT and RoBERTa, beside the models of their papers in numpy."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from nystromformer.errors import PretrainedError
from nystromformer.huggingface import load_pretrained
from tests.bert_folder import (
    CLASSIFIER_SHAPES,
    INPUTS,
    KINDS,
    LENGTHS,
    MASK,
    D,
    L,
    N,
    make_folder,
    random_tensors,
    token_types_of,
    write_folder,
)
from tests.bert_reference import Reference
from tests.tolerance import TOLERANCE, relative_error


@pytest.mark.parametrize("kind", KINDS)
def test_load_pretrained_computes_the_published_model(kind, tmp_path):
    """It does so in a batch with padding, which changes nothing."""
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
def test_load_pretrained_takes_the_gelu_of_the_encoder_and_of_the_head(kind, tmp_path):
    """RoBERTa's head does not have that of the config. Float64 tells them apart."""
    tensors = make_folder(tmp_path, kind, hidden_act="gelu_new")
    with jax.enable_x64(True):
        model = load_pretrained(tmp_path, dtype=np.float64)
        logits = nnx.jit(model)(INPUTS[:1])
    reference = Reference(tensors, kind, gelu="tanh")
    vectors = reference.encode(INPUTS[0], np.zeros(L, int))
    error = relative_error(logits[0], reference.tokens(vectors))
    assert error < TOLERANCE["float64"]


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


def test_load_pretrained_refuses_a_classifier_of_tokens_as_one_of_sequences(tmp_path):
    """Older files have a pooler, and so all the tensors of the other."""
    tensors = random_tensors("bert", CLASSIFIER_SHAPES["bert"])
    architectures = ["BertForTokenClassification"]
    write_folder(tmp_path, "bert", tensors, architectures=architectures)
    message = (
        "is a BertForTokenClassification, which has classes of tokens, and "
        r"head='classification' has those of sequences: .* the encoder alone, head=None"
    )
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path, head="classification")

    architectures = ["BertForSequenceClassification"]
    write_folder(tmp_path, "bert", tensors, architectures=architectures)
    load_pretrained(tmp_path, head="classification")


@pytest.mark.parametrize("kind", KINDS)
def test_load_pretrained_reads_an_encoder_without_the_prefix(kind, tmp_path):
    """The folder also has the pooler that transformers saves."""
    tensors = random_tensors(kind, {f"{kind}.pooler.dense": (D, D)})
    unprefixed = {name.removeprefix(f"{kind}."): x for name, x in tensors.items()}
    write_folder(tmp_path, kind, unprefixed)
    vectors, _ = nnx.jit(load_pretrained(tmp_path, head=None))(INPUTS)
    expected = Reference(tensors, kind).encode(INPUTS[0], np.zeros(L, int))
    assert relative_error(vectors[0], expected) < TOLERANCE["float32"]


def test_load_pretrained_reads_the_names_of_the_first_bert_files(tmp_path):
    """Their LayerNorms have gamma and beta; copies of the decoder are tied."""
    tensors = make_folder(tmp_path)
    expected = nnx.state(load_pretrained(tmp_path))
    first_tensors = {}
    for name, x in tensors.items():
        first_name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        first_name = first_name.replace("LayerNorm.bias", "LayerNorm.beta")
        first_tensors[first_name] = x
    first_tensors["bert.embeddings.position_ids"] = np.arange(L)[None]
    embedding = tensors["bert.embeddings.word_embeddings.weight"]
    first_tensors["cls.predictions.decoder.weight"] = embedding.copy()
    write_folder(tmp_path, "bert", first_tensors)
    loaded = nnx.state(load_pretrained(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


def write_in_parts(folder, num_parts):
    """Writes model.safetensors anew, in parts with an index as transformers does."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    names = sorted(tensors)
    weight_map = {}
    for part in range(num_parts):
        part_file = f"model-{part + 1:05}-of-{num_parts:05}.safetensors"
        names_of_part = names[part::num_parts]
        save_file({name: tensors[name] for name in names_of_part}, folder / part_file)
        weight_map |= dict.fromkeys(names_of_part, part_file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("num_parts", [1, 3])
def test_load_pretrained_reads_weights_in_parts(num_parts, tmp_path):
    make_folder(tmp_path)
    expected = nnx.state(load_pretrained(tmp_path))
    write_in_parts(tmp_path, num_parts)
    loaded = nnx.state(load_pretrained(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


def test_load_pretrained_names_the_part_that_is_missing(tmp_path):
    make_folder(tmp_path)
    write_in_parts(tmp_path, 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    message = (
        r"model-00002-of-00003\.safetensors is missing, and "
        r"model\.safetensors\.index\.json names it: download it, too$"
    )
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def test_load_pretrained_rejects_a_damaged_index(tmp_path):
    make_folder(tmp_path)
    write_in_parts(tmp_path, 1)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    message = r"index\.json is not as published: KeyError\('weight_map'\)$"
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def with_names_after(prefix, tensors):
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("head", ["masked_lm", None])
@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_load_pretrained_reads_the_names_of_wrapped_models(wrapper, head, tmp_path):
    tensors = make_folder(tmp_path)
    expected = nnx.state(load_pretrained(tmp_path, head=head))
    write_folder(tmp_path, "bert", with_names_after(wrapper, tensors))
    loaded = nnx.state(load_pretrained(tmp_path, head=head))
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


def test_load_pretrained_says_how_the_names_of_another_model_begin(tmp_path):
    tensors = make_folder(tmp_path)
    write_folder(tmp_path, "bert", with_names_after("text.", tensors))
    message = (
        r"names of the encoder's tensors begin with 'text\.bert\.', and must begin "
        r"with 'bert\.': rename them, or .* by model\.save_pretrained\(FOLDER\)$"
    )
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def attentions_of(model):
    return [block.attention.attention for block in model.encoder.blocks]


def test_load_pretrained_puts_nystrom_in_place_of_softmax(tmp_path):
    """As many landmarks as tokens are exact attention, fewer are not."""
    make_folder(tmp_path)
    exact = nnx.jit(load_pretrained(tmp_path))(INPUTS, MASK)

    def error_of_landmarks(count):
        model = load_pretrained(tmp_path, num_landmarks=count)
        assert {x.num_landmarks for x in attentions_of(model)} == {count}
        logits = nnx.jit(model)(INPUTS, MASK)
        return relative_error(logits[MASK], exact[MASK])

    assert error_of_landmarks(L) < TOLERANCE["float32"]
    assert error_of_landmarks(4) > 1e-3


def load_with_convolution(folder, **arguments):
    return load_pretrained(
        folder,
        attention="nystrom",
        attention_options={"num_landmarks": L, "conv_kernel_size": 5},
        **arguments,
    )


def test_load_pretrained_starts_a_convolution_anew(tmp_path):
    """The seed decides the kernels, and each layer has another."""
    make_folder(tmp_path)

    def kernels(seed):
        model = load_with_convolution(tmp_path, seed=seed)
        return [attention.conv_kernel[...] for attention in attentions_of(model)]

    first_kernel, second_kernel = kernels(seed=0)
    assert first_kernel.shape == (5, N)
    assert 0.2 < np.abs(first_kernel).max() <= 5**-0.5
    assert relative_error(first_kernel, second_kernel) > 0.1
    assert relative_error(kernels(seed=0)[0], first_kernel) <= TOLERANCE["same"]
    assert relative_error(kernels(seed=1)[0], first_kernel) > 0.1


def test_load_pretrained_changes_nothing_but_the_convolution(tmp_path):
    make_folder(tmp_path)
    softmax = nnx.jit(load_pretrained(tmp_path))(INPUTS)
    model = load_with_convolution(tmp_path)
    assert relative_error(nnx.jit(model)(INPUTS), softmax) > 0.01
    for attention in attentions_of(model):
        attention.conv_kernel[...] = np.zeros((5, N))
    error = relative_error(nnx.jit(model)(INPUTS), softmax)
    assert error < TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("dtype", "parameter_dtype"), [("bfloat16", "float32"), ("float64", "float64")]
)
def test_load_pretrained_gives_every_parameter_the_dtype(
    dtype, parameter_dtype, tmp_path
):
    """Those of the folder, which are float32, and the new ones of a convolution."""
    make_folder(tmp_path)
    with jax.enable_x64(True):
        model = load_with_convolution(tmp_path, dtype=dtype)
        parameters = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert {str(parameter.dtype) for parameter in parameters} == {parameter_dtype}


def test_load_pretrained_takes_an_attention_that_draws(tmp_path):
    """Its random key is of integers, whatever the dtype of the weights."""
    make_folder(tmp_path)
    options = {"block_size": 2, "num_random_blocks": 1}
    model = load_pretrained(tmp_path, attention="bigbird", attention_options=options)
    assert np.isfinite(model(INPUTS, MASK)).all()


def test_load_pretrained_takes_an_attention_for_each_layer(tmp_path):
    """A layer of the folder's own attention keeps its dropout."""
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
