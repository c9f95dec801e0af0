"""The attentions of a benchmark: their labels, their options and names of rows."""

import pytest

from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.attention.linear import LinearAttention
from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark.specs import (
    TABLE_1,
    WHOLE_SOFTMAX,
    list_labels,
    name_row,
    parse_attention,
)


def test_list_labels_begins_with_table_1_and_names_every_attention(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mine", LinearAttention)
    labels = list_labels()
    assert labels[:8] == list(TABLE_1)
    names = [parse_attention(label).name for label in labels]
    assert set(names) == {*ATTENTIONS, WHOLE_SOFTMAX}
    assert names.count("nystrom") == 4
    assert len(names) == len(set(names)) + 3
    assert {"mine", "performer-256"} < set(labels)


def test_parse_attention_reads_a_size_and_changes():
    assignments = ("nystrom.conv_kernel_size=0", 'nystrom.pinv="exact"', "linear.x=1")
    spec = parse_attention("nystrom-48", assignments)
    changes = {"num_landmarks": 48, "conv_kernel_size": 0, "pinv": "exact"}
    assert spec.label == "nystrom-48"
    assert spec.name == "nystrom"
    assert spec.changes == changes
    defaults = find_attention("nystrom").config_defaults()
    assert spec.options == defaults | changes
    assert parse_attention("nystrom").options == defaults


def test_parse_attention_keeps_the_changes_of_the_label_beside_others():
    label = "nystrom-64,conv_kernel_size=0"
    options = parse_attention(label, ["nystrom.pinv=exact"]).options
    assert options["conv_kernel_size"] == 0
    assert options["pinv"] == "exact"


def test_parse_attention_takes_the_options_of_the_label_over_others():
    spec = parse_attention("nystrom-4,pinv=identity", ["nystrom.pinv=exact"])
    assert spec.changes == {"num_landmarks": 4, "pinv": "identity"}


def test_name_row_has_the_changes_of_the_label_and_the_convolution():
    rows = {
        "nystrom-64": "nystrom-64 + convolution of 35",
        "nystrom-64,conv_kernel_size=0": "nystrom-64",
        "nystrom-64,pinv=exact,conv_kernel_size=5": (
            "nystrom-64, pinv=exact + convolution of 5"
        ),
        "linformer-256": "linformer-256",
    }
    for label, row in rows.items():
        assert name_row(label, parse_attention(label).options) == row


@pytest.mark.parametrize(
    ("label", "change", "message"),
    [
        ("flash", "", "unknown attention 'flash'.*known: .*nystrom"),
        ("softmax-64", "", "softmax has no size: take --attention=softmax"),
        ("nystrom-many", "", "--attention=nystrom-many"),
        ("nystrom-4", "nystrom.pinv=3", "must be str"),
        ("nystrom-4", "nystrom.x=3", "^--option=nystrom.x=3: .* no option 'x'"),
        (
            "nystrom-4",
            "nystrom.num_landmarks=8",
            "num_landmarks=8: --attention=nystrom-4 has a size; .*=nystrom-8$",
        ),
        ("nystrom-4,x=3", "", "^--attention=nystrom-4,x=3: .* no option 'x'"),
    ],
)
def test_parse_attention_rejects_in_one_line(label, change, message):
    with pytest.raises(ConfigError, match=message) as raised:
        parse_attention(label, [change])
    assert "\n" not in str(raised.value)
