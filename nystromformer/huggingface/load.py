"""The model of a folder: its attention, and its tensors in their places."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.attention import find_attention
from nystromformer.by_layer import ByLayer, add_default_options
from nystromformer.classifiers import FirstTokenClassifier
from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.huggingface.files import (
    check_is_of_sequences,
    read_config,
    read_layout,
    read_tensors,
)
from nystromformer.huggingface.layout import Layout, Tensors
from nystromformer.precision import at_least_float32, cast_floats
from nystromformer.token_models import MaskedLanguageModel
from nystromformer.validation import check_choice

HEADS = ("masked_lm", "classification", None)
OTHER_HEADS = "name another head: masked_lm, classification or none"


def load_pretrained(
    folder: str | os.PathLike[str],
    *,
    head: str | None = "masked_lm",
    num_landmarks: int | None = None,
    attention: str | None = None,
    attention_options: Mapping[str, Any] | None = None,
    attention_by_layer: ByLayer | None = None,
    seed: int = 0,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Any:
    """The model of a folder with config.json and model.safetensors.

    pytorch_model.bin is read, too, where torch is installed. Either may be in parts,
    with the index that transformers writes.

    Args:
      folder: a folder that transformers has written.
      head: "masked_lm", "classification", or None for the encoder alone.
      num_landmarks: M of Nyström attention in all layers. None, and no `attention`
        either, computes what PyTorch computes: for BERT and RoBERTa softmax; for
        Nyströmformer exact attention, O(L²), where config.json has num_landmarks =
        segment_means_seq_len, as published, and otherwise Nyström attention with the M
        of config.json and Z₀ scaled by the batch.
      attention: the name of an attention for all layers, in place of the folder's.
      attention_options: its options. The folder's own attention keeps those that are
        not named here, such as the convolution of Nyströmformer.
      attention_by_layer: settings of single layers, as in `EncoderConfig`.
      seed: the seed of parameters that the folder does not have, such as the kernel
        of a convolution in BERT.
      dtype: the dtype of the computation; parameters are at least float32.

    Returns:
      model(inputs [B, L], mask [B, L] bool or None, token_types=None) -> logits
      [B, L, V] or [B, C]; the encoder alone returns vectors [B, L, D] and the mask.

    Raises:
      PretrainedError: if the folder is damaged, or not of the published form.
      ValueError: for an unknown head, attention, option or layer.
    """
    folder = Path(folder).expanduser()
    check_choice("head", head, HEADS)
    layout = read_layout(folder)
    if head == "classification":
        check_is_of_sequences(folder)
    own_config = read_config(folder, dtype)
    config = _with_attention(
        own_config,
        num_landmarks=num_landmarks,
        attention=attention,
        options=attention_options or {},
        by_layer=attention_by_layer or {},
    )
    tensors = read_tensors(folder, layout)
    if head is None:
        tensors = {
            name: x for name, x in tensors.items() if name.startswith(layout.base)
        }

    return _make_model_of_tensors(
        functools.partial(_make_model, head, config, layout, tensors),
        folder=folder,
        layout=layout,
        tensors=tensors,
        has_convolution=bool(own_config.attention_options.get("conv_kernel_size")),
        seed=seed,
        dtype=at_least_float32(dtype),
    )


def _with_attention(
    config: EncoderConfig,
    *,
    num_landmarks: int | None,
    attention: str | None,
    options: Mapping[str, Any],
    by_layer: ByLayer,
) -> EncoderConfig:
    """The config of a folder with a different attention, as in `load_pretrained`."""
    if num_landmarks is not None and attention not in (None, "nystrom"):
        raise ValueError(
            f"num_landmarks={num_landmarks} is for nystrom, and attention is "
            f"{attention!r}: give its own options as attention_options"
        )

    def options_of(name: str) -> Mapping[str, Any]:
        return config.attention_options if name == config.attention else {}

    name = attention or config.attention
    landmark_options = {}
    if num_landmarks is not None:
        name = "nystrom"
        landmark_options = {"num_landmarks": num_landmarks, "pinv_init": "per_matrix"}
    changed_config = dataclasses.replace(
        config,
        attention=name,
        attention_options={**options_of(name), **landmark_options, **options},
        attention_by_layer=add_default_options(name, by_layer, options_of),
    )
    for layer_attention in changed_config.attentions():
        if find_attention(layer_attention.name).num_projections != 3:
            raise ValueError(
                f"{layer_attention.name} has no projections of its own for query, key "
                "and value, and the weights have all three: take another attention"
            )
    return changed_config


def _make_model(
    head: str | None,
    config: EncoderConfig,
    layout: Layout,
    tensors: Tensors,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """The model that a head belongs to, with fresh parameters."""
    if head == "masked_lm":
        model = MaskedLanguageModel(config, rngs=rngs)
        model.approximate = (layout.decoder_gelu or config.gelu) == "tanh"
        return model
    if head == "classification":
        # Where the file has no such tensor, `_check_tensors` says so.
        weight = tensors.get(f"{layout.heads['out']}.weight", np.zeros(1))
        return FirstTokenClassifier(
            config,
            num_classes=len(weight),
            activation=layout.activation,
            rngs=rngs,
        )
    return Encoder(config, rngs=rngs)


def _make_model_of_tensors(
    make_model: Callable[[nnx.Rngs], nnx.Module],
    *,
    folder: Path,
    layout: Layout,
    tensors: Tensors,
    has_convolution: bool,
    seed: int,
    dtype: jax.typing.DTypeLike,
) -> nnx.Module:
    """The model with a folder's tensors, and new parameters where it has none.

    has_convolution: whether the folder's own attention has the convolution of V.
    """
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))
    variables = variables_by_name(state)
    new_names = [name for name in variables if _is_new(name, has_convolution)]
    published = {
        name: variable for name, variable in variables.items() if name not in new_names
    }
    _check_tensors(folder, layout, tensors, published)

    arrays = _new_arrays(make_model, new_names, seed)
    for name in published:
        arrays[name] = layout.from_published(name, tensors)
    flat_state = [
        (path, variable.replace(cast_floats(arrays[name], dtype)))
        for name, (path, variable) in variables.items()
    ]
    return nnx.merge(graphdef, nnx.from_flat_state(flat_state))


def variables_by_name(state: nnx.State) -> dict[str, tuple[Any, Any]]:
    """Path and variable of each parameter, by its name in a model with a head.

    A name is the path joined by dots, as "encoder.blocks.0.mlp.expand.kernel", also
    where the model is an encoder alone.
    """
    flat_state = nnx.to_flat_state(state)
    is_encoder = any(path[0] == "blocks" for path, _ in flat_state)
    prefix = "encoder." if is_encoder else ""
    variables = {}
    for path, variable in flat_state:
        variables[prefix + ".".join(map(str, path))] = (path, variable)
    return variables


def _is_new(name: str, has_convolution: bool) -> bool:
    """Whether a parameter belongs to an attention that the folder does not have."""
    if ".attention.attention." not in name:
        return False
    return not (has_convolution and name.endswith(".conv_kernel"))


def _new_arrays(
    make_model: Callable[[nnx.Rngs], nnx.Module], names: Collection[str], seed: int
) -> dict[str, Any]:
    """Fresh values of these parameters. XLA leaves out all others."""

    @jax.jit
    def make() -> dict[str, jax.Array]:
        variables = variables_by_name(nnx.state(make_model(nnx.Rngs(seed))))
        return {name: variables[name][1][...] for name in names}

    return make() if names else {}


def _check_tensors(
    folder: Path,
    layout: Layout,
    tensors: Tensors,
    variables: dict[str, tuple[Any, Any]],
) -> None:
    """Raises PretrainedError unless the file has exactly the model's tensors."""
    arrays = {name: np.empty(x.shape, bool) for name, (_, x) in variables.items()}
    expected_tensors = layout.to_published(arrays)
    for name in sorted(tensors.keys() | expected_tensors.keys()):
        if name not in tensors and layout.is_of_encoder(name):
            raise PretrainedError(
                f"{folder} has no tensor {name}, which the encoder of its config.json "
                "needs: download the folder again"
            )
        if name not in tensors:
            raise PretrainedError(
                f"{folder} has no tensor {name}, which the model needs: {OTHER_HEADS}"
            )
        if name not in expected_tensors:
            _check_unused(folder, layout, name)
            continue
        shape = tensors[name].shape
        expected = expected_tensors[name].shape
        if shape != expected:
            raise PretrainedError(
                f"{folder}: {name} is {shape}, but by config.json and the options it "
                f"must be {expected}"
            )


def _check_unused(folder: Path, layout: Layout, name: str) -> None:
    """Raises PretrainedError unless a tensor may be left out of the model."""
    if layout.is_of_other_head(name):
        return
    # `read_tensors` has left out the copies that are equal.
    if layout.is_copy(name):
        raise PretrainedError(
            f"{folder} has {name} beside {layout.copies[name]}, and here both are one: "
            "load the encoder alone, head=None"
        )
    if layout.is_convolution(name):
        raise PretrainedError(
            f"{folder} has the convolution kernel {name}, but the attention of this "
            "layer has no convolution: use 'nystrom', which is exact attention once "
            "num_landmarks reaches the length"
        )
    if layout.is_of_encoder(name):
        raise PretrainedError(
            f"{folder} has a tensor {name}, which the encoder of its config.json does "
            "not have: download the folder again"
        )
    raise PretrainedError(
        f"{folder} has a tensor {name}, which the model does not have: {OTHER_HEADS}"
    )
