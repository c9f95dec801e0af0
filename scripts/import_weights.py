"""Turns published Nyströmformer weights into a workdir.

python scripts/import_weights.py --from=FOLDER --workdir=DIR [--source_dir=TEXTS]

FOLDER is a masked language model as downloaded from the Hugging Face hub. DIR can be
evaluated, and `train.init_from` takes it. Its task is the corpus of plain text in
--source_dir, in the model's own tokens.
"""

from absl import flags

from configs.defaults import make_config
from lra_tasks.subwords import open_vocabulary
from nystromformer import huggingface
from nystromformer.config import Config, ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.workdir import (
    CONFIG_FILE,
    check_new,
    find_folder,
    write_json,
)
from nystromformer.training.checkpoint import save_weights
from nystromformer.training.step import split_weights

_FROM = flags.DEFINE_string(
    "from", None, "folder of the published model", required=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "workdir to make", required=True)
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of texts")
MODEL = ("num_layers", "num_heads", "model_dim", "mlp_dim", "dropout_rate")
MODEL += ("norm", "gelu", "embedding_norm", "num_token_types")
TRAIN = {"batch_size": 32, "num_steps": 1, "eval_every": 1, "checkpoint_every": 1}


def main() -> None:
    source, workdir = find_folder(str(_FROM.value)), find_folder(str(_WORKDIR.value))
    files = source / huggingface.TOKENIZER_FILE, workdir / huggingface.TOKENIZER_FILE
    check_new(workdir)
    vocab_size = open_vocabulary(str(files[0])).vocab_size
    try:
        encoder = huggingface.read_config(source)
        model = huggingface.load_pretrained(source)
    except huggingface.PretrainedError as error:
        raise ConfigError(str(error)) from error
    if vocab_size != encoder.vocab_size:
        sizes = f"{vocab_size:,} tokens, the model {encoder.vocab_size:,}"
        raise ConfigError(f"{files[0]} has {sizes}")
    settings = {
        "task.source_dir": _SOURCE_DIR.value,
        "task.tokenizer": str(files[1].absolute()),
        "task.max_length": encoder.max_length,
        "objective.name": "mlm",
        **{f"model.{name}": getattr(encoder, name) for name in MODEL},
        **{f"attention.{x}": value for x, value in encoder.attention_options.items()},
        **{f"train.{x}": value for x, value in TRAIN.items()},
    }
    config = make_config("nystrom", "corpus", settings, {})
    checked = Config.from_mapping(config.to_dict())
    save_weights(workdir / "best", split_weights(model)[1])
    files[1].write_bytes(files[0].read_bytes())
    write_json(workdir / CONFIG_FILE, checked.to_mapping())


if __name__ == "__main__":
    cli.run(main)
