"""What a page says about exchanged layers."""

import pandas as pd

from nystromformer.experiments.approximation.swap import (
    EXACT,
    ONE_LAYER,
    Advice,
    Difference,
    Swaps,
)
from nystromformer.experiments.approximation.swap_page import describe_advice


def test_the_advice_says_what_to_exchange_and_what_to_keep():
    advice = Advice(
        landmarks=(64, 16, EXACT, 64),
        num_examples=500,
        exact=0.75,
        together=Difference(-0.0125, 0.004),
    )
    table = pd.DataFrame(
        {
            "group": ONE_LAYER,
            "metric": "accuracy",
            "layers": ["2", "2"],
            "num_landmarks": [16, 64],
            "difference": [-0.02, -0.01],
            "noise": [0.001, 0.004],
        }
    )
    swaps = Swaps(
        "accuracy", {"accuracy": 0.7}, num_examples=500, table=table, advice=advice
    )
    assert describe_advice(swaps).split("\n") == [
        "**layer 1 with 16 landmarks; layers 0 and 3 with 64 landmarks** can be "
        "exchanged: each of these layers alone loses at most half a point of "
        "validation. All of them together change the accuracy on 500 examples of the "
        "test from 75.00% by -1.25 ± 0.40. As a setting of a run that trains on with "
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
    unsure = swaps._replace(table=table.assign(noise=[0.001, 0.006]))
    assert "On 500 examples this is within the noise" in describe_advice(unsure)
    nothing = swaps._replace(advice=advice._replace(landmarks=(EXACT, EXACT)))
    assert "**layers 0 and 1** can not" in describe_advice(nothing)
    assert "As a setting" not in describe_advice(nothing)
    assert "floor" not in describe_advice(nothing)
    poor = swaps._replace(advice=advice._replace(floor=0.75))
    assert "**The model is not above its floor**, 75.00%" in describe_advice(poor)
