"""Pathfinder: drawn, or read from the released folders."""

import os
import signal

import numpy as np
import PIL.Image
import pytest

from lra_tasks.errors import DataError
from lra_tasks.pathfinder import tasks
from lra_tasks.pathfinder.drawing import generate
from lra_tasks.pathfinder.tasks import Pathfinder, find_markers
from lra_tasks.split import Split
from tests.lra_tasks.splits import load_all

FOLDER = "pathfinder32/curv_contour_length_14"


def test_make_splits_are_all_pictures_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "PART_SIZE", 30)
    task = Pathfinder(difficulty="easy", num_examples=110, seed=3, num_workers=2)

    splits = load_all(task, tmp_path)

    assert [split.num_examples for split in splits] == [88, 11, 11]
    images, labels = generate(3, range(110), difficulty="easy")
    all_splits = join(splits)
    np.testing.assert_array_equal(all_splits.inputs, images.reshape(110, 1024))
    np.testing.assert_array_equal(all_splits.labels, labels)
    assert set(all_splits.lengths.tolist()) == {1024}


def be_killed(*_, **__):
    """Stands for `generate` where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("generate", "message"),
    [
        (be_killed, "was killed, .*: lower num_workers"),
        (int, "has failed, with the error above"),  # int() has none of its arguments.
    ],
)
def test_a_worker_that_ends_early_is_an_error(generate, message, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "PART_SIZE", 30)
    monkeypatch.setattr(tasks, "generate", generate)
    with pytest.raises(DataError, match=f"pathfinder: one of 2 processes .* {message}"):
        Pathfinder(num_examples=110, num_workers=2).load("train", tmp_path)


def test_the_number_of_workers_makes_no_other_data(tmp_path):
    assert Pathfinder(num_workers=2).folder(tmp_path) == Pathfinder().folder(tmp_path)


def join(splits):
    """All examples of train, validation and test as one split."""
    train, validation, test = splits
    return train.concatenate(validation).concatenate(test)


def write_released(folder, num_images=40, side=32, seed=0):
    """Writes the released layout, and returns its pictures and labels.

    A picture is imgs/K/sample_I.png, and a list is metadata/K.npy, which is text.
    """
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (num_images, side, side)).astype(np.uint8)
    labels = rng.integers(0, 2, num_images)
    (folder / "metadata").mkdir(parents=True)
    rows_of_batches = np.array_split(np.arange(num_images), 11)
    for batch, rows in enumerate(rows_of_batches):
        batch_folder = folder / "imgs" / str(batch)
        batch_folder.mkdir(parents=True)
        lines = []
        for i, row in enumerate(rows):
            name = f"sample_{i}.png"
            PIL.Image.fromarray(images[row]).save(batch_folder / name)
            lines.append(f"imgs/{batch} {name} {i} {labels[row]} 1.8 14 2.0 20 1.5\n")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return images.reshape(num_images, -1), labels


def released_order(num_images):
    """The order of the pictures of a release, whatever the task's seed is."""
    return np.random.default_rng(42).permutation(num_images)


@pytest.mark.parametrize("source", ["", "lra_release"])
def test_released_folders_are_read(tmp_path, source, capsys):
    folder = tmp_path / "lra_release" / FOLDER
    images, labels = write_released(folder)
    last_picture = folder / "imgs/10/sample_2.png"
    last_picture.write_bytes(b"")
    source_dir = str(tmp_path / source)
    task = Pathfinder(source_dir=source_dir)

    splits = load_all(task, tmp_path / "data")

    assert capsys.readouterr().err.splitlines() == [
        f"{folder}: 40 pictures, the release has 200,000: results are not comparable",
        f"{last_picture} is empty: left out",
    ]
    assert [split.num_examples for split in splits] == [31, 4, 4]
    order = released_order(39)
    np.testing.assert_array_equal(join(splits).inputs, images[order])
    np.testing.assert_array_equal(join(splits).labels, labels[order])
    same_data = Pathfinder(source_dir=source_dir, seed=1, num_examples=50)
    assert same_data.folder() == task.folder()
    assert Pathfinder().folder() != task.folder()


def add_a_file_of_macos(metadata_folder):
    (metadata_folder / "._0.npy").write_bytes(b"\0\5\x16\7Mac OS X")


def add_blank_lines(metadata_folder):
    text = (metadata_folder / "0.npy").read_text()
    (metadata_folder / "0.npy").write_text(f"\ufeff\n{text}\n \n")


def use_windows_line_ends(metadata_folder):
    text = (metadata_folder / "0.npy").read_text()
    (metadata_folder / "0.npy").write_text(text.replace("\n", "\r\n"))


