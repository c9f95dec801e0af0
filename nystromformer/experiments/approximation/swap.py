"""What a model loses where exact attention is exchanged for Nyström attention.

The model was trained with exact attention, and is measured without further training:
all of its layers exchanged, each layer alone, and the layers that mind it least
together. From these follow how many landmarks each layer needs.

Letters: B examples, M landmarks.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from tqdm import tqdm

from lra_tasks.split import Split
from nystromformer.attention import make_attention
from nystromformer.experiments.approximation.columns import (
    SEGMENT_MEANS,
    landmark_choices,
)
from nystromformer.experiments.approximation.measurements import saves_time
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.metrics import is_rate
from nystromformer.training.data import Batch, DeviceRows, HostSplit
from nystromformer.training.objective import Sums

MEASURED_AT_ONCE = 8  # examples

# The kinds of Nyström attention that are exchanged for exact attention.
KINDS: dict[str, dict[str, Any]] = {
    SEGMENT_MEANS: {},
    "segment means, exact inverse": {"pinv": "exact"},
    "random tokens": {"landmarks": "random"},
    "k-means": {"landmarks": "kmeans"},
}
# What a layer may lose alone: half a point of accuracy, or this much of a loss.
MAX_LOSS_ALONE = 0.005
# The groups of measurements.
ALL_LAYERS = "all layers"
ONE_LAYER = "one layer"
BEST_LAYERS = "best layers"
EXACT = 0  # instead of a number of landmarks


def known_kinds() -> dict[str, dict[str, Any]]:
    """Returns KINDS, and one for each choice of landmarks that was registered since."""
    own = {"segment_means", *(kind.get("landmarks") for kind in KINDS.values())}
    registered = {
        label: {"landmarks": name}
        for name, label in landmark_choices().items()
        if name not in own
    }
    return KINDS | registered


class Difference(NamedTuple):
    """How far a metric is from that of the model as it was trained.

    difference: a change for the worse is negative, also of a loss.
    noise: two standard errors of the difference, over the examples; at least 3 / n if
      fewer than three of n examples have changed.
    has_changed: whether more than two have.
    """

    difference: float
    noise: float
    has_changed: bool


class Advice(NamedTuple):
    """The landmarks that each layer needs, and what the model loses by them.

    landmarks: for each layer a number; EXACT where no measured number is enough.
    num_examples: the number of examples of the test that were measured.
    exact: the metric that selects, and each other rate, of the model as it was trained,
      on these examples.
    together: their differences with all these numbers at once.
    floor: what a fixed rule reaches on the test, where the run is within chance of it.
    """

    landmarks: tuple[int, ...]
    num_examples: int
    exact: dict[str, float]
    together: dict[str, Difference]
    floor: float | None = None


class Swaps(NamedTuple):
    """All measurements of a run.

    metric: the metric that chose the run's best weights.
    exact: its value for the model as it was trained, and that of each other rate.
    num_examples: the number of examples that were measured.
    num_validation: the number of all examples of validation.
    num_tokens: the number of tokens of the longest of these.
    table: a row for each measurement: `group`; `metric`; `kind`; `num_landmarks`;
      `layers`, the numbers of the exchanged layers, such as "0 2"; and the parts of a
      `Difference`. Other rates are there with all layers exchanged.
    advice: how many landmarks each layer needs.
    run: the run.
    """

    metric: str
    exact: dict[str, float]
    num_examples: int
    num_validation: int
    num_tokens: int
    table: pd.DataFrame
    advice: Advice
    run: TrainedRun

    def rows(self, group: str, metric: str | None = None) -> pd.DataFrame:
        """Returns the rows of a group, and of `self.metric` or another one."""
        is_of_group = self.table["group"] == group
        return self.table[
            is_of_group & (self.table["metric"] == (metric or self.metric))
        ]


class ExampleSums(NamedTuple):
    """A metric's sum and weight of each example, float64 [B]."""

    sums: np.ndarray
    weights: np.ndarray

    def mean(self) -> float:
        """The metric over all examples."""
        return float(self.sums.sum() / self.weights.sum())

    def parts(self) -> np.ndarray:
        """What each example adds to the metric, to first order, about a mean of 0.

        The metric is a ratio of sums, so that this is the example's sum less the
        ratio's share of its weight.
        """
        return (self.sums - self.mean() * self.weights) / self.weights.mean()


