"""The numbers of landmarks that a study measures."""

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.approximation.study import (
    choose_landmarks,
    default_landmarks,
    own_landmarks,
    write_study,
)
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
