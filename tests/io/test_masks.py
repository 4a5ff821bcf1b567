"""Masks: which pixels are ignored, as pictures say it."""

import pytest
import torch
from PIL import Image

from streamseg.classes import IGNORE
from streamseg.io.masks import GREY, Mask, paint_over, read_mask, remove_labels, to_mask


def half_mask(height=8, width=12):
    looked_at = torch.ones(height, width, dtype=torch.bool)
    looked_at[height // 2 :] = False
    return Mask(looked_at)


def draw_mask(path, size=(12, 8), black=4):
    picture = Image.new("RGB", size, "white")
    picture.paste("black", (0, size[1] - black, *size))
    picture.save(path)
    return path


def test_black_is_not_looked_at(tmp_path):
    mask = read_mask(draw_mask(tmp_path / "mask.png"))
    assert mask.looked_at.equal(half_mask().looked_at)


@pytest.mark.parametrize("kind", ["path", "text", "picture", "tensor"])
def test_a_mask_may_be_given_in_any_form(tmp_path, kind):
    path = draw_mask(tmp_path / "mask.png")
    given = {
        "path": path,
        "text": str(path),
        "picture": Image.open(path),
        "tensor": half_mask().looked_at,
    }[kind]
    assert to_mask(given).looked_at.equal(half_mask().looked_at)


def test_a_white_mask_is_none(tmp_path):
    assert to_mask(draw_mask(tmp_path / "mask.png", black=0)) is None
    assert to_mask(None) is None


def test_what_is_hidden_is_grey_and_has_no_class():
    frame, labels = torch.zeros(3, 8, 12, dtype=torch.uint8), torch.zeros(8, 12, dtype=torch.uint8)
    painted, removed = paint_over(frame, half_mask()), remove_labels(labels, half_mask())
    assert painted[:, :4].eq(0).all()
    assert painted[:, 4:].eq(GREY).all()
    assert removed[:4].eq(0).all()
    assert removed[4:].eq(IGNORE).all()
    assert paint_over(frame, None) is frame


def test_a_mask_of_the_same_proportions_is_resized():
    mask, cpu = half_mask(), torch.device("cpu")
    assert mask.pixels((16, 24), cpu).equal(half_mask(16, 24).looked_at)
    assert mask.shares((4, 6), cpu).equal(half_mask(4, 6).looked_at.float())
    odd = mask.shares((3, 6), cpu)
    assert odd[1].eq(0.5).all()  # the middle row is half hidden
    mask.check_fits(720, 1080)


def test_a_mask_of_other_proportions_is_refused():
    with pytest.raises(ValueError, match="8 x 12 pixels and the frames 12 x 8, which are other proportions"):
        paint_over(torch.zeros(3, 12, 8, dtype=torch.uint8), half_mask())


def test_a_black_mask_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"mask.png is all black, so every pixel would be ignored"):
        read_mask(draw_mask(tmp_path / "mask.png", black=8))


def test_a_missing_mask_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no mask at .*away.png"):
        read_mask(tmp_path / "away.png")
    with pytest.raises(ValueError, match="The mask is a int; expected a picture"):
        to_mask(3)
