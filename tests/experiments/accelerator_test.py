"""The accelerator that is measured is a single GPU."""

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.accelerator import check_single_gpu


def test_check_single_gpu_asks_for_one_of_several():
    check_single_gpu("gpu", 1)
    check_single_gpu("tpu", 8)
    check_single_gpu("cpu", 2)  # as with --xla_force_host_platform_device_count
    with pytest.raises(ConfigError, match="sees 8 GPUs"):
        check_single_gpu("gpu", 8)
