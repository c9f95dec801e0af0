"""Published Nyströmformer weights: from the layout of transformers to ours.

The published configs set num_landmarks = segment_means_seq_len, for which transformers
computes exact attention: softmax and the convolution of V. Here the same weights also
run in O(L · M), with `num_landmarks`. Two differences are on purpose: with
`num_landmarks` Z₀ is scaled by the norms of each matrix (`nystromformer.nystrom`), and
padding changes nothing, where theirs lets the values of padded tokens into the
convolution.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open

from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import PretrainedError
from nystromformer.heads import FirstTokenClassifier, MaskedLanguageModel
from nystromformer.huggingface_layout import (
    BASE,
    COPIES,
    NUM_RESERVED_POSITIONS,
    POSITIONS,
    Tensors,
    from_published,
    to_published,
)
from nystromformer.ops import at_least_float32
from nystromformer.validation import check_choice

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PICKLED_WEIGHTS_FILE = "pytorch_model.bin"
HEADS = ("masked_lm", "classification", None)
GELUS = {"gelu_new": "tanh", "gelu": "erf", "gelu_pytorch_tanh": "tanh"}

PathLike = str | os.PathLike[str]


def load_pretrained(
    folder: PathLike,
    *,
    head: str | None = "masked_lm",
    num_landmarks: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> Any:
    """The model of a folder with config.json and model.safetensors.

    pytorch_model.bin is read, too, where torch is installed.

    Args:
      folder: as transformers writes it.
      head: "masked_lm", "classification", or None for the encoder alone.
      num_landmarks: M of Nyström attention. None computes what PyTorch computes: exact
        attention, O(L²), where config.json has num_landmarks = segment_means_seq_len,
        as published, and otherwise Nyström attention with the M of config.json and Z₀
        scaled by the batch.
      dtype: of the computation; parameters are at least float32.

    Returns:
      model(inputs [B, L], mask [B, L] bool or None, token_types=None) -> logits
      [B, L, V] or [B, C]; the encoder alone returns vectors [B, L, D] and the mask.

    Raises:
      PretrainedError: if the folder is damaged, or not of the published form.
    """
    folder = Path(folder).expanduser()
    check_choice("head", head, HEADS)
    config = read_config(folder, num_landmarks, dtype)
    tensors = read_tensors(folder)
    if head is None:
        tensors = {name: x for name, x in tensors.items() if name.startswith(BASE)}
    if POSITIONS in tensors:
        tensors[POSITIONS] = tensors[POSITIONS][NUM_RESERVED_POSITIONS:]

    model = nnx.eval_shape(lambda: _make_model(head, config, tensors))
    graphdef, state = nnx.split(model)
    variables = variables_by_name(state)
    _check_tensors(folder, tensors, variables)

    parameter_dtype = at_least_float32(dtype)
    flat_state = []
    for name, (path, variable) in variables.items():
        array = from_published(name, tensors)
        flat_state.append((path, variable.replace(jnp.asarray(array, parameter_dtype))))
    return nnx.merge(graphdef, nnx.from_flat_state(flat_state))


def read_config(
    folder: PathLike,
    num_landmarks: int | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> EncoderConfig:
    """The encoder of a config.json.

    Args:
      folder: as for `load_pretrained`, and so are the next two.
      num_landmarks: M of Nyström attention; None computes what PyTorch computes.
      dtype: of the computation.

    Raises:
      PretrainedError: if there is no such folder or file, or a setting is not as
        published.
    """
    folder = Path(folder)
    path = folder.expanduser() / CONFIG_FILE
    if not path.parent.is_dir():
        raise PretrainedError(
            f"no folder {folder}: download the weights, as by `hf download "
            "uw-madison/nystromformer-512 --local-dir FOLDER`, and name that folder"
        )
    try:
        settings = json.loads(path.read_bytes())
        check_choice("model_type", settings["model_type"], ("nystromformer",))
        check_choice("layer_norm_eps", settings.get("layer_norm_eps", 1e-5), (1e-5,))
        check_choice("hidden_act", settings["hidden_act"], GELUS)
        return EncoderConfig(
            vocab_size=settings["vocab_size"],
            max_length=settings["max_position_embeddings"],
            num_layers=settings["num_hidden_layers"],
            num_heads=settings["num_attention_heads"],
            model_dim=settings["hidden_size"],
            mlp_dim=settings["intermediate_size"],
            num_token_types=settings["type_vocab_size"],
            dropout_rate=settings["hidden_dropout_prob"],
            gelu=GELUS[settings["hidden_act"]],
            attention_options=_attention_options(settings, num_landmarks),
            norm="post",
            embedding_norm=True,
            dtype=dtype,
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PretrainedError(f"{path} is not as published: {error!r}") from error


def _attention_options(
    settings: dict[str, Any], num_landmarks: int | None
) -> dict[str, Any]:
    options: dict[str, Any] = {"conv_kernel_size": settings["conv_kernel_size"] or 0}
    if num_landmarks is not None:
        options["num_landmarks"] = num_landmarks
    elif settings["num_landmarks"] == settings["segment_means_seq_len"]:
        # PyTorch computes exact attention, as enough landmarks do here.
        options["num_landmarks"] = settings["max_position_embeddings"]
    else:
        options["num_landmarks"] = settings["num_landmarks"]
        options["pinv_init"] = "per_batch"
    return options


def _make_model(
    head: str | None, config: EncoderConfig, tensors: Tensors
) -> nnx.Module:
    """The model that a head belongs to; its numbers do not matter."""
    rngs = nnx.Rngs(0)
    if head == "masked_lm":
        return MaskedLanguageModel(config, rngs=rngs)
    if head == "classification":
        # Where the file has no such tensor, `_check_tensors` says so.
        weight = tensors.get("classifier.out_proj.weight", np.zeros(1))
        return FirstTokenClassifier(config, num_classes=len(weight), rngs=rngs)
    return Encoder(config, rngs=rngs)


def read_tensors(folder: Path) -> Tensors:
    """The tensors of a folder by the names that they have in a model with a head.

    A tensor that the file holds under two names is there once.

    Raises:
      PretrainedError: if the file is missing or damaged.
    """
    path = folder / WEIGHTS_FILE
    if not path.exists() and (folder / PICKLED_WEIGHTS_FILE).exists():
        path = folder / PICKLED_WEIGHTS_FILE
    try:
        is_pickled = path.name == PICKLED_WEIGHTS_FILE
        tensors = _read_pickle(path) if is_pickled else _read_safetensors(path)
    except Exception as error:  # Each library has errors of its own.
        reason = str(error).partition("\n")[0]
        raise PretrainedError(f"{path} cannot be read ({reason})") from error

    if not any(name.startswith(BASE) for name in tensors):
        tensors = {BASE + name: x for name, x in tensors.items()}
    # Older files have the numbers 0, 1, 2, … as a tensor, which is no weight.
    tensors.pop(f"{BASE}embeddings.position_ids", None)
    for copy, original in COPIES.items():
        if copy not in tensors:
            continue
        tensors.setdefault(original, tensors[copy])
        # A copy that differs is an untied weight. It stays, and the model refuses it.
        if np.array_equal(tensors[original], tensors[copy]):
            del tensors[copy]
    return tensors


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


def _check_tensors(
    folder: Path, tensors: Tensors, variables: dict[str, tuple[Any, Any]]
) -> None:
    """Raises PretrainedError unless the file has exactly the model's tensors."""
    arrays = {name: np.empty(x.shape, bool) for name, (_, x) in variables.items()}
    expected_tensors = to_published(arrays)
    for name in sorted(tensors.keys() | expected_tensors.keys()):
        if name not in tensors:
            raise PretrainedError(
                f"{folder} has no tensor {name}, which the model needs: name another "
                "head"
            )
        if name not in expected_tensors:
            raise PretrainedError(
                f"{folder} has a tensor {name}, which the model does not have: name "
                "another head"
            )
        shape = tensors[name].shape
        expected = expected_tensors[name].shape
        if shape != expected:
            raise PretrainedError(
                f"{folder}: {name} is {shape}, but by config.json it must be {expected}"
            )
