import sys

import pytest
import torch

from streamseg.classes import ADE20K, CAMVID
from streamseg.evaluate import plot
from streamseg.evaluate.plot import (
    confusion_plot,
    curves_plot,
    dots_plot,
    lines_plot,
    place_names,
    scatter_plot,
    write_worst,
)
from streamseg.io.images import read_image
from streamseg.palette import bright_colours


@pytest.fixture
def drawing():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def write_any(path):
    """Return the plots, each as a function that writes to a path."""
    frame = torch.zeros(3, 32, 48, dtype=torch.uint8)
    labels = torch.zeros(32, 48, dtype=torch.uint8)
    return {
        "confusion": lambda: confusion_plot(path, torch.eye(11), CAMVID.names),
        "curves": lambda: curves_plot(path, {"loss": [(1, 2.0), (2, 1.5)]}),
        "worst": lambda: write_worst(path, [(frame, labels, labels, "frame")], CAMVID),
        "lines": lambda: lines_plot(path, {"a": [(1, 2), (3, 4)], "a, paper": [(1, 2.1)]}, "x", "y"),
        "scatter": lambda: scatter_plot(path, {"x": [("a", 1, 2), ("b", 1, 2)], "empty": []}, "y"),
        "dots": lambda: dots_plot(path, {"a": [("b", 1, None), ("c", None, 2)], "empty": [("b", None, None)]}),
    }


KINDS = ["confusion", "curves", "worst", "lines", "scatter", "dots"]


