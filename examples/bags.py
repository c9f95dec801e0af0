"""One label for a bag of feature vectors, such as the patches of a whole-slide image.

    python examples/bags.py --make=FOLDER
    python examples/bags.py --folder=FOLDER --workdir=DIR
    python examples/bags.py --workdir=DIR --bag=FOLDER/new/bag.npz --out=heat

The first command makes a small folder to try the others on. The second one trains a
classifier with [CLS] in front and Nyström attention, and tests it beside two floors.
The third one reads a bag and writes heat.csv and heat.png: what [CLS] looks at.
docs/bags.md says what a folder holds, and walks through it.

Copy this file and change it: the sizes of the model are in `make_config`.
"""

import csv
import functools
import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from etils import epath
from flax import nnx
from matplotlib.figure import Figure
from tqdm import tqdm

from lra_tasks.errors import DataError
from lra_tasks.tables import find_classes, read_table
from nystromformer import EncoderConfig, SequenceClassifier
from nystromformer.config import OptimizerConfig, TrainConfig
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.recorded_layers import record_qkv
from nystromformer.experiments.workdir import check_new, lock_workdir
from nystromformer.factors import nystrom_rows
from nystromformer.run_files import BEST_FOLDER, RESULT_FILE, write_json
from nystromformer.training.checkpoint import delete_steps, has_weights, load_weights
from nystromformer.training.data import Batch
from nystromformer.training.loop import compile_step, open_run, train
from nystromformer.training.objective import Sums, label_sums
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Programs, split_shapes

_MAKE = flags.DEFINE_string("make", None, "folder to fill with made-up bags")
_FOLDER = flags.DEFINE_string("folder", None, "labels.csv and a file for each bag")
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run")
_BAG = flags.DEFINE_string("bag", None, "file of a bag to read with the run")
_OUT = flags.DEFINE_string("out", "heat", "heat map of that bag: OUT.csv and OUT.png")
_NUM_STEPS = flags.DEFINE_integer("num_steps", 1_000, "steps of training", 10)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "bags of a step", 1)
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "its peak", 0.0)
_SEED = flags.DEFINE_integer("seed", 0, "for the splits and for training", 0)

LANDMARKS = 256
LABELS_FILE = "labels.csv"
CONFIG_FILE = "bags.json"  # what reading the run takes, beside its weights
SPLITS = ("train", "validation", "test")
SUFFIXES = (".npy", ".npz", ".h5")
HELD_OUT = 0.2  # of the groups of each class for test, then of the rest for validation
# The mean squared weights of the logistic regression count this much.
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
LENGTH_BUCKETS = 4  # A bag is padded to the next of as many lengths.
MADE_BAGS = 160


def make_config(input_dim: int) -> EncoderConfig:
    """The encoder, for vectors of `input_dim` numbers.

    It has no positions: what a patch says does not depend on its number.
    """
    return EncoderConfig(
        vocab_size=None,
        input_dim=input_dim,
        max_length=2**20,
        positions="none",
        num_layers=1,
        num_heads=2,
        model_dim=64,
        mlp_dim=128,
        attention_options={"num_landmarks": LANDMARKS},
    )


class BagClassifier(nnx.Module):
    """[CLS] and the vectors of a bag, standardised, to logits.

    Args:
      input_dim: F.
      num_classes: C.
      rngs: the keys for the initial values of parameters.
      mean, deviation: [F], those of the vectors of the training bags.
    """

    def __init__(
        self,
        input_dim: int,
        num_classes: int,
        rngs: nnx.Rngs,
        mean: Any = 0.0,
        deviation: Any = 1.0,
    ):
        self.mean = nnx.Variable(jnp.full(input_dim, mean, jnp.float32))
        self.deviation = nnx.Variable(jnp.full(input_dim, deviation, jnp.float32))
        self.classifier = SequenceClassifier(
            make_config(input_dim),
            num_classes=num_classes,
            pooling="cls_token",
            rngs=rngs,
        )

    def standardise(self, bags: jax.Array) -> jax.Array:
        """[B, L, F] -> float32 [B, L, F]."""
        return (bags.astype(jnp.float32) - self.mean[...]) / self.deviation[...]

    def __call__(
        self, bags: jax.Array, mask: Any = None, dropout_rng: Any = None
    ) -> jax.Array:
        """Bags [B, L, F] and mask [B, L], False in the padding -> logits [B, C]."""
        return self.classifier(self.standardise(bags), mask, dropout_rng)


