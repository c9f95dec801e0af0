"""The augmentations that a config may switch on, each for the tasks that have it."""

import functools

from lra_tasks.listops import CLOSE, FIRST_OPERATOR
from lra_tasks.task import Task
from nystromformer.config import TrainConfig
from nystromformer.errors import ConfigError
from nystromformer.training.augmentation import Augmentation, flip, shuffle_arguments

# By the names of their options in `train`, in the order in which they are applied.
AUGMENTATIONS: dict[str, Augmentation] = {
    "flip_horizontal": functools.partial(flip, axis=1),
    "flip_vertical": functools.partial(flip, axis=0),
    "shuffle_arguments": functools.partial(
        shuffle_arguments, operators=range(FIRST_OPERATOR, CLOSE), close=CLOSE
    ),
}


def make_augmentations(task: Task, train: TrainConfig) -> list[Augmentation]:
    """Returns the augmentations that a config switches on.

    Raises:
      ConfigError: if one would change the labels of this task, or makes no sense for
        it.
    """
    augmentations = []
    for name, augmentation in AUGMENTATIONS.items():
        if not getattr(train, name):
            continue
        if name not in task.augmentations:
            names = ", ".join(task.augmentations) or "no augmentation"
            raise ConfigError(
                f"config.train.{name} is not for {task.name}, which has {names}"
            )
        augmentations.append(augmentation)
    return augmentations