class SwapMeter:
    """Measures a model with one kind of Nyström attention in some of its layers.

    One compiled program serves all numbers of landmarks and all choices of layers: each
    layer computes the branch that it is told to.
    """

    def __init__(self, run: TrainedRun, counts: Sequence[int], kind: str):
        """Makes the program, not yet compiled.

        Args:
          run: a model with exact attention in all layers.
          counts: the numbers of landmarks that a layer can have.
          kind: a name in `known_kinds`.
        """
        model = run.config.model
        self._run = run
        self._branch_of_count = {EXACT: 0}
        self._branches = []
        for count in counts:
            self._branch_of_count[count] = len(self._branch_of_count)
            attention = make_attention(
                "nystrom",
                num_heads=model.num_heads,
                head_dim=model.model_dim // model.num_heads,
                max_length=run.task.max_length,
                rngs=nnx.Rngs(0),
                num_landmarks=count,
                conv_kernel_size=0,  # The model was not trained with a convolution.
                **known_kinds()[kind],
            )
            self._branches.append(attention)
        self._weights = jax.device_put(run.weights)
        self._program = jax.jit(self._sums_of_examples)

    def measure(
        self, examples: DeviceRows, landmarks: Sequence[int]
    ) -> dict[str, ExampleSums]:
        """Returns the sums of every metric.

        Args:
          examples: the examples.
          landmarks: for each layer a number of landmarks, or EXACT.
        """
        branches = np.array([self._branch_of_count[count] for count in landmarks])
        num_examples = len(examples.labels)
        parts = []
        for start in range(0, num_examples, MEASURED_AT_ONCE):
            # The last batch repeats an example, so that all have the same shape.
            places = jnp.arange(start, start + MEASURED_AT_ONCE)
            places = places.clip(max=num_examples - 1)
            batch = examples.take(places, weights=jnp.ones(MEASURED_AT_ONCE))
            parts.append(self._program(self._weights, batch, branches))

        sums_of_metric = {}
        for metric in parts[0]:
            sums = np.concatenate([part[metric][0] for part in parts])[:num_examples]
            weights = np.concatenate([part[metric][1] for part in parts])[:num_examples]
            sums_of_metric[metric] = ExampleSums(
                sums.astype(np.float64), weights.astype(np.float64)
            )
        return sums_of_metric

    def _sums_of_examples(self, weights: Any, batch: Batch, branches: Any) -> Sums:
        """The sums of each example of a batch, [B]."""
        experiment = self._run.experiment

        def sums_of_example(example: Batch) -> Sums:
            model: Any = nnx.merge(experiment.graphdef, *weights)
            model.encoder.remat = "none"  # otherwise blocks would not see the branches
            for layer, block in enumerate(model.encoder.blocks):
                exact = block.attention.attention
                block.attention.attention = _choose_attention(
                    [exact, *self._branches], branches[layer]
                )
            batch_of_one = jax.tree.map(lambda array: array[None], example)
            return experiment.objective(model, batch_of_one, None)

        return jax.vmap(sums_of_example)(batch)


def _choose_attention(
    attentions: Sequence[Callable[..., jax.Array]], branch: jax.Array
) -> Callable[..., jax.Array]:
    """The attention of this number, which is known when the program runs."""

    def attend(
        query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Any, **more: Any
    ) -> jax.Array:
        branches = [
            functools.partial(_call, attention, more) for attention in attentions
        ]
        return jax.lax.switch(branch, branches, query, key, value, mask)

    return attend


def _call(
    attention: Any, more: Any, query: Any, key: Any, value: Any, mask: Any
) -> Any:
    return attention(query, key, value, mask=mask, **more)


def has_exact_attention(run: TrainedRun) -> bool:
    """Returns whether every layer of a run has exact attention."""
    return all(name == "softmax" for name, _ in run.config.attentions())