class WeightedClasses:
    """Cross-entropy in which each class has the same weight, however many bags it has.

    The best weights are those with the lowest loss on validation: of a few bags the
    accuracy says little.
    """

    metrics = ("loss", "accuracy")
    select = "loss"
    higher_is_better = False

    def __init__(self, class_weights: np.ndarray):
        self.class_weights = class_weights

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        logits = model(batch.inputs, batch.mask, dropout_rng=key)
        weights = batch.weights * jnp.asarray(self.class_weights)[batch.labels]
        loss = label_sums(logits, batch.labels, weights)["loss"]
        accuracy = label_sums(logits, batch.labels, batch.weights)["accuracy"]
        return {"loss": loss, "accuracy": accuracy}


# Reading a folder.


def read_bag(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Reads the file of a bag.

    Args:
      path: an .npy of the vectors, or an .npz or .h5 with `features` and, if there are,
        `coords`.

    Returns:
      The vectors [L, F], and the places of their patches [L, 2] or None.

    Raises:
      DataError: if they are not there, or are no numbers.
    """
    arrays = _read_arrays(path)
    if "features" not in arrays:
        raise DataError(f"{path} has no array features; it has {', '.join(arrays)}")
    features = arrays["features"]
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: features must be numbers [vectors, width], got {features.dtype} "
            f"{features.shape}"
        )
    if not features.size:
        raise DataError(f"{path} is an empty bag: remove it from {LABELS_FILE}")
    if not np.isfinite(features).all():
        raise DataError(f"{path} has NaN or infinite features: make it anew")

    coords = arrays.get("coords")
    if coords is not None and coords.shape != (len(features), 2):
        raise DataError(
            f"{path}: coords must be [{len(features)}, 2], as there are so many "
            f"vectors, got {coords.shape}"
        )
    return features, coords


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by their names; that of an .npy is called features."""
    try:
        if path.suffix == ".h5":
            return _read_h5(path)
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return {"features": content}
        with content:
            names = {"features", "coords"} & set(content.files) or content.files
            return {name: content[name] for name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).partition("\n")[0]
        if "pickle" in reason or "Object arrays" in reason:
            reason = "it holds Python objects, no plain array of numbers"
        raise DataError(f"{path} cannot be read: {reason}") from error


def _read_h5(path: Path) -> dict[str, np.ndarray]:
    try:
        import h5py  # pyright: ignore[reportMissingImports] - it is optional
    except ImportError as error:
        raise DataError(
            f"{path} needs h5py: pip install h5py, or save the bags as .npz"
        ) from error
    with h5py.File(path) as file:
        names = {"features", "coords"} & set(file) or set(file)
        return {name: np.asarray(file[name]) for name in names}


@dataclass(frozen=True)
class Bag:
    """A line of labels.csv, and what its file holds.

    Attributes:
      path: the file.
      label: the number of its class.
      group: what must not be in two splits, such as a patient.
      split: one of SPLITS.
      length: the number of vectors.
      dtype: their type.
      mean, mean_square: [F], of the vectors and of their squares.
    """

    path: Path
    label: int
    group: str
    split: str
    length: int
    dtype: np.dtype
    mean: np.ndarray
    mean_square: np.ndarray


def read_folder(folder: Path, seed: int) -> tuple[list[Bag], list[str]]:
    """Reads labels.csv and, once, each bag that it names.

    Args:
      folder: labels.csv with the columns bag, label and perhaps group and split; and
        for each bag a file BAG.npy, BAG.npz or BAG.h5.
      seed: for the splits that labels.csv does not name.

    Returns:
      The bags, and the names of the classes.

    Raises:
      DataError: one line that names the file that is missing or wrong.
    """
    table = folder / LABELS_FILE
    if not table.exists():
        raise DataError(f"{folder} has no {LABELS_FILE} with the columns bag and label")
    with table.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), [])
    columns = ["bag", *({"group", "split"} & set(header))]
    classes = find_classes(table, texts=columns, label="label")
    if len(classes) < 2:
        raise DataError(f"{table} has one class alone, {classes[0]}: give two or more")
    rows, labels = read_table(table, texts=columns, label="label", classes=classes)
    lines = [dict(zip(columns, row, strict=True)) for row in rows]

    names = [_without_suffix(line["bag"].strip()) for line in lines]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{table} names the bag {repeated[0]} twice: remove a line")
    paths = _find_files(folder, names)
    # A bag without a group is a group of its own.
    groups = [
        line.get("group") or name for line, name in zip(lines, names, strict=True)
    ]
    given_splits = [line.get("split", "").strip() for line in lines]
    splits = draw_splits(groups, labels, given_splits, seed)

    bags: list[Bag] = []
    for number, path in enumerate(tqdm(paths, "reading the bags", disable=None)):
        features, _ = read_bag(path)
        if bags and features.shape[1] != bags[0].mean.size:
            raise DataError(
                f"{path} has vectors of {features.shape[1]} numbers, and "
                f"{bags[0].path} of {bags[0].mean.size}: make them with one network"
            )
        bag = Bag(
            path=path,
            label=labels[number],
            group=groups[number],
            split=splits[number],
            length=len(features),
            dtype=features.dtype,
            mean=features.mean(0, dtype=np.float64),
            mean_square=_sum_of_squares(features) / len(features),
        )
        bags.append(bag)
    return bags, classes


