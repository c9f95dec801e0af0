"""Estimates for an H200: what is counted, and scripts/estimate.py without a plugin."""

import importlib.util
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from nystromformer.experiments.speed import estimate
from nystromformer.experiments.speed.attentions import make_passes, parse_attention
from nystromformer.experiments.speed.estimate import (
    Estimate,
    attention_estimates,
    count_bytes,
    estimate_seconds,
    list_kernels,
    make_tables,
    step_estimates,
)
from nystromformer.experiments.speed.timing import find_path
from tests.commands import refused
from tests.experiments.speed.conftest import make_row
from tests.experiments.speed.train_steps_test import CHANGES

# A module for --load: this machine's CPU stands in for an H200.
CPU = """
import jax
from jax.experimental import topologies

class Topology:
    @property
    def devices(self):
        return jax.devices("cpu")

topologies.get_topology_desc = lambda **settings: Topology()
"""

# A loop that runs three times, with a copy before it and a call of a library behind it.
PROGRAM = """\
HloModule jit_f, is_scheduled=true

%fused_add (param_0: f32[4,8], param_1: f32[8]) -> f32[4,8] {
  %param_0 = f32[4,8]{1,0} parameter(0)
  %param_1 = f32[8]{0} parameter(1)
  %broadcast.1 = f32[4,8]{1,0} broadcast(%param_1), dimensions={1}
  ROOT %add.1 = f32[4,8]{1,0} add(%param_0, %broadcast.1)
}

%body (arg: (s32[], f32[4,8], f32[8])) -> (s32[], f32[4,8], f32[8]) {
  %arg = (s32[], f32[4,8]{1,0}, f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%arg), index=1
  %y = f32[8]{0} get-tuple-element(%arg), index=2
  %fusion = f32[4,8]{1,0} fusion(%x, %y), kind=kLoop, calls=%fused_add
  ROOT %tuple.1 = (s32[], f32[4,8]{1,0}, f32[8]{0}) tuple(%i, %fusion, %y)
}

%condition (arg.1: (s32[], f32[4,8], f32[8])) -> pred[] {
  %arg.1 = (s32[], f32[4,8]{1,0}, f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %constant.1 = s32[] constant(3)
  ROOT %compare = pred[] fusion(%i.1, %constant.1), kind=kLoop, calls=%compared
}

ENTRY %main (a: f32[4,8], b: f32[8]) -> (bf16[4,8], s8[16]) {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %copy = f32[4,8]{1,0} copy(%a), metadata={op_name="jit(f)/copy"}
  %zero = s32[] constant(0)
  %tuple = (s32[], f32[4,8]{1,0}, /*index=2*/f32[8]{0}) tuple(%zero, %copy, %b)
  %while = (s32[], f32[4,8]{1,0}, /*index=2*/f32[8]{0}) while(%tuple), \
condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %z = f32[4,8]{1,0} get-tuple-element(%while), index=1
  ROOT %call = (bf16[4,8]{1,0}, s8[16]{0}) custom-call(%z), custom_call_target="f"
}
"""
COPY = 128 + 128
TURN = [1 + 4 + 4, 128 + 32 + 128]  # the condition, and the body
CALL = 64 + 16 + 128


def test_kernels_of_a_loop_count_as_often_as_it_runs():
    assert list_kernels(PROGRAM) == [COPY, *TURN, *TURN, *TURN, CALL]
    unknown = PROGRAM.replace("known_trip_count", "other")
    assert list_kernels(unknown) == [COPY, *TURN, CALL]
    assert list_kernels(PROGRAM, in_loop=True) == TURN


def test_kernels_of_a_program_of_xla_are_found():
    x = jnp.ones((16, 16))
    compiled = jax.jit(lambda x, y: x @ y).lower(x, x).compile()
    assert list_kernels(str(compiled.as_text())) == [3 * 16 * 16 * 4]


@pytest.mark.parametrize(
    ("shape", "num_bytes"),
    [
        ("f32[]", 4),
        ("pred[3]{0}", 3),
        ("f8e4m3fn[10]{0}", 10),
        ("(bf16[2,3]{1,0}, /*index=1*/u64[5]{0})", 52),
        ("token[]", 0),
    ],
)
def test_bytes_of_a_shape_are_those_of_its_arrays(shape, num_bytes):
    assert count_bytes(shape) == num_bytes


def test_a_kernel_takes_its_bytes_or_the_shortest_time():
    assert estimate_seconds([100]) == pytest.approx(2.2e-6)
    assert estimate_seconds([36_000_000]) == pytest.approx(11e-6)
    assert estimate_seconds([100, 36_000_000]) == pytest.approx(13.2e-6)


