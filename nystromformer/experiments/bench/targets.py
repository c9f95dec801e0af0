"""Accelerators to compile for, and their peak rates."""

import importlib.util
import os
import sys
from importlib import metadata
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from nystromformer.config import ConfigError

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 151397597184 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H200"
"""


class Target(NamedTuple):
    """A device as its maker describes it, and estimates of kernels on it.

    compiler, packages: what is imported, and what is installed.
    bandwidth: bytes a second, of which kernels reach EFFICIENCY.
    float32, bfloat16: FLOPs a second of products, float32 at JAX's default precision.
    kernel_seconds, least_seconds: of a kernel beside its bytes, and with them.
    """

    compiler: str
    packages: tuple[str, ...]
    bandwidth: float
    float32: float
    bfloat16: float
    kernel_seconds: float = 0.0
    least_seconds: float = 0.0

    def seconds(self, num_bytes: int) -> float:
        """An estimate of one kernel."""
        moving = num_bytes / (EFFICIENCY * self.bandwidth)
        return max(self.least_seconds, moving + self.kernel_seconds)


EFFICIENCY = 0.75
CUDA = ("jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm")
TARGETS = {
    "h200": Target("nvidia.cu13", CUDA, 4.8e12, 495e12, 989e12, 1e-6, 2.2e-6),
    "v5e": Target("libtpu", ("libtpu",), 0.819e12, 197e12, 197e12),
    "v6e": Target("libtpu", ("libtpu",), 1.64e12, 918e12, 918e12),
}


def absent_device(name: str, compilers: str | None) -> Any:
    """A device of TARGETS to compile for; to be had before JAX has computed anything.

    Its compiler is in a folder, or None = in this environment; else ConfigError with
    the command that installs it.
    """
    target = TARGETS[name]
    if compilers is not None:
        sys.path.append(os.path.abspath(os.path.expanduser(compilers)))
    try:
        found = importlib.util.find_spec(target.compiler)
    except ModuleNotFoundError:  # of its parent
        found = None
    if found is None:
        packages = " ".join(f"'{_pinned(package)}'" for package in target.packages)
        raise ConfigError(
            f"--compile_for={name}: its compiler is missing: pip install --no-deps "
            f"--target DIR {packages}, then --compilers=DIR"
        )
    jax.config.update("jax_platforms", "cpu")
    if target.compiler == "libtpu":
        os.environ["TPU_SKIP_MDS_QUERY"] = "1"
        return topologies.get_topology_desc(f"{name}:2x2", platform="tpu").devices[0]
    [home] = found.submodule_search_locations or [""]
    flags = f" --xla_gpu_cuda_data_dir={home} --xla_gpu_autotune_level=0"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flags
    os.environ["PATH"] = f"{home}/bin{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    options = {"target_config": H200, "topology": "1x1x1"}
    return topologies.get_topology_desc(platform="cuda", **options).devices[0]


def _pinned(package: str) -> str:
    """With the version that the installed JAX wants."""
    if package.startswith("jax-"):
        return f"{package}=={metadata.version('jaxlib')}"
    wanted = [x.partition(";")[0].strip() for x in metadata.requires("jax") or []]
    return next((x for x in wanted if x.startswith(package)), package)