def _without_suffix(name: str) -> str:
    """The name of a bag, for which labels.csv may have the name of its file."""
    path = Path(name)
    return path.stem if path.suffix in SUFFIXES else name


def _sum_of_squares(features: np.ndarray) -> np.ndarray:
    """[L, F] -> float64 [F], without a copy in float64."""
    return np.einsum("lf,lf->f", features, features, dtype=np.float64)


def _find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The file of each bag; prints how many files no line names."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in files:
            raise DataError(f"{files[path.stem]} and {path} are one bag: remove one")
        files[path.stem] = path
    missing = [name for name in names if name not in files]
    if missing:
        raise DataError(
            f"{folder / LABELS_FILE} names {len(missing)} bags without a file, first "
            f"{missing[0]}: add {missing[0]}.npy, .npz or .h5, or remove the line"
        )
    num_unnamed = len(files) - len(names)
    if num_unnamed:
        print(f"{num_unnamed} files have no line in {LABELS_FILE}: not read")
    return [files[name] for name in names]


def draw_splits(
    groups: Sequence[str], labels: Sequence[int], given: Sequence[str], seed: int
) -> list[str]:
    """Draws a split for each bag, so that no group is in two.

    Of the groups of each class, that of their first bag, a fifth is for test and a
    fifth of the rest for validation. Where some bags have a split, they keep it, and
    only a split that none of them has is drawn, from train.

    Args:
      groups: the group of each bag.
      labels: its class.
      given: its split, or "".
      seed: decides which are drawn.

    Raises:
      DataError: for an unknown split, a group in two splits, or too few groups.
    """
    split_of_group: dict[str, str] = {}
    class_of_group: dict[str, int] = {}
    for group, label, split in zip(groups, labels, given, strict=True):
        if split not in ("", *SPLITS):
            raise DataError(f"{LABELS_FILE} has the split {split!r}: name {SPLITS}")
        if split_of_group.setdefault(group, split) != split:
            raise DataError(f"{LABELS_FILE} has the group {group} in two splits")
        class_of_group.setdefault(group, label)

    rng = np.random.default_rng(seed)
    for name in ("test", "validation"):
        if name in split_of_group.values():
            continue
        for label in sorted(set(labels)):
            members = [
                group
                for group, split in split_of_group.items()
                if split in ("", "train") and class_of_group[group] == label
            ]
            num_drawn = max(1, round(HELD_OUT * len(members)))
            for place in rng.permutation(len(members))[:num_drawn]:
                split_of_group[members[place]] = name
    splits = [split_of_group[group] or "train" for group in groups]

    train_labels = [
        label for label, split in zip(labels, splits, strict=True) if split == "train"
    ]
    if set(train_labels) != set(labels):
        raise DataError(
            f"{LABELS_FILE}: a class has no bag left in train; give each class at "
            "least three groups, or name the splits"
        )
    return splits


