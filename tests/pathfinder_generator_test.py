"""Tests of the Pathfinder generator against the published pictures' statistics,
its own geometry and a search for the markers that knows nothing of either."""

import hashlib
import multiprocessing
import time

import numpy as np
import pytest

from lra_tasks import pathfinder_generator as generator
from lra_tasks.pathfinder_growth import Growth
from lra_tasks.pathfinder_paddles import DIFFICULTIES, RESOLUTIONS, get_settings
from lra_tasks.split import DataError

# 1,000 pictures of the public generator at 32 hard.
REFERENCE = {
    "mean intensity": 19.6,
    "standard deviation of an image's mean": 1.95,
    "percent above 0": 35.0,
    "percent above 64": 12.4,
    "percent above 128": 8.1,
    "percent above 200": 1.4,
}
TOLERANCE = 0.05
# For 2,000 pictures: the sampling error of a standard deviation alone is 1.6 %, and
# that of the reference 2.2 %.
TOLERANCES = np.array([TOLERANCE, 0.08, TOLERANCE, TOLERANCE, TOLERANCE, TOLERANCE])


def statistics(images):
    means = images.mean(axis=(1, 2))
    shares = [100 * (images > level).mean() for level in (0, 64, 128, 200)]
    return np.array([means.mean(), means.std(), *shares])


@pytest.fixture(scope="module")
def hard():
    indices = np.arange(2000)
    return *generator.generate(11, indices), generator.trace(11, indices)


def test_statistics_of_the_public_generator(hard):
    images, _, _ = hard
    error = statistics(images) / list(REFERENCE.values()) - 1
    assert (abs(error) < TOLERANCES).all(), dict(zip(REFERENCE, error, strict=True))
    assert (images.max(axis=(1, 2)) == 255).all()


@pytest.mark.slow
def test_statistics_of_the_public_generator_on_many_pictures():
    images, _ = generator.generate(0, range(20_000), num_workers=2)
    error = statistics(images) / list(REFERENCE.values()) - 1
    assert (abs(error) < TOLERANCE).all(), dict(zip(REFERENCE, error, strict=True))


def test_both_labels_look_alike(hard):
    images, labels, _ = hard
    zero, one = statistics(images[labels == 0]), statistics(images[labels == 1])
    assert (abs(zero / one - 1) < TOLERANCES).all()


def test_labels_are_balanced():
    indices = np.arange(10_000)
    labels = generator._labels(3, indices)
    assert abs(labels.mean() - 0.5) <= 0.01
    assert set(labels[:20:2].tolist()) == {0, 1}  # not simply even and odd


def find_discs(image, count=2):
    """The `count` brightest places of 3 x 3 pixels that do not overlap, (y, x)."""
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(int), (3, 3))
    score = np.sort(windows.reshape(*windows.shape[:2], 9), axis=-1)[..., 3:].sum(-1)
    found = []
    for _ in range(count):
        y, x = np.unravel_index(score.argmax(), score.shape)
        found.append((y + 1, x + 1))
        score[max(0, y - 3) : y + 4, max(0, x - 3) : x + 4] = -1
    return np.array(found)


def test_labels_say_which_contours_the_discs_in_the_picture_end(hard):
    images, labels, geometry = hard
    checked = 0
    for image, label, contours in zip(
        images[:600], labels[:600], geometry.contours[:600], strict=True
    ):
        begins, ends = contours[:, 0, 0], contours[:, -1, 1]  # [contour, (y, x)]
        tips = np.concatenate([begins, ends])
        gaps = np.abs(tips[:, None] - tips).max(-1) + 9 * np.eye(4)
        if gaps.min() < 6:  # two tips too near to tell one disc from the other
            continue
        discs = find_discs(image)
        distance = np.abs(discs[:, None] - tips).max(axis=-1)
        # An overlap of three contours can outshine a marker; seldom.
        if distance.min(axis=1).max() > 1:
            continue
        first, last = sorted(distance.argmin(axis=1))
        assert first < 2 <= last, "one first tip and one last tip"
        assert label == (first == last - 2)
        checked += 1
    assert checked > 200


def test_markers_are_drawn_where_the_geometry_says(hard):
    images, labels, geometry = hard
    np.testing.assert_array_equal(labels, geometry.labels)
    rows = np.arange(len(images))[:, None]
    y, x = np.moveaxis(geometry.markers, -1, 0)
    # A marker has ink 1, the brightest paddle 2 x 0.577.
    assert (images[rows, y, x] >= 220).all()


def test_contours_are_chains_of_paddles_within_the_border(hard):
    *_, geometry = hard
    for chains in (geometry.contours, geometry.distractors[geometry.has_distractor]):
        chains = chains.reshape(-1, *chains.shape[-3:])
        assert ((chains >= 0) & (chains <= 31)).all()
        lengths = np.linalg.norm(chains[:, :, 1] - chains[:, :, 0], axis=-1)
        gaps = np.linalg.norm(chains[:, 1:, 0] - chains[:, :-1, 1], axis=-1)
        assert lengths.min() >= 1
        assert lengths.max() <= 3
        assert gaps.max() <= 5
        # Paddles go on, they do not turn back.
        heads = chains[:, 1:, 1] - chains[:, :-1, 0]
        assert (np.linalg.norm(heads, axis=-1) > 2).all()
    apart = np.linalg.norm(
        geometry.contours[:, 0, 0, 0] - geometry.contours[:, 1, 0, 0], axis=-1
    )
    np.testing.assert_allclose(apart, 7, atol=0.8)  # seed_distance


