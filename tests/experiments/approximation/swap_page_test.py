"""What a page says about exchanged layers."""

import shlex
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nystromformer.experiments.approximation.swap import (
    ALL_LAYERS,
    EXACT,
    ONE_LAYER,
    Advice,
    Difference,
    Swaps,
)
from nystromformer.experiments.approximation.swap_page import (
    describe_advice,
    train_on_command,
)

MORE = "About %s would, by --swap_examples=%s."
MUCH_MORE = "It would take about 18,000, and validation has 10,000."
COMMAND = "python scripts/train.py --config=configs/text.py:softmax --workdir=runs/a"


def make_run(command=COMMAND, folder="runs/a"):
    """What the advice takes of a run."""
    config = SimpleNamespace(train=SimpleNamespace(seed=3))
    result = None if command is None else {"command": command}
    return SimpleNamespace(config=config, folder=folder, result=result)


def make_swaps(
    together=(-0.0045, 0.004),
    noise=(0.004, 0.004, 0.001, 0.004, 0.004),
    k_means=(-0.05, 0.003),
    **changes,
):
    """Layers 0, 1 and 3 lose nothing alone, and layer 2 loses one point.

    Segment means in all layers lose five points, known to ± 0.4.
    """
    advice = Advice(
        landmarks=(64, 16, EXACT, 64),
        num_examples=500,
        exact={"accuracy": 0.75, "mlm_accuracy": 0.4},
        together={
            "accuracy": Difference(*together, has_changed=True),
            "mlm_accuracy": Difference(-0.2, 0.01, has_changed=True),
        },
    )
    table = pd.DataFrame(
        {
            "group": ONE_LAYER,
            "metric": "accuracy",
            "kind": "segment means",
            "layers": ["0", "1", "2", "2", "3"],
            "num_landmarks": [64, 16, 16, 64, 64],
            "difference": [0.0, 0.0, -0.02, -0.01, 0.0],
            "noise": noise,
            "has_changed": True,
        }
    )
    kinds = {"segment means": (-0.05, 0.004), "k-means": k_means}
    for kind, (difference, noise_of_kind) in kinds.items():
        for num_landmarks in (16, 64):
            table.loc[len(table)] = {
                "group": ALL_LAYERS,
                "metric": "accuracy",
                "kind": kind,
                "layers": "0 1 2 3",
                "num_landmarks": num_landmarks,
                "difference": difference,
                "noise": noise_of_kind,
                "has_changed": True,
            }
    swaps = Swaps(
        "accuracy",
        {"accuracy": 0.7},
        num_examples=500,
        num_validation=10_000,
        num_tokens=1_000,
        table=table,
        advice=advice,
        run=make_run(),
    )
    return swaps._replace(**changes)


def test_the_advice_says_what_to_exchange_and_what_to_keep():
    swaps = make_swaps()
    assert describe_advice(swaps).split("\n") == [
        "**layers 0 and 3 with 64 landmarks; layer 1 with 16 landmarks** can be "
        "exchanged: alone, each loses at most half a point of accuracy on validation. "
        "On 500 examples of the test this changes the accuracy from 75.00% by -0.45 ± "
        "0.40 and the mlm_accuracy from 40.00% by -20.00 ± 1.00. This "
        "trains on with it, for as many steps as the run has (train.num_steps); the "
        "same without --config.attention.by_layer, in another --workdir, is its "
        "control:",
        "",
        "    python scripts/train.py --config=configs/text.py:softmax "
        "--workdir=runs/a-nystrom --config.train.init_from=runs/a "
        '--config.attention.by_layer="0=nystrom 0.num_landmarks=64 '
        "0.conv_kernel_size=0 1=nystrom 1.num_landmarks=16 1.conv_kernel_size=0 "
        '3=nystrom 3.num_landmarks=64 3.conv_kernel_size=0"',
        "",
        "**layer 2** can not: 64 landmarks are not enough, keep exact attention.",
        "",
    ]
    nothing = swaps._replace(advice=swaps.advice._replace(landmarks=(EXACT,) * 4))
    assert "**layer 2** can not" in describe_advice(nothing)
    assert "trains on" not in describe_advice(nothing)
    assert "floor" not in describe_advice(nothing)
    poor = swaps._replace(advice=swaps.advice._replace(floor=0.75))
    assert "**The model is within chance of its floor**, 75.00%" in describe_advice(
        poor
    )


def test_what_the_test_does_not_confirm_is_not_advised():
    text = describe_advice(make_swaps(together=(-0.05, 0.0339)))
    assert text.startswith(
        "**layers 0 and 3 with 64 landmarks; layer 1 with 16 landmarks** seemed "
        "exchangeable, since alone each loses at most half a point of accuracy on "
        "validation, and **the test does not confirm it**. On 500 examples of the test "
        "this changes the accuracy from 75.00% by -5.00 ± 3.39 and the mlm_accuracy "
        "from 40.00% by -20.00 ± 1.00. Keep exact attention. A choice on more "
        "examples, by --swap_examples, is surer.\n"
    )
    assert "can be exchanged" not in text
    assert "by_layer" not in text
    within_noise = describe_advice(make_swaps(together=(-0.03, 0.0339)))
    assert "can be exchanged" in within_noise
    assert "by_layer" in within_noise
    no_number = describe_advice(make_swaps(together=(np.nan, np.nan)))
    assert "the test does not confirm it" in no_number


