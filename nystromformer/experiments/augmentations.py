"""The augmentations that a config may switch on, each for the tasks that have it."""

from functools import partial

from lra_tasks.listops_generator import CLOSE, FIRST_OPERATOR
from lra_tasks.task import Task
from nystromformer.config import ConfigError, TrainConfig
from nystromformer.training.augmentation import Augmentation, flip, shuffle_arguments

# By the name of the option, in the order in which they are applied.
AUGMENTATIONS: dict[str, Augmentation] = {
    "flip_horizontal": partial(flip, axis=1),
    "flip_vertical": partial(flip, axis=0),
    "shuffle_arguments": partial(
        shuffle_arguments, operators=range(FIRST_OPERATOR, CLOSE), close=CLOSE
    ),
}


def make_augmentations(task: Task, train: TrainConfig) -> list[Augmentation]:
    """Those that are switched on.

    Raises:
      ConfigError: one changes the labels of this task, or makes no sense for it.
    """
    names = [name for name in AUGMENTATIONS if getattr(train, name)]
    for name in names:
        if name not in task.augmentations:
            known = ", ".join(task.augmentations) or "no augmentation"
            raise ConfigError(
                f"config.train.{name} is not for {task.name}, which has {known}"
            )
    return [AUGMENTATIONS[name] for name in names]
