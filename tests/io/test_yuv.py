"""Planes and RGB: the conversions in torch against FFmpeg's."""

import platform
from fractions import Fraction

import av
import pytest
import torch
from clips import TURNS, make_clip, turn
from torch.nn import functional as F

from streamseg.io.pyav import default_colour_matrix, new_reformatter, plane_views, to_planes
from streamseg.io.sources import TO_RGB, Capture, Decoding
from streamseg.io.video_reading import open_video
from streamseg.io.video_writing import open_video_writer
from streamseg.io.yuv import BT601, BT709, BT2020, Orientation, Yuv420, chroma_size, scales, to_rgb, to_yuv

PLANES = Decoding(planes=True)

# FFmpeg's fast conversions of other processors round in their own ways
STEPS = 1 if platform.machine().lower() in ("x86_64", "amd64") else 3


def smooth(channels, height, width, seed=0):
    """Colours of 0 to 1 that change slowly."""
    few = torch.rand(1, channels, 4, 5, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(few, (height, width), mode="bicubic", align_corners=False)[0].clamp(0, 1)


def stored_frame(size, pixels, matrix, full):
    """A frame as a decoder returns it."""
    bits = 10 if "10" in pixels else 8
    luma, *chroma = smooth(3, *size) * 2**bits
    few = F.interpolate(torch.stack(chroma)[None], chroma_size(size), mode="bilinear", align_corners=False)[0]
    few = 2 ** (bits - 1) + (few - 2 ** (bits - 1)) / 4
    frame = av.VideoFrame(size[1], size[0], pixels)
    kind = torch.uint8 if bits == 8 else torch.int16
    for plane, values in zip(frame.planes, (luma.clamp(max=2**bits - 1), *few), strict=True):
        rows = torch.frombuffer(plane, dtype=kind).view(-1, plane.line_size // kind.itemsize)
        rows[: values.shape[0], : values.shape[1]] = values.to(kind)
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    return frame


@pytest.fixture
def video(tmp_path):
    """A video, to convert frames with."""
    with open_video(make_clip(tmp_path / "a.mp4", 2)) as opened:
        yield opened


@pytest.mark.parametrize("size", [(64, 96), (48, 70), (38, 51), (37, 64), (37, 50), (37, 51), (2, 2), (1, 1)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv420p10le"])
@pytest.mark.parametrize(("number", "matrix"), [(1, BT709), (6, BT601), (9, BT2020)])
def test_planes_become_the_colours_that_ffmpeg_makes_of_them(video, size, full, pixels, number, matrix):
    frame = stored_frame(size, pixels, number, full)
    video.stored_size = size
    planes = to_planes(frame, Orientation(), pinned=False)
    assert (planes.matrix, planes.full_range, planes.shape) == (matrix, full, (3, *size))
    found, expected = to_rgb(planes), video.to_frame(frame)
    assert (found.dtype, found.shape, found.is_contiguous()) == (torch.uint8, expected.shape, True)
    assert (found.int() - expected.int()).abs().max() <= STEPS


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("bits", [8, 10])
def test_black_white_and_grey_are_exact(full, bits):
    step = 2 ** (bits - 8)
    black, white = (0, 2**bits - 1) if full else (16 * step, 235 * step)
    for luma, expected in ((black, 0), (white, 255)):
        pixels = torch.full((6,), 128 * step, dtype=torch.uint8 if bits == 8 else torch.int16)
        pixels[:4] = luma
        assert to_rgb(Yuv420(pixels, (2, 2), bits, BT709, full)).unique().tolist() == [expected]
    assert scales(BT709, full, bits).grey == 128 * step


@pytest.mark.parametrize("size", [(64, 96), (38, 70), (577, 16)])
def test_a_frame_becomes_the_planes_that_ffmpeg_makes_of_it(size):
    frame = (smooth(3, *size, seed=1) * 255).round().to(torch.uint8)
    padded = F.pad(frame[None].float(), (0, 0, 0, size[0] % 2), mode="replicate")[0].byte()
    source = av.VideoFrame(size[1], padded.shape[1], "gbrp")
    for channel, rows in zip((1, 2, 0), plane_views(source), strict=True):
        rows[:] = padded[channel].numpy()
    name = default_colour_matrix(size[0])
    expected = new_reformatter()(source, format="yuv420p", dst_colorspace=name)
    expected.colorspace = 1 if name == "ITU709" else 6
    expected = to_planes(expected, Orientation(), pinned=False)
    found = to_yuv(frame, BT709 if name == "ITU709" else BT601)
    assert (found.size, found.matrix, found.bits, found.full_range) == (expected.size, expected.matrix, 8, False)
    assert (found.pixels.int() - expected.pixels.int()).abs().max() <= STEPS


@pytest.mark.parametrize("size", [(47, 63), (48, 63), (47, 64)])
def test_an_odd_frame_grows_by_its_last_row_and_column(size):
    frame = torch.randint(0, 256, (3, *size), generator=torch.Generator().manual_seed(0)).byte()
    grown = F.pad(frame[None].float(), (0, size[1] % 2, 0, size[0] % 2), mode="replicate")[0].byte()
    assert to_yuv(frame, BT709).pixels.equal(to_yuv(grown, BT709).pixels)
    assert to_yuv(frame, BT709).size == grown.shape[1:]


def test_colours_survive_the_way_to_planes_and_back():
    frame = (smooth(3, 48, 64, seed=2) * 255).round().to(torch.uint8)
    for matrix in (BT601, BT709, BT2020):
        assert (to_rgb(to_yuv(frame, matrix)).int() - frame.int()).abs().float().mean() < 4


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv420p10le"])
def test_planes_of_a_video_are_turned_upright_as_its_frames_are(tmp_path, name, pixels):
    path = turn(make_clip(tmp_path / "a.mp4", 3, pixels=pixels), TURNS[name])
    with open_video(path) as video:
        expected = list(video)
    with open_video(path) as video:
        pictures = list(video.pictures(PLANES))
    assert len(pictures) == 3
    for (planes, seconds), (frame, expected_seconds) in zip(pictures, expected, strict=True):
        assert isinstance(planes, Yuv420)
        assert (planes.shape, seconds) == (frame.shape, expected_seconds)
        capture = Capture(planes, "a", 0, seconds, 0.0)
        assert capture.frame.is_contiguous()
        # at hard edges 10 bits are interpolated with other weights
        assert (capture.frame.int() - frame.int()).abs().float().mean() <= STEPS


@pytest.mark.parametrize(("codec", "pixels"), [("libx264", "yuv444p"), ("ffv1", "bgr0"), ("libx264", "yuv422p")])
def test_other_formats_are_read_as_rgb_where_planes_are_asked_for(tmp_path, codec, pixels):
    path = make_clip(tmp_path / "a.mkv", 3, codec=codec, pixels=pixels)
    with open_video(path) as video:
        expected = [frame for frame, _ in video]
    with open_video(path) as video:
        found = [frame for frame, _ in video.pictures(PLANES)]
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


def test_frames_of_another_size_become_rgb_of_the_first_size(tmp_path):
    first, second = make_clip(tmp_path / "a.h264", 2), make_clip(tmp_path / "b.h264", 2, size=(96, 160))
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with open_video(first) as video:
        kinds = [(type(pixels), tuple(pixels.shape)) for pixels, _ in video.pictures(PLANES)]
    assert kinds == [(Yuv420, (3, 48, 64))] * 2 + [(torch.Tensor, (3, 48, 64))] * 2


@pytest.mark.parametrize(("interleaved", "planar"), [("nv12", "yuv420p"), ("p010le", "yuv420p10le")])
@pytest.mark.parametrize("size", [(48, 64), (38, 50)])
def test_the_formats_of_hardware_decoders_hold_the_same_planes(interleaved, planar, size):
    frame = stored_frame(size, planar, 1, False)
    other = new_reformatter()(frame, format=interleaved)
    other.colorspace = 1
    found, expected = (to_planes(each, Orientation(), pinned=False) for each in (other, frame))
    assert (found.bits, found.size) == (expected.bits, expected.size)
    assert found.pixels.equal(expected.pixels)


def test_a_video_without_planes_to_ask_for_gives_rgb(tmp_path):
    with open_video(make_clip(tmp_path / "a.mp4", 2)) as video:
        assert all(isinstance(frame, torch.Tensor) for frame, _ in video.pictures(TO_RGB))


@pytest.mark.parametrize("size", [(48, 64), (47, 63)])
def test_a_video_of_planes_is_the_video_of_the_same_frames(tmp_path, size):
    frames = [(smooth(3, *size, seed=i) * 255).byte() for i in range(3)]
    even = tuple(side + side % 2 for side in size)
    with open_video_writer(tmp_path / "a.mp4", size, Fraction(25)) as writer:
        for i, frame in enumerate(frames):
            writer.write(frame, i / 25)
    with open_video_writer(tmp_path / "b.mp4", even, Fraction(25)) as writer:
        for i, frame in enumerate(frames):
            writer.write(to_yuv(frame, BT601), i / 25)
        with pytest.raises(ValueError, match="does not fit a video of"):
            writer.write(to_yuv(frames[0][:, :10], BT601), 1.0)
    with open_video(tmp_path / "a.mp4") as one, open_video(tmp_path / "b.mp4") as other:
        for (a, _), (b, _) in zip(one, other, strict=True):
            assert a.shape == b.shape == (3, *even)
            # compression turns one step of chroma into more
            assert (a.int() - b.int()).abs().float().mean() < 2