def test_a_loss_is_told_as_it_is():
    swaps = make_swaps(noise=(0.004, 0.006, 0.001, 0.004, 0.004))
    exact = {"loss": 2.5}
    together = {"loss": Difference(-0.0012, 0.0034, has_changed=True)}
    text = describe_advice(
        swaps._replace(
            metric="loss",
            table=swaps.table.assign(metric="loss"),
            advice=swaps.advice._replace(exact=exact, together=together),
        )
    )
    assert "each loses at most 0.005 of loss on validation" in text
    assert "the loss from 2.5000 by -0.0012 ± 0.0034" in text
    assert "cannot tell 0.005** of layer 1" in text
    assert "± 0.0060 at worst, with 16 landmarks" in text


@pytest.mark.parametrize(
    ("noise", "layers", "worst", "remedy"),
    [
        # Layer 2 is kept, layer 1 exchanged.
        (
            (0.004, 0.004, 0.001, 0.01, 0.004),
            "layer 2",
            "1.00 at worst, with 64",
            MORE % ("2,000", 2000),
        ),
        (
            (0.004, 0.02, 0.001, 0.004, 0.004),
            "layer 1",
            "2.00 at worst, with 16",
            MORE % ("8,000", 8000),
        ),
        (
            (0.004, 0.03, 0.001, 0.0111, 0.004),
            "layers 1 and 2",
            "3.00 at worst, with 16",
            MUCH_MORE,
        ),
        # 502 examples, and not the 500 that were measured.
        (
            (0.004, 0.00501, 0.001, 0.004, 0.004),
            "layer 1",
            "0.50 at worst, with 16",
            MORE % (510, 510),
        ),
    ],
)
def test_examples_that_cannot_tell_half_a_point_are_named_once(
    noise, layers, worst, remedy
):
    text = describe_advice(make_swaps(noise=noise))
    assert text.count("**500 examples cannot tell half a point** of") == 1
    known = f"of {layers}: alone the loss is known to ± {worst} landmarks. {remedy}"
    assert known in text


def test_no_more_examples_are_named_than_there_are():
    """1,005 are needed, which is 1,100 with two digits."""
    noise = (0.004, 0.0070887, 0.001, 0.004, 0.004)
    text = describe_advice(make_swaps(noise=noise, num_validation=1_050))
    assert "About 1,050 would" in text
    text = describe_advice(make_swaps(noise=noise, num_validation=1_004))
    assert "It would take about 1,100, and validation has 1,004." in text


@pytest.mark.parametrize(
    ("num_validation", "is_enough"), [(2_000, True), (1_999, False)]
)
def test_more_examples_are_named_if_validation_has_them(num_validation, is_enough):
    noise = (0.004, 0.004, 0.001, 0.01, 0.004)
    text = describe_advice(make_swaps(noise=noise, num_validation=num_validation))
    assert ("About 2,000 would" in text) == is_enough


def test_what_chance_may_have_decided_is_said_so():
    """Layer 1 loses nothing and layer 2 one point, known to ± 0.1, 0.6 or 2 points."""
    sure = describe_advice(make_swaps())
    assert "**layer 2** can not" in sure
    assert "can be exchanged" in sure
    assert "Undecided" not in sure
    unsure = describe_advice(make_swaps(noise=(0.004, 0.02, 0.001, 0.006, 0.004)))
    assert "can not" not in unsure
    assert unsure.startswith("**500 examples cannot tell half a point** of layer")
    assert "may be exchangeable: alone" in unsure
    undecided = (
        "Undecided: **layer 2**. With 64 landmarks the loss is over half a point"
    )
    assert f"{undecided}, but by no more than its noise." in unsure


@pytest.mark.parametrize(
    ("noise_of_layer", "k_means", "is_named"),
    [
        (0.001, (-0.044, 0.003), True),  # kept
        (0.006, (-0.044, 0.003), True),  # undecided
        (0.001, (-0.046, 0.003), False),  # The noise of both is half a point.
    ],
)
def test_a_kind_that_did_better_in_all_layers_is_named_for_those_not_exchanged(
    noise_of_layer, k_means, is_named
):
    noise = (0.004, 0.004, 0.001, noise_of_layer, 0.004)
    swaps = make_swaps(noise=noise, k_means=k_means)
    hint = (
        "with all layers exchanged for 64 landmarks the accuracy changes by -4.40 ± "
        "0.30 with k-means, and by -5.00 ± 0.40 with segment means. Layers alone were "
        "not measured with k-means. This takes it in layer 2:\n\n"
        '    --config.attention.by_layer="2=nystrom 2.num_landmarks=64 '
        '2.conv_kernel_size=0 2.landmarks=kmeans"\n'
    )
    assert (hint in describe_advice(swaps)) == is_named
    assert ("k-means" in describe_advice(swaps)) == is_named
    exchanged = swaps.advice._replace(landmarks=(64, 16, 64, 64))
    assert "k-means" not in describe_advice(swaps._replace(advice=exchanged))


