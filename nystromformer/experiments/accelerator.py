"""The accelerator of this machine, for the scripts that measure it.

Processes of their own look for it: one that has it open takes a GPU's memory, or keeps
a TPU from all others.
"""

import importlib.util
import subprocess
import sys

from nystromformer.errors import ConfigError


def find_platform(*, takes_cpu: bool) -> str:
    """Returns the platform on which JAX computes here: "cpu", "gpu" or "tpu".

    Args:
      takes_cpu: whether a CPU will do.

    Raises:
      ConfigError: if JAX does not start, or has no accelerator or more than one GPU.
    """
    program = "import jax; print(jax.default_backend(), jax.device_count())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    if done.returncode:
        # A process that the system kills says nothing.
        status = f"status {done.returncode} without a message"
        last_line = (done.stderr.strip() or status).splitlines()[-1]
        raise ConfigError(f"JAX does not start on this machine: {last_line}")

    # A plugin may print lines of its own before.
    platform, num_devices = done.stdout.splitlines()[-1].split()
    if platform == "cpu" and not takes_cpu:
        raise ConfigError(
            'JAX has no accelerator here: pip install "jax[cuda13]" (or jax[cuda12], '
            "jax[tpu]); --smoke goes through all stages on a CPU"
        )
    check_single_gpu(platform, int(num_devices))
    return platform


def check_single_gpu(platform: str, num_devices: int) -> None:
    """Raises ConfigError if JAX sees several GPUs.

    A benchmark would use one of them, but `softmax` would not be cuDNN's kernel, which
    it is only where there is a single GPU.
    """
    if platform == "gpu" and num_devices > 1:
        raise ConfigError(
            f"JAX sees {num_devices} GPUs, and one is measured: set "
            "CUDA_VISIBLE_DEVICES=0, or the number of another one"
        )


def has_peers() -> bool:
    """Whether PyTorch and transformers are installed, and see a GPU."""
    libraries = ("torch", "transformers")
    if not all(map(importlib.util.find_spec, libraries)):
        return False
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program]).returncode == 0
