"""What the benchmark times, and how: attentions, as in nystrom-64, and train steps."""

import dataclasses
import importlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from lra_tasks.task import Task
from nystromformer.attention import ATTENTIONS, check_attention, make_attention
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.training.compiled import program_bytes
from nystromformer.training.data import Chunk, DeviceRows, HostSplit

PASSES = ("forward", "forward+backward")
TABLE_1 = ("softmax", "nystrom-32", "nystrom-64", "linformer-256", "longformer-256")
STEPS = 4  # in one run
LEAST_SECONDS = 0.02  # of one sample; a shorter program runs several times in it


@dataclasses.dataclass
class Program:
    """Something to time: `key` names it in JSON, `run` waits for its `steps` steps.

    peak_bytes: its memory, arguments and results included; None if unknown.
    """

    key: dict[str, Any]
    run: Callable[[], Any]
    peak_bytes: int | None = None
    steps: int = 1


class AttentionSpec(NamedTuple):
    """label: NAME or NAME-SIZE; name and options as for `make_attention`."""

    label: str
    name: str
    options: dict[str, Any]


def all_labels() -> list[str]:
    """The rows of Table 1, then each other attention of the table at its own size."""
    named = {label.partition("-")[0] for label in TABLE_1}
    others = {x: cls for x, cls in ATTENTIONS.items() if x not in named}
    sizes = {
        x: cls.config_defaults().get(cls.size_option or "") for x, cls in others.items()
    }
    return [*TABLE_1, *(f"{x}-{size}" if size else x for x, size in sizes.items())]


def parse_attention(label: str, changes: Sequence[str] = ()) -> AttentionSpec:
    """NAME or NAME-SIZE with the attention's defaults, that size, and changes.

    A change ATTENTION.OPTION=VALUE is for that attention alone. ConfigError for an
    unknown name or option, or a wrong type.
    """
    name, _, size = (label, "", "") if label in ATTENTIONS else label.partition("-")
    try:
        check_attention(name, {})
        options = ATTENTIONS[name].config_defaults()
        if size:
            options[ATTENTIONS[name].size_option or "size"] = json.loads(size)
        for change in changes:
            key, _, value = change.partition("=")
            if key.startswith(f"{name}."):
                named = value.isidentifier() and value not in ("true", "false", "null")
                options[key[len(name) + 1 :]] = value if named else json.loads(value)
        check_attention(name, options)
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error
    return AttentionSpec(label, name, options)


def attention_groups(
    specs: Sequence[AttentionSpec],
    lengths: Sequence[int],
    torch: Any = None,
    *,
    batch_size: int = 1,
    num_heads: int,
    head_dim: int,
    dtype: str = "float32",
) -> Iterator[list[Program]]:
    """The programs of each length, shortest first, on random numbers.

    `torch` is the module `torch_baselines`.
    """
    for length in sorted(lengths):
        shape = (4, batch_size, length, num_heads, head_dim)
        inputs = [*jax.random.normal(jax.random.key(0), shape, dtype)]
        ours = [x for spec in specs for x in attention_programs(spec, inputs)]
        theirs = [torch.attention_baseline(x, inputs) for x in ours if torch]
        yield [*ours, *filter(None, theirs)]


def attention_programs(
    spec: AttentionSpec, inputs: Sequence[jax.Array]
) -> Iterator[Program]:
    """The forward pass, and with it the gradient of all inputs and parameters.

    The inputs are query, key, value and a cotangent of the output, [B, L, N, H].
    ConfigError where the attention does not fit the length.
    """
    batch_size, length, num_heads, head_dim = inputs[0].shape
    sizes = {"num_heads": num_heads, "head_dim": head_dim}
    given = {**sizes, "max_length": length, "rngs": nnx.Rngs(0), **spec.options}
    try:
        attention = make_attention(spec.name, **given)
    except ValueError as error:
        raise ConfigError(f"{spec.label} at {length:,}: {error}") from error
    graphdef, params, rest = nnx.split(attention, nnx.Param, ...)

    @jax.jit
    def forward(params: nnx.State, *qkv: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, rest)(*qkv, deterministic=True)

    @jax.jit
    def both(cotangent: jax.Array, *primals: Any) -> Any:
        output, pull = jax.vjp(forward, *primals)
        return output, pull(cotangent)

    *qkv, cotangent = inputs
    key = {"attention": spec.label, "options": spec.options, "length": length}
    key |= {"batch_size": batch_size, **sizes, "dtype": str(inputs[0].dtype)}
    for what, function, args in (
        (PASSES[0], forward, (params, *qkv)),
        (PASSES[1], both, (cotangent, params, *qkv)),
    ):
        compiled, size = compile_program(function, *args)

        def run(compiled: Any = compiled, args: Any = args) -> Any:
            return jax.block_until_ready(compiled(*args))

        yield Program({"what": what, **key}, run, size)


