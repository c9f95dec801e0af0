"""Turns published weights of Nyströmformer, BERT or RoBERTa into a workdir.

    python scripts/import_weights.py --from=FOLDER --workdir=DIR [--head=classification]

FOLDER is a model as downloaded from the Hugging Face hub, DIR a run from which others
start by `train.init_from`. --head says what the model is: `masked_lm`, a masked
language model; `classification`, a classifier of sequences; or `none`, the encoder
alone, which is in a folder with any head.

A classifier predicts and is evaluated on labelled texts; the others have a corpus of
plain text as their task. --source_dir is the folder of these texts.
"""

import start

start.prepare()

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import flags
from etils import epath

from configs.defaults import make_config
from lra_tasks.paths import local_path
from lra_tasks.subwords import TOKENIZER_FILE
from lra_tasks.tables import join_names
from nystromformer.config import Config, ModelConfig, key_types
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import ConfigError, PretrainedError
from nystromformer.experiments import cli
from nystromformer.experiments.experiment import Experiment, build_experiment
from nystromformer.experiments.objectives import CLS_POOLERS
from nystromformer.experiments.workdir import check_new
from nystromformer.huggingface import load_pretrained
from nystromformer.huggingface.files import read_class_names, read_config, read_layout
from nystromformer.run_files import (
    BEST_FOLDER,
    CONFIG_FILE,
    WEIGHTS_SHA256,
    has_imported_weights,
    write_bytes,
    write_json,
)
from nystromformer.token_models import EncoderModel
from nystromformer.training.checkpoint import save_weights, weights_sha256
from nystromformer.training.step import split_weights

# By the value of --head: the one of `load_pretrained`, the task and the objective.
HEADS = {
    "masked_lm": ("masked_lm", "corpus", "mlm"),
    "classification": ("classification", "labelled_texts", "classification"),
    "none": (None, "corpus", "encoder"),
}

_FROM = flags.DEFINE_string("from", None, "folder of published weights", required=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "workdir to make", required=True)
_HEAD = flags.DEFINE_enum("head", "masked_lm", list(HEADS), "what the model is")
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of texts")


def main() -> None:
    """Writes the config, the tokenizer and the weights of a run; prints what it is."""
    published = Path(str(_FROM.value)).expanduser()
    workdir = epath.Path(_WORKDIR.value).expanduser()
    if has_imported_weights(workdir):
        raise ConfigError(
            f"{workdir} holds imported weights already: delete it or name a new folder"
        )
    check_new(workdir)
    head, task, objective = HEADS[_HEAD.value]
    try:
        encoder = read_config(published)
        layout = read_layout(published)
        model = load_pretrained(published, head=head)
        settings = make_settings(encoder, layout.activation)
        if head is None:
            model = EncoderModel(model)
        elif head == "classification":
            num_classes = model.out.out_features
            settings["task.labels"] = make_labels(published, num_classes)
    except PretrainedError as error:
        raise ConfigError(str(error)) from error

    tokenizer = published / TOKENIZER_FILE
    if not tokenizer.is_file():
        raise ConfigError(
            f"{published} has no {TOKENIZER_FILE}: download it, or let transformers "
            "write it, by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    settings["task.tokenizer"] = str(tokenizer)
    settings["objective.name"] = objective
    experiment = make_experiment(encoder.attention, task, settings)
    vocab_size = experiment.task.vocab_size
    if vocab_size != encoder.vocab_size:
        raise ConfigError(
            f"{tokenizer} has {vocab_size:,} tokens, the model "
            f"{encoder.vocab_size:,}: take this model's own"
        )

    _, weights = split_weights(model)
    save_weights(workdir / BEST_FOLDER, weights)
    write_bytes(workdir / TOKENIZER_FILE, tokenizer.read_bytes())
    sha256 = weights_sha256(jax.device_get(weights))
    config = {**experiment.config.to_mapping(), WEIGHTS_SHA256: sha256}
    write_json(workdir / CONFIG_FILE, config)
    print(
        f"{workdir} holds {layout.base.removesuffix('.')} ({_HEAD.value}): "
        f"{encoder.num_layers} layers of {encoder.model_dim}, {vocab_size:,} tokens; "
        f"train from it with --config.train.init_from={workdir}"
    )


def make_settings(encoder: EncoderConfig, activation: str) -> dict[str, Any]:
    """Returns the settings of a run with this encoder on the user's texts.

    Args:
      encoder: the settings of the published encoder.
      activation: that of its classifier, behind the linear layer that reads [CLS].
    """
    source_dir = _SOURCE_DIR.value
    (pooling,) = [name for name, value in CLS_POOLERS.items() if value == activation]
    settings: dict[str, Any] = {
        "task.source_dir": str(local_path(source_dir)) if source_dir else None,
        "task.max_length": encoder.max_length,
        # The run does not train; these only have to be possible.
        "train.batch_size": 32,
        "train.num_steps": 1,
        "train.eval_every": 1,
        "train.checkpoint_every": 1,
    }
    # Published weights have no settings of these two names.
    for key in key_types(ModelConfig).keys() - {"dtype", "pooling"}:
        settings[f"model.{key}"] = getattr(encoder, key)
    settings["model.pooling"] = pooling
    for option, value in encoder.attention_options.items():
        settings[f"attention.{option}"] = value
    return settings


def make_labels(published: Path, num_classes: int) -> str:
    """Returns the option `labels` of a classifier's task.

    Its classes are numbers where config.json has no names for them.
    """
    names = read_class_names(published)
    if len(set(names)) != num_classes:
        names = [str(number) for number in range(num_classes)]
    return join_names(names)


def make_experiment(
    attention: str, task: str, settings: Mapping[str, Any]
) -> Experiment:
    """Returns the experiment of these settings, without data."""
    config = make_config(attention, task=task, settings=settings, presets={})
    return build_experiment(Config.from_mapping(config.to_dict()))


if __name__ == "__main__":
    cli.run(main)
