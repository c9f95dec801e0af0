"""The start of a training run, as a process of its own, up to its first loss."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.lab.sweep.grid import TRAIN
from nystromformer.lab.sweep.process import Process, failure
from nystromformer.training.files import METRICS_FILE

SECONDS_BETWEEN_LOOKS = 0.01


def seconds_to_first_loss(arguments: Sequence[str], folder: Path) -> float:
    """Of a new process of train.py.

    Args:
      arguments: its flags.
      folder: keeps what is compiled from one start to the next.

    Raises:
      ConfigError: the process ended before; with the last line that it said.
    """
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        metrics = Path(workdir) / METRICS_FILE
        command = [sys.executable, str(TRAIN), *arguments, f"--workdir={workdir}"]
        command += ["--config.train.log_every=1"]
        env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
        started = time.perf_counter()
        process = Process(command, Path(workdir), env)
        try:
            while (status := process.poll()) is None:
                if metrics.exists() and metrics.stat().st_size:
                    return time.perf_counter() - started
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            process.popen.kill()
            process.popen.wait()
        said = failure(Path(workdir)) or f"train.py ended with status {status}"
        raise ConfigError(said.removeprefix("error: "))
