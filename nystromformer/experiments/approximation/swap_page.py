"""The words and tables on what a model loses where its exact attention is exchanged."""

from collections.abc import Sequence

import pandas as pd

from nystromformer.experiments import markdown
from nystromformer.experiments.approximation.diagnosis import name_layers
from nystromformer.experiments.approximation.swap import (
    ALL_LAYERS,
    BEST_LAYERS,
    EXACT,
    MAX_LOSS_ALONE,
    ONE_LAYER,
    Difference,
    Swaps,
)
from nystromformer.metrics import format_metric, is_rate

# The paragraphs of the advice. Each is one line, as it stands in a page.
EXCHANGED = """\
**{needs}** can be exchanged: each of these layers alone loses at most {max_loss} of \
validation. All of them together change the {metric} on {num_examples:,} examples of \
the test from {exact} by {difference}. As a setting of a run that trains on with it, \
by the command of this run, a new --workdir and --config.train.init_from=RUN:

    --config.attention.by_layer="{setting}"
"""
KEPT = """\
**{layers}** can not: {most} landmarks are not enough, keep exact attention.
"""
# Behind KEPT, where a loss of less would not have shown on so few examples.
UNSURE = """\
On {num_examples:,} examples this is within the noise, and fewer layers may have to be \
kept: measure more examples by --swap_examples.
"""
NOT_ABOVE_FLOOR = """\
**The model is not above its floor**, {floor}: it has learned little, and an exchange \
that costs nothing says nothing.
"""


def describe_swaps(swaps: Swaps) -> list[str]:
    """Returns the lines of a page: what each layer needs, and the tables behind it."""
    metric = swaps.metric
    counts = sorted(swaps.table["num_landmarks"].unique())
    numbers = [f"{count} landmarks" for count in counts]
    unit = "points" if is_rate(metric) else "as it is"
    exact = format_metric(metric, swaps.exact[metric])
    lines = [
        describe_advice(swaps),
        f"Differences of {metric} ({unit}) from the model as it was trained, which has "
        f"{exact} on these {swaps.num_examples:,} examples of validation; a minus is a "
        "loss. ± two standard errors over the examples, or 3 / n where none changed. "
        "Without further training, and without a convolution.\n",
        "**All layers exchanged**, by landmarks and inverse:\n",
        *markdown.make_table(["", *numbers], _rows_of_kinds(swaps, metric)),
    ]
    for rate in swaps.exact.keys() - {metric}:
        exact = format_metric(rate, swaps.exact[rate])
        lines.append(f"\n**All layers exchanged, {rate}** in points, from {exact}:\n")
        lines += markdown.make_table(["", *numbers], _rows_of_kinds(swaps, rate))
    return [
        *lines,
        "\n**One layer exchanged**, segment means with six iterations:\n",
        *markdown.make_table(["", *numbers], _rows_of_layers(swaps)),
        "\n**The layers that mind it least**, by their loss alone:\n",
        *markdown.make_table(
            ["layers exchanged", *numbers], _rows_of_best_layers(swaps)
        ),
        "",
    ]


def _rows_of_kinds(swaps: Swaps, metric: str) -> list[list[str]]:
    """A row for each kind of attention, in all layers."""
    by_kind = swaps.rows(ALL_LAYERS, metric).groupby("kind", sort=False)
    return [[kind, *_cells(metric, rows)] for kind, rows in by_kind]


def _rows_of_layers(swaps: Swaps) -> list[list[str]]:
    """A row for each layer that is exchanged alone."""
    by_layer = swaps.rows(ONE_LAYER).groupby("layers", sort=False)
    return [[f"layer {layer}", *_cells(swaps.metric, rows)] for layer, rows in by_layer]


def _rows_of_best_layers(swaps: Swaps) -> list[list[str]]:
    """A row for each number of layers, with the layers in each cell."""
    best = swaps.rows(BEST_LAYERS)
    table_rows = []
    for number, rows in best.groupby(best["layers"].str.split().str.len()):
        layers = rows.sort_values("num_landmarks")["layers"]
        cells = [
            f"{cell} (layers {layers_of_cell})"
            for cell, layers_of_cell in zip(
                _cells(swaps.metric, rows), layers, strict=True
            )
        ]
        table_rows.append([f"{number}", *cells])
    return table_rows


def _cells(metric: str, rows: pd.DataFrame) -> list[str]:
    """The differences of a row, by the number of landmarks."""
    return [
        format_with_noise(metric, Difference(row.difference, row.noise))
        for row in rows.sort_values("num_landmarks").itertuples()
    ]


def describe_advice(swaps: Swaps) -> str:
    """Returns in words how many landmarks each layer needs, and what that costs."""
    advice = swaps.advice
    layers_of_count: dict[int, list[int]] = {}
    for layer, count in enumerate(advice.landmarks):
        layers_of_count.setdefault(count, []).append(layer)
    kept = layers_of_count.pop(EXACT, [])

    paragraphs = []
    if layers_of_count:
        needs = [
            f"{name_layers(layers)} with {count} landmarks"
            for count, layers in sorted(layers_of_count.items())
        ]
        exchanged = EXCHANGED.format(
            needs="; ".join(needs),
            max_loss="half a point" if is_rate(swaps.metric) else MAX_LOSS_ALONE,
            metric=swaps.metric,
            num_examples=advice.num_examples,
            exact=format_metric(swaps.metric, advice.exact),
            difference=format_with_noise(swaps.metric, advice.together),
            setting=by_layer_setting(advice.landmarks),
        )
        paragraphs.append(exchanged)
    if kept:
        most = swaps.table["num_landmarks"].max()
        paragraphs.append(KEPT.format(layers=name_layers(kept), most=most))
        if _is_within_noise(swaps, kept):
            paragraphs.append(UNSURE.format(num_examples=swaps.num_examples))
    if advice.floor is not None and advice.exact <= advice.floor:
        floor = format_metric(swaps.metric, advice.floor)
        paragraphs.append(NOT_ABOVE_FLOOR.format(floor=floor))
    return "\n".join(paragraphs)


def _is_within_noise(swaps: Swaps, layers: Sequence[int]) -> bool:
    """Whether a layer's loss alone may be small enough, with the most landmarks."""
    alone = swaps.rows(ONE_LAYER)
    alone = alone[alone["num_landmarks"] == alone["num_landmarks"].max()]
    alone = alone[alone["layers"].isin([str(layer) for layer in layers])]
    return bool((alone["difference"] + alone["noise"] >= -MAX_LOSS_ALONE).any())


def by_layer_setting(landmarks: Sequence[int]) -> str:
    """Returns the value of `attention.by_layer` that gives layers these landmarks."""
    return " ".join(
        f"{layer}=nystrom {layer}.num_landmarks={count} {layer}.conv_kernel_size=0"
        for layer, count in enumerate(landmarks)
        if count != EXACT
    )


def format_with_noise(metric: str, difference: Difference) -> str:
    """Returns a difference with its noise, as in "-1.25 ± 0.40"; rates in points."""
    scale, digits = (100, 2) if is_rate(metric) else (1, 4)
    change = scale * difference.difference
    return f"{change:+.{digits}f} ± {scale * difference.noise:.{digits}f}"
