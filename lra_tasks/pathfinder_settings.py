"""The settings of Pathfinder's data sets: Long Range Arena's parameters.

Lengths are in pixels.
"""

import dataclasses

# The number of paddles in a long contour.
DIFFICULTIES = {"easy": 6, "intermediate": 9, "hard": 14}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All that distinguishes one Pathfinder data set from another.

    Attributes:
      resolution: the side of a picture.
      contour_length: the number of paddles in a long contour.
      paddle_length: the length of a paddle.
      thickness: the width of a paddle.
      margins: the free space around paddles; one of these is drawn for each picture.
      seed_distance: how far the two contours begin from one another.
      marker_radius: the radius of a marker.
      continuity: a larger one makes straighter contours.
      contour_contrast: the ink of the long contours.
      distractor_contrast: the ink of the distractors.
      distractor_paddles: the number of paddles in all distractors together.
      distractor_tries: how many random places a distractor may try; if it fails at all
        of them, it is left out.
    """

    resolution: int
    contour_length: int
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]
    seed_distance: int
    marker_radius: float
    continuity: float
    contour_contrast: float
    distractor_contrast: float
    distractor_paddles: int
    distractor_tries: int

    @property
    def distractor_length(self) -> int:
        """The number of paddles in a distractor."""
        return self.contour_length // 3

    @property
    def num_distractors(self) -> int:
        """The number of distractors, if all of them find a place."""
        return self.distractor_paddles // self.distractor_length


# The settings at the hard difficulty, by the resolution. With one try at 32 pixels 1.2
# of 5 distractors appear, as in the public pictures.
RESOLUTIONS = {
    32: Settings(
        resolution=32,
        contour_length=DIFFICULTIES["hard"],
        paddle_length=2,
        thickness=0.5,
        margins=(1,),
        seed_distance=7,
        marker_radius=1.5,
        continuity=1.0,
        contour_contrast=1.5,
        distractor_contrast=2.0,
        distractor_paddles=20,
        distractor_tries=1,
    ),
    64: Settings(
        resolution=64,
        contour_length=DIFFICULTIES["hard"],
        paddle_length=5,
        thickness=1.0,
        margins=(1,),
        seed_distance=12,
        marker_radius=2.5,
        continuity=1.8,
        contour_contrast=0.8,
        distractor_contrast=0.8,
        distractor_paddles=22,
        distractor_tries=5,
    ),
    128: Settings(
        resolution=128,
        contour_length=DIFFICULTIES["hard"],
        paddle_length=5,
        thickness=1.5,
        margins=(2, 3),
        seed_distance=20,
        marker_radius=3.0,
        continuity=1.8,
        contour_contrast=0.9,
        distractor_contrast=0.9,
        distractor_paddles=35,
        distractor_tries=5,
    ),
}


def get_settings(resolution: int, difficulty: str) -> Settings:
    """Returns the settings of one of RESOLUTIONS and one of DIFFICULTIES."""
    return dataclasses.replace(
        RESOLUTIONS[resolution], contour_length=DIFFICULTIES[difficulty]
    )
