"""The page of a study: which sequences it is of, and what it says."""

import numpy as np
import pandas as pd
import pytest

from lra_tasks.split import Split
from nystromformer.errors import ConfigError
from nystromformer.experiments.approximation import columns, study, study_page
from nystromformer.experiments.approximation.study_page import (
    describe_study,
    table_of_causes,
    write_study,
)
from nystromformer.experiments.recorded_layers import AttentionInputs
from tests.small import untrained


def test_write_study_refuses_a_folder_before_the_data_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "thesis.md").touch()
    run = untrained("softmax")
    monkeypatch.setattr(run, "task", None)
    with pytest.raises(ConfigError, match="contains files of something else"):
        write_study(run, tmp_path, examples=1)


LENGTHS = np.array([9, 3, 6, 5, 8, 7])
PAIRS = np.array([[0, 1], [2, 3], [4, 5]])


@pytest.mark.parametrize(("pairs", "lengths"), [(None, [9, 8]), (PAIRS, [8, 7, 6, 5])])
def test_write_study_measures_the_longest_examples(
    tmp_path, monkeypatch, pairs, lengths
):
    """Two of them; of a pair both sequences, and the shorter one is its length."""
    inputs = np.where(np.arange(9) < LENGTHS[:, None], 1, 0)
    num_examples = len(LENGTHS) if pairs is None else len(pairs)
    splits = {
        ("validation", "moved"): Split(inputs, LENGTHS, np.zeros(num_examples), pairs)
    }
    run = untrained("softmax,quick", model__num_layers=1)
    monkeypatch.setattr(type(run.task), "load", lambda self, *place: splits[place])

    class MeasuredError(Exception):
        """The study has come to its measurements."""

    def check_and_stop(layers, counts):
        [inputs] = layers
        assert inputs.mask.sum(1).tolist() == lengths
        assert counts == [2, 4]
        raise MeasuredError

    monkeypatch.setattr(study, "measure_all", check_and_stop)
    with pytest.raises(MeasuredError):
        write_study(run, tmp_path, examples=2, landmarks=[4, 2], data_dir="moved")


@pytest.mark.parametrize(
    ("arg", "by_layer", "attentions"),
    [
        ("nystrom,quick", None, "nystrom"),
        ("softmax,quick", "1=nystrom", "nystrom and softmax"),
    ],
)
def test_a_run_without_exact_attention_is_told_what_is_left_out(
    tmp_path, monkeypatch, capsys, arg, by_layer, attentions
):
    run = untrained(arg, model__num_layers=2, attention__by_layer=by_layer)
    left_out = (
        "What an exchange costs is left out: it is measured on a run with exact "
        f"attention (softmax) in every layer, and this one has {attentions}. "
        "Train one with :softmax in --config, or name its --workdir.\n"
    )

    class RecordedError(Exception):
        """The study has come to its inputs."""

    def stop(*_):
        raise RecordedError

    monkeypatch.setattr(study_page, "record_longest", stop)
    for swap_examples, expected in ((500, left_out), (0, "")):
        with pytest.raises(RecordedError):
            write_study(run, tmp_path, examples=1, swap_examples=swap_examples)
        assert capsys.readouterr().out == expected

    layer = AttentionInputs(None, None, None, mask=np.ones((1, 4), bool))
    page = describe_study(study.Study(run, [layer], [2], {}, pd.DataFrame()))
    assert left_out in page


def test_table_of_causes_has_errors_spreads_and_what_limits():
    row = {method: 0.1 * i for i, method in enumerate(columns.METHODS, 1)}
    row |= {columns.spread_of(method): 1.5 for method in columns.RANDOM_METHODS}
    row |= {"inverse_error": 12.34, "inverse_residual": 0.056, "limited_by": "rank"}
    index = pd.MultiIndex.from_tuples([(2, 1, 16)], names=columns.INDEX_COLUMNS)
    header, _, line = table_of_causes(pd.DataFrame([row], index=index))

    cells = dict(zip(header.split(" | "), line.split(" | "), strict=True))
    assert cells == {
        "| layer": "| 2",
        "head": "1",
        "M": "16",
        "best rank": "0.1",
        "best middle matrix": "0.2",
        "Nyström": "0.3",
        "exact inverse": "0.4",
        "no inverse": "0.5",
        "k-means landmarks": "0.6",
        "random landmarks": "0.7 (×1.5)",
        "standard Nyström": "0.8 (×1.5)",
        "iterated": "0.9 (×1.5)",
        "Performer": "1 (×1.5)",
        "‖Z − A⁺‖ / ‖A⁺‖": "12",
        "‖AZA − A‖ / ‖A‖": "0.056",
        "limited by |": "rank |",
    }
