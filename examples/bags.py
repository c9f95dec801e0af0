"""One label for a bag of 500 to 10,000 feature vectors, of which 3 % carry it.

    python examples/bags.py --out=bags.png

The bags are made on the spot. Each stands for the patches of a large image, row by row,
as feature vectors of another network. One spot of the image differs along a direction
that depends on the label. Every bag also has an offset of its own, as slides differ in
their stain, which hides so small a change of the mean. Bags are padded to three sizes,
with a mask, so jax compiles three programs whatever the lengths.

[CLS] with 256 landmarks reaches an AUC of 1.00 on 192 new bags, 64 of each padded size;
the same head on the mean of the patches 0.72. Both together take 97 s on two x86-64
cores (one run, seed 0). The picture shows the signal, and beside it the row of [CLS] in
the Nyström matrix: patches with the signal get 15 times the mean weight. That attention
is needed for this task is not shown: pooling by a maximum was not tried.
"""

import functools
import time
from typing import Any

import jax
import numpy as np
import optax
from absl import app, flags
from flax import nnx
from matplotlib import pyplot as plt

from nystromformer import EncoderConfig, SequenceClassifier
from nystromformer.attention.base import Attention
from nystromformer.classifiers import Head, pool_mean
from nystromformer.experiments.xla_flags import turn_off_cpu_fusions
from nystromformer.factors import nystrom_rows

_OUT = flags.DEFINE_string("out", "bags.png", "where the heat map goes")
FEATURES = 16
LANDMARKS = 256
MIN_PATCHES = 500
FRACTION = 0.03  # This part of the patches carries the label.
# The signal in a patch and the offset of a bag, in standard deviations of a patch.
SIGNAL = 6.0
OFFSET = 0.3
# The length to which bags are padded -> how many of them make a batch.
BATCH_SIZES = {1_250: 16, 5_000: 8, 10_000: 4}
# The length in each step: short bags come first, as they are cheap.
LENGTHS = [1_250] * 40 + list(BATCH_SIZES) * 26
LOG_EVERY = 18  # steps
CONFIG = EncoderConfig(
    vocab_size=None,
    input_dim=FEATURES,
    max_length=max(BATCH_SIZES),
    num_layers=1,
    num_heads=2,
    model_dim=32,
    mlp_dim=64,
    attention_options={"num_landmarks": LANDMARKS},
)


class MeanOfPatches(nnx.Module):
    """The baseline: the same head on the mean of the feature vectors."""

    def __init__(self, rngs: nnx.Rngs):
        self.head = Head(FEATURES, CONFIG.mlp_dim, 2, rngs=rngs)

    def __call__(self, bags: jax.Array, mask: jax.Array) -> jax.Array:
        return self.head(pool_mean(bags, mask))


def make_bag(
    rng: np.random.Generator, size: int, label: int
) -> tuple[np.ndarray, np.ndarray]:
    """Feature vectors [size, FEATURES], and the positions of those with the signal."""
    row, column = np.divmod(np.arange(size), int(size**0.5))
    center = rng.integers(size)
    distance = np.hypot(row - row[center], column - column[center])
    carriers = np.argsort(distance)[: int(FRACTION * size)]

    bag = rng.standard_normal((size, FEATURES), np.float32)
    bag += OFFSET * rng.standard_normal(FEATURES, np.float32)
    bag[carriers, label] += SIGNAL
    return bag, carriers


