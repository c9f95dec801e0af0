"""Measures the approximation inside a trained model, see `study_page` for its page."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from tqdm import tqdm

from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.approximation import (
    causes,
    columns,
    diagnosis,
    measurements,
    swap,
    swap_page,
)
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.landmarks import LANDMARKS

BASELINES = ("linformer", "performer")  # with as many rows or features as landmarks
ITERATIONS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
NUM_DRAWS = 8  # of random landmarks and of features


class Study(NamedTuple):
    """What was measured inside a model.

    run: the model.
    layers: the inputs of each layer's attention.
    counts: the numbers of landmarks that were measured, in ascending order.
    tables: the rows of all measurements, by the names of their CSV files.
    summary: the table of causes, as `diagnosis.summarize` makes it.
    swaps: what the model loses without exact attention, if that was measured.
    """

    run: TrainedRun
    layers: Sequence[AttentionInputs]
    counts: Sequence[int]
    tables: dict[str, pd.DataFrame]
    summary: pd.DataFrame
    swaps: swap.Swaps | None = None


def record_longest(
    run: TrainedRun, num_examples: int, data_dir: str | None
) -> list[AttentionInputs]:
    """Records the inputs of each layer's attention for the longest of validation.

    Of pairs, those whose shorter sequence is the longest; both sequences of each.

    Args:
      run: the model.
      num_examples: how many examples are recorded.
      data_dir: the folder of the data; None is that of the run.
    """
    split = run.task.load("validation", data_dir or run.config.task.data_dir)
    rows = split.pairs
    if rows is None:
        rows = np.arange(len(split.labels))[:, None]
    longest_first = np.argsort(-split.lengths[rows].min(1), kind="stable")
    chosen_rows = rows[longest_first[:num_examples]].ravel()
    return run.layers(split.inputs[chosen_rows], split.lengths[chosen_rows])


def own_landmarks(config: Config) -> int:
    """Returns a run's number of landmarks: of several the largest, 0 if it has none."""
    return max(options.get("num_landmarks", 0) for _, options in config.attentions())


def choose_landmark_counts(
    landmarks: Sequence[int] | None, run_landmarks: int, max_length: int
) -> list[int]:
    """Returns the numbers of landmarks to measure, in ascending order.

    Args:
      landmarks: those that the user has named; None takes 4, 8, …, 512 and the run's
        number, as far as they are below `max_length`.
      run_landmarks: the run's number of landmarks; 0 if it has none.
      max_length: the number of tokens of the longest sequence.

    Raises:
      ConfigError: if there are as many landmarks as tokens, or the sequences are too
        short for the default numbers.
    """
    if landmarks:
        counts = sorted(set(landmarks))
    else:
        candidates = {2**k for k in range(2, 10)} | {run_landmarks}
        counts = sorted(count for count in candidates if 0 < count < max_length)
    if not counts:
        raise ConfigError(
            f"the longest sequence has {max_length} tokens, too few for 4 landmarks; "
            "take a run with longer sequences, or give smaller --landmarks"
        )
    if counts[-1] >= max_length:
        raise ConfigError(
            f"--landmarks={counts[-1]} is exact attention here: the longest sequence "
            f"has {max_length} tokens; give smaller numbers"
        )
    return counts


def check_choices(counts: Sequence[int], num_tokens: int) -> None:
    """Checks that each choice of landmarks can have these numbers, as one of --load.

    Args:
      counts: the numbers of landmarks.
      num_tokens: the number of tokens of a sequence, with its padding.

    Raises:
      ConfigError: with the error of the choice that cannot.
    """
    for name, label in columns.landmark_choices().items():
        for count in counts:
            try:
                _trace_choice(name, count, num_tokens)
            except ValueError as error:
                raise ConfigError(
                    f"{label}: {error}; give other numbers by --landmarks"
                ) from error


def _trace_choice(name: str, count: int, num_tokens: int) -> None:
    """Traces a choice of landmarks, which computes nothing."""
    tokens = jax.ShapeDtypeStruct((num_tokens, 1), jnp.float32)
    jax.eval_shape(lambda x: LANDMARKS[name](x, count, None, 0), tokens)


def measure_study(
    run: TrainedRun,
    layers: Sequence[AttentionInputs],
    counts: Sequence[int],
    *,
    swap_examples: int,
    data_dir: str | None,
) -> Study:
    """Measures the attention of all layers.

    Args:
      run: the model.
      layers: the inputs of each layer's attention.
      counts: numbers of landmarks, in ascending order.
      swap_examples: how many examples measure what the model loses where its exact
        attention is exchanged; 0 = this is not measured. Nor is it where a layer has
        another attention.
      data_dir: the folder of the data; None is that of the run.
    """
    swaps = None
    if swap_examples and swap.has_exact_attention(run):
        swaps = swap.measure_swaps(run, counts, swap_examples, data_dir)
        print(swap_page.describe_advice(swaps), flush=True)  # The rest takes long.
    with jax.enable_x64(True):
        tables = measure_all(layers, counts)
    if swaps is not None:
        tables["swaps"] = swaps.table
    summary = diagnosis.summarize(tables["causes"])
    return Study(run, layers, counts, tables, summary, swaps)


def measure_all(
    layers: Sequence[AttentionInputs], counts: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """Measures errors by landmarks, iterations and causes, and the spectra of S.

    Args:
      layers: the inputs of each layer's attention.
      counts: numbers of landmarks.
    """
    grids = {
        "landmarks": _landmark_settings(counts),
        "iterations": _iteration_settings(counts),
    }
    tables = {}
    for name, grid in grids.items():
        print(f"measuring {name}: {len(grid)} settings…", flush=True)
        progress = tqdm(grid, disable=None)
        tables[name] = measurements.measure_errors(layers, progress)
    print("measuring causes…", flush=True)
    tables["causes"] = causes.measure_causes(layers, counts, num_draws=NUM_DRAWS)
    print("measuring spectra…", flush=True)
    tables["spectrum"] = measurements.measure_spectra(layers)
    return tables


def _landmark_settings(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Each choice of landmarks, no inverse, and the baselines, by their size."""
    settings: list[dict[str, Any]] = []
    for count in counts:
        for name, label in columns.landmark_choices().items():
            for seed in range(NUM_DRAWS if name == "random" else 1):
                settings.append(
                    {
                        "method": label,
                        "num_landmarks": count,
                        "landmarks": name,
                        "landmark_seed": seed,
                    }
                )
        settings.append(
            {
                "method": columns.DOUBLE_SOFTMAX,
                "num_landmarks": count,
                "pinv": "identity",
            }
        )
        for name in BASELINES:
            for seed in range(NUM_DRAWS):
                settings.append(
                    {
                        "method": name,
                        "num_landmarks": count,
                        "attention": name,
                        "seed": seed,
                    }
                )
    return settings


def _iteration_settings(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Each number of iterations, and LAPACK's inverse, by the number of landmarks."""
    settings: list[dict[str, Any]] = []
    for count in counts:
        size = {"method": f"{count} landmarks", "num_landmarks": count}
        settings.extend({**size, "num_pinv_iters": n} for n in ITERATIONS)
        settings.append({**size, "pinv": "exact"})
    return settings
