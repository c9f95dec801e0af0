"""Published weights: each tensor in its place, or refused."""

import dataclasses
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers import Tokenizer, models, pre_tokenizers

from nystromformer.classifiers import FirstTokenClassifier
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.huggingface import load_pretrained
from nystromformer.huggingface.export import save_pretrained
from nystromformer.huggingface.files import read_config
from nystromformer.huggingface.layout import LAYOUTS
from nystromformer.huggingface.load import variables_by_name
from nystromformer.token_models import MaskedLanguageModel
from tests.commands import ROOT
from tests.published_folder import (
    BASE,
    DECODER,
    DECODER_BIAS,
    EXPAND,
    HEAD_SHAPES,
    POSITIONS,
    QUERY,
    WORDS,
    D,
    F,
    K,
    L,
    N,
    V,
    make_published_folder,
    write_tensors,
)
from tests.tolerance import TOLERANCE, relative_error

CONFIG = EncoderConfig(
    vocab_size=V,
    max_length=L,
    num_layers=2,
    num_heads=N,
    model_dim=D,
    mlp_dim=F,
    num_token_types=2,
    embedding_norm=True,
    attention_options={"num_landmarks": 4, "conv_kernel_size": K},
    norm="post",
    gelu="tanh",
)


def test_load_pretrained_puts_tensors_of_one_shape_in_their_places(tmp_path):
    """The places are written out; other tests find them by the loader's own table."""
    published = make_published_folder(tmp_path)
    block = load_pretrained(tmp_path).encoder.blocks[1]
    attention = block.attention
    conv_kernel = attention.attention.conv_kernel[...]
    project = attention.project
    loaded = {
        "attention.self.query.weight": project.kernel[:, :D].T,
        "attention.self.query.bias": project.bias[:D],
        "attention.self.key.weight": project.kernel[:, D : 2 * D].T,
        "attention.self.key.bias": project.bias[D : 2 * D],
        "attention.self.value.weight": project.kernel[:, 2 * D :].T,
        "attention.self.value.bias": project.bias[2 * D :],
        "attention.self.conv.weight": conv_kernel.T.reshape(N, 1, K, 1),
        "attention.output.dense.weight": attention.out.kernel[...].T,
        "attention.output.LayerNorm.weight": block.attention_norm.scale,
        "output.LayerNorm.weight": block.mlp_norm.scale,
        "output.LayerNorm.bias": block.mlp_norm.bias,
    }
    for name, array in loaded.items():
        expected = published[f"{BASE}encoder.layer.1.{name}"]
        np.testing.assert_array_equal(array, expected, name)


@pytest.mark.parametrize("head", HEAD_SHAPES)
def test_load_pretrained_reads_every_tensor(head, tmp_path):
    """The file has these tensors and no other; published_folder.py writes them out."""
    published = make_published_folder(tmp_path, head)
    variables = variables_by_name(nnx.state(load_pretrained(tmp_path, head=head)))
    arrays = {name: np.asarray(x[...]) for name, (_, x) in variables.items()}
    loaded = LAYOUTS["nystromformer"].to_published(arrays)
    prefix = BASE if head is None else ""
    assert {name.removeprefix(prefix) for name in loaded} == published.keys()
    for name, array in loaded.items():
        expected = published[name.removeprefix(prefix)]
        if name == POSITIONS:
            expected = expected[2:]
        np.testing.assert_array_equal(array, expected, name)


def test_load_pretrained_reads_the_copies_of_older_files_and_bfloat16(tmp_path):
    tensors = make_published_folder(tmp_path)
    bias = tensors.pop("cls.predictions.bias").astype("bfloat16")
    tensors[DECODER_BIAS] = bias  # Either name alone will do.
    tensors[DECODER] = tensors[WORDS]
    tensors[f"{BASE}embeddings.position_ids"] = np.arange(L)
    write_tensors(tmp_path, {name: x.astype("bfloat16") for name, x in tensors.items()})
    assert (load_pretrained(tmp_path).bias[...] == bias).all()


@pytest.fixture
def question_answering(tmp_path):
    """A folder of a model with a head that is not ours, and its tensors."""
    published = make_published_folder(tmp_path)
    tensors = {name: x for name, x in published.items() if name.startswith(BASE)}
    tensors["qa_outputs.weight"] = np.ones((2, D), "f4")
    tensors["qa_outputs.bias"] = np.ones(2, "f4")
    write_tensors(tmp_path, tensors)
    return tmp_path, tensors


def test_load_pretrained_reads_the_encoder_of_a_model_with_any_head(question_answering):
    folder, tensors = question_answering
    encoder = load_pretrained(folder, head=None)
    np.testing.assert_array_equal(encoder.embedding.embedding, tensors[WORDS])


