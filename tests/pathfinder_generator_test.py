"""The Pathfinder generator against the published pictures' statistics and its own
geometry."""

import dataclasses
import hashlib
import itertools
import multiprocessing
import time

import numpy as np
import pytest

from lra_tasks.pathfinder_generator import draw, generate, grow
from lra_tasks.pathfinder_growth import Growth
from lra_tasks.pathfinder_paddles import DIFFICULTIES, RESOLUTIONS, get_settings

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


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where everything lies in n pictures; coordinates are (y, x) in pixels."""

    labels: np.ndarray  # [n]
    contours: np.ndarray  # [n, 2, paddles, 2, 2], each paddle's tail and head
    distractors: np.ndarray  # [n, number, paddles, 2, 2]
    has_distractor: np.ndarray  # [n, number]
    markers: np.ndarray  # [n, 2, 2], a first tip and a last one


def trace(seed, indices, resolution=32, difficulty="hard"):
    """What `generate` draws with the same arguments, for each margin."""
    settings = get_settings(resolution, difficulty)
    for rows, growth, markers, labels in grow(settings, seed, indices):
        p = growth.paddles
        ends = np.stack([p.tail[growth.stamp], p.head[growth.stamp]], axis=2)
        ends += p.coordinates(growth.anchor)[:, :, None]
        contours, others = np.split(ends, [growth.contour_slots], axis=1)
        shape = len(rows), settings.num_distractors, settings.distractor_length, 2, 2
        yield Geometry(
            labels=labels,
            contours=contours.reshape(len(rows), 2, settings.contour_length, 2, 2),
            distractors=others.reshape(shape),
            has_distractor=growth.has_distractor,
            markers=p.coordinates(markers),
        )


@pytest.fixture(scope="module")
def hard():
    (geometry,) = trace(11, np.arange(2000))
    return *generate(11, np.arange(2000)), geometry


def test_statistics_of_the_public_generator(hard):
    images, labels, _ = hard
    error = statistics(images) / list(REFERENCE.values()) - 1
    assert (abs(error) < TOLERANCES).all(), dict(zip(REFERENCE, error, strict=True))
    assert (images.max(axis=(1, 2)) == 255).all()
    zero, one = statistics(images[labels == 0]), statistics(images[labels == 1])
    assert (abs(zero / one - 1) < TOLERANCES).all()  # both labels look alike
    assert labels.mean() == 0.5
    assert set(labels[:20:2].tolist()) == {0, 1}  # not simply even and odd


def test_markers_are_where_and_on_what_the_labels_say(hard):
    images, labels, geometry = hard
    np.testing.assert_array_equal(labels, geometry.labels)
    rows = np.arange(len(images))[:, None]
    y, x = np.moveaxis(geometry.markers, -1, 0)
    # A marker has ink 1, the brightest paddle 2 x 0.577.
    assert (images[rows, y, x] >= 220).all()
    tips = geometry.contours[:, :, 0, 0], geometry.contours[:, :, -1, 1]
    first, last = (
        np.argmax((tip == geometry.markers[:, None, i]).all(-1), axis=1)
        for i, tip in enumerate(tips)
    )
    np.testing.assert_array_equal(labels, first == last)
    for i, contour in enumerate((first, last)):
        marker = tips[i][np.arange(len(images)), contour]
        np.testing.assert_array_equal(marker, geometry.markers[:, i])


def test_contours_are_chains_of_paddles_within_the_border(hard):
    images, _, geometry = hard
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
    middle = np.rint(geometry.contours.mean(axis=-2)).astype(int)  # there is ink
    y, x = np.moveaxis(middle, -1, 0)
    rows = np.arange(len(images))[:, None, None]
    around = [images[rows, y + dy - 1, x + dx - 1] for dy, dx in np.ndindex(3, 3)]
    assert (np.max(around, axis=0) > 64).all()


def test_no_paddle_overlaps_the_mask_it_was_placed_beside(hard, monkeypatch):
    """Every accepted paddle is looked up again in dense masks built from scratch."""
    accepted = []
    original = Growth._extend

    def extend(self, contour, rows):
        before = self.occupied[rows].astype(int)
        success = original(self, contour, rows)
        p, (anchor, stamp, _) = self.paddles, self.end[:, contour, rows]
        dense = np.zeros_like(before)
        at = anchor[:, None] + p.mask.offsets[stamp]
        np.put_along_axis(dense, at, p.mask.values[stamp].astype(int), axis=1)
        accepted.append((before + dense).max(axis=1)[success])
        return success

    monkeypatch.setattr(Growth, "_extend", extend)
    list(trace(5, np.arange(100)))
    highest = np.concatenate(accepted).max()
    assert 400 < highest < 1.8 * 255


def test_no_two_tips_share_a_pixel():
    # Pictures 546 and 732 of seed 0 did: a marker there lies on both contours.
    (geometry,) = trace(0, np.arange(3000))
    tips = np.stack([geometry.contours[:, :, 0, 0], geometry.contours[:, :, -1, 1]], 1)
    places = np.sort(tips.reshape(-1, 4, 2) @ [32, 1], axis=1)
    assert (np.diff(places, axis=1) > 0).all()


def test_a_picture_depends_on_seed_and_index_alone():
    images, labels = generate(4, np.arange(10))
    for order in ([7], [9, 0, 3, 3], [12, 5]):
        some, their_labels = generate(4, order)
        for image, label, i in zip(some, their_labels, order, strict=True):
            if i < 10:
                np.testing.assert_array_equal(image, images[i])
                assert label == labels[i]
    assert len({image.tobytes() for image in images}) == 10
    other, _ = generate(5, np.arange(10))
    assert (images != other).any(axis=(1, 2)).all()
    assert generate(0, [])[0].shape == (0, 32, 32)


def test_nobody_draws_on_when_the_first_pictures_are_enough():
    parts = [np.arange(2), np.arange(20_000), np.arange(20_000)]  # half a minute each
    drawn = draw(parts, 0, 2)
    np.testing.assert_array_equal(next(drawn)[0], generate(0, parts[0])[0])
    started = time.monotonic()
    drawn.close()
    assert time.monotonic() - started < 10
    assert not multiprocessing.active_children()


def test_generate_is_the_same_on_every_machine():
    """The one value copied from a run: it guards against another machine's
    arithmetic, and against changing a data set that others have trained on."""
    digest = hashlib.sha256()
    for resolution, difficulty in itertools.product(RESOLUTIONS, DIFFICULTIES):
        options = {"resolution": resolution, "difficulty": difficulty}
        images, labels = generate(0, np.arange(8), **options)
        assert (images.shape, images.dtype) == ((8, *2 * [resolution]), np.uint8)
        digest.update(images.tobytes() + bytes(labels.tolist()))
    assert digest.hexdigest()[:16] == "e063e6fb18b8d8c9"
