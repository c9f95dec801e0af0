"""Turns published weights of Nyströmformer or BERT into a workdir.

    python scripts/import_weights.py --from=FOLDER --workdir=DIR [--source_dir=TEXTS]

FOLDER is a masked language model as downloaded from the Hugging Face hub. DIR can be
evaluated, and `train.init_from` takes it. Its task is the corpus of plain text in
--source_dir, in the model's own tokens.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends imports without a traceback

from pathlib import Path
from typing import Any

from absl import flags
from etils import epath

from configs.defaults import make_config
from lra_tasks.paths import local_path
from lra_tasks.subwords import TOKENIZER_FILE
from nystromformer.config import Config, ModelConfig, key_types
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import ConfigError, PretrainedError
from nystromformer.experiments import cli
from nystromformer.experiments.experiment import build_experiment
from nystromformer.experiments.run import check_new, write_json
from nystromformer.huggingface import load_pretrained
from nystromformer.huggingface.files import read_config
from nystromformer.run_files import BEST_FOLDER, CONFIG_FILE
from nystromformer.training.checkpoint import save_weights
from nystromformer.training.step import split_weights

_FROM = flags.DEFINE_string("from", None, "folder of published weights", required=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "workdir to make", required=True)
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of texts")


def main() -> None:
    """Writes the config, the tokenizer and the weights of a run."""
    published = Path(str(_FROM.value)).expanduser()
    workdir = epath.Path(_WORKDIR.value).expanduser()
    check_new(workdir)
    try:
        encoder = read_config(published)
        model = load_pretrained(published)
    except PretrainedError as error:
        raise ConfigError(str(error)) from error

    tokenizer = published / TOKENIZER_FILE
    if not tokenizer.is_file():
        raise ConfigError(
            f"{published} has no {TOKENIZER_FILE}: download it, or let transformers "
            "write it, by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    config = make_config(
        encoder.attention,
        task="corpus",
        settings=make_settings(encoder, tokenizer),
        presets={},
    )
    experiment = build_experiment(Config.from_mapping(config.to_dict()))
    vocab_size = experiment.task.vocab_size
    if vocab_size != encoder.vocab_size:
        raise ConfigError(
            f"{tokenizer} has {vocab_size:,} tokens, the model "
            f"{encoder.vocab_size:,}: take this model's own"
        )

    _, weights = split_weights(model)
    save_weights(workdir / BEST_FOLDER, weights)
    (workdir / TOKENIZER_FILE).write_bytes(tokenizer.read_bytes())
    write_json(workdir / CONFIG_FILE, experiment.config.to_mapping())


def make_settings(encoder: EncoderConfig, tokenizer: Path) -> dict[str, Any]:
    """Returns the settings of a run with this encoder on the user's texts."""
    source_dir = _SOURCE_DIR.value
    settings: dict[str, Any] = {
        "task.source_dir": str(local_path(source_dir)) if source_dir else None,
        "task.tokenizer": str(tokenizer),
        "task.max_length": encoder.max_length,
        "objective.name": "mlm",
        # The run does not train; these only have to be possible.
        "train.batch_size": 32,
        "train.num_steps": 1,
        "train.eval_every": 1,
        "train.checkpoint_every": 1,
    }
    # Published weights have no settings of these two names.
    for key in key_types(ModelConfig).keys() - {"dtype", "pooling"}:
        settings[f"model.{key}"] = getattr(encoder, key)
    for option, value in encoder.attention_options.items():
        settings[f"attention.{option}"] = value
    return settings


if __name__ == "__main__":
    cli.run(main)
