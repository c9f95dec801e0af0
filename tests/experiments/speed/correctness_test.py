"""The check of attentions on a device: what it compares, and what it catches."""

import jax
import jax.numpy as jnp
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.linear import LinearAttention
from nystromformer.experiments.speed.correctness import (
    LIMITS,
    Case,
    check_cases,
    list_cases,
)

SHORT = (13, 9)


def check(*cases):
    return {row["case"]: row for row in check_cases(cases)}


def test_list_cases_has_every_attention_in_both_dtypes():
    cases = list_cases()
    for name in ATTENTIONS:
        modes = {case.mode for case in cases if case.name == name}
        assert {"float32", "bfloat16"} <= modes
    assert {case.mode for case in cases} == set(LIMITS)
    with_holes = {case.name for case in cases if case.has_holes}
    with_an_empty_sequence = {case.name for case in cases if 0 in case.lengths}
    assert with_holes == with_an_empty_sequence == {"softmax", "nystrom"}
    assert len({case.label for case in cases}) == len(cases)


def test_check_cases_finds_small_errors_in_right_attentions():
    linear = Case("linear", {}, "float32, highest", SHORT)
    nystrom = Case(
        "nystrom", {"num_landmarks": 4, "conv_kernel_size": 3}, "bfloat16", SHORT
    )
    rows = check(linear, nystrom)
    assert set(rows[linear.label]["errors"]) == {"output", "query", "key", "value"}
    assert "parameters" in rows[nystrom.label]["errors"]
    assert all(row["passed"] and row["same_bits"] for row in rows.values())
    assert 0 < max(rows[linear.label]["errors"].values()) < 1e-5
    assert max(rows[nystrom.label]["errors"].values()) > 1e-4


class WrongAttention(LinearAttention):
    """A hundredth off in float32, as a device might be, and right in float64."""

    factor = 1.01

    def attend(self, query, *args, **kwargs):
        out = super().attend(query, *args, **kwargs)
        return out if query.dtype == jnp.float64 else out * self.factor


class NanAttention(WrongAttention):
    factor = jnp.nan


class RaisingAttention(LinearAttention):
    def attend(self, *args, **kwargs):
        raise RuntimeError("no such kernel")


@pytest.mark.parametrize("cls", [WrongAttention, NanAttention, RaisingAttention])
def test_check_cases_fails_what_is_wrong_and_goes_on(cls, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "wrong", cls)
    wrong = Case("wrong", {}, "float32, highest", SHORT)
    right = Case("linear", {}, "float32, highest", SHORT)
    rows = check(wrong, right)
    assert not rows[wrong.label]["passed"]
    assert rows[right.label]["passed"]
    if cls is RaisingAttention:
        assert rows[wrong.label]["failure"] == "RuntimeError: no such kernel"


class PrefixAttention(LinearAttention):
    """Takes in float32 as many keys as are valid, from the front, as a kernel might."""

    def attend(self, query, key, value, mask, precision):
        if query.dtype != jnp.float64:
            mask = jnp.arange(mask.shape[-1]) < mask.sum(-1, keepdims=True)
        return super().attend(query, key, value, mask, precision)


def test_only_a_mask_with_holes_finds_that_keys_are_taken_from_the_front(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "prefix", PrefixAttention)
    whole = Case("prefix", {}, "float32, highest", SHORT)
    rows = check(whole, whole._replace(has_holes=True))
    passed = {case: row["passed"] for case, row in rows.items()}
    holes = f"{whole.label} with holes"
    assert passed == {whole.label: True, holes: False}
    assert "failure" not in rows[holes]


def test_check_cases_passes_a_sequence_of_padding_alone():
    padding = Case("softmax", {}, "bfloat16", (13, 0))
    assert check(padding)[padding.label]["passed"]


def test_the_reference_is_float64(monkeypatch):
    """The wrong attention passes where it is as wrong in float64."""

    class WrongEverywhere(LinearAttention):
        def attend(self, query, *args, **kwargs):
            return super().attend(query, *args, **kwargs) * 1.01

    monkeypatch.setitem(ATTENTIONS, "wrong", WrongEverywhere)
    assert not jax.config.jax_enable_x64
    case = Case("wrong", {}, "float32, highest", SHORT)
    assert check(case)[case.label]["passed"]
