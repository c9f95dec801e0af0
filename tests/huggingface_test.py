"""Published weights in and out: each tensor in its place, bit for bit, or refused."""

import dataclasses
import functools
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import nystromformer
from lra_tasks.task import get_task
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.experiments.workdir import read_config
from nystromformer.heads import FirstTokenClassifier, MaskedLanguageModel
from nystromformer.huggingface import (
    PretrainedError,
    load_pretrained,
    load_tokenizer,
    save_pretrained,
)
from nystromformer.torch_layout import POSITIONS, WORDS, read_tensors
from nystromformer.training.checkpoint import load_weights, weights_sha256
from nystromformer.training.step import split_weights
from tests.commands import refused
from tests.tolerance import TOLERANCE, relative_error

V, L, D, F, N, K, C = 23, 13, 6, 17, 3, 5, 7
CONFIG = EncoderConfig(
    vocab_size=V,
    max_length=L,
    num_layers=2,
    num_heads=N,
    model_dim=D,
    mlp_dim=F,
    attention_options={"num_landmarks": 4, "conv_kernel_size": K},
    norm="post",
    gelu="tanh",
    num_token_types=2,
    embedding_norm=True,
)
MODELS = {
    "masked_lm": MaskedLanguageModel,
    "classification": functools.partial(FirstTokenClassifier, num_classes=C),
    None: Encoder,
}
QUERY = "nystromformer.encoder.layer.1.attention.self.query.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
PUBLISHED = "NYSTROMFORMER_PRETRAINED"  # a folder, as downloaded
EXPAND = "nystromformer.encoder.layer.0.intermediate.dense.weight"


@functools.cache
def make(head="masked_lm"):
    return MODELS[head](CONFIG, rngs=nnx.Rngs(0))


def published(folder, head="masked_lm", **changes):
    """A folder as of another program: no digest; random numbers everywhere."""
    save_pretrained(make(head), folder)
    rng = np.random.default_rng(0)
    tensors = load_file(folder / "model.safetensors")
    tensors = {x: rng.normal(size=t.shape).astype("f4") for x, t in tensors.items()}
    write(folder, tensors)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | changes))
    return tensors


def write(folder, tensors):
    save_file(
        {x: t.copy("C") for x, t in tensors.items()}, folder / "model.safetensors"
    )


def places(model, head):
    """Their names, each with our numbers in their layout."""
    encoder = model if head is None else model.encoder
    base = "nystromformer.embeddings"
    found = {WORDS: encoder.embedding.embedding, POSITIONS: encoder.positions}
    found[f"{base}.token_type_embeddings.weight"] = encoder.token_types
    modules = {f"{base}.LayerNorm": encoder.embedding_norm}
    if head == "masked_lm":
        found["cls.predictions.bias"] = model.bias
        modules["cls.predictions.transform.dense"] = model.transform
        modules["cls.predictions.transform.LayerNorm"] = model.norm
    elif head:
        modules |= {"classifier.dense": model.pooler, "classifier.out_proj": model.out}
    for i, block in enumerate(encoder.blocks):
        layer = f"nystromformer.encoder.layer.{i}"
        attention, own = f"{layer}.attention.self", block.attention
        for j, name in enumerate(("query", "key", "value")):
            columns = slice(j * D, (j + 1) * D)
            found[f"{attention}.{name}.weight"] = own.project.kernel[:, columns].T
            found[f"{attention}.{name}.bias"] = own.project.bias[columns]
        kernel = own.attention.conv_kernel[...].T.reshape(N, 1, K, 1)
        found[f"{attention}.conv.weight"] = kernel
        modules[f"{layer}.attention.output.dense"] = own.out
        modules[f"{layer}.attention.output.LayerNorm"] = block.attention_norm
        modules[f"{layer}.intermediate.dense"] = block.mlp.expand
        modules[f"{layer}.output.dense"] = block.mlp.contract
        modules[f"{layer}.output.LayerNorm"] = block.mlp_norm
    for name, module in modules.items():
        norm = isinstance(module, nnx.LayerNorm)
        found[f"{name}.weight"] = module.scale if norm else module.kernel[...].T
        found[f"{name}.bias"] = module.bias
    return found


def contents(tensors):
    return {name: x.tobytes() for name, x in tensors.items()}


@pytest.mark.parametrize("head", MODELS)
def test_every_tensor_is_in_its_place(head, tmp_path):
    theirs = published(tmp_path, head)
    found = places(load_pretrained(tmp_path, head=head), head)
    prefix = "nystromformer." if head is None else ""
    assert found.keys() == {prefix + name for name in theirs}
    for name, x in theirs.items():
        wanted = x[2:] if prefix + name == POSITIONS else x
        np.testing.assert_array_equal(found[prefix + name], wanted, name)