class SwapTable:
    """The table of `Swaps`, as it is measured row by row on the same examples.

    Attributes:
      rows: what `add` has measured.
      exact: the sums of every metric for the model as it was trained.
    """

    def __init__(
        self, run: TrainedRun, meters: Mapping[str, SwapMeter], examples: DeviceRows
    ):
        """Measures the model as it was trained.

        Args:
          run: a model with exact attention in all layers.
          meters: a meter for each kind.
          examples: the examples.
        """
        self.rows: list[dict[str, Any]] = []
        objective = run.experiment.objective
        self._select = objective.select
        self._higher_is_better = objective.higher_is_better
        self._num_layers = run.config.model.num_layers
        self._meters = meters
        self._examples = examples
        self._sums: dict[tuple[str, tuple[int, ...]], dict[str, ExampleSums]] = {}
        self.exact = self._measure(SEGMENT_MEANS, (EXACT,) * self._num_layers)

    def _measure(self, kind: str, landmarks: tuple[int, ...]) -> dict[str, ExampleSums]:
        """The sums of every metric, measured once for each kind and landmarks.

        One layer is also the best one, and the best of all are all.
        """
        if (kind, landmarks) not in self._sums:
            meter = self._meters[kind]
            self._sums[kind, landmarks] = meter.measure(self._examples, landmarks)
        return self._sums[kind, landmarks]

    def add(self, group: str, kind: str, count: int, layers: Sequence[int]) -> float:
        """Adds a row of the metric that selects, and returns the objective's loss.

        Args:
          group, kind: the values of these columns.
          count: the number of landmarks.
          layers: the layers that are exchanged.
        """
        landmarks = [EXACT] * self._num_layers
        for layer in layers:
            landmarks[layer] = count
        swapped = self._measure(kind, tuple(landmarks))
        metrics = [self._select]
        if group == ALL_LAYERS:
            metrics += _other_rates(self.exact, self._select)
        differences = _differences(metrics, swapped, self.exact, self._higher_is_better)
        for metric, difference in differences.items():
            self.rows.append(
                {
                    "group": group,
                    "metric": metric,
                    "kind": kind,
                    "num_landmarks": count,
                    "layers": " ".join(map(str, sorted(layers))),
                    **difference._asdict(),
                }
            )
        return swapped["loss"].mean()


def measure_swaps(
    run: TrainedRun,
    counts: Sequence[int],
    num_examples: int,
    data_dir: str | None = None,
) -> Swaps:
    """Exchanges the attention of a trained model.

    Numbers of landmarks are chosen on examples of validation. What they cost together
    is measured on examples of the test.

    Args:
      run: a model with exact attention in all layers.
      counts: the numbers of landmarks to try, in ascending order.
      num_examples: how many examples of a split are measured, drawn at random; fewer if
        it has fewer.
      data_dir: the folder of the data; None is that of the run.
    """
    metric = run.experiment.objective.select
    num_layers = run.config.model.num_layers
    kinds = known_kinds()
    meters = {kind: SwapMeter(run, counts, kind) for kind in kinds}
    validation = _load(run, "validation", data_dir)
    examples = _draw_examples(validation, num_examples)
    num_measurements = len(counts) * (len(kinds) + 2 * num_layers)
    if validation.num_examples < num_examples:
        print(
            f"validation has only {validation.num_examples:,} of the {num_examples:,} "
            "examples of --swap_examples"
        )
    print(
        f"exchanging the attention of layers: {num_measurements} measurements on "
        f"{len(examples.labels):,} examples…",
        flush=True,
    )
    table = SwapTable(run, meters, examples)

    with tqdm(total=num_measurements, disable=None) as progress:
        for kind, count in itertools.product(kinds, counts):
            table.add(ALL_LAYERS, kind, count, range(num_layers))
            progress.update()
        for count in counts:
            losses = []
            for layer in range(num_layers):
                losses.append(table.add(ONE_LAYER, SEGMENT_MEANS, count, [layer]))
                progress.update()
            best_first = np.argsort(losses, kind="stable").tolist()
            for number in range(1, num_layers + 1):
                table.add(BEST_LAYERS, SEGMENT_MEANS, count, best_first[:number])
                progress.update()

    frame = pd.DataFrame(table.rows)
    metrics = [metric, *_other_rates(table.exact, metric)]
    num_tokens = int(validation.lengths.max())
    landmarks = landmarks_needed(frame, num_layers, num_tokens)
    test_examples = _draw_examples(_load(run, "test", data_dir), num_examples)
    return Swaps(
        metric=metric,
        exact={x: table.exact[x].mean() for x in metrics},
        num_examples=len(examples.labels),
        num_validation=validation.num_examples,
        num_tokens=num_tokens,
        table=frame,
        advice=_measure_advice(run, meters[SEGMENT_MEANS], landmarks, test_examples),
        run=run,
    )


