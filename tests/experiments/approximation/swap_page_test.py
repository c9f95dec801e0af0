"""What a page says about exchanged layers."""

import pandas as pd
import pytest

from nystromformer.experiments.approximation.swap import (
    EXACT,
    ONE_LAYER,
    Advice,
    Difference,
    Swaps,
)
from nystromformer.experiments.approximation.swap_page import describe_advice


def make_swaps(together=(-0.0045, 0.004), noise=(0.004, 0.004, 0.001, 0.004, 0.004)):
    """Layers 0, 1 and 3 lose nothing alone, and layer 2 loses one point."""
    advice = Advice(
        landmarks=(64, 16, EXACT, 64),
        num_examples=500,
        exact=0.75,
        together=Difference(*together),
    )
    table = pd.DataFrame(
        {
            "group": ONE_LAYER,
            "metric": "accuracy",
            "layers": ["0", "1", "2", "2", "3"],
            "num_landmarks": [64, 16, 16, 64, 64],
            "difference": [0.0, 0.0, -0.02, -0.01, 0.0],
            "noise": noise,
        }
    )
    return Swaps(
        "accuracy", {"accuracy": 0.7}, num_examples=500, table=table, advice=advice
    )


def test_the_advice_says_what_to_exchange_and_what_to_keep():
    swaps = make_swaps()
    assert describe_advice(swaps).split("\n") == [
        "**layer 1 with 16 landmarks; layers 0 and 3 with 64 landmarks** can be "
        "exchanged: each of these layers alone loses at most half a point of "
        "validation. All of them together change the accuracy on 500 examples of the "
        "test from 75.00% by -0.45 ± 0.40. As a setting of a run that trains on with "
        "it, by the command of this run, a new --workdir and "
        "--config.train.init_from=RUN:",
        "",
        '    --config.attention.by_layer="0=nystrom 0.num_landmarks=64 '
        "0.conv_kernel_size=0 1=nystrom 1.num_landmarks=16 1.conv_kernel_size=0 "
        '3=nystrom 3.num_landmarks=64 3.conv_kernel_size=0"',
        "",
        "**layer 2** can not: 64 landmarks are not enough, keep exact attention.",
        "",
    ]
    nothing = swaps._replace(advice=swaps.advice._replace(landmarks=(EXACT,)))
    assert "**layer 0** can not" in describe_advice(nothing)
    assert "As a setting" not in describe_advice(nothing)
    assert "floor" not in describe_advice(nothing)
    poor = swaps._replace(advice=swaps.advice._replace(floor=0.75))
    assert "**The model is within chance of its floor**, 75.00%" in describe_advice(
        poor
    )


def test_what_the_test_does_not_confirm_is_not_advised():
    text = describe_advice(make_swaps(together=(-0.05, 0.0339)))
    assert text.startswith(
        "**layer 1 with 16 landmarks; layers 0 and 3 with 64 landmarks** seemed "
        "exchangeable, since each of these layers alone loses at most half a point of "
        "validation, and **the test does not confirm it**. All of them together change "
        "the accuracy on 500 examples of the test from 75.00% by -5.00 ± 3.39. Take "
        "more landmarks, or choose them on more examples by --swap_examples.\n"
    )
    assert "can be exchanged" not in text
    assert "by_layer" not in text
    within_noise = describe_advice(make_swaps(together=(-0.03, 0.0339)))
    assert "can be exchanged" in within_noise
    assert "by_layer" in within_noise


@pytest.mark.parametrize(
    ("noise", "layers", "points", "num_needed"),
    [
        # Layer 2 is kept, layer 1 exchanged.
        ((0.004, 0.004, 0.001, 0.01, 0.004), "layer 2", "1.00", "2,000"),
        ((0.004, 0.02, 0.001, 0.004, 0.004), "layer 1", "2.00", "8,000"),
        ((0.004, 0.03, 0.001, 0.0111, 0.004), "layers 1 and 2", "3.00", "18,000"),
    ],
)
def test_examples_that_cannot_tell_half_a_point_are_named_once(
    noise, layers, points, num_needed
):
    text = describe_advice(make_swaps(noise=noise))
    assert text.count("**500 examples cannot tell half a point** of") == 1
    assert f"of {layers}: alone the loss is known to ± {points} at worst. " in text
    assert f"About {num_needed} of validation would" in text


def test_a_clear_loss_needs_no_more_examples():
    swaps = make_swaps()
    table = swaps.table.assign(noise=0.006)
    table["difference"] = [0.02, 0.02, -0.3, -0.3, 0.02]
    assert "cannot tell" not in describe_advice(swaps._replace(table=table))
