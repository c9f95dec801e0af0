"""What a config says, as objects."""

import numpy as np
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.lab.run import Experiment
from tests.small import make_config


@pytest.mark.parametrize("attention", sorted(ATTENTIONS.keys() - {"none"}))
def test_every_attention_has_about_as_many_parameters_as_softmax(attention):
    exact = Experiment.from_config(make_config("softmax")).num_params
    found = Experiment.from_config(make_config(attention)).num_params
    if attention == "linformer":
        found -= 2 * 256 * 2000  # a projection [k, max_length] a layer
    assert abs(found / exact - 1) <= 0.1


def test_a_model_that_cannot_be_built_is_an_error_before_any_compile():
    with pytest.raises(ConfigError, match="num_landmarks must be at least 1"):
        Experiment.from_config(make_config(attention__num_landmarks=0))


def test_the_share_that_is_exact_counts_texts_no_longer_than_the_landmarks():
    lengths = np.array([3, 4, 5, 9])
    nystrom = Experiment.from_config(make_config("nystrom", attention__num_landmarks=4))
    assert nystrom.exact_share(lengths) == 0.5
    assert Experiment.from_config(make_config("softmax")).exact_share(lengths) == 0
