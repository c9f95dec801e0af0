"""What a config says, as objects."""

import numpy as np
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.experiments.run import Experiment
from tests.small import make_config


def test_every_attention_has_about_as_many_parameters_as_softmax():
    names = ATTENTIONS.keys() - {"identity"}
    found = {x: Experiment.from_config(make_config(x)).num_params for x in names}
    found["linformer"] -= 2 * 256 * 2000  # a projection [k, max_length] a layer
    for name, count in found.items():
        assert abs(count / found["softmax"] - 1) <= 0.1, name


def test_a_model_that_cannot_be_built_is_an_error_before_any_compile():
    with pytest.raises(ConfigError, match="num_landmarks must be at least 1"):
        Experiment.from_config(make_config(attention__num_landmarks=0))
    with pytest.raises(ConfigError, match=r"reads \[CLS\], which listops has not"):
        Experiment.from_config(make_config(model__pooling="bert_pooler"))


def test_the_share_that_is_exact_counts_texts_no_longer_than_the_landmarks():
    lengths = np.array([3, 4, 5, 9])
    nystrom = Experiment.from_config(make_config("nystrom", attention__num_landmarks=4))
    assert nystrom.fraction_exact(lengths) == 0.5
    assert Experiment.from_config(make_config("softmax")).fraction_exact(lengths) == 0
    padded = {"attention__num_landmarks": 4, "attention__landmark_padding": "padded"}
    assert Experiment.from_config(make_config(**padded)).fraction_exact(lengths) == 0
