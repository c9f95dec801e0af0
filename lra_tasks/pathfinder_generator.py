"""Generates Pathfinder pictures (Linsley et al. 2018) with LRA's parameters.

A picture holds two long dashed contours, several short ones as distractors and two
round markers; its label is 1 when both markers sit on the ends of one contour, and
0 when they sit on ends of different ones. Picture i is a function of (seed, i) and the
settings alone, whatever the batch, the order and the number of processes.
"""

import numpy as np

from lra_tasks.pathfinder_growth import Growth
from lra_tasks.pathfinder_paddles import CONTOUR_INK, DISTRACTOR_INK, get_paddles
from lra_tasks.pathfinder_settings import get_settings
from lra_tasks.pathfinder_streams import Streams

# The streams of a seed: one grows the pictures, the other decides the labels.
_GROWTH_STREAM = 0
_LABEL_STREAM = 1


def generate(
    seed: int, indices: np.ndarray, *, resolution: int = 32, difficulty: str = "hard"
) -> tuple[np.ndarray, np.ndarray]:
    """Draws pictures.

    Args:
      seed: the seed of the data set.
      indices: the numbers of the pictures `[n]`, in any order.
      resolution: the side of a picture, one of RESOLUTIONS.
      difficulty: one of DIFFICULTIES.

    Returns:
      Images uint8 `[n, R, R]` and labels int64 `[n]`.
    """
    settings = get_settings(resolution, difficulty)
    indices = np.asarray(indices, np.int64)
    all_rows = np.arange(len(indices))
    images = np.empty((len(indices), resolution, resolution), np.uint8)

    # Pictures 2j and 2j + 1 share a coin, so that one of them gets label 1.
    coins = Streams.from_seed(seed, indices // 2, _LABEL_STREAM)
    labels = coins.draw(all_rows, 2) ^ (indices % 2)

    streams = Streams.from_seed(seed, indices, _GROWTH_STREAM)
    margin_numbers = streams.draw(all_rows, len(settings.margins))
    first_contours = streams.draw(all_rows, 2)
    for number, margin in enumerate(settings.margins):
        rows = np.flatnonzero(margin_numbers == number)
        growth = Growth(get_paddles(settings, margin), Streams(streams.state[rows]))
        # One marker is where a contour begins; the other where it, or the other, ends.
        first_contour = first_contours[rows]
        second_contour = first_contour ^ (1 - labels[rows])
        tips = growth.tips()
        first_marker = tips[growth.rows, 0, first_contour]
        second_marker = tips[growth.rows, 1, second_contour]
        markers = np.stack([first_marker, second_marker], axis=1)
        images[rows] = _paint(growth, markers)
    return images, labels


def _paint(growth: Growth, markers: np.ndarray) -> np.ndarray:
    """Paints the paddles that have grown, and the markers.

    Args:
      growth: the paddles of n pictures.
      markers: the canvas positions of both markers, [n, 2].

    Returns:
      Images uint8 [n, R, R]; the brightest pixel of each is 255.
    """
    paddles = growth.paddles
    num_pictures, num_slots = growth.anchor.shape
    length = paddles.settings.distractor_length
    canvas = np.zeros((num_pictures, paddles.width**2), np.int16)
    for slot in range(num_slots):
        if slot < growth.num_contour_slots:
            inks = paddles.ink[CONTOUR_INK]
            rows = growth.rows
        else:
            inks = paddles.ink[DISTRACTOR_INK]
            distractor = (slot - growth.num_contour_slots) // length
            rows = np.flatnonzero(growth.has_distractor[:, distractor])
        _add_ink(
            canvas,
            width=paddles.width,
            rows=rows,
            position=growth.anchor[rows, slot],
            ink=inks[growth.stamp[rows, slot]],
        )
    for position in markers.T:
        _add_ink(
            canvas,
            width=paddles.width,
            rows=growth.rows,
            position=position,
            ink=np.broadcast_to(paddles.marker, (num_pictures, *paddles.marker.shape)),
        )

    inner = slice(paddles.pad, paddles.width - paddles.pad)
    pictures = canvas.reshape(num_pictures, paddles.width, paddles.width)
    pictures = pictures[:, inner, inner].astype(np.int32)
    brightest = pictures.max(axis=(1, 2), keepdims=True)
    return (pictures * 255 // brightest).astype(np.uint8)


def _add_ink(
    canvas: np.ndarray,
    *,
    width: int,
    rows: np.ndarray,
    position: np.ndarray,
    ink: np.ndarray,
) -> None:
    """Adds ink to canvases; where there is some already, the larger one stays.

    Args:
      canvas: all canvases, [n, width²].
      width: the side of a canvas.
      rows: the canvases that get ink, [r].
      position: where the middle of the ink goes, [r].
      ink: [r, W, W], of odd W.
    """
    radius = ink.shape[1] // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    pixels = position[:, None] + (y * width + x).ravel()
    index = (rows[:, None], pixels)
    canvas[index] = np.maximum(canvas[index], ink.reshape(-1, y.size))
