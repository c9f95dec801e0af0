"""Settings: what of a config may change a number, and how it is said in words."""

import dataclasses
from typing import Any

from nystromformer.config import ConfigError
from nystromformer.lab.report.presets import flatten, nearest_preset
from nystromformer.lab.report.runs import Run

SEED, PRESET, NUM_LANDMARKS = "train.seed", "preset", "attention.num_landmarks"
# What changes no number: where data lie, how they are made, what is written when.
IRRELEVANT = {
    *("task.data_dir", "task.source_dir", "task.num_workers"),
    *("train.log_every", "train.checkpoint_every"),
}
WORDS = {
    PRESET: "{} preset",
    NUM_LANDMARKS: "{} landmarks",
    "attention.num_pinv_iters": "{} iterations",
    "attention.num_features": "{} features",
    "attention.num_hashes": "{} hashes",
    "attention.conv_kernel_size": "convolution of {}",
    "attention.window": "window {}",
    "task.max_length": "length {}",
    "train.batch_size": "batch {}",
    "train.num_steps": "{} steps",
    "train.micro_batches": "{} parts",
    "train.length_buckets": "{} lengths",
    "optimizer.learning_rate": "learning rate {}",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """All of a run's config that may change a number, the seed included.

    Attributes:
      values: "group.key" -> value.
      preset, changed: the nearest preset, and the keys of its differences.
    """

    run: Run
    values: dict[str, Any]
    preset: str
    changed: set[str]

    @classmethod
    def of(cls, run: Run) -> "Setting":
        """The setting of one run."""
        preset, changes = nearest_preset(run.config, IRRELEVANT)
        return cls(run, flatten(run.config, IRRELEVANT), preset, set(changes))


def names(given: list[Setting]) -> list[dict[str, Any]]:
    """For each setting what tells it from the others, as key -> value.

    That is its preset, where runs of its task differ in it, and what they differ in
    beside. Options of an attention are compared among all runs of the attention, so
    that one name stands for the same options in every task. Where each run changes one
    option at most, as ablations do, the others go without saying.
    """
    of_task: dict[str, list[Setting]] = {}
    of_attention: dict[str, list[Setting]] = {}
    for one in given:
        of_task.setdefault(one.run.config.task.name, []).append(one)
        of_attention.setdefault(one.run.config.attention.name, []).append(one)
    in_task = {name: _differences(peers) for name, peers in of_task.items()}
    in_attention = {name: _differences(peers) for name, peers in of_attention.items()}
    understood = {
        name: _understood(peers, in_attention[name])
        for name, peers in of_attention.items()
    }
    found = []
    for one in given:
        task, attention = one.run.config.task.name, one.run.config.attention.name
        presets = {peer.preset for peer in of_task[task]}
        named = {PRESET: one.preset} if len(presets) > 1 else {}
        for key, value in one.values.items():
            option = key.startswith("attention.")
            if key in understood[attention] - one.changed:
                continue
            if key in (in_attention[attention] if option else in_task[task]):
                named[key] = value
        found.append(named)
    return found


def _differences(peers: list[Setting]) -> set[str]:
    """The keys in which they differ otherwise than by their tasks' presets."""
    changed = {key for peer in peers for key in peer.changed}
    differ = set()
    for key in {key for peer in peers for key in peer.values} - {SEED}:
        found: dict[tuple[str, ...], set[str]] = {}
        for peer in peers:
            config = peer.run.config
            same_preset = config.task.name, config.attention.name, peer.preset
            found.setdefault(same_preset, set()).add(repr(peer.values.get(key)))
        within = any(len(values) > 1 for values in found.values())
        between = len(set.union(*found.values())) > 1
        if within or (between and key in changed):
            differ.add(key)
    return differ


def _understood(peers: list[Setting], options: set[str]) -> set[str]:
    """Those of several options that need no name where they are the preset's.

    A single option is named in all runs, which then read as a series; so is the number
    of landmarks, which is an axis of figures.
    """
    ablated = {key for key in options if key.startswith("attention.")}
    if len(ablated) < 2 or any(len(peer.changed & ablated) > 1 for peer in peers):
        return set()
    usual = {
        key: {repr(peer.values.get(key)) for peer in peers if key not in peer.changed}
        for key in ablated - {NUM_LANDMARKS}
    }
    return {key for key, values in usual.items() if len(values) == 1}


def phrase(key: str, value: Any) -> str:
    """One setting in words."""
    text = f"{value:,}" if type(value) is int else str(value)
    return WORDS.get(key, f"{key.removeprefix('attention.')} {{}}").format(text)


def refuse_duplicates(given: list[Setting]) -> None:
    """Raises ConfigError for two runs that would count as two seeds and are one."""
    seen: dict[str, Run] = {}
    for one in given:
        other = seen.setdefault(repr(sorted(one.values.items())), one.run)
        if other is not one.run:
            raise ConfigError(
                f"{other.workdir} and {one.run.workdir} hold the same settings and "
                "seed: leave one out"
            )


def refuse_other_data(given: list[Setting]) -> None:
    """Raises ConfigError for finished runs of equal task options and other hashes."""
    seen: dict[tuple[str, str], tuple[Run, str]] = {}
    for one in given:
        hashes = (one.run.result or {}).get("data_sha256") or {}
        task = {k: v for k, v in one.values.items() if k.startswith("task.")}
        for split, sha256 in hashes.items():
            key = repr(sorted(task.items())), split
            other, theirs = seen.setdefault(key, (one.run, sha256))
            if theirs != sha256:
                raise ConfigError(
                    f"{other.workdir} and {one.run.workdir} have read other {split} "
                    "data under the same settings (data_sha256 in result.json): report "
                    "them apart"
                )
