"""Which numbers of landmarks a study measures."""

from nystromformer.experiments.approximation.study import (
    default_landmarks,
    own_landmarks,
)
from tests.small import make_config


def test_default_landmarks_have_the_runs_own_number():
    assert sorted(default_landmarks(6, 40)) == [4, 6, 8, 16, 32]
    assert sorted(default_landmarks(64, 40)) == [4, 8, 16, 32]
    assert sorted(default_landmarks(0, 9)) == [4, 8]


def test_own_landmarks_are_the_largest_of_all_layers():
    of_layers = {"attention__by_layer": "1=nystrom 1.num_landmarks=24"}
    for arg, changes, expected in (
        ("softmax,quick", {}, 0),
        ("softmax,quick", of_layers, 24),
        ("nystrom,quick", of_layers, 24),
        ("nystrom,quick", {"attention__by_layer": "0=softmax"}, 6),
    ):
        assert own_landmarks(make_config(arg, **changes)) == expected
