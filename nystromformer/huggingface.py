"""Published Nyströmformer weights: transformers' layout to ours.

The published configs set num_landmarks = segment_means_seq_len, for which transformers
computes exact attention: softmax and the convolution of V. Here the same weights also
run at O(L · M), by `num_landmarks`. Two differences are on purpose: Z₀ is scaled
by each matrix's own norms (`nystromformer.nystrom`), and padding changes nothing, where
theirs lets the values of padded tokens into the convolution.
"""

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.heads import FirstTokenClassifier, MaskedLanguageModel
from nystromformer.ops import at_least_float32
from nystromformer.validation import check_choice

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
HEADS = {
    "masked_lm": MaskedLanguageModel,
    "classification": FirstTokenClassifier,
    None: Encoder,
}
GELUS = {"gelu_new": "tanh", "gelu": "erf", "gelu_pytorch_tanh": "tanh"}
SIZES = {  # theirs: ours
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_length",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "model_dim",
    "intermediate_size": "mlp_dim",
    "type_vocab_size": "num_token_types",
}
BASE = "nystromformer."  # in front of all names except a head's and a bare encoder's
WORDS = f"{BASE}embeddings.word_embeddings.weight"
POSITIONS = f"{BASE}embeddings.position_embeddings.weight"
RESERVED = 2  # rows in front of the positions that no token reads
COPIES = {  # further names of a tensor in some files
    "cls.predictions.decoder.weight": WORDS,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
ARRAYS = {  # ours: theirs
    "encoder.embedding.embedding": WORDS,
    "encoder.positions": POSITIONS,
    "encoder.token_types": f"{BASE}embeddings.token_type_embeddings.weight",
    "bias": "cls.predictions.bias",
}
LAYER = f"{BASE}encoder.layer.i"
MODULES = {
    "encoder.embedding_norm": f"{BASE}embeddings.LayerNorm",
    "encoder.blocks.i.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.blocks.i.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "encoder.blocks.i.mlp.expand": f"{LAYER}.intermediate.dense",
    "encoder.blocks.i.mlp.contract": f"{LAYER}.output.dense",
    "encoder.blocks.i.mlp_norm": f"{LAYER}.output.LayerNorm",
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "pooler": "classifier.dense",
    "out": "classifier.out_proj",
}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}

PathLike = str | os.PathLike[str]
Tensors = dict[str, np.ndarray]


