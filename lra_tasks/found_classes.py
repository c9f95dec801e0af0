"""Tasks over a user's own files, which name classes and splits: their base class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lra_tasks.split import SPLITS
from lra_tasks.tables import join_names, split_names
from lra_tasks.task import Task

# Names that people give to the validation split; a file or folder so named is refused.
OTHER_NAMES = {"val": "validation", "valid": "validation", "dev": "validation"}


@dataclass(frozen=True, kw_only=True)
class FoundClasses(Task):
    """A task whose classes are found in `source_dir`.

    `labels` are the classes in a line of a CSV: "ham,spam". None: those that
    `find_classes` finds.
    """

    # What source_dir holds, in messages.
    source: ClassVar[str]
    found_options: ClassVar[tuple[str, ...]] = ("labels",)
    labels: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # They are found at once, since the model's size depends on their number.
        if self.labels is None and self.source_dir is not None:
            self._derive("labels", join_names(self.find_classes()))
        self.require(
            self.labels is None or self.num_classes >= 2,
            f"two or more classes are needed, found in source_dir, which has "
            f"{self.source}, or named, as in labels='ham,spam'; there is "
            f"{self.labels!r}",
        )

    @property
    def label_names(self) -> Sequence[str]:
        self.require(
            self.labels is not None,
            f"source_dir must name the folder that has {self.source}",
        )
        return split_names(self.labels or "")

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    def find_classes(self) -> list[str]:
        """Finds the classes in `source_dir`, in the order of their numbers."""
        raise NotImplementedError


def find_split(name: str) -> str | None:
    """Finds the split that a user means by the name of a file or folder, if any."""
    split = OTHER_NAMES.get(name.lower(), name.lower())
    return split if split in SPLITS else None