@pytest.fixture
def own_traces():
    """Nothing that is traced as on a GPU is left for a test after this one."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def test_programs_are_traced_as_on_one_gpu(own_traces):
    """The kernel of the pseudo-inverse is one that a CPU would never choose."""
    spec = parse_attention("nystrom-16,pinv_kernel=true")
    array = jax.ShapeDtypeStruct((1, 64, 2, 16), jnp.bfloat16)
    forward, _ = make_passes(spec, [array] * 4)
    devices = jax.local_devices()
    with estimate._traced_for(SimpleNamespace(compute_capability="9.0")):
        traced = forward.function.trace(*forward.arguments)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert find_path(text) == "XLA, Pallas"
    assert jax.local_devices() == devices


def test_attentions_are_estimated_at_each_length_in_both_passes():
    """Compiled for a CPU, which every machine can; its kernels are others."""
    estimates = attention_estimates(
        [parse_attention("identity")],
        [64, 32],
        jax.devices()[0],
        batch_size=1,
        num_heads=2,
        head_dim=4,
        dtype="bfloat16",
    )
    [short, short_gradient, long, _] = estimates
    # The value is copied to the output: 32 tokens of 2 heads of 4 numbers of 2 bytes.
    assert (short.num_kernels, short.num_bytes) == (1, 2 * 32 * 2 * 4 * 2)
    assert long.num_bytes == 2 * short.num_bytes
    assert short_gradient.num_kernels > short.num_kernels
    keys = [short.row.key, short_gradient.row.key, long.row.key]
    assert [(key.what, key.length) for key in keys] == [
        ("forward", 32),
        ("forward+backward", 32),
        ("forward", 64),
    ]


def test_a_train_step_is_estimated_with_its_task():
    [found] = step_estimates(
        [parse_attention("identity")], ["text"], jax.devices()[0], CHANGES
    )
    assert found.row.key.task == "text"
    assert found.row.key.attention == "identity"
    assert found.num_kernels > 10
    assert found.row.seconds[0] >= 2.2e-6 * found.num_kernels


def test_tables_compare_with_the_first_row():
    estimates = []
    for label, scale in (("nystrom-64", 2), ("nystrom-64, pinv_kernel=true", 1)):
        for length in (512, 2_048):
            row = make_row(label, length, scale=scale)
            row.seconds = [scale * length * 1e-6]
            estimates.append(Estimate(row, num_kernels=90 * scale, num_bytes=5 * 10**8))
    lines = make_tables(estimates)
    assert lines[:6] == [
        "## Forward: kernels / GB / ms",
        "",
        "| attention | 512 | 2,048 |",
        "| --- | ---: | ---: |",
        "| nystrom-64 | 180 / 0.5 / 1.02 | 180 / 0.5 / 4.1 |",
        "| nystrom-64, pinv\\_kernel=true | 90 / 0.5 / 0.512 · −50 % | "
        "90 / 0.5 / 2.05 · −50 % |",
    ]
    assert lines[-1].startswith("- Computed by XLA: nystrom-64; nystrom-64, pinv")


def test_command_prints_the_tables_and_writes_them(commands, tmp_path):
    module = tmp_path / "cpu.py"
    module.write_text(CPU)
    out = tmp_path / "estimate.md"
    flags = ("--length=32", "--attention=identity", "--num_heads=2", "--batch_size=1")
    done = commands.run("estimate.py", *flags, f"--load={module}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    # 2 heads of 64 numbers of 2 bytes are read and written; a step was not asked for.
    table = "| identity | 1 / 1.64e-05 / 0.0022 |"
    assert done.stdout.count("| identity |") == 2
    for text in (done.stdout, out.read_text()):
        assert table in text
        words = " ".join(text.split())
        assert "larger of 2.2 µs and its bytes at 3.6 TB/s plus 1 µs" in words
    assert "- Command: `python scripts/estimate.py --length=32" in out.read_text()


def test_flags_without_an_effect_are_rejected_in_one_line(commands):
    done = commands.run("estimate.py", "--task=text", "--num_heads=3")
    assert "--num_heads is for attentions alone" in refused(done)
    done = commands.run("estimate.py", "--attention=nystrm")
    assert "unknown attention 'nystrm'" in refused(done)


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is not None,
    reason="JAX may have its plugin for CUDA",
)
def test_a_missing_plugin_is_named_in_one_line(commands):
    assert "pip install 'jax[cuda13]'" in refused(commands.run("estimate.py"))