def test_load_pretrained_rejects_a_model_with_another_head(question_answering):
    folder, _ = question_answering
    with pytest.raises(PretrainedError, match=r"has no tensor cls\.predictions"):
        load_pretrained(folder)


def without_query(tensors):
    return {name: x for name, x in tensors.items() if name != QUERY}


REJECTED = {
    "missing": (without_query, f"has no tensor {QUERY}"),
    "extra": (lambda x: x | {"cls.seq": x[QUERY]}, r"has a tensor cls\.seq"),
    "untied": (
        lambda x: x | {DECODER: x[WORDS] + 1},
        rf"has {DECODER} beside {WORDS}, and here .* the encoder alone, head=None$",
    ),
    "transposed": (
        lambda x: x | {EXPAND: x[EXPAND].T},
        rf"{EXPAND} is \(6, 17\), but by config.json and the options .* \(17, 6\)",
    ),
}


@pytest.mark.parametrize(("change", "message"), REJECTED.values(), ids=REJECTED)
def test_load_pretrained_rejects_other_tensors(change, message, tmp_path):
    tensors = make_published_folder(tmp_path)
    write_tensors(tmp_path, change(tensors))
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("hidden_act", "relu"), ("position_embedding_type", "relative_key")],
)
def test_load_pretrained_rejects_another_config(setting, value, tmp_path):
    make_published_folder(tmp_path, **{setting: value})
    message = f"not as published: .*{setting} must be .*'{value}'"
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def test_the_page_on_published_weights_gives_the_padding_of_a_tokenizer_no_weight(
    tmp_path, monkeypatch
):
    """Some tokenizer.json say that all texts are padded."""
    make_published_folder(tmp_path / "nystromformer-512")
    words = ["[PAD]", "[UNK]", "[MASK]", "Paris", "is", "the", "capital", "of", "."]
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[MASK]"])
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/published_weights.md").read_text()
    code, *_ = re.findall(r"```python notest\n(.*?)```", page, re.DOTALL)

    def logits_of_page():
        tokenizer.save("nystromformer-512/tokenizer.json")
        names: dict[str, Any] = {}
        exec(code, names)
        return names["logits"]

    without_padding = logits_of_page()
    tokenizer.enable_padding(length=L)
    padded = logits_of_page()
    assert without_padding.shape == (7, V)
    assert padded.shape == (L, V)
    assert relative_error(padded[:7], without_padding) < TOLERANCE["float32"]


def test_load_pretrained_rejects_a_missing_folder(tmp_path):
    with pytest.raises(PretrainedError, match=r"no folder .*b: download .*hf downl"):
        load_pretrained(tmp_path / "b")


def test_load_pretrained_rejects_a_folder_without_weights(tmp_path):
    make_published_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    message = (
        r"has no model\.safetensors, nor an index of its parts: download .* by "
        r"model\.save_pretrained\(FOLDER\)$"
    )
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def test_load_pretrained_rejects_another_architecture(tmp_path):
    make_published_folder(tmp_path, model_type="distilbert")
    message = r"is of model_type 'distilbert'; known: nystromformer, bert, roberta$"
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def test_load_pretrained_rejects_an_empty_folder(tmp_path):
    with pytest.raises(PretrainedError, match=r"has no config\.json: name the folder"):
        load_pretrained(tmp_path)


def test_load_pretrained_rejects_a_damaged_file(tmp_path):
    make_published_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PretrainedError, match=r"model\.safetensors cannot be read"):
        load_pretrained(tmp_path)


def test_load_pretrained_exact_attention_and_landmarks(tmp_path):
    """Exact at every length, where padding has no influence, beside fewer landmarks."""
    make_published_folder(tmp_path)
    inputs = np.random.default_rng(1).integers(0, V, (2, L))
    mask = np.arange(L) < np.array([[L], [8]])

    exact = nnx.jit(load_pretrained(tmp_path, num_landmarks=L))
    logits = exact(inputs, mask)
    assert logits.shape == (2, L, V)
    without_padding = exact(inputs[1:, :8])
    assert relative_error(logits[1:, :8], without_padding) < TOLERANCE["float32"]

    four = nnx.jit(load_pretrained(tmp_path, num_landmarks=4))
    assert relative_error(four(inputs, mask)[:, :8], logits[:, :8]) > 1e-3
    eight = nnx.jit(load_pretrained(tmp_path, num_landmarks=8))
    error = relative_error(eight(inputs[1:, :8]), without_padding)
    assert error < TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("segment_means_seq_len", "num_landmarks", "pinv_init"),
    [(4, L, "per_matrix"), (L, 4, "per_batch")],
)
def test_load_pretrained_is_pytorch_by_default(
    segment_means_seq_len, num_landmarks, pinv_init, tmp_path
):
    """Exact only where segments are tokens; else M of the config, Z₀ by the batch."""
    make_published_folder(tmp_path, segment_means_seq_len=segment_means_seq_len)
    attention = load_pretrained(tmp_path).encoder.blocks[0].attention.attention
    assert attention.num_landmarks == num_landmarks
    assert attention.pinv_init == pinv_init


