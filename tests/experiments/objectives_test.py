"""The table of objectives; one of a user's own is in custom_test."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.objectives import (
    OBJECTIVES,
    Learning,
    find_objective,
    register_objective,
)


def test_a_name_is_taken_once_and_an_unknown_one_lists_the_known():
    learning = Learning(lambda task: None, lambda *args: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the name 'classification' is taken"):
        register_objective("classification", learning)
    register_objective("classification", OBJECTIVES["classification"])
    with pytest.raises(ConfigError, match=r"unknown .*'clasify'; known: classif"):
        find_objective("clasify")
