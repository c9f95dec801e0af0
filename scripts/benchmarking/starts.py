"""The start of a training run, as a process of its own, up to its first loss."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.training.writer import METRICS_FILE

ROOT = Path(__file__).parents[2]
SECONDS_BETWEEN_LOOKS = 0.01


def seconds_to_first_loss(arguments: Sequence[str], folder: Path) -> float:
    """Of a new process of train.py.

    Args:
      arguments: its flags.
      folder: keeps what is compiled from one start to the next.

    Raises:
      ConfigError: the process ended before; with the last line that it said.
    """
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        metrics, log = Path(parent) / "run" / METRICS_FILE, Path(parent) / "log"
        with open(log, "w") as errors:
            started = time.perf_counter()
            process = subprocess.Popen(
                [
                    *(sys.executable, str(ROOT / "scripts" / "train.py"), *arguments),
                    *(f"--workdir={parent}/run", "--config.train.log_every=1"),
                ],
                env={**os.environ, "JAX_COMPILATION_CACHE_DIR": f"{folder}/programs"},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        try:
            while process.poll() is None:
                if metrics.exists() and metrics.stat().st_size:
                    return time.perf_counter() - started
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            process.kill()
            process.wait()
        said = log.read_text().strip().rpartition("\n")[2].removeprefix("error: ")
        raise ConfigError(said or f"train.py ended with status {process.returncode}")
