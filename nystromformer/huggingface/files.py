"""The files of a folder that transformers has written: config.json and the weights."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.huggingface.layout import (
    LAYOUTS,
    OLD_ENDINGS,
    WORDS,
    Layout,
    Tensors,
)
from nystromformer.run_files import CONFIG_FILE  # transformers has the same name
from nystromformer.validation import check_choice

# The first of these that is there holds the weights. Either may be in parts, which
# FILE.index.json names.
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
# What DataParallel and torch.compile put in front of all names.
WRAPPERS = re.compile(r"^(module\.|_orig_mod\.)+")
GELUS = {"gelu_new": "tanh", "gelu": "erf", "gelu_pytorch_tanh": "tanh"}


def read_layout(folder: Path) -> Layout:
    """Returns the layout of a folder's weights, by the model_type of its config.json.

    Raises:
      PretrainedError: if there is no such folder or file, or it is of an unknown
        architecture.
    """
    return LAYOUTS[_read_settings(folder)["model_type"]]


def read_config(
    folder: Path, dtype: jax.typing.DTypeLike = jnp.float32
) -> EncoderConfig:
    """Returns the encoder of a config.json, with the attention that PyTorch computes.

    Args:
      folder: a folder that transformers has written.
      dtype: the dtype of the computation.

    Raises:
      PretrainedError: if there is no such folder or file, or a setting is not as
        published.
    """
    settings = _read_settings(folder)
    layout = LAYOUTS[settings["model_type"]]
    try:
        check_choice("hidden_act", settings["hidden_act"], GELUS)
        max_length = settings["max_position_embeddings"]
        if layout.counts_reserved:
            max_length -= layout.num_reserved_positions
        name, options = _choose_attention(settings)
        return EncoderConfig(
            vocab_size=settings["vocab_size"],
            max_length=max_length,
            num_layers=settings["num_hidden_layers"],
            num_heads=settings["num_attention_heads"],
            model_dim=settings["hidden_size"],
            mlp_dim=settings["intermediate_size"],
            num_token_types=settings["type_vocab_size"],
            dropout_rate=settings["hidden_dropout_prob"],
            norm_epsilon=settings.get("layer_norm_eps", layout.default_norm_epsilon),
            gelu=GELUS[settings["hidden_act"]],
            attention=name,
            attention_options=options,
            norm="post",
            embedding_norm=True,
            dtype=dtype,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise PretrainedError(
            f"{folder / CONFIG_FILE} is not as published: {error!r}"
        ) from error


def check_is_of_sequences(folder: Path) -> None:
    """Raises PretrainedError if config.json is of a classifier of tokens.

    Older files of these have a pooler that they do not use, and so all the tensors of a
    classifier of sequences.
    """
    for architecture in _read_settings(folder).get("architectures") or ():
        if architecture.endswith("ForTokenClassification"):
            raise PretrainedError(
                f"{folder} is a {architecture}, which has classes of tokens, and "
                "head='classification' has those of sequences: load the encoder alone, "
                "head=None"
            )


def read_class_names(folder: Path) -> list[str]:
    """Returns the names of a classifier's classes in a config.json; empty without any.

    Raises:
      PretrainedError: if there is no such folder or file, or the names have no numbers.
    """
    names = _read_settings(folder).get("id2label") or {}
    try:
        return [str(names[number]).strip() for number in sorted(names, key=int)]
    except (ValueError, TypeError) as error:
        raise PretrainedError(
            f"{folder / CONFIG_FILE} is not as published: id2label is {names!r:.60}"
        ) from error


def _read_settings(folder: Path) -> dict[str, Any]:
    """The content of a config.json, of an architecture that can be read."""
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise PretrainedError(
            f"no folder {folder}: download the weights, as by `hf download "
            "uw-madison/nystromformer-512 --local-dir FOLDER`, and name that folder"
        )
    if not path.exists():
        raise PretrainedError(
            f"{folder} has no {CONFIG_FILE}: name the folder that the weights were "
            "downloaded to, with all its files"
        )
    try:
        settings = json.loads(path.read_bytes())
        model_type = settings["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PretrainedError(f"{path} is not as published: {error!r}") from error
    if model_type not in LAYOUTS:
        raise PretrainedError(
            f"{path} is of model_type {model_type!r}; known: {', '.join(LAYOUTS)}"
        )
    return settings


def _choose_attention(settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of the attention that PyTorch computes."""
    kind = settings.get("position_embedding_type", "absolute")
    check_choice("position_embedding_type", kind, ("absolute",))
    if settings["model_type"] != "nystromformer":
        # RoBERTa's first position is pad_token_id + 1, and 2 rows are reserved here.
        if settings["model_type"] == "roberta":
            check_choice("pad_token_id", settings["pad_token_id"], (1,))
        check_choice("is_decoder", settings.get("is_decoder", False), (False,))
        return "softmax", {"dropout_rate": settings["attention_probs_dropout_prob"]}

    options: dict[str, Any] = {"conv_kernel_size": settings["conv_kernel_size"] or 0}
    if settings["num_landmarks"] == settings["segment_means_seq_len"]:
        # PyTorch computes exact attention, as enough landmarks do here.
        options["num_landmarks"] = settings["max_position_embeddings"]
    else:
        options["num_landmarks"] = settings["num_landmarks"]
        options["pinv_init"] = "per_batch"
    return "nystrom", options


