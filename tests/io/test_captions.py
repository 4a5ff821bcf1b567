"""Legends: the colours and names of classes in a picture."""

import pytest
import torch

import streamseg
from streamseg.io import captions
from streamseg.io.captions import render_legend


def colours_in(legend):
    codes = (legend.int() * torch.tensor([1 << 16, 1 << 8, 1])[:, None, None]).sum(dim=0).unique().tolist()
    return {tuple(code.to_bytes(3)) for code in codes}


@pytest.mark.parametrize("height", [200, 480, 1080, 4000])
@pytest.mark.parametrize("number", [1, 5, 19])
def test_a_legend_shows_each_colour_and_takes_up_to_half_of_the_height(height, number):
    legend = render_legend(streamseg.CITYSCAPES, range(number), height)
    assert legend.dtype == torch.uint8
    assert legend.shape[1] <= height / 2
    assert colours_in(legend) >= set(streamseg.CITYSCAPES.colours[:number])


@pytest.mark.parametrize("size", [(240, 320), (720, 1280), (1280, 720), (2160, 3840)])
def test_a_legend_takes_up_to_half_of_the_width_and_leaves_out_what_has_no_room(size):
    legend = render_legend(streamseg.COCO_STUFF, range(171), *size)
    assert legend.shape[1] <= size[0] / 2
    assert legend.shape[2] <= size[1] / 2
    assert streamseg.COCO_STUFF.colours[0] in colours_in(legend)
    assert streamseg.COCO_STUFF.colours[170] not in colours_in(legend)


def test_a_legend_grows_with_the_picture():
    small, large = (render_legend(streamseg.CAMVID, range(3), height) for height in (720, 2160))
    assert large.shape[1] == pytest.approx(3 * small.shape[1], rel=0.02)
    assert large.shape[2] == pytest.approx(3 * small.shape[2], rel=0.02)


def test_pixels_of_no_class_have_no_place_in_a_legend():
    assert render_legend(streamseg.CAMVID, [3, 255], 480).equal(render_legend(streamseg.CAMVID, [3], 480))
    assert render_legend(streamseg.CAMVID, [255], 480).shape == (3, 0, 0)


def test_a_long_name_is_cut_short_in_a_legend():
    long, longer = (streamseg.Classes(("word " * n,), ((9, 9, 9),)) for n in (20, 200))
    assert render_legend(long, [0], 480).equal(render_legend(longer, [0], 480))


def test_a_name_that_no_font_here_can_write_is_shown_in_english_letters(monkeypatch):
    monkeypatch.setattr(captions, "FONTS", ("nowhere.ttf",))
    written, plain = (streamseg.Classes((name,), ((9, 9, 9),)) for name in ("Gebäude 道", "Gebaude ?"))
    assert render_legend(written, [0], 480).equal(render_legend(plain, [0], 480))
