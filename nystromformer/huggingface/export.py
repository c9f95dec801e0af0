"""Writing a model in the layout of transformers, which then computes the same.

An encoder has a twin there if it is BERT, with exact attention, or Nyströmformer, with
Nyström attention; a model also if its head is theirs.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save

from nystromformer.attention import find_attention
from nystromformer.by_layer import LayerAttention
from nystromformer.classifiers import FirstTokenClassifier
from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.huggingface.files import WEIGHTS_FILES
from nystromformer.huggingface.layout import LAYOUTS, POSITIONS, WORDS, Layout, Tensors
from nystromformer.huggingface.load import variables_by_name
from nystromformer.run_files import CONFIG_FILE, write_bytes, write_json
from nystromformer.token_models import (
    EncoderModel,
    MaskedLanguageModel,
    MaskedOrderModel,
)

# By the name of the attention: the model_type, and the prefix of the classes there.
TWINS = {"softmax": ("bert", "Bert"), "nystrom": ("nystromformer", "Nystromformer")}
# What an encoder there always has.
ENCODER_SETTINGS = {
    "norm": "post",
    "embedding_norm": True,
    "positions": "learned",
    "short_conv": 0,
    "ignore_id": None,
    "cls_token": False,
    "input_dim": None,
}
# What Nyström attention there always has, unless it is exact.
NYSTROM_OPTIONS = {
    "landmarks": "segment_means",
    "pinv": "iterative",
    "num_pinv_iters": 6,
    "pinv_init": "per_batch",
}
# The inverse of GELUS; of two names of one function the older one.
NAMES_OF_GELUS = {"tanh": "gelu_new", "erf": "gelu"}


def save_pretrained(
    folder: str | os.PathLike[str],
    model: nnx.Module,
    config: EncoderConfig,
    *,
    class_names: Sequence[str] = (),
    pad_token_id: int = 0,
) -> str:
    """Writes config.json and model.safetensors, as `save_pretrained` of transformers.

    The head of `MaskedOrderModel` that tells the order of two parts is left out. With
    fewer landmarks than tokens, transformers takes sequences of max_length alone.

    Args:
      folder: the folder, which need not exist.
      model: an encoder, alone or with the head of a masked language model or of
        `FirstTokenClassifier`.
      config: that of its encoder.
      class_names: the names of a classifier's classes; by default numbers.
      pad_token_id: the id of the padding.

    Returns:
      The name of the model's class there, such as "BertForSequenceClassification".

    Raises:
      PretrainedError: if transformers has no such model; the message names the setting
        that it does not have. Also if class_names has more or fewer names than classes.
    """
    attention = _attention_of_all_layers(config)
    model_type, prefix = TWINS[attention.name]
    layout = LAYOUTS[model_type]
    architecture = prefix + _find_head(model, layout, config.gelu)
    tensors = _make_tensors(model, layout)
    if attention.name == "nystrom" and not attention.options["conv_kernel_size"]:
        # Nyströmformer always has a convolution: a kernel of zeros changes nothing.
        for layer in range(config.num_layers):
            name = f"{layout.base}encoder.layer.{layer}.attention.self.conv.weight"
            tensors[name] = np.zeros((config.num_heads, 1, 1, 1))

    settings = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": len(tensors[layout.base + WORDS]),
        **_encoder_settings(config, attention),
        "pad_token_id": pad_token_id,
        "dtype": "float32",
    }
    if isinstance(model, FirstTokenClassifier):
        num_classes = model.out.out_features
        names = class_names or [str(i) for i in range(num_classes)]
        if len(names) != num_classes:
            raise PretrainedError(
                f"class_names has {len(names)} names, and the model {num_classes} "
                "classes: give a name for each"
            )
        settings["id2label"] = {str(i): name for i, name in enumerate(names)}
        settings["label2id"] = {name: i for i, name in enumerate(names)}
    if architecture.endswith("Model"):
        # A file of an encoder alone has no prefix.
        tensors = {name.removeprefix(layout.base): x for name, x in tensors.items()}

    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.array(x, np.float32, order="C") for name, x in tensors.items()}
    # On a full disk `save_file` would raise an error that is no OSError.
    write_bytes(folder / WEIGHTS_FILES[0], save(arrays, metadata={"format": "pt"}))
    write_json(folder / CONFIG_FILE, settings)
    return architecture


def _attention_of_all_layers(config: EncoderConfig) -> LayerAttention:
    """The attention of all layers, with all its options.

    Raises:
      PretrainedError: if transformers has no such encoder; the message names the
        setting that it does not have.
    """
    for name, expected in ENCODER_SETTINGS.items():
        _check_setting(name, getattr(config, name), expected)
    if not config.num_token_types:
        raise _no_twin("num_token_types=0", "it has one type or more")
    first, *others = config.attentions()
    if any(other != first for other in others):
        raise _no_twin("attentions that differ by layer", "all its layers have one")
    name = first.name
    if name not in TWINS:
        raise _no_twin(f"attention {name}", f"it has {' and '.join(TWINS)}")

    options = find_attention(name).complete_options(first.options)
    num_landmarks = options.get("num_landmarks", config.max_length)
    if num_landmarks < config.max_length:
        for option, expected in NYSTROM_OPTIONS.items():
            _check_setting(f"attention.{option}", options[option], expected)
        if config.max_length % num_landmarks:
            raise _no_twin(
                f"attention.num_landmarks={num_landmarks} and "
                f"max_length={config.max_length}",
                "its segments have equal lengths",
            )
    return LayerAttention(name, options)


def _check_setting(name: str, value: Any, expected: Any) -> None:
    if value != expected:
        raise _no_twin(f"{name}={value}", f"it has {expected} alone")


def _no_twin(setting: str, reason: str) -> PretrainedError:
    return PretrainedError(f"transformers has no model with {setting}: {reason}")


def _find_head(model: nnx.Module, layout: Layout, encoder_gelu: str) -> str:
    """The last part of the name of the class there."""
    if isinstance(model, Encoder | EncoderModel):
        return "Model"
    if isinstance(model, MaskedLanguageModel):
        decoder_gelu = "tanh" if model.approximate else "erf"
        if decoder_gelu != encoder_gelu:
            raise _no_twin(
                f"gelu={encoder_gelu} and {decoder_gelu} in the head of masked tokens",
                "both are one setting",
            )
        return "ForMaskedLM"
    if not isinstance(model, FirstTokenClassifier):
        raise _no_twin(
            f"the head of {type(model).__name__}",
            "it has those of masked tokens and, from [CLS], of a class",
        )
    if model.activation != layout.activation:
        raise _no_twin(
            f"{model.activation} behind the linear layer that reads [CLS], and this "
            "attention",
            f"it has {layout.activation} there (config.model.pooling)",
        )
    return "ForSequenceClassification"


def _make_tensors(model: nnx.Module, layout: Layout) -> Tensors:
    """The tensors of a model, under the names that they have with a head."""
    arrays = {}
    for name, (_, variable) in variables_by_name(nnx.state(model, nnx.Param)).items():
        is_of_order = name.startswith(("pooler.", "ordered."))
        if not (isinstance(model, MaskedOrderModel) and is_of_order):
            arrays[name] = np.asarray(variable[...])
    tensors = layout.to_published(arrays)
    # No token reads the rows in front of the first position.
    positions = tensors[layout.base + POSITIONS]
    reserved = np.zeros((layout.num_reserved_positions, positions.shape[1]))
    tensors[layout.base + POSITIONS] = np.concatenate([reserved, positions])
    return tensors


def _encoder_settings(
    config: EncoderConfig, attention: LayerAttention
) -> dict[str, Any]:
    """The settings of an encoder, as transformers names them."""
    settings = {
        "max_position_embeddings": config.max_length,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_size": config.model_dim,
        "intermediate_size": config.mlp_dim,
        "type_vocab_size": config.num_token_types,
        "hidden_act": NAMES_OF_GELUS[config.gelu],
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": attention.options.get("dropout_rate", 0.0),
        "layer_norm_eps": config.norm_epsilon,
    }
    if attention.name == "nystrom":
        num_landmarks = attention.options["num_landmarks"]
        # As many landmarks as tokens are exact attention there, too.
        settings["segment_means_seq_len"] = config.max_length
        settings["num_landmarks"] = min(num_landmarks, config.max_length)
        settings["conv_kernel_size"] = attention.options["conv_kernel_size"] or 1
    return settings