def test_no_paddle_overlaps_the_mask_it_was_placed_beside(hard, monkeypatch):
    """Every accepted paddle is looked up again in dense masks built from scratch."""
    accepted = []
    original = Growth._extend

    def extend(self, contour, rows):
        before = self.occupied[rows].astype(int)
        success = original(self, contour, rows)
        p, stamp = self.paddles, self.end_stamp[contour, rows]
        dense = np.zeros_like(before)
        at = self.end_anchor[contour, rows][:, None] + p.mask.offsets[stamp]
        np.put_along_axis(dense, at, p.mask.values[stamp].astype(int), axis=1)
        accepted.append((before + dense).max(axis=1)[success])
        return success

    monkeypatch.setattr(Growth, "_extend", extend)
    generator.trace(5, range(100))
    highest = np.concatenate(accepted).max()
    assert 400 < highest < 1.8 * 255


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_all_settings(resolution, difficulty):
    options = {"resolution": resolution, "difficulty": difficulty}
    settings = get_settings(resolution, difficulty)
    images, labels = generator.generate(2, range(4), **options)
    geometry = generator.trace(2, range(4), **options)
    assert images.shape == (4, resolution, resolution)
    assert images.dtype == np.uint8
    assert set(labels.tolist()) == {0, 1}
    length = DIFFICULTIES[difficulty]
    assert geometry.contours.shape == (4, 2, length, 2, 2)
    assert geometry.distractors.shape[2] == length // 3
    assert geometry.has_distractor.any()
    assert set(geometry.margins.tolist()) <= set(settings.margins)
    # There is ink in the middle of every paddle of the contours.
    middle = np.rint(geometry.contours.mean(axis=-2)).astype(int)
    y, x = np.moveaxis(middle, -1, 0)
    around = np.zeros(y.shape, np.uint8)
    for dy, dx in np.ndindex(3, 3):
        at = np.arange(4)[:, None, None], y + dy - 1, x + dx - 1
        around = np.maximum(around, images[at])
    assert (around > 64).all()
    assert all(distinct(paddles) for paddles in geometry.contours)


def distinct(contours):
    paddles = contours.reshape(-1, 4)
    return len(np.unique(paddles, axis=0)) == len(paddles)


def test_a_picture_does_not_depend_on_its_batch():
    images, labels = generator.generate(4, range(10))
    for order in ([7], [9, 0, 3, 3], [12, 5]):
        some, their_labels = generator.generate(4, order)
        for image, label, i in zip(some, their_labels, order, strict=True):
            if i < 10:
                np.testing.assert_array_equal(image, images[i])
                assert label == labels[i]
    assert len({image.tobytes() for image in images}) == 10


def test_seeds_differ():
    one, _ = generator.generate(0, range(5))
    other, _ = generator.generate(1, range(5))
    assert (one != other).any(axis=(1, 2)).all()


def test_two_processes_give_the_same():
    alone = generator.generate(6, range(40), resolution=128)
    together = generator.generate(6, range(40), resolution=128, num_workers=2)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_failing_worker_is_an_error():
    with pytest.raises((TypeError, AttributeError)):
        list(generator.draw(get_settings(32, "hard"), 0, [None, None], 2))


def test_a_killed_worker_is_one_line():
    parts = np.split(np.arange(4000), 8)
    drawn = generator.draw(get_settings(32, "hard"), 0, parts, 2)
    next(drawn)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(DataError, match="a process that draws pictures was killed"):
        list(drawn)
    assert not multiprocessing.active_children()


def test_nobody_draws_on_when_the_first_pictures_are_enough():
    parts = [np.arange(2), np.arange(20_000), np.arange(20_000)]  # half a minute each
    drawn = generator.draw(get_settings(32, "hard"), 0, parts, 2)
    next(drawn)
    started = time.monotonic()
    drawn.close()
    assert time.monotonic() - started < 10
    assert not multiprocessing.active_children()


def test_the_same_on_every_machine():
    """The one value copied from a run: it guards against another machine's
    arithmetic, and against changing a data set that others have trained on."""
    digest = hashlib.sha256()
    for resolution in RESOLUTIONS:
        images, labels = generator.generate(0, range(8), resolution=resolution)
        digest.update(images.tobytes() + bytes(labels.tolist()))
    assert digest.hexdigest()[:16] == "8d60452e3a1d0484"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, [0]), {"resolution": 48}, r"resolution .*\[32, 64, 128, 256\], got 48"),
        ((0, [0]), {"difficulty": "hardest"}, r"difficulty .*'hard'\], got 'hardest'"),
        ((0, [0]), {"num_workers": 0}, "num_workers must be 1 or more, got 0"),
        ((-1, [0]), {}, "seed must be .* got -1"),
        ((0.5, [0]), {}, "seed must be .* got 0.5"),
        ((0, [-1]), {}, "indices must be"),
        ((0, [0.5]), {}, "indices must be"),
        ((0, [[1]]), {}, "indices must be"),
    ],
)
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        generator.generate(*arguments, **options)


def test_no_indices_no_pictures():
    images, labels = generator.generate(0, [])
    assert images.shape == (0, 32, 32)
    assert labels.shape == (0,)
