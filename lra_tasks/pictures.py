"""Pictures: folders of a user's own pictures, to classify pixel by pixel."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import PIL.Image
import PIL.ImageOps
from tqdm import tqdm

from lra_tasks.errors import DataError
from lra_tasks.found_classes import FoundClasses, find_split
from lra_tasks.image import to_grey
from lra_tasks.split import Split

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True, kw_only=True)
class Pictures(FoundClasses):
    """The pictures source_dir/CLASS/*.png, or source_dir/{train,test}/CLASS/*.png.

    They are resized to `size` × `size`. The tokens are the intensities row by row, of
    `colour="rgb"` three for each pixel. A split without a folder is drawn from train
    with `seed`. The classes have the names of the folders of train. `max_length` 0 is
    the number of tokens.
    """

    name: ClassVar[str] = "pictures"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "Pictures of one's own to classify, pixel by pixel."
    vocab_size: ClassVar[int] = 256
    padded: ClassVar[bool] = False
    zero_is_padding: ClassVar[bool] = False
    found_options: ClassVar[tuple[str, ...]] = ("labels", "max_length")
    source: ClassVar[str] = "a folder of pictures for each class"
    size: int = 32
    colour: Literal["grey", "rgb"] = "grey"
    max_length: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_option_types()
        self.require(self.size >= 1, f"size must be at least 1, not {self.size}")
        num_tokens = self.size**2 * (1 if self.colour == "grey" else 3)
        self.require(
            self.max_length in (0, num_tokens),
            f"max_length must be {num_tokens:,}, all intensities of size={self.size}, "
            f"colour={self.colour}: leave it out",
        )
        self._derive("max_length", num_tokens)
        super().__post_init__()

    @property
    def augmentations(self) -> tuple[str, ...]:
        return ("flip_horizontal", "flip_vertical") if self.colour == "grey" else ()

    def source_files(self) -> list[Path]:
        root = Path(self.source_dir or "")
        files = []
        for path in sorted(root.rglob("*")):
            # Programs keep copies in hidden folders, such as .ipynb_checkpoints.
            names = path.relative_to(root).parts
            is_hidden = any(name.startswith(".") for name in names)
            if path.suffix.lower() in SUFFIXES and not is_hidden:
                files.append(path)
        return files

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`, where a text is the path of a picture."""
        pictures = [self.read_picture(Path(path)) for path in texts]
        split = Split.from_pictures(np.stack(pictures), np.zeros(len(pictures)))
        return split.inputs, split.lengths

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        channels = () if self.colour == "grey" else (3,)
        return tokens.reshape(self.size, self.size, *channels)

    def read_picture(self, path: Path) -> np.ndarray:
        """Reads a picture as uint8 [size, size], or with rgb [size, size, 3].

        What is transparent becomes white.

        Raises:
          DataError: if it is damaged or no picture, or has more than 8 bits a channel.
        """
        try:
            with PIL.Image.open(path) as file:
                picture = PIL.ImageOps.exif_transpose(file)
                if picture.mode[0] in "IF":
                    raise DataError(
                        f"{path} has the mode {picture.mode}: save it with 8 bits a "
                        "channel"
                    )
                if picture.has_transparency_data:
                    picture = picture.convert("RGBA")
                    white = PIL.Image.new("RGBA", picture.size, "white")
                    picture = PIL.Image.alpha_composite(white, picture)
                picture = picture.convert("RGB")
        except DataError:  # It is a ValueError, too.
            raise
        except (
            OSError,
            SyntaxError,
            ValueError,
            PIL.Image.DecompressionBombError,
        ) as error:
            raise DataError(f"{path} cannot be read as a picture: {error}") from error
        resized = picture.resize((self.size, self.size), PIL.Image.Resampling.BILINEAR)
        rgb = np.asarray(resized)
        return rgb if self.colour == "rgb" else to_grey(rgb.transpose(2, 0, 1)[None])[0]

    def make_splits(self, source: Path) -> dict[str, Split]:
        files, others = self._find_files()
        if others:
            print(
                f"{len(others):,} pictures lie in no folder of a class, such as "
                f"{others[0]}: not read",
                file=sys.stderr,
            )
        splits = {}
        for name, labelled_paths in files.items():
            pictures = []
            labels = []
            for path, label in tqdm(labelled_paths, f"{name}, files", disable=None):
                self.require(
                    label in self.label_names,
                    f"{path} is in none of the classes {self.labels}: move it, or name "
                    "its class in labels",
                )
                pictures.append(self.read_picture(path))
                labels.append(self.label_names.index(label))
            splits[name] = Split.from_pictures(np.stack(pictures), labels)
        return splits

    def find_classes(self) -> list[str]:
        files, _ = self._find_files()
        self.require(
            "train" in files, f"source_dir ({self.source_dir}) must hold {self.source}"
        )
        return sorted({label for _, label in files["train"]})

    def _find_files(self) -> tuple[dict[str, list[tuple[Path, str]]], list[Path]]:
        """Finds the pictures of each split, with their classes, and all others.

        Where there is a folder train/, the folders of the classes lie in it, and in
        those of the other splits.

        Raises:
          DataError: if a folder has nearly the name of a split.
        """
        root = Path(self.source_dir or "")
        has_splits = (root / "train").is_dir()
        files: dict[str, list[tuple[Path, str]]] = {}
        others = []
        for path in self.source_files():
            folders = path.relative_to(root).parts[:-1]
            split = "train"
            if has_splits and folders:
                split = find_split(folders[0])
                self.require(
                    split in (None, folders[0]),
                    f"{root / folders[0]} is not read: name it {split}, or remove it",
                )
                folders = folders[1:]
            if len(folders) == 1 and split:
                files.setdefault(split, []).append((path, folders[0]))
            else:
                others.append(path)
        return files, others
