"""What programs would cost on an NVIDIA H200, by estimate, where there is none.

XLA compiles them ahead of time for an H200. The compiled program says which kernels
would run, and which arrays they read and write. Their times are estimated: a kernel
takes SHORTEST_KERNEL, or START and its bytes at BANDWIDTH if that is longer. The three
numbers come from timing kernels once on an H200, of which no record was kept. They
leave out the arithmetic and the host: a kernel that computes much takes longer, and so
does a whole step. The ratio of two estimates says more than either.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown
from nystromformer.experiments.speed.attentions import (
    AttentionSpec,
    make_passes,
    name_row,
)
from nystromformer.experiments.speed.page import format_number, list_paths
from nystromformer.experiments.speed.rows import Names, Row, RowKey
from nystromformer.experiments.speed.timing import find_path
from nystromformer.experiments.speed.train_steps import (
    make_chunk,
    make_experiment,
    step_key,
    synthetic_examples,
)

SHORTEST_KERNEL = 2.2  # microseconds
START = 1.0  # microseconds
BANDWIDTH = 3.6  # terabytes a second
NOTE = f"""\
- Estimated, not measured: the kernels of a program compiled for an H200, the GB that
  they read and write, and ms. A kernel takes the larger of {SHORTEST_KERNEL} µs and its
  bytes at {BANDWIDTH} TB/s plus {START:.0f} µs. Its arithmetic is not counted.
- % compares the ms with those of the first row."""

# What XLA has to know of the GPU, in the form of its tools/hlo_opt/gpu_specs.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 151397597184
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H200"
"""

# The first line of a computation, and an instruction in it: its name, the shape of its
# result, what it does, and the rest, which begins with its operands.
COMPUTATION = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\) -> .* \{")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([\w\-]+)\((.*)")
# As in "bf16[2,8,64]"; the number is that of bits.
ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
LOOP = re.compile(r"condition=%([\w.\-]+), body=%([\w.\-]+)")
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# These name arrays, and nothing runs.
NO_KERNELS = ("parameter", "constant", "bitcast", "get-tuple-element", "tuple")


class Instruction(NamedTuple):
    """An instruction of a compiled program.

    shape: the text of its result's shape.
    opcode: what it does, as in "fusion".
    rest: its operands, and behind the first ")" its attributes.
    """

    shape: str
    opcode: str
    rest: str


# Name of a computation -> name of an instruction -> the instruction.
Computations = dict[str, dict[str, Instruction]]


class Estimate(NamedTuple):
    """What a program would cost.

    row: what it is, its path, and as its only time the estimate.
    num_kernels: the number of kernels.
    num_bytes: the bytes that they read and write.
    """

    row: Row
    num_kernels: int
    num_bytes: int


def find_h200() -> Any:
    """Returns an H200 to compile for.

    Raises:
      ConfigError: if JAX's plugin for CUDA is missing.
    """
    jax.config.update("jax_platforms", "cpu")  # A GPU of this machine is not touched.
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=H200, topology="1x1x1"
        )
    except NotImplementedError as error:
        raise ConfigError(
            "JAX's plugin for CUDA is missing, which compiles for the H200: "
            "pip install 'jax[cuda13]', also on a machine without a GPU"
        ) from error
    return topology.devices[0]


def attention_estimates(
    specs: Sequence[AttentionSpec],
    lengths: Sequence[int],
    device: Any,
    *,
    batch_size: int,
    num_heads: int,
    head_dim: int,
    dtype: str,
) -> Iterator[Estimate]:
    """Yields estimates of attentions alone, forward and with all gradients.

    Args:
      specs: the attentions.
      lengths: numbers of tokens.
      device: the device to compile for.
      batch_size, num_heads, head_dim, dtype: those of query, key and value.
    """
    for length in sorted(lengths):
        array = jax.ShapeDtypeStruct((batch_size, length, num_heads, head_dim), dtype)
        for spec in specs:
            for part in make_passes(spec, [array] * 4):
                yield _estimate(part.key, part.function, part.arguments, device)


