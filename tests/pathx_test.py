"""The config of Path-X: one length in all its presets, and a GPU's memory in mind."""

import pytest

from configs import pathx
from lra_tasks.task import get_task


@pytest.mark.parametrize("arg", [None, "gpu", "softmax,quick"])
def test_every_preset_is_the_task_at_full_length(arg):
    options = pathx.get_config(arg).task.to_dict()
    del options["data_dir"]
    assert get_task(options.pop("name"), **options).max_length == 128 * 128


def test_gpu_differs_in_memory_only():
    paper, gpu = (pathx.get_config(arg).to_dict() for arg in (None, "gpu"))
    assert gpu["model"].pop("remat") != paper["model"].pop("remat")
    assert gpu["model"].pop("dtype") == "bfloat16" != paper["model"].pop("dtype")
    assert gpu["train"].pop("batch_size") == 2 * paper["train"].pop("batch_size")
    assert (gpu.pop("preset"), paper.pop("preset")) == ("gpu", "paper")
    assert gpu == paper
