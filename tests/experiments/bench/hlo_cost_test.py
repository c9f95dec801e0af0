"""Kernels and bytes of a program that is short enough to count by hand."""

import pytest

from nystromformer.experiments.bench.hlo_cost import kernel_bytes, num_bytes

HLO = """\
HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%rows_of (param_0: u16[1000,8], param_1: s32[4,1]) -> f32[4,8] {
  %param_0 = u16[1000,8]{1,0} parameter(0)
  %param_1 = s32[4,1]{1,0} parameter(1)
  %rows = u16[4,8]{1,0} gather(%param_0, %param_1), offset_dims={1}
  ROOT %wide = f32[4,8]{1,0} convert(%rows)
}

%write (param_2: f32[100,8], param_3: f32[4,8]) -> f32[100,8] {
  %param_2 = f32[100,8]{1,0} parameter(0)
  %param_3 = f32[4,8]{1,0} parameter(1)
  %zero = s32[] constant(0)
  ROOT %new = f32[100,8]{1,0} dynamic-update-slice(%param_2, %param_3, %zero, %zero)
}

%twice (carry.1: (f32[4,8])) -> (f32[4,8]) {
  %carry.1 = (f32[4,8]{1,0}) parameter(0)
  %part = f32[4,8]{1,0} get-tuple-element(%carry.1), index=0
  %product = f32[4,8]{1,0} custom-call(%part, %part), custom_call_target="gemm"
  ROOT %out.1 = (f32[4,8]{1,0}) tuple(%product)
}

%graph (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  ROOT %negative = f32[4,8]{1,0} negate(%a)
}

%body (carry: (s32[], f32[4,8], /*index=2*/f32[100,8])) -> (s32[], f32[4,8]) {
  %carry = (s32[], f32[4,8]{1,0}, /*index=2*/f32[100,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %data = u16[1000,8]{1,0} get-tuple-element(%carry), index=1
  %log = f32[100,8]{1,0} get-tuple-element(%carry), index=2
  %taken = f32[4,8]{1,0} fusion(%data, %i), kind=kLoop, calls=%rows_of
  %written = f32[100,8]{1,0} fusion(%log, %taken), kind=kLoop, calls=%write
  %start = (f32[4,8]{1,0}) tuple(%taken)
  %loop = (f32[4,8]{1,0}) while(%start), condition=%less, body=%twice, \
backend_config={"known_trip_count":{"n":"3"}}
  %copied = (f32[4,8]{1,0}, f32[4,8]{1,0}) copy-start(%taken)
  %arrived = f32[4,8]{1,0} copy-done(%copied)
  %called = f32[4,8]{1,0} call(%arrived), to_apply=%graph
  %chosen = f32[4,8]{1,0} conditional(%i, %called, %called), \
branch_computations={%add, %graph}
  ROOT %out = (s32[], f32[4,8]{1,0}) tuple(%i, %chosen)
}

ENTRY %main (start: f32[4,8]) -> f32[4,8] {
  %first = f32[4,8]{1,0} parameter(0)
  %once = f32[4,8]{1,0} copy(%first)
  %steps = (s32[], f32[4,8]{1,0}) while(%once), condition=%less, body=%body
  ROOT %result = f32[4,8]{1,0} get-tuple-element(%steps), index=1
}
"""
ARRAY = 4 * 8 * 4


def test_a_step_is_the_loops_body_with_inner_loops_calls_and_branches():
    gathered = 4 * 8 * 2 + 4 * 4 + ARRAY  # the rows that are read, of all that are
    updated = ARRAY + ARRAY  # what is new is read, and written
    product, negate = 3 * ARRAY, 2 * ARRAY
    copied = 3 * ARRAY  # both ends stand in the shape of a start
    found = kernel_bytes(HLO)
    expected = [gathered, updated, *[product] * 3, copied, negate, negate]
    assert found == expected


def test_without_a_loop_of_unknown_length_all_is_counted():
    whole = HLO.replace("body=%body", 'body=%body, x={"known_trip_count":{"n":"2"}}')
    assert kernel_bytes(whole) == [2 * ARRAY, *(2 * kernel_bytes(HLO))]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 30),
        ("(f32[2]{0}, /*index=1*/(s8[7], pred[3]))", 18),
        ("f32[]", 4),
        ("u4[6]", 3),
        ("f8e4m3fn[6]", 6),
        ("token[]", 0),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 0),  # in a TPU's fast memory
    ],
)
def test_bytes_of_a_shape(shape, expected):
    assert num_bytes(shape) == expected
