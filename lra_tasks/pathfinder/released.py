"""Reads the released pictures of Pathfinder."""

import sys
from pathlib import Path

import numpy as np
import PIL.Image
from tqdm import tqdm

from lra_tasks.errors import DataError
from lra_tasks.split import Split, report_other_size

# The seed of the permutation that cuts the released pictures into splits.
RELEASED_SEED = 42
# The pictures of each resolution and difficulty.
NUM_RELEASED = 200_000
# The labels of pictures, as the release writes them.
LABEL_OF_WORD = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


def find_lists(folder: Path) -> list[Path]:
    """Finds the release's metadata/K.npy, in the order of K.

    Raises:
      DataError: if another file is among them.
    """
    # macOS leaves a ._K.npy beside each.
    files = [
        file for file in folder.glob("metadata/*.npy") if not file.name.startswith(".")
    ]
    for file in files:
        if not file.stem.isdecimal():
            raise DataError(
                f"{file} is none of the release's 0.npy, 1.npy, …: remove it"
            )
    return sorted(files, key=lambda file: int(file.stem))


def read_list(path: Path) -> list[tuple[str, int]]:
    """Reads a metadata/K.npy, which is text despite its name.

    Returns:
      The name of each picture below the release's folder, and its label.

    Raises:
      DataError: if it is no text, or a line is not as the release has it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text, as the release has it: unpack the release again"
        ) from None

    pictures = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 4 or words[3] not in LABEL_OF_WORD:
            raise DataError(
                f"{path}, line {number} is not imgs/K sample_I.png I LABEL, of which "
                f"LABEL is 0 or 1: {line:.60}"
            )
        pictures.append((f"{words[0]}/{words[1]}", LABEL_OF_WORD[words[3]]))
    return pictures


def read_picture(path: Path, resolution: int) -> np.ndarray | None:
    """Reads a picture; an empty file is left out, as stderr says.

    Returns:
      The intensities uint8 `[resolution, resolution]`; None for an empty file.

    Raises:
      DataError: if the file is missing or no whole picture of that size.
    """
    if not path.exists():
        raise DataError(f"{path} is in metadata/ but missing: unpack the release again")
    if not path.stat().st_size:
        print(f"{path} is empty: left out", file=sys.stderr)
        return None
    try:
        with PIL.Image.open(path, formats=["PNG"]) as picture:
            image = np.asarray(picture.convert("L"))
        return image.reshape(resolution, resolution)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{path} is not a whole PNG picture of {resolution} x {resolution} "
            f"({error})"
        ) from error


def read_released(folder: Path, resolution: int) -> Split:
    """Reads imgs/K/sample_I.png as metadata/K.npy lists them.

    They are permuted with RELEASED_SEED. Empty files (one in the release) are skipped,
    and stderr says so; also where there are more or fewer pictures than in the release.

    Args:
      folder: the release's folder of one difficulty.
      resolution: the side of the pictures.

    Raises:
      DataError: if pictures are missing or damaged.
    """
    pictures = []
    for file in find_lists(folder):
        pictures += read_list(file)
    report_other_size(
        folder, count=len(pictures), num_released=NUM_RELEASED, noun="pictures"
    )

    images = []
    labels = []
    for name, label in tqdm(pictures, "pictures", disable=None):
        image = read_picture(folder / name, resolution)
        if image is not None:
            images.append(image)
            labels.append(label)
    if not images:
        raise DataError(f"{folder} is not unpacked, or has no pictures in metadata/")
    order = np.random.default_rng(RELEASED_SEED).permutation(len(images))
    return Split.from_pictures(np.stack(images)[order], np.array(labels)[order])
