"""What a study measures: sequences, numbers of landmarks, settings and draws."""

import jax
import numpy as np
import pandas as pd
import pytest

from lra_tasks.split import Split
from nystromformer.errors import ConfigError
from nystromformer.experiments.approximation import columns, study
from nystromformer.experiments.approximation.study import (
    choose_landmarks,
    default_landmarks,
    measure_all,
    own_landmarks,
    table_of_causes,
    write_study,
)
from nystromformer.experiments.recorded_layers import AttentionInputs
from tests.small import make_config, untrained


def test_default_landmarks_have_the_runs_own_number():
    assert sorted(default_landmarks(6, 40)) == [4, 6, 8, 16, 32]
    assert sorted(default_landmarks(64, 40)) == [4, 8, 16, 32]
    assert sorted(default_landmarks(0, 9)) == [4, 8]


def test_sequences_too_short_for_the_defaults_blame_no_flag_that_was_not_given():
    with pytest.raises(ConfigError) as error:
        choose_landmarks(None, run_landmarks=0, max_length=4)
    assert str(error.value) == (
        "the longest sequence has 4 tokens, too few for 4 landmarks; take a run with "
        "longer sequences, or give smaller --landmarks"
    )
    assert choose_landmarks([3, 2], run_landmarks=0, max_length=4) == [2, 3]


@pytest.mark.parametrize(
    ("arg", "by_layer", "num_landmarks"),
    [
        ("softmax,quick", None, 0),
        ("softmax,quick", "1=nystrom 1.num_landmarks=24", 24),
        ("nystrom,quick", "1=nystrom 1.num_landmarks=24", 24),
        ("nystrom,quick", "0=softmax", 6),
    ],
)
def test_own_landmarks_are_the_largest_of_all_layers(arg, by_layer, num_landmarks):
    config = make_config(arg, attention__by_layer=by_layer)
    assert own_landmarks(config) == num_landmarks


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


def test_measure_all_takes_every_setting_and_as_many_draws_as_the_page_says(
    monkeypatch,
):
    monkeypatch.setattr(study, "ITERATIONS", (1, 6))
    query, key, value = np.random.default_rng(0).normal(size=(3, 1, 7, 1, 3))
    layer = AttentionInputs(query, key, value, mask=np.ones((1, 7), bool))
    with jax.enable_x64(True):
        tables = measure_all([layer], [2])

    num_draws = 8
    assert tables["landmarks"].groupby("method").size().to_dict() == {
        "segment means": 1,
        "random": num_draws,
        "k-means": 1,
        "double softmax": 1,
        "linformer": num_draws,
        "performer": num_draws,
    }
    assert tables["causes"].groupby("method").size().to_dict() == {
        "best rank": 1,
        "best middle matrix": 1,
        "nystrom": 1,
        "exact inverse": 1,
        "no inverse": 1,
        "random landmarks": num_draws,
        "standard Nyström": num_draws,
        "standard Nyström, iterated": num_draws,
        "performer": num_draws,
    }
    settings = tables["iterations"][["num_pinv_iters", "pinv"]]
    assert settings.to_csv(index=False) == "num_pinv_iters,pinv\n1.0,\n6.0,\n,exact\n"
    assert len(tables["spectrum"]) == 7


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
        "random landmarks": "0.6 (×1.5)",
        "standard Nyström": "0.7 (×1.5)",
        "iterated": "0.8 (×1.5)",
        "Performer": "0.9 (×1.5)",
        "‖Z − A⁺‖ / ‖A⁺‖": "12",
        "‖AZA − A‖ / ‖A‖": "0.056",
        "limited by |": "rank |",
    }
