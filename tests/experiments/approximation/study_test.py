"""Which numbers of landmarks a study measures."""

from nystromformer.experiments.approximation.study import default_landmarks


def test_default_landmarks_have_the_runs_own_number():
    assert sorted(default_landmarks(6, 40)) == [4, 6, 8, 16, 32]
    assert sorted(default_landmarks(64, 40)) == [4, 8, 16, 32]
    assert sorted(default_landmarks(0, 9)) == [4, 8]