@pytest.mark.parametrize("head", MODELS)
def test_out_and_in_again_bit_for_bit(head, tmp_path):
    theirs = published(tmp_path / "a", head, num_landmarks=4)
    (tmp_path / "a" / "tokenizer.json").write_bytes(b"{}")
    model = load_pretrained(tmp_path / "a", head=head, attention="nystrom")
    save_pretrained(model, tmp_path / "b", like=tmp_path / "a")
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert contents(saved) == contents(theirs)
    for name in ("config.json", "tokenizer.json"):
        copies = [(tmp_path / folder / name).read_bytes() for folder in "ab"]
        assert copies[0] == copies[1]
    save_pretrained(model, tmp_path / "c")
    again = load_pretrained(tmp_path / "c", head=head, attention="nystrom")
    assert nnx.graphdef(again) == nnx.graphdef(model)
    assert weights_sha256(nnx.state(again)) == weights_sha256(nnx.state(model))
    with pytest.raises(PretrainedError, match="holds a model already"):
        save_pretrained(model, tmp_path / "b")


def test_what_older_files_hold_as_well(tmp_path):
    theirs = published(tmp_path)
    model = load_pretrained(tmp_path)
    theirs["nystromformer.embeddings.position_ids"] = np.arange(L)
    bias = theirs.pop("cls.predictions.bias")  # either name alone will do
    more = {"cls.predictions.decoder.weight": theirs[WORDS], DECODER_BIAS: bias}
    write(tmp_path, theirs | more)
    again = load_pretrained(tmp_path)
    np.testing.assert_array_equal(again.bias, model.bias)
    write(tmp_path, theirs | more | {"cls.predictions.bias": bias + 1})
    with pytest.raises(PretrainedError, match=r"decoder\.bias differs from cls"):
        load_pretrained(tmp_path)


def without(tensors, name):
    return {x: t for x, t in tensors.items() if x != name}