def step_groups(
    specs: Sequence[AttentionSpec],
    tasks: Sequence[str],
    grad_accum_steps: Sequence[int],
    torch: Any = None,
    **changes: Any,
) -> Iterator[list[Program]]:
    """The programs of each task, all configs checked before the first is compiled.

    Tasks are modules in configs/, taken with their paper preset and `changes` by path,
    as in "train.batch_size"; None changes nothing. grad_accum_steps is the number of
    length buckets, too. torch: the module `torch_baselines`.
    """
    given = {path: value for path, value in changes.items() if value is not None}
    groups: dict[str, dict[str, Experiment]] = {task: {} for task in tasks}
    for task, spec, parts in itertools.product(groups, specs, grad_accum_steps):
        config = importlib.import_module(f"configs.{task}").get_config(spec.name)
        batching = {"train.grad_accum_steps": parts, "train.length_buckets": parts}
        config.update_from_flattened_dict(given | batching)
        mapping = {**config.to_dict(), "attention": {"name": spec.name, **spec.options}}
        label = f"{spec.label} in {parts}" if parts > 1 else spec.label
        groups[task][label] = Experiment(Config.from_mapping(mapping))
    for found in groups.values():
        first, programs = next(iter(found.values())), []
        data = synthetic_examples(first.task, first.config.train.batch_size)
        for label, experiment in found.items():
            ours = train_program(label, experiment, data)
            theirs = torch and torch.train_baseline(ours, experiment.config, data)
            programs += filter(None, (ours, theirs))
        yield programs


def synthetic_examples(task: Task, batch_size: int) -> DeviceRows:
    """STEPS batches of random tokens: full pictures, texts from half full to full."""
    rng, length = np.random.default_rng(0), task.max_length
    examples, least = STEPS * batch_size, length // 2 if task.padded else length
    rows = np.arange(examples * task.num_inputs, dtype=np.int32)
    split = SimpleNamespace(
        inputs=rng.integers(1, task.vocab_size, (len(rows), length)).astype(np.uint16),
        lengths=rng.integers(least, length + 1, len(rows)).astype(np.int32),
        labels=rng.integers(0, task.num_classes, examples).astype(np.int32),
        pairs=rows.reshape(-1, 2) if task.num_inputs == 2 else None,
    )
    return HostSplit.from_split(split).put()


def train_program(label: str, experiment: Experiment, data: DeviceRows) -> Program:
    """STEPS train steps on STEPS batches in one compiled loop, as training takes them.

    `label` names the attention; data has STEPS batches.
    """
    config, programs, seed = experiment.config, experiment.make_programs(), np.uint32(0)
    batches = np.arange(len(data.labels), dtype=np.int32).reshape(STEPS, -1)
    chunk = Chunk(data, jax.device_put(batches), STEPS)
    state = programs.init.eval_shape(seed)
    compiled, size = compile_program(programs.train_chunk, state, chunk)
    states: list[Any] = []  # the newest; a run donates it and leaves the next

    def run() -> None:
        state, finite = compiled(states.pop() if states else programs.init(seed), chunk)
        states.append(jax.block_until_ready(state))
        if culprits := finite.culprits():
            raise ConfigError(f"{label}: not finite: {', '.join(culprits)}")

    key = {"what": "train step", "attention": label, "task": config.task.name}
    key |= {"options": config.attention.options, "length": experiment.task.max_length}
    key |= {"batch_size": config.train.batch_size, "dtype": config.model.dtype}
    return Program(key, run, size, STEPS)


def compile_program(function: Any, *args: Any) -> tuple[Any, int | None]:
    """Compiles a jitted function for these arguments; also returns its bytes."""
    compiled = function.lower(*args).compile()
    return compiled, program_bytes(compiled)


def measure(programs: Sequence[Program], rounds: int) -> list[dict[str, Any]]:
    """Times programs in turns: a JSON row each.

    A row has key, peak_bytes, and the seconds of a step in each round, none where the
    program runs out of memory.
    """
    fits = [_warm_up(program) for program in programs]
    runs = [x.run for x, ok in zip(programs, fits, strict=True) if ok]
    samples, rows = iter(interleaved(runs, rounds)), []
    for program, ok in zip(programs, fits, strict=True):
        seconds = [x / program.steps for x in next(samples)] if ok else []
        found = {"peak_bytes": program.peak_bytes, "seconds": seconds}
        rows.append({"key": program.key, **found})
    return rows


def interleaved(
    runs: Sequence[Callable[[], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of one call of each, in turns, `rounds` times.

    Each has run before. Rounds begin in turn, so that none always follows the same.
    """

    def seconds(run: Callable[[], Any], calls: int) -> float:
        start = now()
        for _ in range(calls):
            run()
        return (now() - start) / calls

    calls = [1 + int(LEAST_SECONDS / max(seconds(run, 1), 1e-6)) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds):
        for which in np.roll(range(len(runs)), -turn):
            samples[which].append(seconds(runs[which], calls[which]))
    return samples


def _warm_up(program: Program) -> bool:
    """Runs it once; False if the memory is too small."""
    try:
        jax.block_until_ready(program.run())
    except RuntimeError as error:  # of JAX or PyTorch
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error):
            return False
        raise
    return True