def _measure_advice(
    run: TrainedRun,
    meter: SwapMeter,
    landmarks: tuple[int, ...],
    examples: DeviceRows,
) -> Advice:
    """What the model loses on examples of the test with these landmarks at once."""
    objective = run.experiment.objective
    exact = meter.measure(examples, [EXACT] * len(landmarks))
    swapped = meter.measure(examples, landmarks)
    metrics = [objective.select, *_other_rates(exact, objective.select)]
    return Advice(
        landmarks=landmarks,
        num_examples=len(examples.labels),
        exact={metric: exact[metric].mean() for metric in metrics},
        together=_differences(metrics, swapped, exact, objective.higher_is_better),
        floor=_floor_within_chance(run),
    )


def _other_rates(metrics: Iterable[str], select: str) -> list[str]:
    """The rates beside the metric that selects, as of masked tokens."""
    return [metric for metric in metrics if is_rate(metric) and metric != select]


def _floor_within_chance(run: TrainedRun) -> float | None:
    """The highest floor of the run's metric, if its test score is within chance of it.

    Chance is two binomial standard deviations over the test examples. None also where
    the floor is not known, and where the metric has none, as a loss has.
    """
    objective = run.experiment.objective
    if run.result is None or not objective.higher_is_better:
        return None
    floor = max(run.result["floors"].values(), default=None)
    if floor is None:
        return None
    noise = 2 * (floor * (1 - floor) / run.result["test_examples"]) ** 0.5
    return floor if run.result[f"test_{objective.select}"] <= floor + noise else None


def _load(run: TrainedRun, split_name: str, data_dir: str | None) -> Split:
    """A split of the run's task; without `data_dir` it is where the run had it."""
    return run.task.load(split_name, data_dir or run.config.task.data_dir)


def _draw_examples(split: Split, num_examples: int) -> DeviceRows:
    """Some examples of a split, at random, always the same ones."""
    num_drawn = min(num_examples, split.num_examples)
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.choice(split.num_examples, num_drawn, replace=False))
    rows = HostSplit.from_split(split.take(drawn)).put()
    return rows._replace(example_ids=jnp.asarray(drawn, jnp.int32))


def _differences(
    metrics: Iterable[str],
    swapped: Mapping[str, ExampleSums],
    exact: Mapping[str, ExampleSums],
    higher_is_better: bool,
) -> dict[str, Difference]:
    """The difference of each metric; of a rate a higher value is always better."""
    return {
        metric: _difference(
            swapped[metric], exact[metric], is_rate(metric) or higher_is_better
        )
        for metric in metrics
    }


def _difference(
    swapped: ExampleSums, exact: ExampleSums, higher_is_better: bool
) -> Difference:
    """The difference of a metric, for the same examples."""
    # Rounded, so that 245 of 400 are half a point less than 247, and not a little more.
    difference = round(swapped.mean() - exact.mean(), 12)
    if not higher_is_better:
        difference = -difference
    parts = swapped.parts() - exact.parts()
    standard_error = float(parts.std() / np.sqrt(len(parts)))
    # Where none of n examples has changed, up to 3 / n of all may (95 %), and one or
    # two that have are no surer.
    has_changed = np.count_nonzero(swapped.sums != exact.sums) > 2
    noise = 2 * standard_error
    if not has_changed:
        noise = max(noise, 3 / len(parts))
    return Difference(difference, noise, bool(has_changed))


def landmarks_needed(
    table: pd.DataFrame, num_layers: int, num_tokens: int
) -> tuple[int, ...]:
    """Returns for each layer the least number of landmarks that is enough.

    With it the layer loses at most MAX_LOSS_ALONE when it alone is exchanged: beyond
    its noise, or where no number is so sure, by what was measured. EXACT where no
    measured number is enough that saves time, too.

    Args:
      table: the table of `Swaps`.
      num_layers: the number of layers of the model.
      num_tokens: the number of tokens of the longest sequence.
    """
    saves = table["num_landmarks"].map(lambda count: saves_time(count, num_tokens))
    alone = table[(table["group"] == ONE_LAYER) & saves]
    is_sure = alone["difference"] - alone["noise"] >= -MAX_LOSS_ALONE
    is_enough = alone["difference"] >= -MAX_LOSS_ALONE
    sure = alone[is_sure].groupby("layers")["num_landmarks"].min()
    enough = alone[is_enough].groupby("layers")["num_landmarks"].min()
    least = sure.combine_first(enough)
    return tuple(int(least.get(str(layer), EXACT)) for layer in range(num_layers))