class PaddedBags:
    """The inputs of a split, [n, L, F], which stay in their files.

    Args:
      bags: the bags of the split.
      length: L, that of the longest bag of all splits.
    """

    def __init__(self, bags: Sequence[Bag], length: int):
        self.bags = bags
        self.shape = (len(bags), length, bags[0].mean.size)
        are_half = all(bag.dtype == np.float16 for bag in bags)
        self.dtype = np.dtype(np.float16 if are_half else np.float32)

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(numbers), *self.shape[1:]), self.dtype)
        for row, number in zip(rows, numbers, strict=True):
            features, _ = read_bag(self.bags[number].path)
            row[: len(features)] = features
        return rows


# Training and testing.


def run_training(folder: Path, workdir: epath.Path) -> None:
    """Trains on a folder, tests beside the floors, and writes result.json.

    The same command again resumes.

    Raises:
      DataError: for a folder that cannot be used.
      ConfigError: if the workdir holds something else.
    """
    bags, classes = read_folder(folder, _SEED.value)
    config = {
        "classes": classes,
        "input_dim": bags[0].mean.size,
        "num_steps": _NUM_STEPS.value,
        "batch_size": _BATCH_SIZE.value,
        "learning_rate": _RATE.value,
        "seed": _SEED.value,
    }
    with lock_workdir(workdir):
        if not (workdir / CONFIG_FILE).exists():
            check_new(workdir)
        elif json.loads((workdir / CONFIG_FILE).read_text()) != config:
            raise ConfigError(
                f"{workdir} holds a run with another config, see {CONFIG_FILE} there: "
                "name another --workdir"
            )
        _train_and_test(bags, config, workdir)


def _train_and_test(
    bags: Sequence[Bag], config: dict[str, Any], workdir: epath.Path
) -> None:
    """`run_training` in a folder that is this run's."""
    if (workdir / RESULT_FILE).exists():
        print(f"{workdir} is finished; delete it to run again")
        return
    by_split = {name: [bag for bag in bags if bag.split == name] for name in SPLITS}
    for name, part in by_split.items():
        print(f"{name}: {len(part)} bags of {len({bag.group for bag in part})} groups")
    splits = {}
    sha256 = {}
    longest = max(bag.length for bag in bags)
    for name, part in by_split.items():
        splits[name] = SimpleNamespace(
            inputs=PaddedBags(part, longest),
            lengths=np.array([bag.length for bag in part], np.int32),
            labels=np.array([bag.label for bag in part], np.int32),
            pairs=None,
        )
        sha256[name] = _content_hash(part)

    mean = np.mean([bag.mean for bag in by_split["train"]], axis=0)
    mean_square = np.mean([bag.mean_square for bag in by_split["train"]], axis=0)
    deviation = np.sqrt(np.maximum(mean_square - mean**2, 0))
    # A feature that is always the same stays 0.
    deviation[deviation == 0] = 1
    counts = np.bincount(splits["train"].labels)
    class_weights = len(by_split["train"]) / (len(counts) * counts)

    batch_size = min(config["batch_size"], len(by_split["train"]))
    eval_every = config["num_steps"] // 10
    train_config = TrainConfig(
        batch_size=batch_size,
        num_steps=config["num_steps"],
        eval_every=eval_every,
        checkpoint_every=eval_every,
        seed=config["seed"],
        # One bag at a time, as bags are long.
        grad_accum_steps=batch_size,
        length_buckets=LENGTH_BUCKETS,
    )
    optimizer_config = OptimizerConfig(
        learning_rate=config["learning_rate"],
        warmup_steps=config["num_steps"] // 10,
        weight_decay=0.01,
    )
    programs = Programs(
        functools.partial(
            make_model, config, mean=np.float32(mean), deviation=np.float32(deviation)
        ),
        WeightedClasses(class_weights.astype(np.float32)),
        make_optimizer(optimizer_config, train_config.num_steps),
        grad_accum_steps=train_config.grad_accum_steps,
        length_buckets=train_config.length_buckets,
    )
    print("compiling the training step…", flush=True)
    run = open_run(programs, train_config, splits, workdir, data_sha256=sha256)
    compile_step([run])
    write_json(workdir / CONFIG_FILE, config)
    with cli.StopFlag() as stop:
        outcome = train(run, should_stop=lambda: stop.signum or 0)
        model = load_model(workdir, config)
        probabilities = [
            classify(model, read_bag(bag.path)[0]) for bag in by_split["test"]
        ]
        scores = test_floors(by_split, len(config["classes"]))
        scores[f"[CLS], {LANDMARKS} landmarks"] = measure(
            splits["test"].labels, np.stack(probabilities)
        )
        write_json(workdir / RESULT_FILE, {**outcome, "test": scores})
        delete_steps(workdir)
    print_scores(scores, len(by_split["test"]))


