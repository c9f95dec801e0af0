"""Figures are written twice, and the same figure gives the same bytes."""

from PIL import Image

from nystromformer.experiments.plotting import new_figure, save_figure


def draw(folder):
    folder.mkdir()
    figure = new_figure(rows=2, columns=3)
    figure.axes[0].plot([1, 2, 3], [0, 5, 7], label="seven")
    figure.axes[0].legend()
    return save_figure(figure, folder / "some.figure")


def test_a_figure_is_written_as_png_and_svg_with_the_same_bytes_each_time(tmp_path):
    one, other = (draw(tmp_path / name) for name in ("one", "other"))
    assert [path.name for path in one] == ["some.figure.png", "some.figure.svg"]
    with Image.open(one[0]) as picture:
        assert picture.size == (2880, 1200)
    assert one[1].read_text().lstrip().startswith("<?xml")
    assert [x.read_bytes() for x in one] == [x.read_bytes() for x in other]
