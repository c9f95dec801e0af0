"""Cells and tables of rows made by hand."""

import pytest

from nystromformer.experiments.bench.summary import (
    exponent,
    memory_cell,
    peer_table,
    rate_cell,
    tables,
    time_cell,
    traffic_cell,
    work_cell,
)


def row(name="linear", length=64, what="forward", **changes):
    cost = {"peak_bytes": 3 * 2**20, "flops": 2e9, "bytes_accessed": 4e9}
    cost["compile_seconds"] = 0.51
    return {
        "key": {"what": what, "attention": name, "length": length, "options": {}},
        "cost": cost,
        "stopped": None,
        "seconds": [0.001, 0.002, 0.003, 0.004, 0.005],
        "measured_bytes": 2**20,
        "matmul_share": 0.25,
        "copy_share": 0.5,
        **changes,
    }


def test_cells():
    assert time_cell(row()) == "3 (2–4)"
    assert rate_cell(row()) == "333 (250–500)"
    assert memory_cell(row()) == "3 / 1"
    assert work_cell(row()) == "2 / 25%"
    assert traffic_cell(row()) == "4 / 50%"
    assert traffic_cell(row(copy_share=None)) == "—"
    stopped = row(stopped="5 GiB is over the budget of 1 GiB", seconds=None)
    assert time_cell(stopped) == rate_cell(stopped) == "over budget"
    assert memory_cell(row(cost=None, measured_bytes=None)) == "— / —"
    assert work_cell(row(cost=None, matmul_share=None)) == "— / —"


def test_the_exponent_is_that_of_the_power_and_short_lengths_are_not_fitted():
    curve = {n: 3 * n**1.5 for n in (2048, 4096, 16384)}
    assert exponent({512: 1e9, **curve}) == pytest.approx(1.5)
    for curve in ({}, {4096: 1.0}, {512: 1, 1024: 2}, {2048: 0, 4096: 0}):
        assert exponent(curve) is None


def test_passes_have_factors_of_softmax_exponents_and_dashes():
    exact = row("softmax", 4096, seconds=[0.06] * 7, cost={**row()["cost"]})
    exact["cost"]["peak_bytes"] = 10 * 3 * 2**20
    text = "\n".join(tables([exact, row("linear", 4096), row("linear", 2048)]))
    assert "## Forward: ms\n\n| attention | 4,096 | 2,048 | exponent |" in text
    assert "| linear | 3 (2–4) · 20× | 3 (2–4) | 0.00 |" in text
    assert "| linear | 3 / 1 · 10× | 3 / 1 | 0.00 |" in text
    assert "| softmax | 60 (60–60) | — | — |" in text
    assert text.count("\n| linear |") == 4
    assert tables([]) == []


def test_train_steps_are_by_task_with_their_sizes():
    rows = [row(what="train step") for _ in range(2)]
    for each, task in zip(rows, ("text", "image"), strict=True):
        each["key"] |= {"task": task, "batch_size": 32}
    text = "\n".join(tables(rows))
    assert "text 32 × 64, image 32 × 64" in text
    assert "| attention | text | image |" in text
    assert "| linear | 333 (250–500) | 333 (250–500) |" in text


def test_a_peer_is_compared_round_by_round_with_ours_of_its_size():
    theirs = row("hf-nystrom-8", seconds=[0.002, 0.008, 0.009, 0.004, 0.02])
    theirs["measured_bytes"] = 2**21
    others = [row("hf-nystrom-8", length=128), row("nystrom-4")]
    ours = [row("nystrom-8"), row("nystrom-8 in 4")]
    text = "\n".join(peer_table([*ours, theirs, *others]))
    # 2, 4, 3, 1 and 4 times as long; the ratio of the medians would be 2.67.
    line = "| forward | hf-nystrom-8 ÷ nystrom-8 | 64 | 3.00 (2.00–4.00) | 2.00 |"
    in_parts = line.replace("÷ nystrom-8", "÷ nystrom-8 in 4")
    assert [x for x in text.splitlines() if "÷" in x] == [line, in_parts]