@pytest.mark.parametrize("classes", [11, 19, 40])
@pytest.mark.usefixtures("drawing")
def test_a_confusion_plot_is_a_picture_with_a_dark_diagonal(tmp_path, classes):
    confusion = 1000 * torch.eye(classes, dtype=torch.long)
    confusion_plot(tmp_path / "confusion.png", confusion, ADE20K.names[:classes])
    picture = read_image(tmp_path / "confusion.png")
    dark_blue = (picture - torch.tensor([8, 48, 107], dtype=torch.uint8).view(3, 1, 1)).sum(dim=0) == 0
    rows, columns = dark_blue[:, : picture.shape[2] * 3 // 4].nonzero().T.double()
    assert torch.corrcoef(torch.stack([rows, columns]))[0, 1] > 0.9


@pytest.mark.usefixtures("drawing")
def test_a_class_that_does_not_occur_is_an_empty_row(tmp_path):
    confusion = torch.tensor([[5, 0], [0, 0]])
    confusion_plot(tmp_path / "confusion.png", confusion, ("there", "absent"))
    assert (tmp_path / "confusion.png").exists()


@pytest.mark.usefixtures("drawing")
def test_curves_have_a_panel_for_each_name_that_has_points(tmp_path):
    points = [(i, 1 / i) for i in range(1, 100)]
    curves_plot(tmp_path / "one.png", {"loss": points, "val mIoU": []})
    curves_plot(tmp_path / "two.png", {"loss": points, "val mIoU": [(50, 60.0)]})
    curves_plot(tmp_path / "four.png", dict.fromkeys(("loss", "val mIoU", "learning rate", "images/s"), points))
    one, two, four = (read_image(tmp_path / f"{name}.png").shape for name in ("one", "two", "four"))
    assert two == (3, one[1], 2 * one[2])
    assert four == (3, 2 * one[1], 3 * one[2])


@pytest.mark.usefixtures("drawing")
def test_the_worst_frames_are_drawn_with_their_true_and_predicted_labels(tmp_path):
    frame = torch.full((3, 60, 80), 255, dtype=torch.uint8)
    road = torch.full((60, 80), CAMVID.names.index("Road"), dtype=torch.uint8)
    car = torch.full((60, 80), CAMVID.names.index("Car"))
    write_worst(tmp_path / "worst.png", [(frame, road, car, "a frame"), (frame, car, road, "another")], CAMVID)
    picture = read_image(tmp_path / "worst.png").long()
    _, height, width = picture.shape

    def colour(label):
        # 65 % of the class's colour on white
        return torch.tensor(bright_colours(CAMVID).colours[label[0, 0]]).mul(0.65).add(0.35 * 255).round().long()

    for row, (left, right) in ((0.25, (road, car)), (0.7, (car, road))):
        y = int(row * height)
        assert (picture[:, y, width // 2] - colour(left)).abs().max() <= 1
        assert (picture[:, y, width * 5 // 6] - colour(right)).abs().max() <= 1


@pytest.mark.usefixtures("drawing")
def test_a_dollar_sign_starts_no_formula(tmp_path):
    frame, labels = torch.zeros(3, 32, 48, dtype=torch.uint8), torch.zeros(32, 48, dtype=torch.uint8)
    names = ("$\\nonsense{$", "b")
    confusion_plot(tmp_path / "confusion.png", torch.eye(2), names)
    curves_plot(tmp_path / "curves.png", {names[0]: [(1, 1.0)]})
    write_worst(tmp_path / "worst.png", [(frame, labels, labels, names[0] * 9)], type(CAMVID)(names, ((0, 0, 0),) * 2))
    assert len(list(tmp_path.iterdir())) == 3


def test_names_of_points_do_not_overlap():
    alone, beside, under, at_the_end = (10, 100), (30, 100), (10, 92), (195, 20)
    assert place_names(["a", "b"], [alone, at_the_end], 200) == [(True, False), (False, False)]
    assert place_names(["a", "b"], [alone, under], 200) == [(True, False), (True, True)]
    assert place_names(["a long name", "b"], [alone, beside], 200) == [(True, False), (True, True)]


@pytest.mark.usefixtures("drawing")
def test_long_names_of_dots_are_not_cut_off_and_panels_do_not_touch(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    rows = [("FANet-34 with a window of 2 frames", 1.0, 2.0), ("FANet-18", 3.0, None)]
    dots_plot(tmp_path / "dots.png", {"mIoU": rows, "frames a second": rows})
    (figure,) = figures
    figure.draw_without_rendering()
    left, right = (axes.get_tightbbox() for axes in figure.axes)
    assert 0 <= left.x0 < left.x1 < right.x0 < right.x1 <= figure.bbox.x1
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.y0 < legend.y1 <= min(left.y0, right.y0)


@pytest.mark.usefixtures("drawing")
def test_no_speed_below_zero_is_marked(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    scatter_plot(tmp_path / "scatter.png", {"frames a second": [("a", 0.3, 1.0), ("b", 72.0, 2.0)]}, "mIoU")
    axes = figures[0].axes[0]
    assert axes.get_xlim()[0] < 0  # room for names
    assert len(axes.get_xticks()) > 1
    assert min(axes.get_xticks()) >= 0


@pytest.mark.usefixtures("drawing")
def test_nothing_to_plot_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="^There are no curves to plot in .*: the log is empty.$"):
        curves_plot(tmp_path / "curves.png", {"loss": []})
    with pytest.raises(ValueError, match="^There are no points to plot in "):
        scatter_plot(tmp_path / "scatter.png", {"x": []}, "y")
    with pytest.raises(ValueError, match="^There are no numbers to plot in "):
        dots_plot(tmp_path / "dots.png", {"a": [("b", None, None)]})
    with pytest.raises(ValueError, match="^There are no frames to plot in "):
        write_worst(tmp_path / "worst.png", [], CAMVID)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("drawing")
def test_a_plot_writes_only_its_file(tmp_path, kind):
    with pytest.raises(FileNotFoundError, match="create it first"):
        write_any(tmp_path / "absent" / "plot.png")[kind]()
    write_any(tmp_path / "plot.png")[kind]()
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_matplotlib_a_plot_says_how_to_install_it(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"^Plots need matplotlib: pip install 'streamseg\[train\]'$"):
        write_any(tmp_path / "plot.png")[kind]()
    assert not list(tmp_path.iterdir())
