"""What is measured together: all attentions at one length, or in one task's steps."""

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.lab.bench.programs import (
    PASSES,
    Program,
    Sizes,
    attention_program,
)
from nystromformer.lab.bench.train_steps import (
    input_program,
    made_up_examples,
    prepared_examples,
    task_config,
    train_program,
)
from nystromformer.lab.bench.variants import Variant
from nystromformer.lab.run import Experiment
from nystromformer.training.data import Data

LENGTHS = [2**k for k in range(9, 17)]  # 512 to 65,536


@dataclasses.dataclass(frozen=True)
class AttentionGroup:
    """Attentions on inputs of one size."""

    variants: list[Variant]
    sizes: Sizes

    def programs(self, device: Any = None) -> Iterator[Program]:
        """Each attention's passes, compiled, for a device that may not be there."""
        inputs = self.sizes.inputs()
        for variant, which_pass in itertools.product(self.variants, PASSES):
            yield attention_program(variant, which_pass, self.sizes, inputs, device)

    def peers(self, programs: list[Program]) -> list[Program]:
        """PyTorch's of these programs, where it has them."""
        inputs = self.sizes.inputs()
        found = [load_peers().attention_peer(ours, inputs) for ours in programs]
        return [program for program in found if program]


@dataclasses.dataclass(frozen=True)
class TrainGroup:
    """The train steps of one task: label -> experiment, on the same examples."""

    experiments: dict[str, Experiment]
    data: Data
    examples: str

    def programs(self, device: Any = None) -> Iterator[Program]:
        """Each attention's steps, compiled, and where they can run the input side."""
        for label, experiment in self.experiments.items():
            program = train_program(label, experiment, self.data, device)
            program.key["examples"] = self.examples
            yield program
        if device is None:
            experiment = next(iter(self.experiments.values()))
            program = input_program(experiment, self.data)
            program.key["examples"] = self.examples
            yield program

    def peers(self, programs: list[Program]) -> list[Program]:
        """PyTorch's of these programs; it takes no batch in parts."""
        configs = {
            label: experiment.config
            for label, experiment in self.experiments.items()
            if experiment.config.train.micro_batches == 1
        }
        found = [
            load_peers().train_peer(ours, configs[ours.key["attention"]], self.data)
            for ours in programs
            if ours.key["attention"] in configs
        ]
        return [program for program in found if program]


def load_peers() -> Any:
    """The module nystromformer.lab.bench.peers, which needs PyTorch."""
    try:
        return importlib.import_module("nystromformer.lab.bench.peers")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--peers needs {error.name}: pip install -r requirements-parity.txt"
        ) from error


def attention_groups(flags: Any, variants: list[Variant]) -> list[AttentionGroup]:
    """One for each --length, after a check of all of them."""
    if flags.data_dir or flags.parts != [1]:
        raise ConfigError("--data_dir and --parts are for --train_step")
    groups = []
    for length in sorted(set(flags.length or LENGTHS)):
        heads, batch_size = (flags.num_heads, flags.head_dim), flags.batch_size or 1
        for variant in variants:
            shape = dict(zip(("num_heads", "head_dim"), heads, strict=True))
            nnx.eval_shape(functools.partial(variant.make, **shape, max_length=length))
        sizes = Sizes(length, batch_size, *heads, flags.dtype)
        groups.append(AttentionGroup(variants, sizes))
    return groups


def train_groups(flags: Any, variants: list[Variant]) -> list[TrainGroup]:
    """One for each --task, after a check of all configs."""
    if len(flags.length or []) > 1:
        raise ConfigError("--train_step takes one --length, or that of each config")
    changes = {
        "max_length": flags.length[0] if flags.length else None,
        "batch_size": flags.batch_size,
        "dtype": flags.dtype,
    }
    groups = []
    for task in dict.fromkeys(flags.task):
        experiments: dict[str, Experiment] = {}
        for variant, parts in itertools.product(variants, dict.fromkeys(flags.parts)):
            batching = {"micro_batches": parts, "length_buckets": parts}
            config = task_config(task, variant, changes | batching)
            label = f"{variant.label} in {parts}" if parts > 1 else variant.label
            experiments[label] = Experiment.from_config(config)
        first = next(iter(experiments.values()))
        sizes = first.task, first.config.train.batch_size
        if flags.data_dir:
            data = prepared_examples(*sizes, flags.data_dir)
        else:
            data = made_up_examples(*sizes)
        examples = "prepared" if flags.data_dir else "made up"
        groups.append(TrainGroup(experiments, data, examples))
    return groups
