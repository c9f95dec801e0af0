"""Measures Table 1 of the paper and the training steps of every LRA task.

    python scripts/speed.py --out=DIR [--peers] [--dry_run]

Runs scripts/benchmark.py once for each table, in float32 and in bfloat16. A table whose
folder in DIR is complete is left out, so that the same command goes on where the last
one was stopped. --peers measures PyTorch's attentions and train steps, too.
"""

import itertools
import shlex
import subprocess
import sys
from pathlib import Path

from absl import flags

from lra_tasks import LRA
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli

BENCHMARK = Path(__file__).with_name("benchmark.py")
ATTENTIONS = (
    "softmax",
    "nystrom-32",
    "nystrom-64",
    "nystrom-128",
    "nystrom-256",
    "linformer-256",
    "performer-256",
    "reformer-64",
    "longformer-256",
    "bigbird-64",
    "linear",
    "identity",
)
# Table 1 measures the attention of the paper's equations, which have no convolution.
ATTENTION_ALONE = (
    "--batch_size=2",
    "--num_heads=8",
    "--head_dim=64",
    "--option=nystrom.conv_kernel_size=0",
)
DTYPES = ("float32", "bfloat16")

_OUT = flags.DEFINE_string("out", None, "folder of the tables", required=True)
_PEERS = flags.DEFINE_bool("peers", False, "measure PyTorch's, too")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the commands and exit")


def main() -> None:
    """Measures the tables that are not complete, or prints their commands."""
    out = cli.local_folder(_OUT.value)
    tables = list(itertools.product(("attention", *LRA), DTYPES))
    for table, dtype in tables:
        check_folder(out / f"{table}_{dtype}")
    for table, dtype in tables:
        folder = out / f"{table}_{dtype}"
        if (folder / "benchmark.json").exists():
            print(f"{folder} is complete; delete it to measure it again")
            continue

        unfinished = out / f"{table}_{dtype}.unfinished"
        command = make_command(table, dtype, unfinished)
        if _DRY_RUN.value:
            print(shlex.join(command))
            continue
        if subprocess.run(command).returncode:
            raise ConfigError(
                f"the table {folder.name} failed; its error stands above. The same "
                "command goes on with this table"
            )
        unfinished.rename(folder)


def check_folder(folder: Path) -> None:
    """Raises ConfigError if a folder holds anything but a complete table."""
    is_complete = (folder / "benchmark.json").exists()
    if folder.exists() and not is_complete and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} has no benchmark.json, and so holds something else: move it, or "
            "name another --out"
        )


def make_command(table: str, dtype: str, out: Path) -> list[str]:
    """The command that measures one table, "attention" or a task, into a folder."""
    command = [sys.executable, str(BENCHMARK), f"--out={out}", f"--dtype={dtype}"]
    command += [f"--attention={name}" for name in ATTENTIONS]
    if table == "attention":
        command += ATTENTION_ALONE
    else:
        # Exact attention alone has dropout on its weights: without, all are alike.
        command += [
            "--train_step",
            f"--task={table}",
            "--option=softmax.dropout_rate=0.0",
        ]
    if _PEERS.value:
        command.append("--peers")
    return command


if __name__ == "__main__":
    cli.run(main)
