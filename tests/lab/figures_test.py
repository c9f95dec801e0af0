"""Figures are written twice, and the same figure gives the same bytes."""

import pytest
from PIL import Image

from nystromformer.lab.figures import new_figure, save_figure


def draw(folder, *, rows, columns):
    figure = new_figure(rows, columns)
    for i, axes in enumerate(figure.axes):
        axes.plot([1, 2, 3], [i, 5, 7], label="seven")
        axes.legend()
    return save_figure(figure, folder / "some.figure")


def test_a_figure_is_written_as_png_and_svg(tmp_path):
    png, svg = draw(tmp_path, rows=2, columns=3)
    assert (png.name, svg.name) == ("some.figure.png", "some.figure.svg")
    with Image.open(png) as picture:
        assert picture.size == (2880, 1200)
    assert svg.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("kind", [0, 1])
def test_the_same_figure_gives_the_same_bytes(tmp_path, kind):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    one, other = (draw(folder, rows=1, columns=1)[kind] for folder in folders)
    assert one.read_bytes() == other.read_bytes()
