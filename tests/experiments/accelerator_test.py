"""The accelerator that is measured is a single GPU."""

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.accelerator import check_single_gpu, find_platform


def test_check_single_gpu_asks_for_one_of_several():
    check_single_gpu("gpu", 1)
    check_single_gpu("tpu", 8)
    check_single_gpu("cpu", 2)  # as with --xla_force_host_platform_device_count
    with pytest.raises(ConfigError, match="sees 8 GPUs"):
        check_single_gpu("gpu", 8)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("echo warning >&2; echo no driver >&2; exit 1", "no driver"),
        ("kill -KILL $$", "status -9 without a message"),
    ],
)
def test_find_platform_says_why_jax_does_not_start(tmp_path, monkeypatch, end, reason):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{end}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ConfigError, match=f"does not start on this machine: {reason}$"):
        find_platform(takes_cpu=True)