def write_labels_as_floats(metadata_folder):
    text = (metadata_folder / "0.npy").read_text()
    (metadata_folder / "0.npy").write_text(text.replace(" 1.8", ".0 1.8"))


@pytest.mark.parametrize(
    "change",
    [
        add_a_file_of_macos,
        add_blank_lines,
        use_windows_line_ends,
        write_labels_as_floats,
    ],
)
def test_lists_that_other_programs_have_touched_are_the_same(tmp_path, change):
    images, labels = write_released(tmp_path / FOLDER)
    change(tmp_path / FOLDER / "metadata")
    train = Pathfinder(source_dir=str(tmp_path)).load("train", tmp_path / "data")
    order = released_order(40)[:32]
    np.testing.assert_array_equal(train.inputs, images[order])
    np.testing.assert_array_equal(train.labels, labels[order])


LINE = "imgs/0 sample_0.png 0 1 1.8 14 2.0 20 1.5"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "0 (1).npy",
            LINE,
            r"0 \(1\).npy is none of the release's 0.npy, .*: remove it",
        ),
        (
            "11.npy",
            "imgs/0 sample_0.png 0",
            "11.npy, line 1 is not imgs/K sample_I.png",
        ),
        ("11.npy", f"{LINE}\nimgs/0", "11.npy, line 2 is not imgs/K sample_I.png"),
        ("11.npy", LINE.replace("0 1 1", "0 2 1"), "LABEL is 0 or 1: imgs/0 sample"),
        ("11.npy", LINE.replace("0 1 1", "0 x 1"), "LABEL is 0 or 1: imgs/0 sample"),
        ("11.npy", LINE.replace("0.png", "9.png"), "sample_9.png is in metadata/ but"),
        (
            "11.npy",
            np.array([LINE.split()]),
            "11.npy is not text, as the release has it",
        ),
    ],
)
def test_wrong_lists_are_named(tmp_path, name, content, message):
    write_released(tmp_path / FOLDER)
    path = tmp_path / FOLDER / "metadata" / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    with pytest.raises(DataError, match=message) as caught:
        Pathfinder(source_dir=str(tmp_path)).load("train", tmp_path / "data")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "sample_1.png is not a whole PNG picture of 32 x 32"),
        (
            {"resolution": 64, "max_length": 4096},
            "sample_0.png is not a whole PNG picture of 64 x 64",
        ),
        ({"difficulty": "easy"}, "neither pathfinder32/curv_baseline nor lra"),
    ],
)
def test_wrong_released_pictures_are_named(tmp_path, options, message):
    write_released(tmp_path / FOLDER)
    (tmp_path / "pathfinder64").symlink_to(tmp_path / "pathfinder32")
    picture = tmp_path / FOLDER / "imgs/0/sample_1.png"
    picture.write_bytes(picture.read_bytes()[:90])
    with pytest.raises(DataError, match=message):
        Pathfinder(source_dir=str(tmp_path), **options).load("train", tmp_path)


def test_a_released_folder_without_lists_is_named(tmp_path):
    (tmp_path / FOLDER / "imgs/0").mkdir(parents=True)
    with pytest.raises(DataError, match="is not unpacked, or has no pictures in meta"):
        Pathfinder(source_dir=str(tmp_path)).load("train", tmp_path / "data")


def test_easier_share_may_be_the_int_0():
    assert Pathfinder(easier_share=0).easier_share == 0


def test_easier_pictures_are_added_to_train_alone(tmp_path):
    options = {"difficulty": "intermediate", "num_examples": 60, "seed": 3}
    plain_train, *plain_evaluation = load_all(Pathfinder(**options), tmp_path)
    mixed = Pathfinder(**options, easier_share=0.25)

    train, *evaluation = load_all(mixed, tmp_path)

    for split, expected in zip(evaluation, plain_evaluation, strict=True):
        assert split.content_hash == expected.content_hash
    assert train.num_examples == 48 + 16
    assert train.take(slice(48)).content_hash == plain_train.content_hash
    images, labels = generate(3, range(60, 76), difficulty="easy")
    np.testing.assert_array_equal(train.inputs[48:], images.reshape(16, 1024))
    np.testing.assert_array_equal(train.labels[48:], labels)


def test_easier_share_makes_other_data_only_where_it_is_set():
    """The name of the data without it is that of a task that does not know it."""
    plain = Pathfinder()
    assert "easier_share" not in plain.cache_key()
    assert plain.config_name == Pathfinder(easier_share=0.0).config_name
    quarter = Pathfinder(easier_share=0.25)
    half = Pathfinder(easier_share=0.5)
    assert len({plain.config_name, quarter.config_name, half.config_name}) == 3


