"""Published Nyströmformer weights: transformers' layout to ours, and back.

The published configs set num_landmarks = segment_means_seq_len, which transformers
takes for exact attention: softmax and the convolution of V. Here the same weights also
run at O(L · M). Two differences are on purpose: Z₀ is scaled by each matrix's own norms
(`nystromformer.nystrom`), and padding changes nothing, where theirs lets the values of
padded tokens into the convolution.
"""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from nystromformer.attention.nystrom import NystromAttention
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.heads import FirstTokenClassifier, MaskedLanguageModel
from nystromformer.ops import at_least_float32
from nystromformer.torch_layout import (
    BASE,
    POSITIONS,
    RESERVED,
    TORCH_FILE,
    WEIGHTS_FILE,
    PretrainedError,
    check_tensors,
    digest_of,
    read_tensors,
    theirs_of,
)

CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
HEADS = {
    "masked_lm": (MaskedLanguageModel, "NystromformerForMaskedLM"),
    "classification": (FirstTokenClassifier, "NystromformerForSequenceClassification"),
    None: (Encoder, "NystromformerModel"),
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
LOADED_OPTIONS = {  # what no config.json says, as `load_pretrained` takes it
    "num_pinv_iters": 6,
    "landmark_padding": "mask",
    "landmarks": "segment_means",
    "pinv": "iterative",
    "pinv_init": "own",
    "cross_attention": False,
}
PathLike = str | os.PathLike[str]


def load_pretrained(
    folder: PathLike,
    *,
    head: str | None = "masked_lm",
    attention: str = "exact",
    num_landmarks: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Any:
    """The model of a folder with config.json and model.safetensors.

    pytorch_model.bin does too, where torch is installed. Names, shapes and dtypes of
    the tensors are checked, and a digest where `save_pretrained` has left one: without
    it nothing tells two of one shape apart, or a square one from its transpose.

    Args:
      folder: as transformers writes it.
      head: "masked_lm", "classification", or None for the encoder alone.
      attention: "exact", as published: Nyström attention with as many landmarks as
        positions, which is softmax, O(L²), and the convolution of V; or "nystrom".
      num_landmarks: M of "nystrom"; None = that of config.json.
      dtype: of the computation; parameters are at least float32.

    Returns:
      model(inputs [B, L], mask [B, L] bool or None, token_types=None) -> logits
      [B, L, V] or [B, C]; the encoder gives vectors [B, L, D] and the mask.

    Raises:
      PretrainedError: the folder is damaged, or not of the published form.
    """
    folder = Path(folder).expanduser()
    if head not in HEADS:
        raise ValueError(f"head must be one of {[*HEADS]}, got {head!r}")
    settings = read_settings(folder)
    chosen = {"attention": attention, "num_landmarks": num_landmarks, "dtype": dtype}
    config = encoder_config(settings, **chosen)
    tensors, arguments = read_tensors(folder), {}
    if head is None:
        tensors = {name: x for name, x in tensors.items() if name.startswith(BASE)}
    if head == "classification":
        arguments["num_classes"] = len(tensors.get("classifier.out_proj.weight", [0]))
    make = functools.partial(HEADS[head][0], config, **arguments)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    leaves, wide = _leaves(state), at_least_float32(dtype)
    ours = {name: np.empty(x.shape, wide) for name, (_, x) in leaves.items()}
    views = theirs_of(ours)
    check_tensors(tensors, views, settings["dtype"], folder)
    tensors[POSITIONS] = tensors[POSITIONS][RESERVED:]
    for name, view in views.items():
        view[...] = tensors[name]
    flat = [(path, x.replace(jnp.asarray(ours[n]))) for n, (path, x) in leaves.items()]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def save_pretrained(
    model: Any, folder: PathLike, *, like: PathLike | None = None
) -> None:
    """Writes config.json and model.safetensors, as transformers reads them.

    Args:
      model: of the published form, as `load_pretrained` returns it. Token types and
        the mask are inputs there: `separator` and `ignore_id` are not written.
      folder: made if missing.
      like: a folder with a model of the same shapes. Its other files are copied, as
        config.json and the tokenizer, and the two rows of positions that no token
        reads. None: a config of the model's sizes, and rows of zeros.

    Raises:
      PretrainedError: the model has another form, or the folder holds one already.
    """
    folder = Path(folder).expanduser()
    if (folder / WEIGHTS_FILE).exists():
        raise PretrainedError(f"{folder} holds a model already: name another folder")
    settings, leaves = _settings_of(model), _leaves(nnx.state(model))
    tensors = theirs_of({name: np.asarray(x[...]) for name, (_, x) in leaves.items()})
    reserved = np.zeros_like(tensors[POSITIONS][:RESERVED])
    others = {CONFIG_FILE: json.dumps(settings, indent=2).encode()}
    if like is not None:
        like = Path(like).expanduser()
        theirs, weights = read_tensors(like), (WEIGHTS_FILE, TORCH_FILE)
        check_tensors(theirs, tensors, settings["dtype"], like)
        reserved = theirs[POSITIONS][:RESERVED]
        files = (x for x in like.iterdir() if x.is_file() and x.name not in weights)
        others = {file.name: file.read_bytes() for file in files}
    tensors[POSITIONS] = np.concatenate([reserved, tensors[POSITIONS]])
    bare = BASE if isinstance(model, Encoder) else ""
    tensors = {n.removeprefix(bare): x.copy("C") for n, x in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in others.items():
        (folder / name).write_bytes(content)
    noted = {"format": "pt", "sha256": digest_of(tensors)}
    safetensors.numpy.save_file(tensors, folder / WEIGHTS_FILE, noted)


def load_tokenizer(folder: PathLike) -> Any:
    """The `tokenizers.Tokenizer` of a folder; its ids count, not those of config.json.

    Raises PretrainedError where tokenizer.json is missing or damaged.
    """
    import tokenizers  # of the extra [hf]

    path = Path(folder).expanduser() / TOKENIZER_FILE
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower one
        raise PretrainedError(f"{path}: {error}") from error


def read_settings(folder: PathLike) -> dict[str, Any]:
    """config.json, checked, with `dtype`: that of the tensors."""
    path = Path(folder).expanduser() / CONFIG_FILE
    content = path.read_bytes()
    try:
        settings = {"layer_norm_eps": 1e-5, "torch_dtype": "float32"}
        settings |= json.loads(content)
        settings["dtype"] = settings.get("dtype") or settings["torch_dtype"]
        for name, known in {
            "model_type": ("nystromformer",),
            "layer_norm_eps": (1e-5,),
            "hidden_act": GELUS,
            "dtype": ("float32", "float64"),
        }.items():
            if settings[name] not in known:
                raise ValueError(f"{name} must be one of {[*known]}")
        if any(type(settings[name]) is not int or settings[name] < 1 for name in SIZES):
            raise ValueError(f"{', '.join(SIZES)} must be whole numbers above 0")
        encoder_config(settings)
    except (ValueError, TypeError, KeyError) as error:
        raise PretrainedError(f"{path} is not as published: {error}") from error
    return settings


def encoder_config(
    settings: Mapping[str, Any],
    *,
    attention: str = "exact",
    num_landmarks: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> EncoderConfig:
    """Of `read_settings`; arguments as of `load_pretrained`."""
    if attention not in ("exact", "nystrom"):
        raise ValueError(f"attention must be exact or nystrom, got {attention!r}")
    if attention == "exact" and num_landmarks is not None:
        raise ValueError('num_landmarks needs attention="nystrom"')
    count = "max_position_embeddings" if attention == "exact" else "num_landmarks"
    options = {
        "num_landmarks": settings[count] if num_landmarks is None else num_landmarks,
        "conv_kernel_size": settings["conv_kernel_size"] or 0,
    }
    return EncoderConfig(
        **{ours: settings[theirs] for theirs, ours in SIZES.items()},
        attention_options=options,
        dropout_rate=settings["hidden_dropout_prob"],
        norm="post",
        gelu=GELUS[settings["hidden_act"]],
        embedding_norm=True,
        dtype=dtype,
    )


def _settings_of(model: Any) -> dict[str, Any]:
    """The config.json of a model."""
    encoder = model if isinstance(model, Encoder) else model.encoder
    block = encoder.blocks[0]
    attention = block.attention.attention
    types, norm = encoder.token_types, encoder.embedding_norm
    if not isinstance(attention, NystromAttention) or types is None or norm is None:
        parts = "Nyström attention, token types and a LayerNorm of the embeddings"
        raise PretrainedError(f"the published form has {parts}")
    if isinstance(model, FirstTokenClassifier) and model.activation != "gelu":
        raise PretrainedError(
            f"the published classifier has a GELU, not {model.activation}"
        )
    kernel, count = attention.conv_kernel, attention.num_landmarks
    exact = count >= encoder.max_length
    for name, loaded in ({} if exact else LOADED_OPTIONS).items():
        if (own := getattr(attention, name)) != loaded:
            raise PretrainedError(
                f"config.json has no place for {name}={own!r}: it would be {loaded!r}"
            )
    classes = model.out.out_features if isinstance(model, FirstTokenClassifier) else 2
    return {
        "model_type": "nystromformer",
        "architectures": [x for cls, x in HEADS.values() if isinstance(model, cls)],
        "vocab_size": encoder.embedding.num_embeddings,
        "max_position_embeddings": encoder.max_length,
        "num_hidden_layers": len(encoder.blocks),
        "num_attention_heads": block.attention.num_heads,
        "hidden_size": encoder.embedding.features,
        "intermediate_size": block.mlp.expand.out_features,
        "type_vocab_size": types.shape[0],
        "hidden_act": "gelu_new" if block.mlp.approximate else "gelu",
        "hidden_dropout_prob": encoder.dropout_rate,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-5,
        "conv_kernel_size": None if kernel is None else kernel.shape[0],
        "num_landmarks": count,
        "segment_means_seq_len": count if exact else encoder.max_length,
        "id2label": {str(i): f"LABEL_{i}" for i in range(classes)},
        "dtype": str(encoder.positions.dtype),
    }


def _leaves(state: nnx.State) -> dict[str, tuple[Any, Any]]:
    """Paths and variables by name; a bare encoder's names are those in a model."""
    flat = nnx.to_flat_state(state)
    bare = "encoder." if any(path[0] == "blocks" for path, _ in flat) else ""
    return {bare + ".".join(map(str, path)): (path, x) for path, x in flat}
