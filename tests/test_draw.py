import numpy
import pytest
import torch
from PIL import Image

from streamseg import CITYSCAPES, Classes, bright_colours, overlay, show
from streamseg.draw import add_legend, blended_classes, paint_labels, side_by_side
from streamseg.engine import kernels

RED_BLUE = Classes(("red", "blue"), ((255, 0, 0), (0, 0, 255)))


@pytest.fixture
def grey():
    return torch.full((3, 4, 6), 100, dtype=torch.uint8)


@pytest.fixture
def frame():
    """Every value of each channel."""
    return torch.randint(0, 256, (3, 60, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels():
    labels = torch.randint(0, 20, (60, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return labels.masked_fill(labels == 19, 255)


def plain_overlay(frame, labels, classes, alpha):
    """The definition: a pixel on its way to its class's colour."""
    colours = torch.tensor(classes.colours, dtype=torch.float32)
    colour = colours[labels.long().masked_fill(labels == 255, 0)].permute(2, 0, 1)
    return torch.where(labels == 255, frame, torch.lerp(frame.float(), colour, alpha).round().to(torch.uint8))


def rows_of_pixels(frame):
    """The same frame with its colours side by side in memory, as decoders give it."""
    return frame.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def test_an_overlay_mixes_each_pixel_with_the_colour_of_its_class(grey):
    labels = torch.zeros(4, 6, dtype=torch.long)
    labels[:, 3:] = 1
    drawn = overlay(grey, labels, RED_BLUE, alpha=0.25)
    assert drawn.dtype == torch.uint8
    assert drawn[:, 0, 0].tolist() == [139, 75, 75]
    assert drawn[:, 3, 5].tolist() == [75, 75, 139]


@pytest.mark.parametrize("alpha", [0, 0.1, 0.37, 0.5, 0.65, 1])
@pytest.mark.parametrize("layout", [torch.clone, rows_of_pixels])
def test_an_overlay_is_the_rounded_mixture_to_the_last_bit(frame, labels, alpha, layout):
    assert overlay(layout(frame), labels, CITYSCAPES, alpha).equal(plain_overlay(frame, labels, CITYSCAPES, alpha))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_draws_what_a_cpu_draws(frame, labels):
    for only in ((), (3, 5), ()):  # by PyTorch, and by the kernel once it is compiled
        for kind in (torch.uint8, torch.int64):
            drawn = overlay(frame.cuda(), labels.to("cuda", kind), CITYSCAPES, 0.37, only)
            assert drawn.cpu().equal(overlay(frame, labels, CITYSCAPES, 0.37, only))
            kernels.wait_until_compiled()
    assert add_legend(frame.cuda(), frame[:, :9, :9]).cpu().equal(add_legend(frame, frame[:, :9, :9]))


def test_alpha_goes_from_the_frame_to_the_colours(grey):
    labels = torch.ones(4, 6, dtype=torch.uint8)
    assert overlay(grey, labels, RED_BLUE, alpha=0).equal(grey)
    assert overlay(grey, labels, RED_BLUE, alpha=1)[:, 2, 2].tolist() == [0, 0, 255]


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan")])
def test_an_alpha_outside_of_0_to_1_is_refused(grey, alpha):
    with pytest.raises(ValueError, match=f"alpha is {alpha}; expected .* from 0 to 1"):
        overlay(grey, torch.zeros(4, 6, dtype=torch.uint8), RED_BLUE, alpha)


def test_a_picture_of_any_kind_becomes_the_same_overlay(frame, labels):
    expected = overlay(frame, labels, CITYSCAPES)
    array = frame.permute(1, 2, 0).numpy()
    for picture in (array, Image.fromarray(array)):
        for numbers in (labels, labels.numpy(), labels.numpy().astype(numpy.int64)):
            assert overlay(picture, numbers, CITYSCAPES).equal(expected)
    levels = array[:, :, 0]
    assert overlay(levels, labels, CITYSCAPES).equal(overlay(frame[:1].expand(3, -1, -1), labels, CITYSCAPES))


@pytest.mark.parametrize(
    ("picture", "numbers", "sentence"),
    [
        (numpy.zeros((4, 6, 3)), torch.zeros(4, 6), "The picture is an array of float64; expected bytes"),
        (None, torch.zeros(4, 6), "The picture is a NoneType"),
        (
            torch.zeros(3, 4, 6, dtype=torch.uint8),
            torch.zeros(4, 6),
            "The labels are torch.float32 of shape .4, 6.; exp",
        ),
        (torch.zeros(3, 4, 6, dtype=torch.uint8), torch.zeros(6, 4).byte(), r"of shape \(6, 4\); .* width: \(4, 6\)\."),
        (torch.zeros(3, 4, 6, dtype=torch.uint8), None, "The labels are a NoneType; expected a tensor"),
    ],
)
def test_what_is_no_picture_or_has_no_labels_is_told_in_a_sentence(picture, numbers, sentence):
    with pytest.raises(ValueError, match=sentence):
        overlay(picture, numbers, RED_BLUE)


def test_pixels_of_no_class_stay_as_they_are(grey):
    labels = torch.full((4, 6), 255, dtype=torch.uint8)
    assert overlay(grey, labels, RED_BLUE).equal(grey)


def test_what_is_highlighted_is_coloured_and_all_else_is_grey_and_darker(frame, labels):
    drawn = overlay(frame, labels, CITYSCAPES, 0.4, only=(3, 5))
    highlighted = (labels == 3) | (labels == 5)
    assert drawn[:, highlighted].equal(overlay(frame, labels, CITYSCAPES, 0.4)[:, highlighted])
    rest = drawn[:, ~highlighted]
    assert rest[0].equal(rest[1])
    assert rest[0].equal(rest[2])
    luma = (torch.tensor([0.299, 0.587, 0.114])[:, None] * frame[:, ~highlighted]).sum(dim=0)
    assert (rest[0] - 0.56 * luma).abs().max() < 3


@pytest.mark.parametrize("layout", [torch.clone, rows_of_pixels])
def test_a_picture_lies_in_memory_as_its_frame(frame, labels, layout):
    frame = layout(frame)
    drawn = overlay(frame, labels, CITYSCAPES)
    assert drawn.stride() == frame.stride()
    assert add_legend(drawn, frame[:, :9, :9]).stride() == frame.stride()
    assert side_by_side(frame, drawn).stride(0) == (1 if layout is rows_of_pixels else 60 * 180)


@pytest.mark.parametrize("layout", [torch.clone, rows_of_pixels])
def test_two_pictures_stand_side_by_side(frame, layout):
    right = frame.flip(2)
    both = side_by_side(layout(frame), right)
    assert both.shape == (3, 60, 180)
    assert both[:, :, :90].equal(frame)
    assert both[:, :, 90:].equal(right)


def test_pictures_of_two_heights_cannot_stand_side_by_side(frame, grey):
    with pytest.raises(ValueError, match="60 and 4 rows"):
        side_by_side(frame, grey)


def test_a_legend_lies_in_the_lower_left_corner_and_its_ground_shines_through(frame):
    legend = torch.full((3, 20, 30), 22, dtype=torch.uint8)
    legend[:, 5:9, 5:9] = 200
    drawn = add_legend(frame, legend)
    corner = torch.zeros(60, 90, dtype=torch.bool)
    corner[39:59, 1:31] = True
    assert drawn[:, ~corner].equal(frame[:, ~corner])
    assert drawn[:, 44:48, 6:10].eq(200).all()
    shining = (0.25 * frame + 0.75 * 22).round().to(torch.uint8)
    assert drawn[:, 55, 20].equal(shining[:, 55, 20])


@pytest.mark.parametrize("size", [(60, 300), (300, 90), (300, 300), (0, 0)])
def test_a_legend_never_changes_the_size_of_a_picture(frame, size):
    assert add_legend(frame, torch.zeros(3, *size, dtype=torch.uint8)).shape == frame.shape


def plain_borders(labels):
    """Whether the label of each pixel differs from the one to its right or below, as a loop."""
    height, width = labels.shape
    line = torch.zeros(height, width, dtype=torch.bool)
    for y in range(height):
        for x in range(width):
            others = [labels[v, u] for v, u in ((y, x + 1), (y + 1, x)) if v < height and u < width]
            line[y, x] = any(labels[y, x] != other for other in others)
    return line


def test_a_border_is_one_light_pixel_between_two_classes_and_nothing_else(frame, labels):
    for only in ((), (3, 5)):
        shown = torch.where(torch.isin(labels, torch.tensor(only)), labels, 255) if only else labels
        line = plain_borders(shown)
        plain, drawn = (overlay(frame, labels, CITYSCAPES, 0.4, only, borders=on) for on in (False, True))
        assert drawn[:, ~line].equal(plain[:, ~line])
        assert drawn[:, line].equal(plain[:, line].clamp(min=216))
        assert line.any()


def test_one_class_has_no_borders_and_neither_has_a_transparent_overlay(grey, labels):
    same = torch.full((4, 6), 1)
    assert overlay(grey, same, RED_BLUE, borders=True).equal(overlay(grey, same, RED_BLUE))
    assert overlay(grey, torch.arange(24).view(4, 6) % 2, RED_BLUE, 0, borders=True).equal(grey)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_the_colours_of_a_legend_are_those_of_grey_things_in_the_overlay(alpha):
    flat = torch.full((3, 1, len(CITYSCAPES)), 128, dtype=torch.uint8)
    drawn = overlay(flat, torch.arange(len(CITYSCAPES))[None], CITYSCAPES, alpha)
    blended = blended_classes(CITYSCAPES, alpha)
    assert blended.names == CITYSCAPES.names
    assert torch.tensor(blended.colours).equal(drawn[:, 0].t().long())


def test_labels_are_painted_in_the_colours_of_their_classes_and_no_class_in_black():
    painted = paint_labels(torch.tensor([[0, 1, 255]], dtype=torch.uint8), RED_BLUE)
    assert painted[:, 0].t().tolist() == [[255, 0, 0], [0, 0, 255], [0, 0, 0]]


def test_a_notebook_shows_a_frame_as_it_is(frame):
    picture = show(frame)
    assert torch.equal(torch.from_numpy(numpy.array(picture)).permute(2, 0, 1), frame)
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_a_notebook_shows_labels_in_bright_colours_with_a_legend():
    frame = torch.full((3, 300, 400), 90, dtype=torch.uint8)
    labels = torch.zeros(300, 400, dtype=torch.uint8)
    labels[:, 200:] = 13
    shown = torch.from_numpy(numpy.array(show(frame, labels, CITYSCAPES))).permute(2, 0, 1)
    changed = (shown != overlay(frame, labels, bright_colours(CITYSCAPES), borders=True)).any(dim=0).nonzero()
    top, left = changed.amin(dim=0).tolist()
    bottom, right = changed.amax(dim=0).tolist()
    assert 200 < top < bottom < 300  # the legend of two classes, in the lower left corner
    assert 0 < left < right < 200
    unlabelled = torch.full_like(labels, 255)
    assert numpy.array_equal(numpy.array(show(frame, unlabelled, CITYSCAPES)), numpy.array(show(frame)))
    with pytest.raises(ValueError, match=r"^The labels have no classes: give those of the network, show\("):
        show(frame, labels)
