"""Prepares the data of tasks as tensorflow-datasets, and says how to load them.

    python scripts/prepare_data.py --task=NAME|all … [--data_dir=DIR]
    python scripts/prepare_data.py --config=configs/listops.py:quick
        [--config.task.key=value …]

The first command takes each task as it is by default, the second one as train.py with
this config reads it. Data that are already prepared are only read. DATA.md says where
the data come from.
"""

import start

start.prepare()

import sys
from collections.abc import Mapping

from absl import flags

from lra_tasks import LRA
from lra_tasks.errors import DataError
from lra_tasks.task import Task, get_task
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.experiment import use_all_cores
from nystromformer.experiments.transfer import follow_source

_CONFIG = flags.DEFINE_string("config", None, "FILE.py[:PRESET]")
_TASK = flags.DEFINE_multi_string("task", [], "NAME; all: LRA and Path-X")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of archives and data")


def main(changes: Mapping[str, str | bool]) -> None:
    """Prepares the task of a config, or several tasks by name.

    Args:
      changes: key of the config -> the value that replaces the file's, as
        `cli.take_changes` returns it.
    """
    if bool(_CONFIG.value) == bool(_TASK.value):
        raise ConfigError("give either --task or --config")
    if _CONFIG.value:
        config = follow_source(load_config(_CONFIG.value, changes)).task
        task = get_task(config.name, **config.options)
        prepare(task, _DATA_DIR.value or config.data_dir)
    else:
        prepare_by_name(_TASK.value)


def prepare_by_name(names: list[str]) -> None:
    """Prepares tasks one after the other; one that fails does not stop the rest.

    Args:
      names: the names of tasks; "all" is each task of the LRA and Path-X.
    """
    if "all" in names:
        others = [name for name in names if name != "all"]
        names = list(dict.fromkeys([*LRA, "pathx", *others]))
    has_failed = False
    for name in names:
        try:
            prepare(get_task(name), _DATA_DIR.value)
        except (DataError, OSError) as error:
            has_failed = True
            message = str(error).removeprefix(f"{name}: ")
            print(f"error: {name}: {message}", file=sys.stderr)
    sys.exit(2 if has_failed else 0)


def prepare(task: Task, data_dir: str | None) -> None:
    """Prepares a task, and prints its sizes and the line that loads it."""
    task = use_all_cores(task)
    splits = {name: task.load(name, data_dir) for name in task.splits}
    folder = task.folder(data_dir)
    print(
        f'{task.name}: tfds.builder_from_directory("{folder}").as_data_source("train")'
    )
    for name, split in splits.items():
        is_paired = split.pairs is not None
        documents = f" of {len(split.inputs):,} documents" if is_paired else ""
        print(
            f"  {name:10}  {split.num_examples:,} examples{documents}; "
            f"sha256 {split.content_hash}"
        )


if __name__ == "__main__":
    cli.run(main, takes_changes=True)
