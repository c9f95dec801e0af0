"""Turns published Nyströmformer weights into a workdir.

python scripts/import_weights.py --from=FOLDER --workdir=DIR [--source_dir=TEXTS]

FOLDER is a masked language model as downloaded from the Hugging Face hub. DIR can be
evaluated, and `train.init_from` takes it. Its task is the corpus of plain text in
--source_dir, in the model's own tokens.
"""

from absl import flags
from etils import epath

from configs.defaults import make_config
from lra_tasks.paths import local_path
from nystromformer import huggingface
from nystromformer.config import Config, ModelConfig, key_types
from nystromformer.errors import ConfigError, PretrainedError
from nystromformer.experiments import cli, workdir
from nystromformer.experiments.experiment import Experiment
from nystromformer.training.checkpoint import save_weights
from nystromformer.training.step import split_weights

_FROM = flags.DEFINE_string("from", None, "folder of published weights", required=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "workdir to make", required=True)
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of texts")


def main() -> None:
    source, folder = (epath.Path(x.value).expanduser() for x in (_FROM, _WORKDIR))
    workdir.check_new(folder)
    tokenizer, texts = source / workdir.TOKENIZER_FILE, _SOURCE_DIR.value
    try:
        encoder = huggingface.read_config(source)
        model = huggingface.load_pretrained(source)
    except PretrainedError as error:
        raise ConfigError(str(error)) from error
    keys = key_types(ModelConfig).keys() - {"dtype", "pooling"}
    settings = {
        **{f"model.{key}": getattr(encoder, key) for key in keys},
        **{f"attention.{key}": x for key, x in encoder.attention_options.items()},
        "task.source_dir": texts and str(local_path(texts)),
        "task.tokenizer": str(tokenizer),
        "task.max_length": encoder.max_length,
        "objective.name": "mlm",
        "train.batch_size": 32,
        **{f"train.{x}": 1 for x in ("num_steps", "eval_every", "checkpoint_every")},
    }
    made = make_config(encoder.attention, task="corpus", settings=settings, presets={})
    experiment = Experiment(Config.from_mapping(made.to_dict()))
    if (found := experiment.task.vocab_size) != encoder.vocab_size:
        sizes = f"has {found:,} tokens, the model {encoder.vocab_size:,}"
        raise ConfigError(f"{tokenizer} {sizes}: take this model's own")
    save_weights(folder / "best", split_weights(model)[1])
    (folder / workdir.TOKENIZER_FILE).write_bytes(tokenizer.read_bytes())
    workdir.write_json(folder / workdir.CONFIG_FILE, experiment.config.to_mapping())


if __name__ == "__main__":
    cli.run(main)
