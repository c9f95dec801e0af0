"""Published weights: each tensor in its place, or refused."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

import nystromformer
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.heads import FirstTokenClassifier, MaskedLanguageModel
from nystromformer.huggingface import (
    BASE,
    POSITIONS,
    SIZES,
    WORDS,
    leaves_by_name,
    load_pretrained,
    read_config,
    theirs_of,
)
from tests.commands import refused
from tests.tolerance import TOLERANCE, relative_error

V, L, D, F, N, K, C = 23, 13, 6, 17, 3, 5, 7
CONFIG = EncoderConfig(
    **{"vocab_size": V, "max_length": L, "num_layers": 2, "num_heads": N},
    **{"model_dim": D, "mlp_dim": F, "num_token_types": 2, "embedding_norm": True},
    **{"attention_options": {"num_landmarks": 4, "conv_kernel_size": K}},
    **{"norm": "post", "gelu": "tanh"},
)
MODELS = {
    "masked_lm": MaskedLanguageModel,
    "classification": functools.partial(FirstTokenClassifier, num_classes=C),
    None: Encoder,
}
QUERY = "nystromformer.encoder.layer.1.attention.self.query.weight"
DECODER, DECODER_BIAS = (f"cls.predictions.decoder.{x}" for x in ("weight", "bias"))
EXPAND = "nystromformer.encoder.layer.0.intermediate.dense.weight"


def published(folder, head="masked_lm", **changes):
    """A folder as of another program: random numbers everywhere."""
    leaves = leaves_by_name(nnx.state(MODELS[head](CONFIG, rngs=nnx.Rngs(0))))
    tensors = theirs_of({name: np.asarray(x[...]) for name, (_, x) in leaves.items()})
    tensors[POSITIONS] = np.pad(tensors[POSITIONS], ((2, 0), (0, 0)))
    rng, bare = np.random.default_rng(0), "" if head else BASE
    tensors = {
        name.removeprefix(bare): rng.normal(size=x.shape).astype("f4")
        for name, x in tensors.items()
    }
    folder.mkdir(exist_ok=True)
    write(folder, tensors)
    settings = {theirs: getattr(CONFIG, ours) for theirs, ours in SIZES.items()}
    settings |= {"model_type": "nystromformer", "hidden_act": "gelu_new"}
    settings |= {"hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-5}
    settings |= {"conv_kernel_size": K, "num_landmarks": 4}
    settings |= {"segment_means_seq_len": L} | changes
    (folder / "config.json").write_text(json.dumps(settings))
    return tensors


def write(folder, tensors):
    contiguous = {x: t.copy("C") for x, t in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")


def test_load_pretrained_puts_tensors_of_one_shape_in_their_places(tmp_path):
    """The others are seen by the parity tests, too."""
    theirs = published(tmp_path)
    block = load_pretrained(tmp_path).encoder.blocks[1]
    project, conv_kernel = (x := block.attention).project, x.attention.conv_kernel
    found = {
        "attention.self.conv.weight": conv_kernel[...].T.reshape(N, 1, K, 1),
        "attention.output.dense.weight": block.attention.out.kernel[...].T,
        "attention.output.LayerNorm.weight": block.attention_norm.scale,
        "output.LayerNorm.weight": block.mlp_norm.scale,
        "output.LayerNorm.bias": block.mlp_norm.bias,
    }
    for j, name in enumerate(("query", "key", "value")):
        columns = slice(j * D, (j + 1) * D)
        found[f"attention.self.{name}.weight"] = project.kernel[:, columns].T
        found[f"attention.self.{name}.bias"] = project.bias[columns]
    for name, x in found.items():
        wanted = theirs[f"nystromformer.encoder.layer.1.{name}"]
        np.testing.assert_array_equal(x, wanted, name)


# The names and shapes of transformers' files, where linear layers are [out, in].
OF_EMBEDDINGS = {
    "word_embeddings.weight": (V, D),
    "position_embeddings.weight": (L + 2, D),
    "token_type_embeddings.weight": (2, D),
    "LayerNorm.weight": (D,),
    "LayerNorm.bias": (D,),
}
OF_LAYER = {
    "attention.self.query.weight": (D, D),
    "attention.self.query.bias": (D,),
    "attention.self.key.weight": (D, D),
    "attention.self.key.bias": (D,),
    "attention.self.value.weight": (D, D),
    "attention.self.value.bias": (D,),
    "attention.self.conv.weight": (N, 1, K, 1),
    "attention.output.dense.weight": (D, D),
    "attention.output.dense.bias": (D,),
    "attention.output.LayerNorm.weight": (D,),
    "attention.output.LayerNorm.bias": (D,),
    "intermediate.dense.weight": (F, D),
    "intermediate.dense.bias": (F,),
    "output.dense.weight": (D, F),
    "output.dense.bias": (D,),
    "output.LayerNorm.weight": (D,),
    "output.LayerNorm.bias": (D,),
}
OF_HEADS = {
    "masked_lm": {
        "cls.predictions.bias": (V,),
        "cls.predictions.transform.dense.weight": (D, D),
        "cls.predictions.transform.dense.bias": (D,),
        "cls.predictions.transform.LayerNorm.weight": (D,),
        "cls.predictions.transform.LayerNorm.bias": (D,),
    },
    "classification": {
        "classifier.dense.weight": (D, D),
        "classifier.dense.bias": (D,),
        "classifier.out_proj.weight": (C, D),
        "classifier.out_proj.bias": (C,),
    },
    None: {},
}


@pytest.mark.parametrize("head", MODELS)
def test_the_tensors_of_a_file_are_named_as_published(head, tmp_path):
    """So that a file of these names is read, and no other."""
    base = "nystromformer." if head else ""
    expected = {f"{base}embeddings.{x}": shape for x, shape in OF_EMBEDDINGS.items()}
    for i in range(2):
        layer = f"{base}encoder.layer.{i}"
        expected |= {f"{layer}.{x}": shape for x, shape in OF_LAYER.items()}
    found = {name: x.shape for name, x in published(tmp_path, head).items()}
    assert found == expected | OF_HEADS[head]


@pytest.mark.parametrize("head", MODELS)
def test_load_pretrained_reads_every_tensor(head, tmp_path):
    theirs = published(tmp_path, head)
    leaves = leaves_by_name(nnx.state(load_pretrained(tmp_path, head=head)))
    found = theirs_of({name: np.asarray(x[...]) for name, (_, x) in leaves.items()})
    bare = "" if head else BASE
    assert {name.removeprefix(bare) for name in found} == theirs.keys()
    for name, x in found.items():
        rows = slice(2 if name == POSITIONS else 0, None)
        np.testing.assert_array_equal(x, theirs[name.removeprefix(bare)][rows], name)


def test_load_pretrained_reads_the_copies_of_older_files_and_bfloat16(tmp_path):
    theirs = published(tmp_path)
    theirs["nystromformer.embeddings.position_ids"] = np.arange(L)
    bias = theirs.pop("cls.predictions.bias")  # either name alone will do
    more = {DECODER: theirs[WORDS], DECODER_BIAS: bias}
    write(tmp_path, {x: t.astype("bfloat16") for x, t in (theirs | more).items()})
    assert (load_pretrained(tmp_path).bias[...] == bias.astype("bfloat16")).all()


def test_load_pretrained_reads_the_encoder_of_a_model_with_any_head(tmp_path):
    theirs = published(tmp_path)
    theirs = {x: t for x, t in theirs.items() if x.startswith(BASE)}
    head = {"qa_outputs.weight": np.ones((2, D), "f4"), "qa_outputs.bias": np.ones(2)}
    write(tmp_path, theirs | head)
    encoder = load_pretrained(tmp_path, head=None)
    np.testing.assert_array_equal(encoder.embedding.embedding, theirs[WORDS])
    with pytest.raises(PretrainedError, match=r"cls\.predictions.* is none"):
        load_pretrained(tmp_path)


REFUSED = {
    "missing": (lambda x: {n: x[n] for n in x if n != QUERY}, f"{QUERY} .*none"),
    "extra": (lambda x: x | {"cls.seq": x[QUERY]}, r"cls\.seq .*ours none"),
    "untied": (lambda x: x | {DECODER: x[WORDS] + 1}, f"{DECODER} .*ours none"),
    "transposed": (lambda x: x | {EXPAND: x[EXPAND].T}, rf"{EXPAND} .*\(6, 17\)"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_load_pretrained_rejects_other_tensors(change, message, tmp_path):
    write(tmp_path, change(published(tmp_path)))
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(tmp_path)


def test_load_pretrained_rejects_a_damaged_file_and_another_config(tmp_path):
    published(tmp_path, hidden_act="relu")
    with pytest.raises(PretrainedError, match=r"not as published.*hidden_act"):
        load_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match=r"no folder .*b: download .*hf downl"):
        load_pretrained(tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(PretrainedError, match="not as published: FileNotFound"):
        load_pretrained(tmp_path / "c")
    published(tmp_path / "b")
    file = tmp_path / "b" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PretrainedError, match=r"model\.safetensors cannot be read"):
        load_pretrained(tmp_path / "b")


INPUTS = np.random.default_rng(1).integers(0, V, (2, L))


def test_load_pretrained_exact_attention_and_landmarks(tmp_path):
    """Exact at every length, where padding has no influence, beside fewer landmarks."""
    published(tmp_path)
    mask = np.arange(L) < np.array([[L], [8]])
    exact, few = (load_pretrained(tmp_path, num_landmarks=x) for x in (L, 4))
    logits = nnx.jit(exact)(INPUTS, mask)
    assert logits.shape == (2, L, V)
    alone = nnx.jit(exact)(INPUTS[1:, :8])
    assert relative_error(logits[1:, :8], alone) < TOLERANCE["float32"]
    assert relative_error(nnx.jit(few)(INPUTS, mask)[:, :8], logits[:, :8]) > 1e-3
    more = load_pretrained(tmp_path, num_landmarks=8)
    assert relative_error(nnx.jit(more)(INPUTS[1:, :8]), alone) < TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("seq_len", "wanted"), [(4, (L, "per_matrix")), (L, (4, "per_batch"))]
)
def test_load_pretrained_is_pytorch_by_default(seq_len, wanted, tmp_path):
    """Exact only where segments are tokens; else M of the config, Z₀ by the batch."""
    published(tmp_path, segment_means_seq_len=seq_len, hidden_act="gelu")
    model = load_pretrained(tmp_path)
    attention = model.encoder.blocks[0].attention.attention
    assert (attention.num_landmarks, attention.pinv_init) == wanted
    assert not model.approximate  # gelu_new is by tanh


def test_read_config_has_each_setting_of_the_file(tmp_path):
    """All of them other than the defaults."""
    published(tmp_path, hidden_dropout_prob=0.3, hidden_act="gelu", num_landmarks=5)
    ours = dataclasses.replace(CONFIG, dropout_rate=0.3, gelu="erf")
    options = {"conv_kernel_size": K, "num_landmarks": 5, "pinv_init": "per_batch"}
    assert read_config(tmp_path) == dataclasses.replace(ours, attention_options=options)
    options = {"conv_kernel_size": K, "num_landmarks": 7}
    few = dataclasses.replace(ours, attention_options=options, dtype=jnp.bfloat16)
    assert read_config(tmp_path, num_landmarks=7, dtype=jnp.bfloat16) == few
    model = load_pretrained(tmp_path, num_landmarks=7, dtype=jnp.bfloat16)
    assert model.encoder.dropout_rate == 0.3
    assert model.encoder.blocks[1].attention.attention.num_landmarks == 7
    assert model.encoder.dtype == jnp.bfloat16
    exact = dataclasses.replace(ours, attention_options=options | {"num_landmarks": L})
    published(tmp_path, hidden_dropout_prob=0.3, hidden_act="gelu", num_landmarks=L)
    assert read_config(tmp_path) == exact


def test_import_weights_makes_a_workdir(commands, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]  # as published
    names = [*special, *(f"w{i}" for i in range(V - len(special)))]
    words = {name: i for i, name in enumerate(names)}
    words = tokenizers.models.WordLevel(words, "<unk>")
    published(tmp_path / "a", hidden_dropout_prob=0.3, hidden_act="gelu")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.add_tokens(["more"])
    tokenizer.save(str(tmp_path / "a" / "tokenizer.json"))
    flags = f"--from={tmp_path / 'a'}", f"--workdir={tmp_path / 'run'}"
    larger = refused(commands.run("import_weights.py", *flags))
    assert f"tokenizer.json has {V + 1} tokens, the model {V}" in larger
    tokenizers.Tokenizer(words).save(str(tmp_path / "a" / "tokenizer.json"))
    done = commands.run("import_weights.py", *flags)
    assert done.returncode == 0, done.stderr
    run, inputs = nystromformer.load_run(tmp_path / "run"), np.array([[2, 5, 4, 7, 3]])
    expected = nnx.jit(load_pretrained(tmp_path / "a"))(inputs)
    assert relative_error(nnx.jit(run.model)(inputs), expected) < TOLERANCE["float32"]
    assert (run.config.model.dropout_rate, run.config.model.gelu) == (0.3, "erf")
    again = commands.run("import_weights.py", *flags)
    assert "name a new or empty workdir" in refused(again)