def test_load_pretrained_takes_the_gelu_of_the_config(tmp_path):
    make_published_folder(tmp_path, hidden_act="gelu")
    assert not load_pretrained(tmp_path).approximate
    make_published_folder(tmp_path, hidden_act="gelu_new")
    assert load_pretrained(tmp_path).approximate


def test_save_pretrained_refuses_a_decoder_with_a_gelu_of_its_own(tmp_path):
    """As RoBERTa's, where the encoder has the other one."""
    config = dataclasses.replace(CONFIG, attention_options={"num_landmarks": L})
    model = MaskedLanguageModel(config, rngs=nnx.Rngs(0))
    model.approximate = False
    with pytest.raises(PretrainedError, match="gelu=tanh and erf in the head"):
        save_pretrained(tmp_path, model, config)


def test_save_pretrained_refuses_class_names_that_are_not_one_a_class(tmp_path):
    config = dataclasses.replace(CONFIG, attention_options={"num_landmarks": L})
    model = FirstTokenClassifier(config, num_classes=3, rngs=nnx.Rngs(0))
    with pytest.raises(PretrainedError, match="2 names, and the model 3 classes"):
        save_pretrained(tmp_path, model, config, class_names=["no", "yes"])


OTHER_SETTINGS = {"hidden_dropout_prob": 0.3, "hidden_act": "gelu"}


def other_config(**options):
    """The config of OTHER_SETTINGS; the options are the attention's."""
    return dataclasses.replace(
        CONFIG,
        dropout_rate=0.3,
        gelu="erf",
        attention_options={"conv_kernel_size": K, **options},
    )


def test_read_config_has_each_setting_of_the_file(tmp_path):
    """All of them other than the defaults."""
    make_published_folder(tmp_path, num_landmarks=5, **OTHER_SETTINGS)
    expected = other_config(num_landmarks=5, pinv_init="per_batch")
    assert read_config(tmp_path) == expected
    make_published_folder(tmp_path, num_landmarks=L, **OTHER_SETTINGS)
    assert read_config(tmp_path) == other_config(num_landmarks=L)


def test_load_pretrained_takes_landmarks_and_dtype(tmp_path):
    """And keeps the convolution of the folder."""
    make_published_folder(tmp_path, num_landmarks=5, **OTHER_SETTINGS)
    config = other_config(num_landmarks=5, pinv_init="per_batch")
    expected = dataclasses.replace(config, dtype=jnp.bfloat16)
    assert read_config(tmp_path, jnp.bfloat16) == expected
    model = load_pretrained(tmp_path, num_landmarks=7, dtype=jnp.bfloat16)
    assert model.encoder.dropout_rate == 0.3
    assert model.encoder.dtype == jnp.bfloat16
    attention = model.encoder.blocks[1].attention.attention
    assert attention.num_landmarks == 7
    assert attention.pinv_init == "per_matrix"
    assert attention.conv_kernel.shape == (K, N)


def test_load_pretrained_takes_an_attention_for_a_layer(tmp_path):
    """A layer of the folder's own attention keeps its convolution."""
    tensors = make_published_folder(tmp_path, num_landmarks=L)
    model = load_pretrained(
        tmp_path, num_landmarks=4, attention_by_layer={1: {"num_landmarks": L}}
    )
    attentions = [block.attention.attention for block in model.encoder.blocks]
    assert [attention.num_landmarks for attention in attentions] == [4, L]
    kernel = tensors[f"{BASE}encoder.layer.1.attention.self.conv.weight"]
    np.testing.assert_array_equal(attentions[1].conv_kernel, kernel[:, 0, :, 0].T)


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "linformer", "attention_options": {"projection_dim": 4}},
        {"attention_options": {"conv_kernel_size": 0}},
        {"attention_by_layer": {0: "softmax"}},
    ],
    ids=str,
)
def test_load_pretrained_refuses_to_drop_the_convolution(options, tmp_path):
    make_published_folder(tmp_path)
    message = (
        r"has the convolution kernel .*layer\.0\.attention\.self\.conv.*, but the "
        "attention of this layer has no convolution: use 'nystrom'"
    )
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path, **options)
