"""Makes a run's workdir of published Nyströmformer weights.

python scripts/import_weights.py --from=FOLDER --workdir=DIR [--source_dir=TEXTS]

FOLDER is a model of masked tokens from the Hugging Face hub, downloaded before. DIR
can be trained from, as `train.init_from`, and evaluated: its task is the corpus of the
plain text in --source_dir, in the model's own tokens.
"""

import jax
from absl import flags

from configs.defaults import make_config
from lra_tasks.subwords import open_vocabulary
from nystromformer.config import Config, ConfigError
from nystromformer.huggingface import (
    TOKENIZER_FILE,
    encoder_config,
    load_pretrained,
    read_settings,
)
from nystromformer.lab import cli
from nystromformer.lab.workdir import CONFIG_FILE
from nystromformer.training.arrays import save_arrays
from nystromformer.training.checkpoint import best_file
from nystromformer.training.files import write_bytes, write_json
from nystromformer.training.step import split_weights

_FROM = flags.DEFINE_string("from", None, "config.json, weights and tokenizer.json")
_WORKDIR = cli.define_workdir("the workdir to make")
_ATTENTION = flags.DEFINE_enum("attention", "exact", ["exact", "nystrom"], "which")
_LANDMARKS = flags.DEFINE_integer("num_landmarks", None, "of nystrom", 1)
_SOURCE_DIR = flags.DEFINE_string(
    "source_dir", None, "a folder of texts to evaluate on"
)
flags.mark_flags_as_required(["from", "workdir"])
TRAIN = {"batch_size": 32, "num_steps": 1, "eval_every": 1, "checkpoint_every": 1}


def main() -> None:
    source, workdir = cli.folder(_FROM), cli.folder(_WORKDIR)
    if (workdir / CONFIG_FILE).exists():
        raise ConfigError(f"{workdir} holds a run: name another workdir")
    options = {"attention": _ATTENTION.value, "num_landmarks": _LANDMARKS.value}
    try:
        encoder = encoder_config(read_settings(source), **options)
        model = load_pretrained(source, **options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    tokenizer = source / TOKENIZER_FILE
    if (size := open_vocabulary(str(tokenizer)).vocab_size) != encoder.vocab_size:
        raise ConfigError(
            f"{tokenizer} has {size:,} tokens, the model {encoder.vocab_size:,}"
        )
    write_bytes(workdir / TOKENIZER_FILE, tokenizer.read_bytes())
    task = {"name": "corpus", "max_length": encoder.max_length}
    task["tokenizer"] = str((workdir / TOKENIZER_FILE).absolute())
    task["source_dir"] = _SOURCE_DIR.value
    groups = {"task": task, "optimizer": {"warmup_steps": 0}, "train": TRAIN}
    config = make_config("nystrom", **groups, presets={}).to_dict()
    shared = config["model"].keys() | {"norm", "gelu", "embedding_norm"}
    config["model"] |= {
        key: vars(encoder)[key] for key in shared - {"dtype", "pooling"}
    }
    config["attention"] |= encoder.attention_options
    config["objective"] = {"name": "masked"}
    save_arrays(best_file(workdir, 0), jax.device_get(split_weights(model)[1]))
    write_json(workdir / CONFIG_FILE, Config.from_mapping(config).to_mapping())


if __name__ == "__main__":
    cli.run(main)
