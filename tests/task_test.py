"""The table of tasks, and what its door turns away."""

import pytest

from lra_tasks.task import TASKS, DataError, get_task


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_what_a_model_must_know(name):
    task = get_task(name)
    assert task.name == name
    assert task.num_inputs in (1, 2)
    assert min(task.vocab_size, task.num_classes, task.max_length) >= 2


def test_the_benchmark_is_the_default_and_options_reach_the_task():
    task = get_task("listops")
    assert (task.vocab_size, task.num_classes, task.max_length) == (16, 10, 2000)
    assert get_task("listops", max_length=64, min_length=10).max_length == 64


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("listop", {}, "unknown task 'listop': one of listops"),
        ("listops", {"sead": 1}, "no option sead: its options are max_length, num_"),
        ("listops", {"name": "text"}, "no option name: its options are max_length, "),
        ("listops", {"seed": "1"}, "seed must be int, not '1'"),
        ("listops", {"num_train": True}, "num_train must be int, not True"),
        ("listops", {"num_train": 1.5}, "num_train must be int, not 1.5"),
        ("listops", {"source_dir": 3}, r"source_dir must be str \| None, not 3"),
        ("listops", {"seed": -1}, "seed must not be negative"),
        ("listops", {"num_test": 0}, "num_test must be at least 1"),
        ("listops", {"max_depth": 1}, "max_depth must be at least 2"),
        ("listops", {"max_args": 1}, "max_args must be 2 to 100"),
        ("listops", {"max_length": 64}, "min_length must be 4 .* to 64"),
        ("listops", {"min_length": 3}, "min_length must be 4"),
        ("listops", {"longest": 500}, "min_length must be 4 .* to 500"),
    ],
)
def test_what_is_turned_away(name, options, message):
    with pytest.raises(DataError, match=message):
        get_task(name, **options)


def test_an_unknown_split_is_turned_away_before_any_work(tmp_path):
    with pytest.raises(DataError, match="'val': one of train, validation, test"):
        get_task("listops").load("val", tmp_path)
    assert not list(tmp_path.iterdir())