REFUSED = {
    "missing": (lambda x: without(x, QUERY), f"lacks {QUERY}"),
    "extra": (lambda x: x | {"cls.seq": x[QUERY]}, r"takes, cls\.seq"),
    "transposed": (lambda x: x | {EXPAND: x[EXPAND].T}, rf"{EXPAND} is float32 \(6"),
    "shuffled": (lambda x: x | {EXPAND: x[QUERY], QUERY: x[EXPAND]}, "float32"),
    "float16": (lambda x: x | {QUERY: x[QUERY].astype("f2")}, f"{QUERY} is float16"),
    "int32": (lambda x: x | {QUERY: x[QUERY].view("i4")}, f"{QUERY} is int32"),
    "positions": (lambda x: x | {POSITIONS: x[POSITIONS][2:]}, r"not float32 \(15"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_tensors_that_are_not_the_models_are_refused(change, message, tmp_path):
    write(tmp_path, change(published(tmp_path)))
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def test_a_digest_tells_tensors_of_one_shape_apart(tmp_path):
    save_pretrained(make(), tmp_path)
    file = tmp_path / "model.safetensors"
    with safe_open(file, "numpy") as noted:
        metadata = noted.metadata()
    tensors = load_file(file)
    save_file(tensors | {QUERY: tensors[QUERY].T.copy("C")}, file, metadata)
    with pytest.raises(PretrainedError, match="do not match its digest"):
        load_pretrained(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PretrainedError, match=r"model\.safetensors cannot be read"):
        load_pretrained(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="model"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("hidden_act must be", {"hidden_act": "relu"}),
        ("layer_norm_eps must be", {"layer_norm_eps": 1e-12}),
        ("hidden_size.* whole", {"hidden_size": 6.5}),
        ("num_heads 5", {"num_attention_heads": 5}),
        ("dtype must be", {"dtype": "float16"}),
    ],
)
def test_another_config_is_refused(message, change, tmp_path):
    published(tmp_path, **change)
    with pytest.raises(PretrainedError, match=r"config\.json.*" + message):
        load_pretrained(tmp_path)


def test_a_model_of_another_form_is_not_saved(tmp_path):
    softmax = {"attention": "softmax", "attention_options": {}}
    for change in ({"norm": "pre"}, {"num_token_types": 0}, softmax):
        config = dataclasses.replace(CONFIG, **change)
        model = MaskedLanguageModel(config, rngs=nnx.Rngs(0))
        with pytest.raises(PretrainedError, match="the published form has"):
            save_pretrained(model, tmp_path)
    options = CONFIG.attention_options | {"num_pinv_iters": 2}
    few = dataclasses.replace(CONFIG, attention_options=options)
    with pytest.raises(PretrainedError, match="no place for num_pinv_iters=2"):
        save_pretrained(MaskedLanguageModel(few, rngs=nnx.Rngs(0)), tmp_path)
    tanh = FirstTokenClassifier(
        CONFIG, num_classes=C, activation="tanh", rngs=nnx.Rngs(0)
    )
    with pytest.raises(PretrainedError, match="has a GELU, not tanh"):
        save_pretrained(tanh, tmp_path)


def test_exact_attention_and_landmarks(tmp_path):
    """Exact at every length, where padding has no influence, beside fewer landmarks."""
    published(tmp_path)
    inputs = np.random.default_rng(1).integers(0, V, (2, L))
    mask = np.arange(L) < np.array([[L], [8]])
    exact, few = (load_pretrained(tmp_path, attention=x) for x in ("exact", "nystrom"))
    assert few.encoder.blocks[0].attention.attention.num_landmarks == 4
    logits = nnx.jit(exact)(inputs, mask)
    assert logits.shape == (2, L, V)
    alone = nnx.jit(exact)(inputs[1:, :8])
    assert relative_error(logits[1:, :8], alone) < TOLERANCE["float32"]
    assert relative_error(nnx.jit(few)(inputs, mask)[:, :8], logits[:, :8]) > 1e-3
    more = load_pretrained(tmp_path, attention="nystrom", num_landmarks=8)
    assert relative_error(nnx.jit(more)(inputs[1:, :8]), alone) < TOLERANCE["float32"]


def test_arguments_that_make_no_sense(tmp_path):
    published(tmp_path)
    for bad in ({"head": "pooler"}, {"attention": "linear"}, {"num_landmarks": 4}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            load_pretrained(tmp_path, **bad)


@pytest.mark.skipif(PUBLISHED not in os.environ, reason=f"{PUBLISHED} names no folder")
def test_the_published_checkpoint(tmp_path):
    """Round trip, a word that it knows, and positions that begin behind two rows."""
    folder = os.environ[PUBLISHED]
    tokenizer = load_tokenizer(folder)
    found = tokenizer.encode("Paris is the capital of [MASK].")
    masked = found.tokens.index("[MASK]")
    model = load_pretrained(folder)
    logits = model(np.array([found.ids]))[0, masked]
    assert tokenizer.decode([int(logits.argmax())]).strip().lower() == "france"
    save_pretrained(model, tmp_path / "again", like=folder)
    saved, theirs = read_tensors(tmp_path / "again"), read_tensors(Path(folder))
    assert contents(saved) == contents(theirs)
    positions = jnp.asarray(theirs[POSITIONS][: model.encoder.max_length])
    model.encoder.positions[...] = positions  # from row 0
    shifted = model(np.array([found.ids]))[0, masked]
    france = logits.argmax()
    assert jax.nn.log_softmax(shifted)[france] < jax.nn.log_softmax(logits)[france]


def test_the_door_makes_a_workdir(commands, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]  # as published
    names = [*special, *(f"w{i}" for i in range(V - len(special)))]
    words = {name: i for i, name in enumerate(names)}
    words = tokenizers.models.WordLevel(words, "<unk>")
    published(tmp_path / "a")
    with pytest.raises(PretrainedError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path / "a")
    tokenizers.Tokenizer(words).save(str(tmp_path / "a" / "tokenizer.json"))
    assert load_tokenizer(tmp_path / "a").token_to_id("[MASK]") == 4
    flags = f"--from={tmp_path / 'a'}", f"--workdir={tmp_path / 'run'}"
    done = commands.run("import_weights.py", *flags)
    assert done.returncode == 0, done.stderr
    config = read_config(tmp_path / "run")
    assert config.attention.options["num_landmarks"] == L
    assert get_task(config.task.name, **config.task.options).mask_token == 4
    _, weights = split_weights(load_pretrained(tmp_path / "a"))
    found = load_weights(tmp_path / "run" / "best", weights)
    assert weights_sha256(found) == weights_sha256(weights)
    run, inputs = nystromformer.load_run(tmp_path / "run"), np.array([[2, 5, 4, 7, 3]])
    expected = load_pretrained(tmp_path / "a")(inputs)
    assert relative_error(run.model(inputs), expected) < TOLERANCE["float32"]
    again = commands.run("import_weights.py", *flags)
    assert "holds a run" in refused(again)
