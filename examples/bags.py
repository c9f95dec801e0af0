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

import jax
import numpy as np
import optax
from absl import app, flags
from flax import nnx
from matplotlib import pyplot as plt

from nystromformer import EncoderConfig, SequenceClassifier
from nystromformer.experiments.xla_flags import turn_off_cpu_fusions
from nystromformer.factors import nystrom_rows
from nystromformer.heads import Head, pool_mean

_OUT = flags.DEFINE_string("out", "bags.png", "where the heat map goes")
FEATURES = 16
LANDMARKS = 256
FRACTION = 0.03  # of the patches carry the label
SIGNAL = 6.0  # in σ of a patch
OFFSET = 0.3  # of a whole bag, in σ of a patch
SIZES = {1_250: 16, 5_000: 8, 10_000: 4}  # padded length: bags in a batch
STEPS = [1_250] * 40 + [*SIZES] * 26  # short bags first, as they are cheap
CONFIG = EncoderConfig(
    vocab_size=None,
    input_dim=FEATURES,
    max_length=max(SIZES),
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
    shorter_lengths = [shorter for shorter in SIZES if shorter < length]
    smallest = max(shorter_lengths, default=500)
    sizes = rng.integers(smallest, length + 1, SIZES[length])
    labels = rng.integers(0, 2, len(sizes))
    bags = np.zeros((len(sizes), length, FEATURES), np.float32)
    for bag, size, label in zip(bags, sizes, labels, strict=True):
        bag[:size], _ = make_bag(rng, size, label)
    return bags, np.arange(length) < sizes[:, None], labels


def train(model: nnx.Module) -> nnx.Module:
    """The model after STEPS of Adam, each on new bags."""
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, len(STEPS)))
    # Where a patch lies says nothing here: positions stay as they are.
    graphdef, fixed, weights = nnx.split(model, nnx.PathContains("positions"), ...)

    @jax.jit
    def step(weights, state, bags, mask, labels):
        def loss(weights):
            logits = nnx.merge(graphdef, fixed, weights)(bags, mask)
            cross_entropy = optax.softmax_cross_entropy_with_integer_labels
            return cross_entropy(logits, labels).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    rng = np.random.default_rng(0)
    state = optimizer.init(weights)
    losses = []
    for i, length in enumerate(STEPS, 1):
        bags, mask, labels = make_batch(rng, length)
        weights, state, loss = step(weights, state, bags, mask, labels)
        losses.append(float(loss))
        if i % 18 == 0:
            print(f"step {i}: loss {np.mean(losses[-18:]):.3f}", flush=True)
    return nnx.merge(graphdef, fixed, weights)


def area_under_curve(model: nnx.Module, bags_of_a_size: int = 64) -> float:
    """The chance that a new bag of label 1 scores higher than one of label 0."""
    rng = np.random.default_rng(1)
    graphdef, weights = nnx.split(model)
    predict = jax.jit(lambda bags, mask: nnx.merge(graphdef, weights)(bags, mask))
    scores = []
    labels = []
    for length, size in SIZES.items():
        for _ in range(bags_of_a_size // size):
            bags, mask, answers = make_batch(rng, length)
            scores.extend(np.diff(predict(bags, mask))[:, 0])
            labels.extend(answers)
    is_positive = np.array(labels) == 1
    scores = np.array(scores)
    return float((scores[is_positive][:, None] > scores[~is_positive]).mean())


class Recorder(nnx.Module):
    """An attention that keeps its queries and keys [B, L, N, H]."""

    def __init__(self, attention: nnx.Module):
        self.attention = attention

    def __call__(self, query, key, value, **options):
        self.query = nnx.data(query)
        self.key = nnx.data(key)
        return self.attention(query, key, value, **options)


def attention_of_cls(model: SequenceClassifier, bag: np.ndarray) -> np.ndarray:
    """The weight [size] that [CLS] gives each patch, averaged over heads."""
    model = nnx.clone(model)
    last = model.encoder.blocks[-1].attention
    recorder = Recorder(last.attention)
    last.attention = recorder
    model(bag[None])
    row = functools.partial(nystrom_rows, rows=[0], num_landmarks=LANDMARKS)
    heads = jax.vmap(row, in_axes=1)(recorder.query[0], recorder.key[0])  # [N, 1, L]
    return np.asarray(heads.mean(0)[0, 1:])


def draw(weights: np.ndarray, carriers: np.ndarray, path: str) -> None:
    """Two images beside each other: where the signal was put, and the weights."""
    signal = np.isin(np.arange(len(weights)), carriers).astype(float)
    images = {"signal": signal, "weight of [CLS], mean = 1": weights / weights.mean()}
    figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
    for axis, (title, values) in zip(axes, images.items(), strict=True):
        scale = {"cmap": "magma", "vmin": 0, "vmax": np.quantile(values, 0.99)}
        image = axis.imshow(values.reshape(-1, int(len(values) ** 0.5)), **scale)
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, shrink=0.8, extend="both")
    figure.savefig(path, dpi=120)


def main(_: list[str]) -> None:
    """Trains both models, prints what they reach, and draws what [CLS] looks at."""
    turn_off_cpu_fusions()
    rngs = nnx.Rngs(0)
    cls = SequenceClassifier(CONFIG, num_classes=2, pooling="cls_token", rngs=rngs)
    models = {"mean of patches": MeanOfPatches(rngs), "[CLS]": cls}
    for name, model in models.items():
        begin = time.time()
        model = train(model)
        area = area_under_curve(model)
        seconds = time.time() - begin
        print(f"{name}: AUC {area:.3f} after {seconds:.0f} s", flush=True)
    bag, carriers = make_bag(np.random.default_rng(2), 64 * 64, label=1)
    weights = attention_of_cls(model, bag)
    times = weights[carriers].mean() / weights.mean()
    print(f"[CLS] gives a patch with the signal {times:.1f} times the mean weight")
    draw(weights, carriers, _OUT.value)


if __name__ == "__main__":
    app.run(main)