def step_estimates(
    specs: Sequence[AttentionSpec],
    tasks: Sequence[str],
    device: Any,
    changes: Mapping[str, Any],
) -> Iterator[Estimate]:
    """Yields estimates of a training step of each task's paper preset.

    All configs are checked before the first is compiled.

    Args:
      specs: the attentions.
      tasks: names of config files.
      device: the device to compile for.
      changes: values by flat keys, as in "model.dtype".
    """
    experiments = []
    for task in tasks:
        for spec in specs:
            experiment = make_experiment(task, spec, num_parts=1, changes=changes)
            label = name_row(spec.label, experiment.config.attention.options)
            experiments.append((label, experiment))

    for label, experiment in experiments:
        batch_size = experiment.config.train.batch_size
        chunk = make_chunk(synthetic_examples(experiment.task, batch_size))
        with _traced_for(device):  # The programs place their results on the device.
            programs = experiment.make_programs()
        state = programs.init.eval_shape(np.uint32(0))
        yield _estimate(
            step_key(label, experiment),
            programs.train_chunk,
            (state, chunk),
            device,
            in_loop=True,
        )


def _estimate(
    key: RowKey,
    function: Any,
    arguments: Sequence[Any],
    device: Any,
    in_loop: bool = False,
) -> Estimate:
    """Compiles a jitted function for a device, and counts what would run.

    Args:
      key: what it is.
      function: the function.
      arguments: its arguments, arrays or their shapes.
      device: the device.
      in_loop: whether the function is a loop, of which one turn is estimated.
    """
    sharding = SingleDeviceSharding(device)

    def place(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    shapes = jax.eval_shape(lambda *arguments: arguments, *arguments)
    with _traced_for(device):
        lowered = function.lower(*jax.tree.map(place, shapes))
    # XLA would choose kernels by their times on the device.
    compiled = lowered.compile(compiler_options={"xla_gpu_autotune_level": 0})
    kernels = list_kernels(compiled.as_text(), in_loop)
    row = Row(
        key=key,
        peak_bytes=None,
        path=find_path(lowered.as_text()),
        seconds=[estimate_seconds(kernels)],
    )
    return Estimate(row, num_kernels=len(kernels), num_bytes=sum(kernels))


@contextlib.contextmanager
def _traced_for(device: Any) -> Iterator[None]:
    """Lets what is chosen while a program is traced be chosen for one GPU.

    The attentions ask JAX which devices there are, and JAX knows those of this machine:
    meanwhile these functions of JAX give the answers that they give where the GPU is.
    """
    answers = {
        "default_backend": lambda: "gpu",
        "device_count": lambda: 1,
        "local_devices": lambda backend=None: [device],
    }
    functions = {name: getattr(jax, name) for name in answers}
    for name, answer in answers.items():
        setattr(jax, name, answer)
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(jax, name, function)


def estimate_seconds(kernels: Sequence[int]) -> float:
    """Estimates how long kernels take, one after another, from the bytes of each."""
    total = 0.0
    for num_bytes in kernels:
        microseconds = START + num_bytes / (1e6 * BANDWIDTH)
        total += 1e-6 * max(SHORTEST_KERNEL, microseconds)
    return total


def list_kernels(text: str, in_loop: bool = False) -> list[int]:
    """Returns the bytes that each kernel of a compiled program reads and writes.

    A kernel counts all of each array that it names, also where it takes a part of it. A
    loop is counted as often as it runs, and once if that is not known.

    Args:
      text: the compiled program, as XLA prints it.
      in_loop: whether to count one turn of the only loop, and nothing around it.
    """
    computations, entry = _parse(text)
    if not in_loop:
        return _list_kernels(computations, entry)
    instructions = computations[entry].values()
    [loop] = [x for x in instructions if x.opcode == "while"]
    return _list_kernels_of_turn(computations, loop)


def _parse(text: str) -> tuple[Computations, str]:
    """The computations of a program, and the name of that where it begins."""
    computations: Computations = {}
    entry = ""
    instructions: dict[str, Instruction] = {}  # of the last computation
    for line in text.splitlines():
        head = COMPUTATION.match(line)
        item = INSTRUCTION.match(line)
        if head:
            is_entry, name = head.groups()
            instructions = computations[name] = {}
            if is_entry:
                entry = name
        elif item:
            name, *fields = item.groups()
            instructions[name] = Instruction(*fields)
    return computations, entry


def _list_kernels(computations: Computations, name: str) -> list[int]:
    """The bytes of each kernel of a computation."""
    instructions = computations[name]
    kernels = []
    for instruction in instructions.values():
        if instruction.opcode == "while":
            trip_count = TRIP_COUNT.search(instruction.rest)
            num_turns = int(trip_count[1]) if trip_count else 1
            turn = _list_kernels_of_turn(computations, instruction)
            kernels.extend(turn * num_turns)
        elif instruction.opcode not in NO_KERNELS:
            operands, _, _ = instruction.rest.partition(")")
            names = re.findall(r"%([\w.\-]+)", operands)
            shapes = [instruction.shape, *(instructions[name].shape for name in names)]
            kernels.append(sum(map(count_bytes, shapes)))
    return kernels


def _list_kernels_of_turn(computations: Computations, loop: Instruction) -> list[int]:
    """The bytes of each kernel of one turn of a loop."""
    kernels = []
    for name in LOOP.findall(loop.rest)[0]:
        kernels.extend(_list_kernels(computations, name))
    return kernels


def count_bytes(shape: str) -> int:
    """Counts the bytes of the arrays that a shape names, as in "(f32[2], s32[])"."""
    total = 0
    for dtype, num_bits, sizes in ARRAY.findall(shape):
        item_bytes = 1 if dtype == "pred" else int(num_bits) / 8
        total += int(item_bytes * np.prod([int(n) for n in sizes.split(",") if n]))
    return total


def make_tables(estimates: Sequence[Estimate]) -> list[str]:
    """Returns the lines of a table for each pass, and which kernels computed what."""
    rows = [estimate.row for estimate in estimates]
    names = Names.of(rows)
    lines = []
    for what in dict.fromkeys(row.key.what for row in rows):
        of_pass = [x for x in estimates if x.row.key.what == what]
        lines.extend([f"## {what.capitalize()}: kernels / GB / ms", ""])
        lines.extend([*_make_table(of_pass, names), ""])
    return [*lines, *list_paths(rows)]


def _make_table(estimates: Sequence[Estimate], names: Names) -> list[str]:
    """A table with attentions down, and lengths or tasks across."""
    cells: dict[str, dict[str, Estimate]] = {}  # label -> column -> estimate
    for estimate in estimates:
        row = estimate.row
        cells.setdefault(names.label(row), {})[names.column(row)] = estimate
    first = next(iter(cells.values()))
    table_rows = []
    for label, by_column in cells.items():
        texts = []
        for column, estimate in by_column.items():
            reference = None if by_column is first else first[column]
            texts.append(_format_cell(estimate, reference))
        table_rows.append([label, *texts])
    return markdown.make_table(["attention", *first], table_rows)


def _format_cell(estimate: Estimate, reference: Estimate | None = None) -> str:
    """As in "348 / 5.34 / 1.99 · −18 %", which compares the ms with the reference's."""
    [seconds] = estimate.row.seconds
    gigabytes = format_number(estimate.num_bytes / 1e9, num_digits=3)
    milliseconds = format_number(seconds * 1e3, num_digits=3)
    text = f"{estimate.num_kernels:,} / {gigabytes} / {milliseconds}"
    if reference is None:
        return text
    [reference_seconds] = reference.row.seconds
    change = seconds / reference_seconds - 1
    return f"{text} · {change:+.0%}".replace("-", "−").replace("%", " %")