def _content_hash(bags: Sequence[Bag]) -> str:
    """A hash of names, labels and features, of these by their mean."""
    digest = hashlib.sha256()
    for bag in bags:
        digest.update(f"{bag.path.stem} {bag.label} {bag.length}".encode())
        digest.update(bag.mean.tobytes())
    return digest.hexdigest()


def make_model(config: dict[str, Any], rngs: nnx.Rngs, **moments: Any) -> BagClassifier:
    return BagClassifier(
        config["input_dim"], len(config["classes"]), rngs=rngs, **moments
    )


def load_model(workdir: epath.Path, config: dict[str, Any]) -> BagClassifier:
    """The model of a run with its best weights."""
    graphdef, weight_shapes = split_shapes(functools.partial(make_model, config))
    weights, _ = load_weights(workdir / BEST_FOLDER, weight_shapes)
    return nnx.merge(graphdef, *weights)


def classify(model: BagClassifier, features: np.ndarray) -> np.ndarray:
    """The probability of each class, [C], for the vectors [L, F] of a bag.

    Bags are padded to a power of two, so that few programs are compiled.
    """
    length = 1 << (len(features) - 1).bit_length()
    padded = np.zeros((1, length, features.shape[1]), np.float32)
    padded[0, : len(features)] = features
    mask = np.arange(length)[None] < len(features)
    return np.asarray(_probabilities(model, padded, mask))[0]


@nnx.jit
def _probabilities(model: BagClassifier, bags: Any, mask: Any) -> jax.Array:
    return jax.nn.softmax(model(bags, mask))


# Scores and floors.


