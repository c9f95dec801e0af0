"""The page on own data: its commands as they are printed, but for small sizes."""

import csv
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from lra_tasks import TASKS
from lra_tasks.task import DataError, get_task
from nystromformer import load_run
from tests.commands import ROOT, Commands
from tests.readme_test import SNIPPET, commands_of

PAGE = ROOT / "docs/own_data.md"
SMALL = (
    "--config.train.num_steps=20",
    "--config.optimizer.warmup_steps=5",
    "--config.model.num_layers=1",
    "--config.attention.num_landmarks=4",
    "--config.attention.num_pinv_iters=1",
)


def run_command(commands: Commands, folder: Path, config: str, *changes: str) -> str:
    """Runs the page's command with this config in a folder; returns all it prints."""
    [command] = [x for x in commands_of(PAGE) if f"--config={config}" in x]
    _, script, *arguments = command.split()
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(ROOT / "configs")
    in_its_folder = Commands(folder, commands.programs)
    done = in_its_folder.run(script.removeprefix("scripts/"), *arguments, *changes)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    """The folder of the reader, in which FOLDER has the data."""
    (tmp_path / "FOLDER").mkdir()
    return tmp_path


def test_texts_are_classified_by_the_names_in_the_file(commands, folder):
    rng = np.random.default_rng(0)
    rows = [["text", "label"]]
    for number in range(120):
        label, words = [("sport", "goal cup"), ("York, NY", "taxi park")][number % 2]
        rows.append([" ".join(rng.choice(words.split(), 5)), label])
    with (folder / "FOLDER/train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    small = (*SMALL, "--config.task.max_length=64")
    printed = run_command(commands, folder, "configs/labelled_texts.py", *small)
    assert "half of the texts of train have up to 2" in printed
    assert "--config.task.max_length=24 holds all the texts" in printed
    again = run_command(commands, folder, "configs/labelled_texts.py", *small)
    assert "is finished" in again

    (folder / "FOLDER").rename(folder / "gone")
    run = load_run(folder / "runs/texts")
    assert run.task.class_names == ["York, NY", "sport"]
    labels = run.predict(["goal cup goal cup goal", "taxi park taxi park taxi"]).labels
    assert labels.tolist() == ["sport", "York, NY"]


def test_pictures_are_classified_by_the_names_of_their_folders(commands, folder):
    rng = np.random.default_rng(0)
    for label, top in (("cat", 0), ("dog", 150)):
        (folder / "FOLDER" / label).mkdir()
        for number in range(40):
            pixels = rng.integers(0, 50, (9, 9), np.uint8)
            pixels[:5] += top
            path = folder / f"FOLDER/{label}/{number}.png"
            PIL.Image.fromarray(pixels).save(path)
    small = (*SMALL, "--config.task.size=8", "--config.train.batch_size=16")
    run_command(commands, folder, "configs/pictures.py", *small)
    run = load_run(folder / "runs/pictures")
    paths = [f"{folder}/FOLDER/{label}/0.png" for label in ("dog", "cat")]
    assert run.predict(paths).labels.tolist() == ["dog", "cat"]

    (folder / "paths").write_bytes("\r\n".join([*paths, ""]).encode())
    flags = (f"--workdir={folder}/runs/pictures", f"--input={folder}/paths")
    done = commands.run("predict.py", *flags)
    names = [line.split(",")[1] for line in done.stdout.splitlines()]
    assert names == ["class_name", "dog", "cat"], done.stderr


@pytest.fixture
def arrays(folder):
    """Arrays as the page wants them; returns inputs and lengths."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(1, 21, (100, 9))
    lengths = rng.integers(1, 10, 100)
    inputs[np.arange(9) >= lengths[:, None]] = 0
    file: dict = {"inputs": inputs, "lengths": lengths, "labels": inputs[:, 0] % 2}
    np.savez(folder / "FOLDER/train.npz", **file)
    np.savez(folder / "FOLDER/test.npz", **{key: x[:10] for key, x in file.items()})
    return inputs, lengths


def test_arrays_train_by_the_command(commands, folder, arrays):
    [snippet] = SNIPPET.findall(PAGE.read_text())
    (folder / "my_arrays.py").write_text(snippet)
    small = (
        "--config.train.num_steps=2",
        "--config.task.max_length=9",
        "--config.model.num_layers=1",
    )
    printed = run_command(commands, folder, "my_arrays.py", *small)
    assert "arrays with softmax, seed 0: best validation accuracy" in printed
    assert (folder / "runs/mine/result.json").exists()


def test_the_task_of_arrays_reads_them(folder, arrays):
    inputs, lengths = arrays
    names: dict = {}
    [snippet] = SNIPPET.findall(PAGE.read_text())
    exec(snippet, names)
    try:
        config = names["get_config"]("linear")
        assert (config.task.name, config.attention.name) == ("arrays", "linear")
        mine = get_task("arrays", source_dir=str(folder / "FOLDER"), max_length=7)
        test = mine.load("test", folder / "data")
        np.testing.assert_array_equal(test.inputs, inputs[:10, :7])
        np.testing.assert_array_equal(test.lengths, np.minimum(lengths[:10], 7))
        np.testing.assert_array_equal(test.labels, inputs[:10, 0] % 2)
        assert mine.load("validation", folder / "data").num_examples == 9

        (folder / "empty").mkdir()
        empty = get_task("arrays", source_dir=str(folder / "empty"))
        with pytest.raises(DataError, match="no split train: is source_dir"):
            empty.load("train", folder / "data")
    finally:
        del TASKS["arrays"]  # The page registers it.
