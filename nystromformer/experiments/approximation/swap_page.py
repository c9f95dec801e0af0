"""The words and tables on what a model loses where its exact attention is exchanged."""

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from nystromformer.experiments import markdown
from nystromformer.experiments.approximation.columns import SEGMENT_MEANS
from nystromformer.experiments.approximation.diagnosis import name_layers
from nystromformer.experiments.approximation.measurements import saves_time
from nystromformer.experiments.approximation.swap import (
    ALL_LAYERS,
    BEST_LAYERS,
    EXACT,
    MAX_LOSS_ALONE,
    ONE_LAYER,
    Difference,
    Swaps,
    known_kinds,
)
from nystromformer.metrics import format_metric, is_rate

# The paragraphs of the advice, as they stand in a page.
EXCHANGED = """\
**{needs}** {verdict}: alone, each loses at most {max_loss} of {metric} on validation. \
{together} This trains on with it, for as many steps as the run has (train.num_steps); \
the same without --config.attention.by_layer, in another --workdir, is its control:

    {command}
"""
# Of a run whose own command is not known, or began many runs, as a sweep's does.
TRAIN_COMMAND = "python scripts/train.py --config=CONFIG_OF_THIS_RUN"
# Instead of EXCHANGED, where the test says otherwise.
UNCONFIRMED = """\
**{needs}** seemed exchangeable, since alone each loses at most {max_loss} of {metric} \
on validation, and **the test does not confirm it**. {together} {what_to_do}
"""
KEEP_EXACT = "Keep exact attention."
MORE_LANDMARKS = "More landmarks, up to {most}, may lose less."
MORE_EXAMPLES = "A choice on more examples, by --swap_examples, is surer."
TOGETHER = """\
On {num_examples:,} examples of the test this changes {changes}.\
"""
KEPT = """\
**{layers}** can not: {most} landmarks{why_no_more} are not enough, keep exact \
attention.
"""
# Where more landmarks were measured, too.
WHY_NO_MORE = ", the most below half of the {num_tokens} tokens,"
# Where no other number was measured.
ALL_SAVE_NOTHING = """\
**Keep exact attention**: {least} landmarks are half of the {num_tokens} tokens of the \
longest sequence, or more, and save nothing.
"""
# Where examples are so few that chance may have decided on layers.
UNDECIDED = """\
Undecided: **{layers}**. With {most} landmarks{why_no_more} the loss is over \
{max_loss}, but by no more than its noise.
"""
# Where another kind than segment means did better.
BETTER_KIND = """\
Segment means are not the only choice: with all layers exchanged for {most} landmarks \
the {metric} changes by {better} with {kind}, and by {segment_means} with segment \
means. Layers alone were not measured with {kind}. This takes it in {layers}:

    --config.attention.by_layer="{setting}"
"""
UNSURE = """\
**{num_examples:,} examples cannot tell {max_loss}** of {layers}: alone the loss is \
known to ± {noise} at worst, with {num_landmarks} landmarks. {remedy}
"""
MORE_WOULD = "About {num_needed:,} would, by --swap_examples={num_needed}."
ALL_WOULD_NOT = """\
It would take about {num_needed:,}, and validation has {num_validation:,}.\
"""
NEAR_FLOOR = """\
**The model is within chance of its floor**, {floor} of the test: it has learned \
little, and an exchange that costs nothing says nothing.
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
        "loss. ± two standard errors over the examples, or 3 / n where hardly one "
        "changed. Without further training, and without a convolution.\n",
        "**All layers exchanged**, by landmarks and inverse:\n",
        *markdown.make_table(["", *numbers], _rows_of_kinds(swaps, metric)),
    ]
    other_rates = [rate for rate in swaps.exact if rate != metric]
    for rate in other_rates:
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
            f"{cell} ({name_layers(layers_of_cell.split())})"
            for cell, layers_of_cell in zip(
                _cells(swaps.metric, rows), layers, strict=True
            )
        ]
        table_rows.append([f"{number}", *cells])
    return table_rows


def _cells(metric: str, rows: pd.DataFrame) -> list[str]:
    """The differences of a row, by the number of landmarks."""
    return [
        format_with_noise(metric, row)
        for row in rows.sort_values("num_landmarks").itertuples()
    ]


def describe_advice(swaps: Swaps) -> str:
    """Returns in words how many landmarks each layer needs, and what that costs."""
    paragraphs = [
        _describe_floor(swaps),
        _describe_unsure(swaps),
        _describe_exchanged(swaps),
        _describe_kept(swaps),
    ]
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _describe_floor(swaps: Swaps) -> str:
    """The warning of a model that has learned little; empty for any other."""
    if swaps.advice.floor is None:
        return ""
    return NEAR_FLOOR.format(floor=format_metric(swaps.metric, swaps.advice.floor))


def _describe_exchanged(swaps: Swaps) -> str:
    """What the test says of the layers that can be exchanged; empty if none can."""
    advice = swaps.advice
    landmarks = enumerate(advice.landmarks)
    count_of_layer = {layer: count for layer, count in landmarks if count != EXACT}
    if not count_of_layer:
        return ""

    changes = [
        f"the {metric} from {format_metric(metric, advice.exact[metric])} by "
        f"{format_with_noise(metric, difference)}"
        for metric, difference in advice.together.items()
    ]
    together = TOGETHER.format(
        num_examples=advice.num_examples, changes=" and ".join(changes)
    )
    is_large_loss = _is_large_loss(advice.together[swaps.metric])
    paragraph = UNCONFIRMED if is_large_loss else EXCHANGED
    is_unsure = any(row.layer in count_of_layer for row in _unsure_rows(swaps))
    return paragraph.format(
        needs=_name_needs(count_of_layer),
        verdict="may be exchangeable" if is_unsure else "can be exchanged",
        max_loss=_max_loss(swaps),
        metric=swaps.metric,
        together=together,
        command=train_on_command(swaps),
        what_to_do=_what_to_do_instead(swaps),
    )


def _what_to_do_instead(swaps: Swaps) -> str:
    """What to do where the test does not confirm the advice."""
    sentences = [KEEP_EXACT]
    most = _most_that_save(swaps) or 0
    if max(swaps.advice.landmarks) < most:
        sentences.append(MORE_LANDMARKS.format(most=most))
    if swaps.num_examples < swaps.num_validation:
        sentences.append(MORE_EXAMPLES)
    return " ".join(sentences)


def _name_needs(count_of_layer: Mapping[int, int]) -> str:
    """Layers and their numbers of landmarks, in the order of the layers."""
    layers_of_count: dict[int, list[int]] = {}
    for layer, count in count_of_layer.items():
        layers_of_count.setdefault(count, []).append(layer)
    return "; ".join(
        f"{name_layers(layers)} with {count} landmarks"
        for count, layers in layers_of_count.items()
    )


def _describe_kept(swaps: Swaps) -> str:
    """The layers that keep exact attention, surely or not; empty if there are none."""
    most = _most_that_save(swaps)
    if most is None:
        least = swaps.table["num_landmarks"].min()
        return ALL_SAVE_NOTHING.format(least=least, num_tokens=swaps.num_tokens)
    rows = _rows_alone(swaps)
    kept = []
    undecided = []
    for row in rows[rows["num_landmarks"] == most].itertuples():
        if swaps.advice.landmarks[row.layer] == EXACT:
            is_undecided = row.difference + row.noise >= -MAX_LOSS_ALONE
            (undecided if is_undecided else kept).append(row.layer)

    why_no_more = ""
    if most < swaps.table["num_landmarks"].max():
        why_no_more = WHY_NO_MORE.format(num_tokens=swaps.num_tokens)
    paragraphs = [
        paragraph.format(
            layers=name_layers(layers),
            most=most,
            why_no_more=why_no_more,
            max_loss=_max_loss(swaps),
        )
        for paragraph, layers in ((KEPT, kept), (UNDECIDED, undecided))
        if layers
    ]
    better_kind = _describe_better_kind(swaps, most, sorted(kept + undecided))
    if better_kind:
        paragraphs.append(better_kind)
    return "\n".join(paragraphs)


def _describe_better_kind(swaps: Swaps, most: int, layers: Sequence[int]) -> str:
    """The kind to try in these layers, if one did better than segment means in all.

    Empty if there are no such layers, or no kind was better beyond the noise.
    """
    if not layers:
        return ""
    rows = swaps.rows(ALL_LAYERS)
    rows = rows[rows["num_landmarks"] == most].itertuples()
    row_of_kind: dict[str, Any] = {row.kind: row for row in rows}
    segment_means = row_of_kind[SEGMENT_MEANS]
    best = max(row_of_kind.values(), key=lambda row: row.difference)
    # The noise of both, as if they were measured on different examples.
    noise = math.hypot(best.noise, segment_means.noise)
    if best.difference - segment_means.difference <= noise:
        return ""
    landmarks = [most if layer in layers else EXACT for layer in range(max(layers) + 1)]
    return BETTER_KIND.format(
        most=most,
        metric=swaps.metric,
        kind=best.kind,
        better=format_with_noise(swaps.metric, best),
        segment_means=format_with_noise(swaps.metric, segment_means),
        layers=name_layers(layers),
        setting=by_layer_setting(landmarks, known_kinds()[best.kind]),
    )


def _most_that_save(swaps: Swaps) -> int | None:
    """The largest number of landmarks that was measured and saves time, if any."""
    counts = swaps.table["num_landmarks"].unique()
    saving = [int(count) for count in counts if saves_time(count, swaps.num_tokens)]
    return max(saving, default=None)


def _describe_unsure(swaps: Swaps) -> str:
    """The layers for which chance may have decided; empty if there are none."""
    rows = _unsure_rows(swaps)
    if not rows:
        return ""
    num_needed = _num_examples_needed(swaps, rows)
    remedy = MORE_WOULD if num_needed <= swaps.num_validation else ALL_WOULD_NOT
    layers = [row.layer for row in rows]
    worst = max(rows, key=lambda row: row.noise)
    return UNSURE.format(
        num_examples=swaps.num_examples,
        max_loss=_max_loss(swaps),
        layers=name_layers(layers),
        noise=_format_noise(swaps.metric, worst.noise),
        num_landmarks=worst.num_landmarks,
        remedy=remedy.format(
            num_needed=num_needed, num_validation=swaps.num_validation
        ),
    )


def _max_loss(swaps: Swaps) -> str:
    """What a layer may lose alone, in words."""
    return "half a point" if is_rate(swaps.metric) else f"{MAX_LOSS_ALONE}"


def _is_large_loss(difference: Difference) -> bool:
    """Whether a loss is beyond its noise, and beyond what one layer may lose."""
    # Written so that what is not a number is not confirmed.
    return not difference.difference >= -max(difference.noise, MAX_LOSS_ALONE)


def _rows_alone(swaps: Swaps) -> pd.DataFrame:
    """The rows of layers that are exchanged alone, by the number of the layer."""
    rows = swaps.rows(ONE_LAYER)
    return rows.assign(layer=rows["layers"].astype(int)).sort_values("layer")


def _unsure_rows(swaps: Swaps) -> list[Any]:
    """The row of each layer for which chance may have decided.

    Its noise alone is over MAX_LOSS_ALONE, and this lies within it. An exchanged layer
    is judged with the landmarks that were chosen for it, one that is kept with the
    most that save time.
    """
    most = _most_that_save(swaps)
    judged = {
        (layer, most if count == EXACT else count)
        for layer, count in enumerate(swaps.advice.landmarks)
    }
    return [
        row
        for row in _rows_alone(swaps).itertuples()
        if (row.layer, row.num_landmarks) in judged
        and row.noise > MAX_LOSS_ALONE
        and row.noise >= abs(row.difference + MAX_LOSS_ALONE)
    ]


def _num_examples_needed(swaps: Swaps, rows: Sequence[Any]) -> int:
    """How many examples would make the noise of all rows MAX_LOSS_ALONE, two digits.

    It falls with the root of their number, and where none has changed, as 3 / n.
    """
    num_needed = max(
        swaps.num_examples
        * (row.noise / MAX_LOSS_ALONE) ** (2 if row.has_changed else 1)
        for row in rows
    )
    # Rounded up, but for the last bits of the powers, and not beyond what there is.
    unit = 10 ** max(0, math.floor(math.log10(num_needed)) - 1)
    rounded = unit * math.ceil(round(num_needed / unit, 6))
    if num_needed <= swaps.num_validation:
        return min(rounded, swaps.num_validation)
    return rounded


def train_on_command(swaps: Swaps) -> str:
    """Returns the command that trains a run on with the landmarks of the advice.

    It is that of the run. Of a run whose command is not known, or began many runs as a
    sweep does, the reader fills in the config.
    """
    result = swaps.run.result or {}
    words = shlex.split(result.get("command", ""))
    if "scripts/train.py" not in words:
        words = shlex.split(TRAIN_COMMAND)
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--workdir")
    parser.add_argument("--seeds")
    flags, words = parser.parse_known_args(words)
    if flags.seeds:  # This run is one of several.
        words.append(f"--config.train.seed={swaps.run.config.train.seed}")
    workdir = swaps.run.folder or "FOLDER_OF_THIS_RUN"
    words += [f"--workdir={workdir}-nystrom", f"--config.train.init_from={workdir}"]
    setting = by_layer_setting(swaps.advice.landmarks)
    return f'{shlex.join(words)} --config.attention.by_layer="{setting}"'


def by_layer_setting(
    landmarks: Sequence[int], options: Mapping[str, Any] | None = None
) -> str:
    """Returns the value of `attention.by_layer` that gives layers these landmarks.

    Args:
      landmarks: their number in each layer, or EXACT.
      options: further options of nystrom, in each layer that has landmarks.
    """
    words = []
    for layer, count in enumerate(landmarks):
        if count == EXACT:
            continue
        words.append(f"{layer}=nystrom")
        all_options = {"num_landmarks": count, "conv_kernel_size": 0, **(options or {})}
        words += [f"{layer}.{name}={value}" for name, value in all_options.items()]
    return " ".join(words)


def format_with_noise(metric: str, difference: Any) -> str:
    """Returns a difference with its noise, as in "-1.25 ± 0.40"; rates in points.

    Args:
      metric: of what it is the difference.
      difference: a `Difference`, or a row of `Swaps.table`, which has its fields.
    """
    scale, digits = (100, 2) if is_rate(metric) else (1, 4)
    change = scale * difference.difference
    noise = _format_noise(metric, difference.noise)
    return f"{change:+.{digits}f} ± {noise}"


def _format_noise(metric: str, noise: float) -> str:
    """The noise in the unit of the differences: rates in points."""
    return f"{100 * noise:.2f}" if is_rate(metric) else f"{noise:.4f}"