def read_tensors(folder: Path, layout: Layout) -> Tensors:
    """Reads the tensors of a folder by the names that they have in a model with a head.

    A tensor that the folder holds under two names is there once.

    Raises:
      PretrainedError: if a file is missing or damaged.
    """
    tensors: Tensors = {}
    for path in _find_weights(folder):
        is_pickled = path.suffix == ".bin"
        try:
            tensors |= _read_pickle(path) if is_pickled else _read_safetensors(path)
        except Exception as error:  # Each library has errors of its own.
            reason = str(error).partition("\n")[0]
            raise PretrainedError(f"{path} cannot be read ({reason})") from error

    tensors = {WRAPPERS.sub("", name): x for name, x in tensors.items()}
    _check_prefix(folder, layout, tensors)
    if not any(name.startswith(layout.base) for name in tensors):
        tensors = {layout.base + name: x for name, x in tensors.items()}
    for old, new in OLD_ENDINGS.items():
        tensors = {
            name.removesuffix(old) + new if name.endswith(old) else name: x
            for name, x in tensors.items()
        }
    # Older files have the numbers 0, 1, 2, … as a tensor, which is no weight.
    tensors.pop(f"{layout.base}embeddings.position_ids", None)
    for copy, original in layout.copies.items():
        if copy not in tensors:
            continue
        tensors.setdefault(original, tensors[copy])
        # A copy that differs is an untied weight. It stays, and the model refuses it.
        if np.array_equal(tensors[original], tensors[copy]):
            del tensors[copy]
    if layout.positions in tensors:
        positions = tensors[layout.positions]
        tensors[layout.positions] = positions[layout.num_reserved_positions :]
    return tensors


def _find_weights(folder: Path) -> list[Path]:
    """Finds the file of the weights, or all those that an index names."""
    for name in WEIGHTS_FILES:
        if (folder / name).exists():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.exists():
            return _read_index(index)
    raise PretrainedError(
        f"{folder} has no {WEIGHTS_FILES[0]}, nor an index of its parts: download the "
        "whole folder, or let transformers write it, by model.save_pretrained(FOLDER)"
    )


def _read_index(index: Path) -> list[Path]:
    """The files that hold the tensors of an index."""
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PretrainedError(f"{index} is not as published: {error!r}") from error
    files = [index.with_name(name) for name in sorted(names)]
    for file in files:
        if not file.exists():
            raise PretrainedError(
                f"{file} is missing, and {index.name} names it: download it, too"
            )
    return files


def _check_prefix(folder: Path, layout: Layout, names: Iterable[str]) -> None:
    """Raises PretrainedError if an encoder is there under names of another model."""
    for name in names:
        prefix = name.removesuffix(WORDS)
        if name.endswith(WORDS) and prefix not in ("", layout.base):
            raise PretrainedError(
                f"{folder}: the names of the encoder's tensors begin with {prefix!r}, "
                f"and must begin with {layout.base!r}: rename them, or let "
                "transformers write that part of the model alone, by "
                "model.save_pretrained(FOLDER)"
            )


def _read_safetensors(path: Path) -> Tensors:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.offset_keys()}


def _read_pickle(path: Path) -> Tensors:
    import torch  # type: ignore[import-not-found]

    tensors = {}
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        has_16_bits = tensor.itemsize <= 2  # torch gives no bfloat16 to numpy
        tensors[name] = (tensor.float() if has_16_bits else tensor).numpy()
    return tensors