def make_batch(
    rng: np.random.Generator, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bags [B, length, FEATURES], their mask [B, length] and labels [B]."""
    shorter_lengths = [shorter for shorter in BATCH_SIZES if shorter < length]
    smallest = max(shorter_lengths, default=MIN_PATCHES)
    sizes = rng.integers(smallest, length + 1, BATCH_SIZES[length])
    labels = rng.integers(0, 2, len(sizes))
    bags = np.zeros((len(sizes), length, FEATURES), np.float32)
    for bag, size, label in zip(bags, sizes, labels, strict=True):
        bag[:size], _ = make_bag(rng, size, label)
    mask = np.arange(length) < sizes[:, None]
    return bags, mask, labels


def train(model: nnx.Module) -> nnx.Module:
    """The model after a step of Adam for each of LENGTHS, always on new bags."""
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, len(LENGTHS)))
    # Where a patch lies says nothing here: positions stay as they are, and so does what
    # an attention has drawn.
    graphdef, positions, weights, drawn = nnx.split(
        model, nnx.PathContains("positions"), nnx.Param, ...
    )

    @jax.jit
    def step(
        weights: Any,
        adam_state: optax.OptState,
        bags: jax.Array,
        mask: jax.Array,
        labels: jax.Array,
    ) -> tuple[Any, optax.OptState, jax.Array]:
        def mean_loss(weights: Any) -> jax.Array:
            logits = nnx.merge(graphdef, positions, weights, drawn)(bags, mask)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean()

        loss, gradient = jax.value_and_grad(mean_loss)(weights)
        updates, adam_state = optimizer.update(gradient, adam_state)
        return optax.apply_updates(weights, updates), adam_state, loss

    rng = np.random.default_rng(0)
    adam_state = optimizer.init(weights)
    losses = []
    for number, length in enumerate(LENGTHS, 1):
        bags, mask, labels = make_batch(rng, length)
        weights, adam_state, loss = step(weights, adam_state, bags, mask, labels)
        losses.append(float(loss))
        if number % LOG_EVERY == 0:
            mean = np.mean(losses[-LOG_EVERY:])
            print(f"step {number}: loss {mean:.3f}", flush=True)
    return nnx.merge(graphdef, positions, weights, drawn)


def area_under_curve(model: nnx.Module, num_bags_per_length: int = 64) -> float:
    """The chance that a new bag of label 1 scores higher than one of label 0.

    Equal scores count as half.
    """
    rng = np.random.default_rng(1)
    graphdef, weights = nnx.split(model)

    @jax.jit
    def predict(bags: jax.Array, mask: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, weights)(bags, mask)

    all_scores = []
    all_labels = []
    for length, batch_size in BATCH_SIZES.items():
        for _ in range(num_bags_per_length // batch_size):
            bags, mask, labels = make_batch(rng, length)
            logits = np.asarray(predict(bags, mask))
            all_scores.extend(logits[:, 1] - logits[:, 0])
            all_labels.extend(labels)
    scores = np.array(all_scores)
    is_positive = np.array(all_labels) == 1
    differences = scores[is_positive][:, None] - scores[~is_positive]
    return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


class Recorder(nnx.Module):
    """An attention that keeps its queries and keys [B, L, N, H]."""

    def __init__(self, attention: Attention):
        self.attention = attention

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, **options: Any
    ) -> jax.Array:
        self.query = nnx.data(query)
        self.key = nnx.data(key)
        return self.attention(query, key, value, **options)


def weights_of_cls(model: SequenceClassifier, bag: np.ndarray) -> np.ndarray:
    """The weight [size] that [CLS] gives each patch, averaged over heads."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def last_row_of_cls(state: Any, bag: jax.Array) -> jax.Array:
        model = nnx.merge(graphdef, state)
        last_layer: Any = model.encoder.blocks[-1].attention
        recorder = Recorder(last_layer.attention)
        last_layer.attention = recorder
        model(bag[None])

        first_row = functools.partial(nystrom_rows, rows=[0], num_landmarks=LANDMARKS)
        rows_of_heads = jax.vmap(first_row, in_axes=1)(
            recorder.query[0], recorder.key[0]
        )
        return rows_of_heads.mean(0)[0]  # [N, 1, 1 + size] -> [1 + size]

    return np.asarray(last_row_of_cls(state, bag)[1:])


def draw(weights: np.ndarray, carriers: np.ndarray, path: str) -> None:
    """Draws two images beside each other: where the signal was put, and the weights."""
    signal = np.isin(np.arange(len(weights)), carriers).astype(float)
    images = {"signal": signal, "weight of [CLS], mean = 1": weights / weights.mean()}
    width = int(len(weights) ** 0.5)
    figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
    for axis, (title, values) in zip(axes, images.items(), strict=True):
        image = axis.imshow(
            values.reshape(-1, width),
            cmap="magma",
            vmin=0,
            vmax=np.quantile(values, 0.99),
        )
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, shrink=0.8, extend="both")
    figure.savefig(path, dpi=120)


def main(_: list[str]) -> None:
    """Trains both models, prints what they reach, and draws what [CLS] looks at."""
    turn_off_cpu_fusions()
    rngs = nnx.Rngs(0)
    cls = SequenceClassifier(CONFIG, num_classes=2, pooling="cls_token", rngs=rngs)
    fresh_models = {"mean of patches": MeanOfPatches(rngs), "[CLS]": cls}
    models = {}
    for name, fresh_model in fresh_models.items():
        start = time.time()
        models[name] = train(fresh_model)
        area = area_under_curve(models[name])
        seconds = time.time() - start
        print(f"{name}: AUC {area:.3f} after {seconds:.0f} s", flush=True)

    bag, carriers = make_bag(np.random.default_rng(2), 64 * 64, label=1)
    weights = weights_of_cls(models["[CLS]"], bag)
    ratio = weights[carriers].mean() / weights.mean()
    print(f"[CLS] gives a patch with the signal {ratio:.1f} times the mean weight")
    draw(weights, carriers, _OUT.value)


if __name__ == "__main__":
    app.run(main)
