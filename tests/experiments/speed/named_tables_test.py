"""The named tables: what their pages measure."""

import pytest

from lra_tasks import LRA
from nystromformer.experiments.speed import named_tables
from nystromformer.experiments.speed.named_tables import TABLES, Baselines

NO_BASELINES = Baselines(attention=[], step=[])


@pytest.fixture
def calls(monkeypatch):
    """What the groups of attentions and of train steps are asked for."""
    calls = []

    def record(kind):
        def groups(specs, *args, **settings):
            calls.append((kind, [spec.label for spec in specs], settings))
            return []

        return groups

    monkeypatch.setattr(named_tables, "attention_groups", record("attention"))
    monkeypatch.setattr(named_tables, "step_groups", record("steps"))
    return calls


def test_paper_has_a_page_for_table_1_and_each_task_in_each_dtype(calls):
    pages = dict(TABLES["paper"](NO_BASELINES))
    names = []
    for subject in ("attention", *LRA):
        names += [f"{subject}_float32", f"{subject}_bfloat16"]
    assert list(pages) == names

    settings_of_page = dict(zip(pages, calls, strict=True))
    kind, labels, settings = settings_of_page["attention_bfloat16"]
    assert kind == "attention"
    assert "nystrom-64,conv_kernel_size=0" in labels
    sizes = {"batch_size": 2, "num_heads": 8, "head_dim": 64, "dtypes": ["bfloat16"]}
    assert settings == sizes
    kind, labels, settings = settings_of_page["text_float32"]
    assert kind == "steps"
    assert {"softmax,dropout_rate=0.0", "nystrom-64"} < set(labels)
    assert settings["tasks"] == ["text"]
    assert settings["changes"] == {"model.dtype": "float32"}


def test_flashnystrom_has_its_sizes_and_its_published_times(calls):
    [(name, page)] = TABLES["flashnystrom"](NO_BASELINES)
    assert name == "flashnystrom"
    (_, wide, wide_sizes), (_, narrow, narrow_sizes) = calls
    assert wide == ["nystrom-64,conv_kernel_size=0"]
    assert narrow == ["nystrom-32,conv_kernel_size=0"]
    dtypes = ["float16", "bfloat16"]
    assert wide_sizes == {
        "batch_size": 4,
        "num_heads": 16,
        "head_dim": 128,
        "dtypes": dtypes,
    }
    assert narrow_sizes == {
        "batch_size": 1,
        "num_heads": 4,
        "head_dim": 64,
        "dtypes": dtypes,
    }
    times = {}
    for row in page.published:
        if row.key.attention == "FlashNystrom-64 on an H100":
            times[row.key.what, row.key.length] = 1e3 * row.seconds[0]
    assert times["forward", 4_096] == 1.22
    assert times["forward+backward", 131_072] == 53.67
