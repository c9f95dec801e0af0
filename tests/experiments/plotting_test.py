"""Figures are written twice, and the same figure gives the same bytes."""

from PIL import Image

from nystromformer.experiments.plotting import new_figure, save_figure


def test_save_figure_writes_png_and_svg_with_the_same_bytes_each_time(tmp_path):
    found = []
    for name in ("one", "other"):
        figure = new_figure(rows=2, columns=3)
        figure.axes[0].plot([1, 2, 3], [0, 5, 7], label="seven")
        paths = save_figure(figure, tmp_path / name)
        assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg"]
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.size == (2880, 1200)
