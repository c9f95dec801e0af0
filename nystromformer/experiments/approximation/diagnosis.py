"""Which heads of a model can be approximated, with how many landmarks, and why not.

diagnosis = nystromformer.diagnose(query, key, value, mask)
print(diagnosis.advice)
diagnosis.write("diagnosis")
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from nystromformer.experiments import markdown
from nystromformer.experiments.approximation import causes, columns
from nystromformer.experiments.approximation.measurements import (
    NUM_PINV_ITERS,
    saves_time,
)
from nystromformer.experiments.plotting import new_figure, save_figure
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.validation import check_range

Arrays = Any  # numpy or jax, of one layer, or a sequence of them, one for each layer
SMALL_ERROR = 0.1  # A relative error up to this is small enough.
DEFAULT_LANDMARKS = (8, 16, 32, 64)
# A letter in the figure for what limits a head.
MARKS = {
    columns.NOTHING: "",
    columns.RANK: "R",
    columns.LANDMARKS: "L",
    columns.INVERSE: "I",
    columns.UNDEFINED: "?",
}
# What Nyström attention may have beside segment means and iterations, and its options.
ALTERNATIVES = {
    columns.K_MEANS: 'landmarks="kmeans"',
    columns.RANDOM_LANDMARKS: 'landmarks="random" (in the draws that were tried)',
    columns.EXACT_INVERSE: 'pinv="exact" or enough num_pinv_iters',
}
WORDS_OF_LIMITS = {
    columns.RANK: "the rank limits",
    columns.LANDMARKS: "the landmarks limit",
    columns.INVERSE: "the inverse limits",
}
# By the errors of these methods a head is judged.
JUDGED = (columns.BEST_RANK, columns.BEST_MIDDLE, columns.NYSTROM)
CELL = 0.55  # inches
FONT = 7  # points


class Diagnosis(NamedTuple):
    """What `diagnose` found.

    table: a row for each layer, head and number of landmarks. Its columns are the
      median error of each method; `inverse_error` and `inverse_residual` of the
      iterated inverse; for random methods the largest error of the draws over the
      smallest, such as "performer, spread"; and `limited_by`, which follows from the
      medians. This is empty where Nyström attention is within the tolerance. Where it
      is not, this is "rank" if the matrix of rank M nearest to S is not either,
      "landmarks" if F X B nearest to S is not, and otherwise "inverse". It is
      "undefined" where an error is not a number, as where SV is zero, so that there is
      no relative error.
    advice: how many landmarks each layer needs in the worst example, in words. What
      limits a head there may be another thing than in the table.
    errors: the error of each method in each example and draw.
    figure: the error of Nyström attention by layer and head, a panel for each number of
      landmarks, with the first letter of what limits it.
    """

    table: pd.DataFrame
    advice: str
    errors: pd.DataFrame
    figure: Figure

    def write(self, folder: str | Path) -> None:
        """Writes a page README.md with the advice, the figure and the table.

        Args:
          folder: is made if it does not exist; files of these names are overwritten.
        """
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        save_figure(self.figure, out / "errors")
        self.table.to_csv(out / "errors.csv", float_format="%.6g")
        methods = [*JUDGED, *ALTERNATIVES]
        header = [*columns.INDEX_COLUMNS, *methods, columns.LIMITED_BY]
        rows = []
        for row in self.table.reset_index().to_dict("records"):
            places = [f"{row[name]}" for name in columns.INDEX_COLUMNS]
            errors = [f"{row[method]:.2g}" for method in methods]
            rows.append([*places, *errors, row[columns.LIMITED_BY]])
        lines = [
            "# Which layers can have Nyström attention",
            "",
            self.advice,
            "",
            "![Errors of Nyström attention by layer and head](errors.png)",
            "",
            "‖ŜV − SV‖ / ‖SV‖, medians over examples. R, L and I name what limits a "
            "head by these medians: the rank, the landmarks or the inverse. The advice "
            "is by the worst example, and may name another limit, or one where the "
            "medians have none. errors.csv has all methods.",
            "",
            *markdown.make_table(header, rows),
        ]
        (out / "README.md").write_text("\n".join(lines) + "\n", "utf-8")


def diagnose(
    query: Arrays,
    key: Arrays,
    value: Arrays,
    mask: Arrays = None,
    *,
    num_landmarks: int | Sequence[int] | None = None,
    num_pinv_iters: int = NUM_PINV_ITERS,
    num_draws: int = 4,
    tolerance: float = SMALL_ERROR,
) -> Diagnosis:
    """Measures how well Nyström attention replaces softmax attention in given heads.

    All errors are ‖ŜV − SV‖ / ‖SV‖ in float64 over the valid tokens, with
    S = softmax(Q Kᵀ / √H). An example needs several matrices [L, L] for each head.

    Args:
      query, key, value: [L, N, H] or [B, L, N, H] of any model's self-attention, not
        scaled by 1/√H; or sequences of such arrays, one for each layer.
      mask: bool, True = a token, False = padding; the same in all layers. [L] beside
        arrays [L, N, H], [B, L] beside arrays [B, L, N, H]; None = all tokens.
      num_landmarks: the number M to try, or several; None takes 8, 16, 32 and 64, as
        far as they are below the longest example. Examples of no more than M tokens are
        exact with M landmarks and left out.
      num_pinv_iters: iterations of the inverse.
      num_draws: draws of random landmarks, sampled tokens and Performer's features.
      tolerance: the error that is small enough for `limited_by`.

    Returns:
      A `Diagnosis`: a table of errors and causes, advice for each layer, the errors
      behind it, and a figure.

    Raises:
      ValueError: if the shapes do not fit, no token is valid or the heads are more, one
        has a NaN or an infinity, a number M is below 1 or no example longer than it, or
        no head has an error.
    """
    layers = _make_layers(query, key, value, mask)
    longest = max(int(inputs.mask.sum(1).max()) for inputs in layers)
    if longest == 0:
        raise ValueError("mask must have a token, which is True, got none")
    landmark_counts = _choose_landmark_counts(num_landmarks, longest)
    check_range("num_draws", num_draws, 1)

    with jax.enable_x64(True):
        errors = causes.measure_causes(
            layers,
            landmark_counts,
            num_pinv_iters=num_pinv_iters,
            num_draws=num_draws,
        )
    table = summarize(errors, tolerance)
    if set(table[columns.LIMITED_BY]) == {columns.UNDEFINED}:
        raise ValueError(
            "no head has an error to judge: SV, the output of exact attention, is zero "
            "or not finite in all; give queries, keys and values as a model has them"
        )
    return Diagnosis(
        table=table,
        advice=advise(errors, longest, tolerance),
        errors=errors,
        figure=draw_limits(table),
    )


def _choose_landmark_counts(
    num_landmarks: int | Sequence[int] | None, longest: int
) -> list[int]:
    """The numbers of landmarks to try, in ascending order, all below the longest."""
    if num_landmarks is None:
        counts = [count for count in DEFAULT_LANDMARKS if count < longest]
        if not counts:
            raise ValueError(
                f"the longest example has {longest} tokens, too few for "
                f"{DEFAULT_LANDMARKS[0]} landmarks: give a smaller num_landmarks"
            )
        return counts

    counts = np.unique(num_landmarks).tolist()
    if not counts or counts[0] < 1:
        raise ValueError(
            f"num_landmarks must be one or more numbers ≥ 1, got {num_landmarks}"
        )
    if counts[-1] >= longest:
        raise ValueError(
            f"num_landmarks={counts[-1]} is exact attention here, where the "
            f"longest example has {longest} tokens: give smaller numbers"
        )
    return counts


def _make_layers(
    query: Arrays, key: Arrays, value: Arrays, mask: Arrays
) -> list[AttentionInputs]:
    """The inputs of each layer as arrays [B, L, N, H]."""
    num_arrays = sum(hasattr(array, "shape") for array in (query, key, value))
    if num_arrays == 3:
        query = [query]
        key = [key]
        value = [value]
    elif num_arrays > 0:
        raise ValueError(
            "query, key and value must be three arrays or three lists of arrays, "
            f"got {num_arrays} arrays beside lists"
        )
    if not len(query) == len(key) == len(value) > 0:
        raise ValueError(
            "query, key and value must have one array for each layer, of at least one "
            f"layer, got {len(query)}, {len(key)} and {len(value)}"
        )

    layers = []
    for index, arrays in enumerate(zip(query, key, value, strict=True)):
        arrays = [np.asarray(array, np.float64) for array in arrays]
        shapes = [array.shape for array in arrays]
        if shapes[1:] != shapes[:-1] or arrays[0].ndim not in (3, 4):
            raise ValueError(
                "query, key and value must have one shape [L, N, H] or [B, L, N, H], "
                f"got {shapes} in layer {index}"
            )
        if arrays[0].ndim == 3:
            arrays = [array[None] for array in arrays]
        _, num_tokens, num_heads, _ = arrays[0].shape
        if num_heads > num_tokens:
            raise ValueError(
                f"query, key and value have {num_heads} heads and {num_tokens} tokens: "
                "bring them to the shape [L, N, H] or [B, L, N, H], heads behind tokens"
            )

        tokens = arrays[0].shape[:2]
        valid = np.ones(tokens, bool)
        if mask is not None:
            valid = np.atleast_2d(np.asarray(mask, bool))
            if valid.shape != tokens:
                raise ValueError(
                    f"mask must have a value for each token {tokens}, "
                    f"got {np.shape(mask)}"
                )
        for name, array in zip(("query", "key", "value"), arrays, strict=True):
            if not np.isfinite(array[valid]).all():
                raise ValueError(
                    f"{name} must be finite, got NaN or infinity in layer {index}: if "
                    "these are in the padding, give the mask"
                )
        layers.append(AttentionInputs(*arrays, mask=valid))
    return layers


def summarize(errors: pd.DataFrame, tolerance: float = SMALL_ERROR) -> pd.DataFrame:
    """Makes the table of a `Diagnosis`: medians over examples and draws."""
    table = _summarize_errors(errors, "median")
    inverse = errors[errors["method"] == columns.NYSTROM].groupby(columns.INDEX_COLUMNS)
    table = table.join(
        inverse[[columns.INVERSE_ERROR, columns.INVERSE_RESIDUAL]].median()
    )
    table = table.join(causes.spread_of_draws(errors))
    return table.assign(**{columns.LIMITED_BY: _find_limits(table, tolerance)})


def _summarize_errors(errors: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """A statistic over examples and draws: a row for each head, a column a method."""
    groups = errors.groupby([*columns.INDEX_COLUMNS, "method"])["error"]
    return groups.agg(statistic).unstack()[list(columns.METHODS)]


def _find_limits(table: pd.DataFrame, tolerance: float) -> np.ndarray:
    """What limits each row of a table of errors."""
    return np.select(
        [
            table[list(JUDGED)].isna().any(axis=1),
            table[columns.NYSTROM] <= tolerance,
            table[columns.BEST_RANK] > tolerance,
            table[columns.BEST_MIDDLE] > tolerance,
        ],
        [columns.UNDEFINED, columns.NOTHING, columns.RANK, columns.LANDMARKS],
        default=columns.INVERSE,
    )


def advise(
    errors: pd.DataFrame, num_tokens: int, tolerance: float = SMALL_ERROR
) -> str:
    """Says which layers can have Nyström attention, and with how many landmarks.

    A layer can where no head has an error over the tolerance in any example and draw,
    with segment means or with one of ALTERNATIVES. As many landmarks as half of the
    tokens, or more, save nothing and do not count.

    Args:
      errors: the errors of a `Diagnosis`.
      num_tokens: the number of tokens of the longest example.
      tolerance: the error that is small enough.
    """
    worst = _summarize_errors(errors, "max")
    worst = worst.assign(**{columns.LIMITED_BY: _find_limits(worst, tolerance)})
    layers_of_answer: dict[str, list[int]] = {}
    for layer, rows in worst.groupby("layer"):
        answer = _advise_layer(rows.loc[layer], num_tokens, tolerance)
        layers_of_answer.setdefault(answer, []).append(layer)
    lines = []
    for answer, layers in layers_of_answer.items():
        name = name_layers(layers)
        lines.append(f"{name[0].upper()}{name[1:]}: {answer}")
    return "\n".join(lines)


def _advise_layer(rows: pd.DataFrame, num_tokens: int, tolerance: float) -> str:
    """The advice for a layer, from the rows of its heads and numbers of landmarks.

    Heads without an error, as those whose values are zero, are named and decide
    nothing.
    """
    limits = rows[columns.LIMITED_BY].unstack("head")
    limits = limits[[saves_time(count, num_tokens) for count in limits.index]]
    if limits.empty:
        return (
            f"all these numbers of landmarks are half of the {num_tokens} tokens or "
            "more, and save nothing: try fewer, or keep exact attention."
        )
    is_judged = (limits != columns.UNDEFINED).all()
    heads = limits.columns[is_judged]
    answers = []
    if len(heads):
        errors_of_method = {
            method: rows[method].unstack("head").loc[limits.index, heads]
            for method in (columns.NYSTROM, *ALTERNATIVES)
        }
        answer = _advise_heads(
            errors_of_method, limits[heads].iloc[-1], num_tokens, tolerance
        )
        answers.append(answer)
    others = limits.columns[~is_judged].tolist()
    if others:
        answers.append(f"There is no error to judge in {name_all('head', others)}.")
    return " ".join(answers)


def _advise_heads(
    errors_of_method: Mapping[str, pd.DataFrame],
    limits: pd.Series,
    num_tokens: int,
    tolerance: float,
) -> str:
    """The advice for the heads of a layer that can be judged.

    Args:
      errors_of_method: by method the errors, a row for each number of landmarks that
        saves time, in ascending order, and a column for each head.
      limits: what limits each head with the most landmarks.
      num_tokens, tolerance: as for `advise`.
    """
    fewest = {}
    for method, errors in errors_of_method.items():
        is_enough = (errors <= tolerance).all(axis=1)
        if is_enough.any():
            fewest[method] = int(is_enough.idxmax())
    if fewest:
        return (
            f"{_name_fewest(fewest)}: no head has an error over {tolerance:g} in any "
            "example."
        )

    most = errors_of_method[columns.NYSTROM].index.max()
    reasons = _describe_limits(limits)
    too_few = f"{most} landmarks are too few in some example ({reasons})"
    if not saves_time(most + 1, num_tokens):
        return f"{too_few}: keep exact attention."
    methods_to_try = [
        method
        for method, errors in errors_of_method.items()
        if _would_reach(errors, num_tokens, tolerance)
    ]
    if not methods_to_try:
        return (
            f"{too_few}. No number between {most} and half of the {num_tokens} tokens "
            "was tried, and the errors so far do not suggest that one is enough: give "
            "some of these as num_landmarks, or keep exact attention."
        )
    options = ALTERNATIVES.get(methods_to_try[0])
    with_options = f" with {options}" if options else ""
    return f"{too_few}: try more{with_options}, or keep exact attention."


def _name_fewest(fewest: Mapping[str, int]) -> str:
    """The fewest landmarks that are enough with segment means, or with something else.

    Beside segment means the alternative is named if it needs half as many, or fewer.

    Args:
      fewest: by method the fewest landmarks that are enough.
    """
    best = min(fewest, key=lambda method: fewest[method])
    if columns.NYSTROM not in fewest:
        return f"{fewest[best]} landmarks with {ALTERNATIVES[best]} are enough"
    words = f"{fewest[columns.NYSTROM]} landmarks are enough"
    if 2 * fewest[best] <= fewest[columns.NYSTROM]:
        words += f", or {fewest[best]} with {ALTERNATIVES[best]}"
    return words


def _describe_limits(limits: pd.Series) -> str:
    """Says what limits heads, as in "the rank limits heads 0 and 2"."""
    heads_of_limit: dict[str, list[int]] = {}
    for head, limit in limits.items():
        if limit != columns.NOTHING:
            heads_of_limit.setdefault(limit, []).append(head)
    return "; ".join(
        f"{WORDS_OF_LIMITS[limit]} {name_all('head', heads)}"
        for limit, heads in heads_of_limit.items()
    )


def _would_reach(errors: pd.DataFrame, num_tokens: int, tolerance: float) -> bool:
    """Whether all errors would reach the tolerance below half of the tokens.

    They are taken to fall on by the power of the number of landmarks by which they fell
    between the last two numbers. Of a single number nobody knows, and of numbers below
    an eighth of the tokens neither, since errors fall all at once when the landmarks
    reach the rank: they may.

    Args:
      errors: a row for each number of landmarks, in ascending order, and a column for
        each head.
      num_tokens, tolerance: as for `advise`.
    """
    most = errors.index[-1]
    if len(errors) == 1 or 8 * most < num_tokens:
        return True
    large = errors.loc[:, errors.loc[most] > tolerance]
    before = errors.index[-2]
    powers = np.log(large.loc[most] / large.loc[before]) / np.log(most / before)
    reached = large.loc[most] * (num_tokens / 2 / most) ** powers
    return bool((reached <= tolerance).all())


def name_layers(layers: Sequence[int]) -> str:
    """Returns layers as words: "layer 3", "layers 0, 1 and 2"."""
    return name_all("layer", layers)


def name_all(noun: str, numbers: Sequence[int]) -> str:
    """Returns numbered things as words: "head 3", "heads 0, 1 and 2"."""
    *first, last = map(str, numbers)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


def draw_limits(table: pd.DataFrame) -> Figure:
    """Draws the error of Nyström attention by layer and head."""
    panels = list(table.groupby("num_landmarks"))
    num_layers = table.index.unique("layer").size
    num_heads = table.index.unique("head").size
    figure = new_figure(columns=len(panels))
    figure.set_size_inches(
        len(panels) * (CELL * num_heads + 1) + 1, CELL * num_layers + 1.5
    )

    colors = LogNorm(0.01, 1, clip=True)
    image: Any = None
    for axes, (count, rows) in zip(figure.axes, panels, strict=True):
        heads = rows.droplevel("num_landmarks")
        image = axes.imshow(
            heads[columns.NYSTROM].unstack(), cmap="viridis_r", norm=colors
        )
        for (layer, head), row in heads.iterrows():
            error = row[columns.NYSTROM]
            is_dark = colors(error) > 0.5  # beyond the middle of the colours
            axes.annotate(
                f"{error:.2g}\n{MARKS[row[columns.LIMITED_BY]]}",
                (head, layer),
                ha="center",
                va="center",
                fontsize=FONT,
                color="white" if is_dark else "black",
            )
        axes.set(title=f"{count} landmarks", xlabel="head", ylabel="layer")
        axes.set_xticks(range(num_heads))
        axes.set_yticks(range(num_layers))
        axes.grid(visible=False)
    figure.colorbar(image, ax=figure.axes, label="‖ŜV − SV‖ / ‖SV‖", extend="both")
    return figure
