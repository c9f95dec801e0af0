"""Writes a run to a folder that can be given away.

    python scripts/export.py --workdir=DIR --out=FOLDER [--format=transformers]

FOLDER has the best weights (model.safetensors), the config, the tokenizer where there
is one, and a model card with scores, data and commit (README.md). `load_run`,
evaluate.py and predict.py read it as they read DIR. With --format=transformers it is a
model of transformers, if that has one that computes the same.
"""

import start

start.prepare()

from absl import flags
from etils import epath

from nystromformer.experiments import cli
from nystromformer.experiments.export import FORMATS, export_run
from nystromformer.experiments.trained_run import load_run

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_FORMAT = flags.DEFINE_enum("format", FORMATS[0], FORMATS, "who reads the folder")


def main() -> None:
    """Loads the run and writes the folder."""
    workdir = epath.Path(_WORKDIR.value).expanduser()
    out = cli.local_folder(_OUT.value)
    export_run(load_run(workdir), workdir, out, layout=_FORMAT.value)
    print(f"wrote {', '.join(sorted(path.name for path in out.iterdir()))} to {out}")


if __name__ == "__main__":
    cli.run(main)