def measure(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Accuracy, balanced accuracy and AUC, each from 0 to 1.

    Balanced accuracy is the mean over the classes of the share that is recognised. The
    AUC of several classes is the mean over each against the others.

    Args:
      labels: int [n].
      probabilities: [n, C].
    """
    is_correct = probabilities.argmax(1) == labels
    present = np.unique(labels)
    areas = [
        area_under_curve(probabilities[:, label], labels == label) for label in present
    ]
    return {
        "accuracy": float(is_correct.mean()),
        "balanced accuracy": float(
            np.mean([is_correct[labels == label].mean() for label in present])
        ),
        "AUC": float(np.mean(areas)),
    }


def area_under_curve(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """The share of pairs of a positive and a negative in which it has more.

    A tie counts as half. NaN if there are not both.
    """
    differences = scores[is_positive][:, None] - scores[~is_positive]
    if not differences.size:
        return float("nan")
    return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


def test_floors(
    by_split: dict[str, list[Bag]], num_classes: int
) -> dict[str, dict[str, float]]:
    """Scores on test of the majority class, and of a regression on the mean vectors."""
    means = {}
    labels = {}
    for name, bags in by_split.items():
        means[name] = np.stack([bag.mean for bag in bags])
        labels[name] = np.array([bag.label for bag in bags])
    center = means["train"].mean(0)
    scale = np.maximum(means["train"].std(0), 1e-8)
    x = {
        name: ((rows - center) / scale).astype(np.float32)
        for name, rows in means.items()
    }

    majority = np.bincount(labels["train"]).argmax()
    always = np.tile(np.eye(num_classes)[majority], (len(labels["test"]), 1))
    # The penalty is the one that is best on validation.
    fits = [
        fit_logistic_regression(x["train"], labels["train"], num_classes, penalty)
        for penalty in PENALTIES
    ]
    losses = []
    for weights, bias in fits:
        logits = x["validation"] @ weights + bias
        loss = optax.softmax_cross_entropy_with_integer_labels(
            logits, labels["validation"]
        )
        losses.append(float(loss.mean()))
    weights, bias = fits[int(np.argmin(losses))]
    return {
        "majority class": measure(labels["test"], always),
        "mean vector, logistic regression": measure(
            labels["test"], np.asarray(jax.nn.softmax(x["test"] @ weights + bias))
        ),
    }


def fit_logistic_regression(
    x: np.ndarray, labels: np.ndarray, num_classes: int, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fits weights [F, C] and biases [C] to vectors [n, F], each class as heavy."""
    counts = np.bincount(labels, minlength=num_classes)
    example_weights = np.float32(1 / (num_classes * counts[labels]))
    optimizer = optax.adam(0.03)

    def loss(parameters: Any) -> jax.Array:
        weights, bias = parameters
        losses = optax.softmax_cross_entropy_with_integer_labels(
            x @ weights + bias, labels
        )
        return (losses * example_weights).sum() + penalty * jnp.square(weights).mean()

    @jax.jit
    def fit(parameters: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            parameters, state = carry
            updates, state = optimizer.update(jax.grad(loss)(parameters), state)
            return optax.apply_updates(parameters, updates), state

        start = parameters, optimizer.init(parameters)
        return jax.lax.fori_loop(0, 1_000, step, start)[0]

    zeros = jnp.zeros((x.shape[1], num_classes)), jnp.zeros(num_classes)
    weights, bias = fit(zeros)
    return np.asarray(weights), np.asarray(bias)


def print_scores(scores: dict[str, dict[str, float]], num_bags: int) -> None:
    """Prints a line for each way to answer, in percent."""
    width = max(len(name) for name in scores)
    print(f"{f'test, {num_bags} bags':{width}}  accuracy  balanced accuracy    AUC")
    for name, values in scores.items():
        accuracy, balanced, area = (100 * value for value in values.values())
        print(f"{name:{width}}  {accuracy:8.1f}  {balanced:17.1f}  {area:5.1f}")


# Reading a new bag.


def read_new_bag(path: Path, workdir: epath.Path, out: str) -> None:
    """Prints the classes of a bag, and writes what [CLS] looks at.

    Args:
      path: the file of the bag.
      workdir: the folder of the run.
      out: OUT.csv gets a line for each vector, and OUT.png, where the bag has coords,
        a picture.

    Raises:
      ConfigError: if the folder is not a run.
      DataError: if the bag cannot be read, or does not fit the run.
    """
    if not (workdir / CONFIG_FILE).exists():
        raise ConfigError(f"{workdir} is not a run of bags: it has no {CONFIG_FILE}")
    if not has_weights(workdir / BEST_FOLDER):
        raise ConfigError(f"{workdir} has not validated yet: resume its training")
    config = json.loads((workdir / CONFIG_FILE).read_text())
    features, coords = read_bag(path)
    if features.shape[1] != config["input_dim"]:
        raise DataError(
            f"{path} has vectors of {features.shape[1]} numbers, and the run in "
            f"{workdir} takes {config['input_dim']}"
        )
    # Only then is it known that they can be written.
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    model = load_model(workdir, config)
    probabilities = classify(model, features)
    order = np.argsort(-probabilities)
    texts = [f"{config['classes'][i]} {probabilities[i]:.3f}" for i in order]
    print(f"{path.name}: {', '.join(texts)}")

    weights = weights_of_cls(model, features)
    write_weights(weights, coords, Path(f"{out}.csv"))
    if coords is None:
        print(f"{out}.csv has the weights; {path.name} has no coords for a picture")
    else:
        draw(weights, coords, f"{out}.png")
        print(f"{out}.csv and {out}.png have the weights that [CLS] gives the vectors")


def weights_of_cls(model: BagClassifier, features: np.ndarray) -> np.ndarray:
    """The weight [L] that [CLS] gives each vector in the last layer.

    It is the row of [CLS] in the Nyström matrix, the mean over heads. It need not sum
    to 1.
    """
    bags = model.standardise(jnp.asarray(features)[None])
    graphdef, state = nnx.split(model.classifier.encoder)
    mask = np.ones(bags.shape[:2], bool)
    layer = record_qkv(graphdef, state, bags, mask)[-1]
    first_row = functools.partial(nystrom_rows, rows=[0], num_landmarks=LANDMARKS)
    rows = jax.jit(jax.vmap(first_row, in_axes=1))(layer.query[0], layer.key[0])
    return np.asarray(rows.mean(0)[0, 1:])  # [N, 1, 1 + L] -> [L]


def write_weights(weights: np.ndarray, coords: np.ndarray | None, path: Path) -> None:
    """Writes a line for each vector: its number, its place if known, its weight."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        places = np.empty((len(weights), 0)) if coords is None else coords
        writer.writerow(["vector", *["x", "y"][: places.shape[1]], "weight"])
        for number, (place, weight) in enumerate(zip(places, weights, strict=True)):
            writer.writerow([number, *place.tolist(), float(weight)])


def draw(weights: np.ndarray, coords: np.ndarray, path: str) -> None:
    """Draws a square for each patch; the mean weight is 1."""
    relative = weights / weights.mean()
    figure = Figure(figsize=(6, 5), layout="constrained")
    axis = figure.add_subplot()
    # As many squares as there are patches fill the picture.
    side = 72 * 4.5 / len(weights) ** 0.5
    squares = axis.scatter(
        coords[:, 0],
        coords[:, 1],
        c=relative,
        s=side**2,
        marker="s",
        linewidths=0,
        cmap="magma",
        vmin=0,
        vmax=np.quantile(relative, 0.99),
    )
    axis.set(aspect="equal", xticks=[], yticks=[], title="weight of [CLS], mean = 1")
    axis.invert_yaxis()
    figure.colorbar(squares, ax=axis, extend="both")
    figure.savefig(path, dpi=120)


# Made-up bags.


def make_folder(folder: Path) -> None:
    """Writes MADE_BAGS bags of 300 to 1,200 vectors of 16 numbers, two of each patient.

    One spot of the image, 5 % of it, differs along a direction that depends on the
    label. Each bag has an offset of its own, as slides differ in their stain, which
    hides so small a change of the mean. A bag without a label lies in FOLDER/new.

    Raises:
      DataError: if there are bags already.
    """
    if (folder / LABELS_FILE).exists():
        raise DataError(f"{folder} has a {LABELS_FILE}: name a new folder")
    (folder / "new").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = []
    for number in range(MADE_BAGS):
        label = int(number % 5 < 2)
        _write_made_bag(rng, label, folder / f"slide{number:03}.npz")
        lines.append([f"slide{number:03}", "tumour" if label else "normal"])
    _write_made_bag(rng, 1, folder / "new/bag.npz")
    with (folder / LABELS_FILE).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", "group"])
        for number, line in enumerate(lines):
            writer.writerow([*line, f"patient{number // 2}"])
    print(f"{folder}: {len(lines)} bags, and one without a label in {folder}/new")


def _write_made_bag(rng: np.random.Generator, label: int, path: Path) -> None:
    side = rng.integers(18, 36)
    row, column = np.divmod(np.arange(side**2), side)
    center = rng.integers(side**2)
    distance = np.hypot(row - row[center], column - column[center])
    carriers = np.argsort(distance)[: side**2 // 20]
    features = rng.standard_normal((side**2, 16), np.float32)
    features += 0.5 * rng.standard_normal(16, np.float32)
    features[carriers, label] += 6
    coords = 256 * np.stack([column, row], axis=1)
    np.savez(path, features=features.astype(np.float16), coords=coords)


def main() -> None:
    """Makes bags, trains on a folder, or reads a bag, as the flags say."""
    cli.use_compilation_cache()
    workdir = epath.Path(_WORKDIR.value or "").expanduser()
    if _MAKE.value:
        make_folder(Path(_MAKE.value).expanduser())
    elif _FOLDER.value and _WORKDIR.value:
        run_training(Path(_FOLDER.value).expanduser(), workdir)
    elif _BAG.value and _WORKDIR.value:
        read_new_bag(Path(_BAG.value).expanduser(), workdir, _OUT.value)
    else:
        raise ConfigError(
            "give --make=FOLDER, or --folder=FOLDER --workdir=DIR to train, or "
            "--workdir=DIR --bag=FILE to read a bag"
        )


if __name__ == "__main__":
    cli.run(main)
