import pytest
import torch

from streamseg.io.grid import BACKGROUND, GridView, choose_grid, fit

RED, GREEN = torch.tensor([255, 0, 0]), torch.tensor([0, 255, 0])


def plain(colour, size):
    """A picture of one colour."""
    return colour.to(torch.uint8)[:, None, None].expand(3, *size).contiguous()


def cell_of(view, number):
    height, width = view.cell
    row, column = divmod(number, view.columns)
    return view.canvas[:, row * height : (row + 1) * height, column * width : (column + 1) * width]


@pytest.mark.parametrize(
    ("count", "room", "columns"),
    [
        (1, (900, 1600), 1),
        (2, (900, 1600), 2),
        (2, (900, 800), 1),
        (2, (450, 1600), 2),
        (4, (900, 1600), 2),
        (5, (900, 1600), 3),
    ]
    + [(16, (900, 1600), 4), (200, (900, 1600), 15), (3, (1600, 300), 1)],
)
def test_there_are_as_many_columns_as_make_the_cells_largest(count, room, columns):
    found, (height, width) = choose_grid(count, room)
    assert found == columns
    assert -(-count // found) * height <= room[0]
    assert found * width <= room[1]
    assert height / width == pytest.approx(9 / 16, abs=0.02)


@pytest.mark.parametrize("size", [(90, 160), (720, 1280), (480, 640), (640, 480), (1, 1), (3000, 40)])
def test_a_picture_keeps_its_proportions_and_touches_an_edge_of_its_room(size):
    tile = fit(plain(RED, size), (90, 160))
    _, height, width = tile.shape
    assert tile.dtype == torch.uint8
    assert height <= 90
    assert width <= 160
    assert height == 90 or width == 160
    assert height / size[0] == pytest.approx(width / size[1], abs=1 / min(size))
    assert tile.flatten(1).eq(RED[:, None]).all()


def test_each_picture_is_in_the_middle_of_its_own_cell_under_its_caption():
    view = GridView(["gate", "yard", "cellar"], (360, 640), clock=lambda: 0.0)
    assert (view.columns, view.cell, tuple(view.canvas.shape)) == (2, (180, 320), (3, 360, 640))
    assert view.draw([plain(RED, (720, 1280)), plain(GREEN, (400, 400)), None], [1, 1, 0])
    first, second, third, fourth = (cell_of(view, number) for number in range(4))
    assert first[:, 100, [2, 160, 317]].eq(RED[:, None]).all()
    assert second[:, [30, 100, 178], 160].eq(GREEN[:, None]).all()
    assert second[:, 100, [20, 300]].eq(BACKGROUND).all()
    assert third[:, 100].eq(BACKGROUND).all()
    assert fourth.eq(BACKGROUND).all()
    # light text on dark in the corner of each, before its first frame too
    assert all(cell[:, :12, :60].amin(0).max() > 200 for cell in (first, second, third))
    assert first[:, :12, 200:-2].eq(RED[:, None, None]).all()


def test_only_new_pictures_are_drawn():
    view, picture = GridView(["a", "b"], (90, 320), clock=lambda: 0.0), plain(RED, (90, 160))
    assert view.draw([picture, None], [1, 0])
    assert not view.draw([picture, None], [1, 0])
    cell_of(view, 0).fill_(7)
    assert view.draw([picture, picture], [1, 1])
    assert cell_of(view, 0).eq(7).all()
    assert cell_of(view, 1)[:, 50, 80].eq(RED).all()


def test_frames_a_second_are_counted_for_each_source():
    now = [0.0]
    view, picture = GridView(["a", "b", "c"], (90, 320), clock=lambda: now[0]), plain(RED, (90, 160))
    view.draw([picture, picture, None], [5, 5, 0])
    assert view.captions == ["a", "b", "c  no frame yet"]
    now[0] = 2.0
    assert view.draw([picture, picture, None], [50, 5, 0])
    assert view.captions == ["a  25.0 fps", "b  2.5 fps", "c  no frame yet"]
    now[0] = 4.0
    view.draw([picture, picture, picture], [100, 5, 1])
    assert view.captions[:2] == ["a  25.0 fps", "b  0.0 fps"]


def test_two_hundred_sources_have_room_on_a_screen():
    view = GridView([f"camera{i}" for i in range(200)], (972, 1728))
    assert view.draw([plain(RED, (36, 64))] * 200, [1] * 200)
    assert view.canvas.shape[1] <= 972
    assert view.canvas.shape[2] <= 1728
    assert cell_of(view, 199)[:, -5, 50].eq(RED).all()