def load_pretrained(
    folder: PathLike,
    *,
    head: str | None = "masked_lm",
    num_landmarks: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Any:
    """The model of a folder with config.json and model.safetensors.

    pytorch_model.bin is read too, where torch is installed.

    Args:
      folder: as transformers writes it.
      head: "masked_lm", "classification", or None for the encoder alone.
      num_landmarks: M of Nyström attention; None = what PyTorch computes, which is
        exact, O(L²), where config.json has num_landmarks = segment_means_seq_len, as
        published, and else Nyström with that M and Z₀ scaled by the batch.
      dtype: of the computation; parameters are at least float32.

    Returns:
      model(inputs [B, L], mask [B, L] bool or None, token_types=None) -> logits
      [B, L, V] or [B, C]; the encoder gives vectors [B, L, D] and the mask.

    Raises PretrainedError if the folder is damaged, or not of the published form.
    """
    folder, arguments = Path(folder).expanduser(), {}
    check_choice("head", head, HEADS)
    config, tensors = read_config(folder, num_landmarks, dtype), read_tensors(folder)
    if head is None:
        tensors = {name: x for name, x in tensors.items() if name.startswith(BASE)}
    if head == "classification":
        arguments["num_classes"] = len(tensors.get("classifier.out_proj.weight", [0]))
    make = functools.partial(HEADS[head], config, **arguments)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    leaves, wide = leaves_by_name(state), at_least_float32(dtype)
    ours = {name: np.empty(x.shape, wide) for name, (_, x) in leaves.items()}
    views = theirs_of(ours)
    tensors[POSITIONS] = tensors.get(POSITIONS, np.zeros(RESERVED))[RESERVED:]
    shapes, wanted = ({n: x.shape for n, x in y.items()} for y in (tensors, views))
    for name in sorted(shapes.keys() | wanted):
        if shapes.get(name) != wanted.get(name):
            sizes = f"{shapes.get(name, 'none')}, ours {wanted.get(name, 'none')}"
            raise PretrainedError(f"{folder}: {name} is {sizes}")
        views[name][...] = tensors[name]
    flat = [(path, x.replace(jnp.asarray(ours[n]))) for n, (path, x) in leaves.items()]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def read_config(
    folder: PathLike,
    num_landmarks: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> EncoderConfig:
    """The encoder of a config.json; arguments and errors as of `load_pretrained`."""
    path = Path(folder).expanduser() / CONFIG_FILE
    if not path.parent.is_dir():
        raise PretrainedError(
            f"no folder {folder}: download the weights, as by `hf download "
            "uw-madison/nystromformer-512 --local-dir FOLDER`, and name that folder"
        )
    try:
        settings = {"layer_norm_eps": 1e-5} | json.loads(path.read_bytes())
        check_choice("model_type", settings["model_type"], ("nystromformer",))
        check_choice("layer_norm_eps", settings["layer_norm_eps"], (1e-5,))
        check_choice("hidden_act", settings["hidden_act"], GELUS)
        options = {"conv_kernel_size": settings["conv_kernel_size"] or 0}
        theirs, exact = settings["num_landmarks"], settings["max_position_embeddings"]
        if theirs == settings["segment_means_seq_len"]:
            theirs = exact
        elif num_landmarks is None:
            options["pinv_init"] = "per_batch"
        options["num_landmarks"] = theirs if num_landmarks is None else num_landmarks
        return EncoderConfig(
            **{ours: settings[theirs] for theirs, ours in SIZES.items()},
            attention_options=options,
            dropout_rate=settings["hidden_dropout_prob"],
            norm="post",
            gelu=GELUS[settings["hidden_act"]],
            embedding_norm=True,
            dtype=dtype,
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PretrainedError(f"{path} is not as published: {error!r}") from error


def theirs_of(ours: Tensors) -> Tensors:
    """Name -> view of our array in PyTorch's shape, without reserved positions."""
    views = {}
    for name, x in ours.items():
        module, _, leaf = re.sub(r"blocks\.\d+", "blocks.i", name).rpartition(".")
        if name in ARRAYS:
            found = {ARRAYS[name]: x}
        elif module in MODULES:
            found = {f"{MODULES[module]}.{LEAVES[leaf]}": x.T}
        elif module.endswith(".attention.project"):
            parts = zip(("query", "key", "value"), np.split(x, 3, -1), strict=True)
            of = f"{LAYER}.attention.self"
            found = {f"{of}.{part}.{LEAVES[leaf]}": y.T for part, y in parts}
        elif leaf == "conv_kernel":
            found = {f"{LAYER}.attention.self.conv.weight": x.T[:, None, :, None]}
        else:
            raise PretrainedError(f"the published form has no place for {name}")
        number = re.search(r"blocks\.(\d+)", name)
        layer = f"layer.{number[1]}." if number else ""
        views |= {name.replace("layer.i.", layer): x for name, x in found.items()}
    return views


def read_tensors(folder: Path) -> Tensors:
    """The tensors by the names that they have in a model with a head, each once."""
    path, pickled = folder / WEIGHTS_FILE, folder / "pytorch_model.bin"
    path = pickled if pickled.exists() and not path.exists() else path
    try:
        if path.name == WEIGHTS_FILE:
            with safetensors.safe_open(path, "numpy") as file:  # bfloat16 too
                found = {name: file.get_tensor(name) for name in file.offset_keys()}
        else:
            import torch  # type: ignore[import-not-found]

            read = torch.load(path, map_location="cpu", weights_only=True).items()
            found = {n: (x if x.itemsize > 2 else x.float()).numpy() for n, x in read}
    except Exception as error:  # each library has its own
        reason = str(error).partition("\n")[0]
        raise PretrainedError(f"{path} cannot be read ({reason})") from error
    # In a model with a head, whichever it is, the encoder's names begin with BASE.
    is_bare = not any(name.startswith(BASE) for name in found)
    tensors = {BASE + name if is_bare else name: x for name, x in found.items()}
    tensors.pop(f"{BASE}embeddings.position_ids", None)  # no weight
    for copy in COPIES.keys() & tensors.keys():
        kept = tensors.setdefault(COPIES[copy], tensors[copy])
        if np.array_equal(kept, tensors[copy]):  # else it has no place in our model
            del tensors[copy]
    return tensors


def leaves_by_name(state: nnx.State) -> dict[str, tuple[Any, Any]]:
    """Paths and variables by name; a bare encoder's names are those in a model."""
    flat = nnx.to_flat_state(state)
    bare = "encoder." if any(path[0] == "blocks" for path, _ in flat) else ""
    return {bare + ".".join(map(str, path)): (path, x) for path, x in flat}
