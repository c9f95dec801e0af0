"""What a study measures: numbers of landmarks, settings and draws."""

import jax
import numpy as np
import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.approximation import study
from nystromformer.experiments.approximation.study import (
    check_choices,
    choose_landmark_counts,
    measure_all,
    own_landmarks,
)
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.landmarks import LANDMARKS
from tests.small import make_config


def test_landmarks_have_by_default_the_runs_own_number():
    assert choose_landmark_counts(None, 6, 40) == [4, 6, 8, 16, 32]
    assert choose_landmark_counts(None, 64, 40) == [4, 8, 16, 32]
    assert choose_landmark_counts(None, 0, 9) == [4, 8]


def test_sequences_too_short_for_the_defaults_blame_no_flag_that_was_not_given():
    with pytest.raises(ConfigError) as error:
        choose_landmark_counts(None, run_landmarks=0, max_length=4)
    assert str(error.value) == (
        "the longest sequence has 4 tokens, too few for 4 landmarks; take a run with "
        "longer sequences, or give smaller --landmarks"
    )
    assert choose_landmark_counts([3, 2, 3], run_landmarks=0, max_length=4) == [2, 3]


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
    # No two draws are the same, but where random landmarks happen to be.
    num_errors = tables["landmarks"].groupby("method")["error"].nunique()
    assert num_errors[["linformer", "performer"]].tolist() == [num_draws] * 2
    assert num_errors["random"] > 1
    assert tables["causes"].groupby("method").size().to_dict() == {
        "best rank": 1,
        "best middle matrix": 1,
        "nystrom": 1,
        "exact inverse": 1,
        "k-means landmarks": 1,
        "no inverse": 1,
        "random landmarks": num_draws,
        "standard Nyström": num_draws,
        "standard Nyström, iterated": num_draws,
        "performer": num_draws,
    }
    settings = tables["iterations"][["num_pinv_iters", "pinv"]]
    assert settings.to_csv(index=False) == "num_pinv_iters,pinv\n1.0,\n6.0,\n,exact\n"
    assert len(tables["spectrum"]) == 7


def halves(x, num_landmarks, mask, seed):
    """Landmarks that can only be two."""
    if num_landmarks != 2:
        raise ValueError(f"{num_landmarks} landmarks are not two")
    return LANDMARKS["segment_means"](x, 2, mask, seed)


def test_landmarks_of_a_loaded_module_are_measured(monkeypatch):
    monkeypatch.setitem(LANDMARKS, "halves", halves)
    settings = study._landmark_settings([2])
    assert "halves" in {setting["method"] for setting in settings}


def test_numbers_that_a_choice_of_landmarks_cannot_have_are_refused(monkeypatch):
    check_choices([2, 3], num_tokens=7)
    monkeypatch.setitem(LANDMARKS, "halves", halves)
    check_choices([2], num_tokens=7)
    message = "^halves: 3 landmarks are not two; give other numbers by --landmarks$"
    with pytest.raises(ConfigError, match=message):
        check_choices([2, 3], num_tokens=7)