def test_where_no_example_has_changed_the_noise_falls_with_their_number():
    """3 / 500 is 0.6 points, and 3 / 600 half a point; by the root it were 720."""
    swaps = make_swaps(noise=(0.004, 0.006, 0.001, 0.004, 0.004))
    assert "About 720 would, by --swap_examples=720." in describe_advice(swaps)
    swaps = swaps._replace(table=swaps.table.assign(has_changed=False))
    text = describe_advice(swaps)
    assert "of layer 1: alone the loss is known to ± 0.60" in text
    assert "About 600 would, by --swap_examples=600." in text


def test_landmarks_that_save_nothing_are_not_advised():
    swaps = make_swaps(num_tokens=128)
    swaps = swaps._replace(advice=swaps.advice._replace(landmarks=(EXACT, 16) * 2))
    most = "16 landmarks, the most below half of the 128 tokens,"
    assert f"**layer 2** can not: {most} are not enough, keep" in describe_advice(swaps)
    # Of 64 landmarks another kind would not be better.
    table = swaps.table.copy()
    is_16 = (table["num_landmarks"] == 16) & (table["kind"] == "k-means")
    table.loc[is_16, "difference"] = -0.02
    text = describe_advice(swaps._replace(table=table))
    assert "exchanged for 16 landmarks the accuracy changes by -2.00 ± 0.30" in text
    nothing = swaps._replace(advice=swaps.advice._replace(landmarks=(EXACT,) * 4))
    assert describe_advice(nothing._replace(num_tokens=32)) == (
        "**Keep exact attention**: 16 landmarks are half of the 32 tokens of the "
        "longest sequence, or more, and save nothing.\n"
    )


def test_more_examples_are_advised_where_validation_has_more():
    together = (-0.05, 0.0339)
    by_examples = "A choice on more examples, by --swap_examples, is surer.\n"
    assert by_examples in describe_advice(make_swaps(together, num_validation=501))
    text = describe_advice(make_swaps(together, num_validation=500))
    assert "--swap_examples" not in text
    assert "1.00. Keep exact attention.\n" in text
    swaps = make_swaps(together)
    fewer = swaps.advice._replace(landmarks=(EXACT, 16, EXACT, EXACT))
    more = "Keep exact attention. More landmarks, up to 64, may lose less."
    assert more in describe_advice(swaps._replace(advice=fewer))


def words_of_command(command, folder="my runs/a"):
    """The words before the setting of each layer."""
    swaps = make_swaps(run=make_run(command, folder))
    words = shlex.split(train_on_command(swaps))
    assert words.pop().startswith("--config.attention.by_layer=0=nystrom 0.num_land")
    return words


@pytest.mark.parametrize(
    "command",
    [
        "python scripts/train.py --config=configs/text.py --workdir 'old/a/' --x=1",
        "python scripts/train.py --workdir=old/a --config=configs/text.py --x=1",
    ],
)
def test_the_command_that_trains_on_is_that_of_the_run_from_where_it_lies(command):
    assert words_of_command(command) == [
        *("python", "scripts/train.py", "--config=configs/text.py", "--x=1"),
        *("--workdir=my runs/a-nystrom", "--config.train.init_from=my runs/a"),
    ]


def test_of_seeds_that_were_trained_together_one_is_trained_on():
    command = "python scripts/train.py --config=x.py --seeds=3,4 --workdir=a/s{seed}"
    assert words_of_command(command, "a/s3") == [
        *("python", "scripts/train.py", "--config=x.py", "--config.train.seed=3"),
        *("--workdir=a/s3-nystrom", "--config.train.init_from=a/s3"),
    ]


@pytest.mark.parametrize("command", [None, "python scripts/sweep.py --tasks=text"])
def test_of_an_unknown_command_the_reader_fills_in_the_config(command):
    assert words_of_command(command, "a") == [
        *("python", "scripts/train.py", "--config=CONFIG_OF_THIS_RUN"),
        *("--workdir=a-nystrom", "--config.train.init_from=a"),
    ]


def test_a_clear_loss_needs_no_more_examples():
    swaps = make_swaps()
    table = swaps.table.assign(noise=0.006)
    table.loc[:4, "difference"] = [0.02, 0.02, -0.3, -0.3, 0.02]
    assert "cannot tell" not in describe_advice(swaps._replace(table=table))