def test_easier_pictures_are_read_from_the_folder_beside(tmp_path):
    write_released(tmp_path / FOLDER)
    easier = tmp_path / "pathfinder32/curv_contour_length_9"
    images, _ = write_released(easier, seed=1)
    source_dir = str(tmp_path)
    task = Pathfinder(source_dir=source_dir, easier_share=0.2)

    train, *_ = load_all(task, tmp_path / "data")

    assert train.num_examples == 32 + 8
    easier_rows = released_order(40)[:8]
    np.testing.assert_array_equal(train.inputs[32:], images[easier_rows])

    # A release with fewer pictures is other data.
    (easier / "metadata/0.npy").write_text("")
    smaller = Pathfinder(source_dir=source_dir, easier_share=0.2)
    assert smaller.folder() != task.folder()
    message = "36 pictures, fewer than 128: lower easier_sha"
    with pytest.raises(DataError, match=message):
        Pathfinder(source_dir=source_dir, easier_share=0.8).load("train", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"easier_share": 1.0}, r"easier_share must be in \[0, 1\), not 1.0"),
        (
            {"easier_share": 0.5, "difficulty": "easy"},
            "must be 0 with difficulty 'easy'",
        ),
    ],
)
def test_wrong_easier_shares_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        Pathfinder(**options)


def draw_markers(places):
    """A black picture with a marker, 3 x 3 pixels of 200, around each place."""
    picture = np.zeros((32, 32), np.uint8)
    for y, x in places:
        picture[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = 200
    return picture


@pytest.mark.parametrize(
    "places",
    [
        [(5, 7), (20, 30)],
        [(20, 30), (5, 7)],
        [(10, 10), (10, 14)],
        [(10, 10), (12, 12)],  # one on the other's corner
        [(1, 1), (30, 30)],
    ],
)
def test_find_markers_finds_boxes_and_no_bright_lines(places):
    """A line is as bright as can be, and has fewer pixels in a box than a marker."""
    picture = draw_markers(places)
    picture[25, 3:20] = 255
    [markers] = find_markers(picture[None], radius=1.5)
    assert sorted(map(tuple, markers.tolist())) == sorted(places)


def marker_split(distances, labels):
    """A picture for each distance between two markers, along x or, by turns, y."""
    pictures = []
    for number, distance in enumerate(distances):
        places = np.array([(4, 4), (4, 4 + distance)])
        pictures.append(draw_markers(places if number % 2 else places[:, ::-1]))
    return Split.from_pictures(np.stack(pictures), labels)


RULE = "distance between the markers"


def test_floor_is_the_more_frequent_label_of_a_distance_in_train():
    """A distance that train does not have gets the majority of train, which is 1."""
    train = marker_split([6, 6, 6, 20, 20, 9, 9], [0, 0, 1, 1, 1, 1, 0])
    test = marker_split([6, 20, 20, 15], [0, 1, 0, 1])
    floors = Pathfinder().floors(train, test)
    assert floors == {"majority class": 0.5, RULE: 0.75}
    assert Pathfinder().floors(test, train)[RULE] == pytest.approx(3 / 7)


def test_floor_rounds_the_distance_to_whole_pixels():
    """The markers of two test pictures are 15 apart, those of the third 14.9."""
    places = [[(4, 4), (4 + y, 4 + x)] for y, x in ((12, 9), (9, 12), (10, 11))]
    pictures = np.stack([draw_markers(pair) for pair in places])
    both = marker_split([15, 14, 14, 14], [1, 0, 0, 0])
    floors = Pathfinder().floors(both, Split.from_pictures(pictures, [1, 1, 1]))
    assert floors == {"majority class": 0, RULE: 1}


def test_floor_of_a_large_split_is_fitted_on_evenly_spaced_pictures(monkeypatch):
    train = marker_split([6, 6, 6, 6, 20, 20, 20, 20], [0, 1, 0, 1, 1, 0, 1, 0])
    test = marker_split([6, 20], [0, 1])
    assert Pathfinder().floors(train, test)[RULE] == 0.5
    monkeypatch.setattr(tasks, "MAX_PIXELS", 4 * 1024)
    monkeypatch.setattr(tasks, "PIXELS_AT_A_TIME", 3 * 1024)
    assert Pathfinder().floors(train, test)[RULE] == 1


def test_floor_of_easy_pictures_is_60_percent():
    """Measured on 10,000: 60.5. Two standard deviations of 1,000 are 3.1."""
    images, labels = generate(5, range(3_000), difficulty="easy")
    pictures = Split.from_pictures(images, labels)
    task = Pathfinder(difficulty="easy")
    floors = task.floors(pictures.take(slice(2_000)), pictures.take(slice(2_000, None)))
    assert floors[RULE] == pytest.approx(0.605, abs=0.04)
