"""Rows in JSON."""

from tests.experiments.speed.conftest import make_key, make_row


def test_a_row_in_json_has_the_fields_that_it_needs_in_one_order():
    """Earlier benchmark.json files have this order, too."""
    step = make_key("linear", 8, "train step", task="text").to_json()
    assert list(step) == [
        "what",
        "attention",
        "task",
        "options",
        "length",
        "batch_size",
        "dtype",
    ]
    assert step["options"] == {}
    row = make_row(num_heads=2, head_dim=4).to_json()
    assert list(row) == ["key", "peak_bytes", "path", "seconds"]
    assert list(row["key"])[-3:] == ["num_heads", "head_dim", "dtype"]
