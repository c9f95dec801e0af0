"""Augmentations keep labels, are drawn anew at each step, and change no evaluation."""

import dataclasses
from collections import Counter
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_tasks import TASKS
from lra_tasks.listops import ListOps
from lra_tasks.task import task_class
from nystromformer.config import TrainConfig
from nystromformer.experiments.augmentations import (
    AUGMENTATIONS,
    augment_batch,
    flip,
)
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs, split_weights
from tests.lra_tasks.listops_cases import value_of
from tests.tolerance import TOLERANCE

SHUFFLE = AUGMENTATIONS["shuffle_arguments"]
KEY = jax.random.key(3)


def test_the_table_the_config_and_the_tasks_name_the_same_augmentations():
    fields = dataclasses.fields(TrainConfig)
    switches = {field.name for field in fields if field.type is bool}
    task_augmentations = set()
    for name in TASKS:
        if name != "pictures":  # Its own depend on its pictures.
            task_augmentations.update(task_class(name).augmentations)
    assert set(AUGMENTATIONS) == switches == task_augmentations


def encode(text):
    """The 32 tokens of an expression and its padding, and the length without it."""
    inputs, lengths = ListOps(max_length=32, min_tokens=4).encode([text])
    return jnp.asarray(inputs[0], jnp.int32), int(lengths[0])


def draw(augmentation, tokens, num_keys):
    """The augmented tokens of so many keys."""
    keys = jax.random.split(KEY, num_keys)
    return np.asarray(jax.jit(jax.vmap(partial(augmentation, tokens)))(keys))


@pytest.mark.parametrize(("name", "axis"), [("vertical", 0), ("horizontal", 1)])
def test_flip_mirrors_half_of_the_pictures(name, axis):
    picture = np.arange(36)
    pictures = draw(AUGMENTATIONS[f"flip_{name}"], jnp.asarray(picture), 1000)
    mirror_image = np.flip(picture.reshape(6, 6), axis).reshape(-1)
    is_mirrored = (pictures == mirror_image).all(1)
    is_unchanged = (pictures == picture).all(1)
    assert (is_unchanged | is_mirrored).all()
    assert is_mirrored.mean() == pytest.approx(0.5, abs=0.05)


def make_expressions():
    """A split of nested expressions."""
    task = ListOps(
        max_length=120,
        min_tokens=20,
        max_tokens=120,
        num_train=500,
        num_validation=1,
        num_test=1,
    )
    return task.make_splits(None)["train"]


def canonical(ids, length):
    """The expression as nested tuples, with the arguments of each operator sorted."""
    stack = [[]]
    for token in ids[:length]:
        if token <= 4:
            stack.append([token])
        elif token == 5:
            operator, *arguments = stack.pop()
            stack[-1].append((operator, *sorted(arguments, key=str)))
        else:
            stack[-1].append(token)
    assert len(stack) == 1
    return stack[0]


def check_labels(augmentation):
    """The expressions have other orders, and the same arguments and values."""
    split = make_expressions()
    inputs = jnp.asarray(split.inputs, jnp.int32)
    keys = jax.random.split(KEY, len(inputs))
    shuffled = np.asarray(jax.jit(jax.vmap(augmentation))(inputs, keys))
    is_changed = (shuffled != split.inputs).any(1)
    assert is_changed.mean() > 0.9
    is_padding = np.arange(120) >= split.lengths[:, None]
    assert not shuffled[is_padding].any()
    for i, length in enumerate(split.lengths):
        before = split.inputs[i].tolist()
        after = shuffled[i].tolist()
        assert value_of(after[:length]) == split.labels[i]
        assert canonical(after, length) == canonical(before, length)


def test_shuffle_arguments_changes_no_value():
    check_labels(SHUFFLE)


def test_digits_that_change_their_operator_are_seen():
    def exchange(tokens, key):
        """All digits in a new order, whatever their operator is."""
        is_digit = tokens > 5
        scores = jnp.where(is_digit, jax.random.uniform(key, tokens.shape), 2)
        places = jnp.where(is_digit, jnp.arange(len(tokens)), len(tokens))
        digits = tokens[jnp.argsort(scores)]
        return tokens.at[jnp.sort(places)].set(digits, mode="drop")

    with pytest.raises(AssertionError):
        check_labels(exchange)


def test_shuffle_arguments_draws_every_order_equally():
    tokens, length = encode("[SM 1 [MAX 2 3 ] 4 ]")
    shuffled = draw(SHUFFLE, tokens, 3000)
    texts = Counter(ListOps().decode(row[:length]) for row in shuffled)
    expected = set()
    for inner in ("[MAX 2 3 ]", "[MAX 3 2 ]"):
        for order in ("1 {} 4", "1 4 {}", "4 1 {}", "4 {} 1", "{} 1 4", "{} 4 1"):
            expected.add(f"[SM {order.format(inner)} ]")
    assert set(texts) == expected
    # Each of the 12 is expected 250 times; three standard deviations are 45.
    assert min(texts.values()) > 180
    assert not shuffled[:, length:].any()


@pytest.mark.parametrize("text", ["7", "[MIN 1 1 ]", "[MED [SM 2 2 ] [SM 2 2 ] ]"])
def test_shuffle_arguments_of_equal_arguments_changes_nothing(text):
    tokens, _ = encode(text)
    assert (draw(SHUFFLE, tokens, 8) == np.asarray(tokens)).all()


# Pictures of R × R pixels.
R = 4
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(1, 11, (24, R * R)).astype(np.uint8)


class FirstPixel(nnx.Module):
    """Its logits depend on the first pixel, and so on how a picture is turned."""

    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, inputs, mask, dropout_rng=None):
        return jax.nn.one_hot(inputs[:, 0] % 3, 3) * self.scale


def make_batch(rows):
    rows = np.array(rows)
    return Batch(
        inputs=jnp.asarray(PICTURES[rows], jnp.int32),
        mask=None,
        labels=jnp.asarray(rows % 3),
        weights=jnp.ones(len(rows)),
        example_ids=jnp.asarray(rows),
    )


augment = partial(augment_batch, [partial(flip, axis=0), partial(flip, axis=1)])


def test_augment_batch_flips_some_pictures_by_both_of_two_flips():
    pictures = np.asarray(jax.jit(augment)(make_batch(range(24)), KEY).inputs)
    turned = np.flip(PICTURES.reshape(24, R, R), axis=(1, 2)).reshape(24, -1)
    assert (pictures == turned).all(1).any()


def check_evaluation(programs):
    """An evaluation is that of programs that augment nothing."""
    split = SimpleNamespace(
        inputs=PICTURES,
        lengths=np.full(24, R * R, np.int32),
        labels=(np.arange(24) % 3).astype(np.int32),
        pairs=None,
    )
    _, weights = split_weights(FirstPixel(nnx.Rngs(0)))
    examples = HostSplit.from_split(split)
    plain_programs = Programs(FirstPixel, Classification())
    metrics = evaluate(programs, weights, examples, 8)
    expected = evaluate(plain_programs, weights, examples, 8)
    assert metrics == pytest.approx(expected, rel=TOLERANCE["same"])


def test_an_evaluation_is_not_augmented():
    check_evaluation(Programs(FirstPixel, Classification(), augment=augment))


def test_an_augmentation_on_validation_is_seen():
    class Always(Classification):
        def __call__(self, model, batch, key):
            return super().__call__(model, augment(batch, KEY), key)

    with pytest.raises(AssertionError):
        check_evaluation(Programs(FirstPixel, Always()))
