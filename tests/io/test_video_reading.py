import random
import socket
import sys
import threading
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import av
import pytest
import torch
from clips import NTSC, TURNS, UNEVEN, cut, even, make_clip, number, picture, read, tone, turn, write
from commands import failing
from waiting import PATIENCE

import streamseg
from streamseg.checks import CutShort
from streamseg.io.planes import Orientation
from streamseg.io.sources import Decoding
from streamseg.io.video_reading import (
    FrameClock,
    copy_packet,
    open_camera,
    open_stream,
    open_video,
    read_label_video,
    to_tensor,
)
from streamseg.io.video_writing import open_label_writer, open_video_writer, write_frames
from streamseg.io.yuv import as_rgb


@pytest.mark.parametrize(
    ("name", "codec", "pixels"),
    [("a.mp4", "libx264", "yuv420p"), ("a.mov", "libx264", "yuv444p"), ("a.mkv", "libx264", "yuv420p10le")]
    + [("a.avi", "mpeg4", "yuv420p"), ("a.webm", "libvpx-vp9", "yuv420p"), ("a.ts", "libx264", "yuv422p")]
    + [("a.mov", "mjpeg", "yuvj420p"), ("a.mkv", "ffv1", "bgr0"), ("a.mkv", "ffv1", "yuv411p")],
)
def test_a_video_becomes_rgb_frames_and_their_times(tmp_path, name, codec, pixels):
    with open_video(make_clip(tmp_path / name, codec=codec, pixels=pixels)) as video:
        assert (video.size, video.rate, video.has_audio) == ((48, 64), 25, False)
        for i, (frame, seconds) in enumerate(video):
            assert (frame.dtype, frame.shape, frame.is_contiguous()) == (torch.uint8, (3, 48, 64), True)
            assert (frame.int() - picture(i).int()).abs().float().mean() < 8
            assert seconds == pytest.approx(i / 25, abs=1e-3)
        assert i == 11


def test_grey_is_read_as_it_is(tmp_path):
    grey = torch.arange(48 * 64, dtype=torch.int32).remainder(256).to(torch.uint8).view(48, 64)
    with open_label_writer(tmp_path / "a.mkv", (48, 64), Fraction(25)) as writer:
        writer.write(grey, 0.0)
    with open_video(tmp_path / "a.mkv") as video:
        frame, _ = next(iter(video))
    assert frame.equal(grey.expand(3, -1, -1))


@pytest.mark.parametrize("name", TURNS)
def test_a_video_taken_sideways_is_turned_upright(tmp_path, name):
    a, b, c, d = TURNS[name]
    with open_video(turn(make_clip(tmp_path / "a.mp4", 3), TURNS[name])) as video:
        frames = [frame for frame, _ in video]
        assert frames[0].shape[1:] == video.size
    across = torch.stack([picture(i) for i in range(3)])
    upright = across.transpose(2, 3) if a == 0 else across
    upright = upright.flip([dim for dim, sign in ((2, b + d), (3, a + c)) if sign < 0])
    assert (torch.stack(frames).int() - upright.int()).abs().float().mean() < 8
    assert all(frame.is_contiguous() for frame in frames)


def test_an_angle_that_is_no_quarter_turn_is_ignored(tmp_path):
    with open_video(turn(make_clip(tmp_path / "a.mp4", 3), (1, 1, -1, 1))) as video:
        assert video.size == (48, 64)


def solid(path, colour, height, matrix, full, said=True):
    """A video of one colour, its luma and chroma worked out by hand; with or without a word on how."""
    red, blue = {1: (0.2126, 0.0722), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}[matrix]
    r, g, b = (part / 255 for part in colour)
    luma = red * r + (1 - red - blue) * g + blue * b
    chroma = ((b - luma) / 2 / (1 - blue), (r - luma) / 2 / (1 - red))
    values = (255 * luma, *(128 + 255 * part for part in chroma))
    if not full:
        values = (16 + 219 * luma, *(128 + 224 * part for part in chroma))
    frame = av.VideoFrame(64, height, "yuv444p")
    for plane, value in zip(frame.planes, values, strict=True):
        plane.update(bytes([min(255, round(value))]) * plane.buffer_size)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "5"})
        stream.width, stream.height, stream.pix_fmt = 64, height, "yuv444p"
        if said:
            stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = 2 if full else 1
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (30, 60, 200), (128, 128, 128)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("matrix", "height", "said"),
    [(1, 48, True), (6, 48, True), (9, 48, True), (6, 48, False), (6, 576, False), (1, 577, False)],
)
def test_colours_are_what_the_video_says_or_else_what_players_take(tmp_path, colour, full, matrix, height, said):
    with open_video(solid(tmp_path / "a.mkv", colour, height, matrix, full, said)) as video:
        frame, _ = next(iter(video))
    assert (frame.float().mean((1, 2)) - torch.tensor(colour)).abs().max() <= 3


def test_uneven_times_are_kept(tmp_path):
    numbers, times = read(make_clip(tmp_path / "a.mp4", times=UNEVEN))
    assert numbers == list(range(11))
    assert times == pytest.approx(UNEVEN, abs=1e-3)


def test_a_video_tells_how_many_frames_it_has(tmp_path):
    for name, codec in (("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4")):
        with open_video(make_clip(tmp_path / name, 37, codec=codec, rate=NTSC)) as video:
            assert video.length == 37
    with open_video(make_clip(tmp_path / "a.h264", 37)) as video:
        assert video.length is None


def test_without_timestamps_times_come_from_the_rate(tmp_path):
    _, times = read(make_clip(tmp_path / "a.h264"))
    assert times == pytest.approx(even(12, Fraction(25)))


@pytest.mark.parametrize(
    ("timestamps", "expected"),
    [
        ([7, 8, 9], [0, 1, 2]),
        ([7, None, 9], [0, 1, 2]),
        ([None, None, 70, 71], [0, 1, 2, 3]),
        ([0, 1, 1, 2, 3], [0, 1, 1.25, 2, 3]),
        ([0, 1, 5, -700, -699], [0, 1, 5, 6, 7]),
        ([0, 1, 10**9, 2, 3], [0, 1, 2, 3, 4]),
        ([0, 0, 0, 0, 0, 0, 9], [0, 0.25, 0.5, 0.75, 1, 2, 11]),
    ],
)
def test_times_strictly_increase_whatever_the_timestamps_do(timestamps, expected):
    clock = FrameClock(Fraction(1), Fraction(1))
    assert [clock.next_time(timestamp) for timestamp in timestamps] == expected


def test_frames_of_another_size_take_that_of_the_first(tmp_path):
    first, second = make_clip(tmp_path / "a.h264", 5), make_clip(tmp_path / "b.h264", 5, size=(96, 160))
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with open_video(first) as video:
        assert [tuple(frame.shape) for frame, _ in video] == [(3, 48, 64)] * 10


@pytest.mark.parametrize(
    ("name", "codec", "pixels"),
    [("a.mp4", "libx264", "yuv420p"), ("a.mkv", "libx264", "yuv420p")]
    + [(f"a.{suffix}", "mjpeg", "yuvj420p") for suffix in ("mp4", "mov", "mkv")],
)
@pytest.mark.parametrize("part", [0.8, 0.7])
def test_of_a_file_that_is_cut_short_what_is_there_is_read(tmp_path, name, codec, pixels, part):
    path = cut(make_clip(tmp_path / name, 100, codec=codec, pixels=pixels), part)
    numbers = []
    with pytest.raises(CutShort, match=rf"{name} is (cut short: only|damaged:) \d+ frames could be read") as caught:
        for frame, _ in open_video(path):
            numbers.append(number(frame))
    assert numbers[:-1] == [i % 32 for i in range(len(numbers) - 1)]
    assert f" {len(numbers)} frames" in str(caught.value)
    assert 10 < len(numbers) < 100


def test_after_damage_in_the_middle_reading_goes_on(tmp_path):
    path = make_clip(tmp_path / "a.mov", 30, codec="mjpeg", pixels="yuvj420p")
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 3
    data[start : start + 1000] = bytes(1000)
    path.write_bytes(data)
    numbers = []
    with pytest.raises(CutShort, match=r"is damaged: \d+ frames could be read, at least \d+ could not"):
        for frame, _ in open_video(path):
            numbers.append(number(frame))
    assert {0, 1, 28, 29} < set(numbers)
    assert 20 < len(numbers) < 30


def scenery(path, frames=60):
    """A video with something in it, so that damage is seen."""
    noise = torch.randint(0, 256, (3, 12, 100), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    wide = noise.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    write_frames(path, [wide[:, :, 4 * i : 4 * i + 128] for i in range(frames)], 25)
    return path


def disturb(path, chosen):
    """Destroy the second half of some of a file's packets."""
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for start, size in places[chosen]:
        data[start + size // 2 : start + size] = bytes(size - size // 2)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
@pytest.mark.parametrize("chosen", [slice(0, 1), slice(10, 30)])
def test_frames_that_the_decoder_repaired_are_counted(tmp_path, name, chosen):
    path, seen = scenery(tmp_path / name), 0
    assert len(read(path)[0]) == 60
    with pytest.raises(CutShort, match=r"is damaged: \d+ frames could be read, \d+ of them with faults") as caught:
        for _ in open_video(disturb(path, chosen)):
            seen += 1
    assert f": {seen} frames could" in str(caught.value)


def test_frames_that_are_missing_at_the_beginning_are_counted(tmp_path):
    path = make_clip(tmp_path / "a.mov", 30, codec="mjpeg", pixels="yuvj420p")
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    data[packets[0].pos : packets[4].pos] = bytes(packets[4].pos - packets[0].pos)
    path.write_bytes(data)
    with pytest.raises(CutShort, match="is damaged: 26 frames could be read, at least 4 could not be decoded"):
        list(open_video(path))


def test_a_recording_that_begins_between_whole_pictures_is_not_damaged(tmp_path):
    path = make_clip(tmp_path / "a.ts", 600)
    packets = len(path.read_bytes()) // 188
    path.write_bytes(path.read_bytes()[packets // 5 * 188 :])
    assert 100 < len(read(path)[0]) < 600


@pytest.mark.parametrize(
    "content", [b"", b"no video at all\n" * 50, bytes(1000), b"#EXTM3U\nhttp://127.0.0.1:9/a.ts\n"]
)
def test_a_file_that_is_no_video_is_refused(tmp_path, content):
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.mp4 (is not a video that can be read|holds no video)"):
        open_video(tmp_path / "a.mp4")


def test_sound_alone_and_a_video_of_no_frames_are_refused(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        track = container.add_stream("aac", rate=48000)
        for frame in [*tone(0.5), None]:
            container.mux(track.encode(frame))
    for name in ("b.mp4", "b.mkv"):
        with open_video_writer(tmp_path / name, (48, 64), NTSC):
            pass
    for name in ("a.mp4", "b.mp4", "b.mkv"):
        with pytest.raises(ValueError, match=f"{name} (holds no video|is not a video)|{name} has no readable frame"):
            open_video(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.mp4", {"sound": "aac"}), ("a.mkv", {}), ("a.avi", {"codec": "mpeg4"}), ("a.ts", {})],
)
def test_a_damaged_file_gives_frames_or_a_sentence(tmp_path, name, options):
    whole = make_clip(tmp_path / name, 8, **options).read_bytes()
    chance, ends = random.Random(0), set()
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 10, 60))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.4:
            del data[chance.randrange(len(data)) :]
        (tmp_path / name).write_bytes(data)
        try:
            with open_video(tmp_path / name) as video:
                for frame, _ in video:
                    assert frame.shape == (3, *video.size)
            ends.add("whole")
        except (CutShort, ValueError) as error:
            ends.add(type(error))
    assert {"whole", ValueError} <= ends


def test_ffmpeg_prints_nothing(tmp_path, capfd):
    path = cut(make_clip(tmp_path / "a.mp4", 100), 0.9)
    with pytest.raises(CutShort):
        list(open_video(path))
    write(tmp_path / "b.mp4", even(3), audio_from=path)
    assert capfd.readouterr() == ("", "")


@contextmanager
def served(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("open_any", [open_video, open_stream])
def test_a_video_is_read_from_a_web_server(tmp_path, open_any):
    make_clip(tmp_path / "a.mp4")
    (tmp_path / "b.mp4").write_text("no video")
    with served(tmp_path) as url:
        with open_any(f"{url}/a.mp4") as video:
            assert [number(frame) for frame, _ in video] == list(range(12))
        with pytest.raises(OSError, match=r"^http://127.*/c\.mp4 cannot be read: .*404"):
            open_any(f"{url}/c.mp4")
        with pytest.raises(ValueError, match=r"/b\.mp4 is not a video that can be read"):
            open_any(f"{url}/b.mp4")


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_a_server_that_is_silent_or_missing_is_told_without_the_password(scheme):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}/a"
        with pytest.raises(TimeoutError, match=f"^{scheme}://{address} did not answer in time"):
            open_stream(f"{scheme}://me:secret@{address}", timeout=0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # where nobody listens, and no other test can begin to
        address = f"127.0.0.1:{taken.getsockname()[1]}/a"
        with pytest.raises(OSError, match=f"^{scheme}://{address} cannot be read: Connection refused"):
            open_stream(f"{scheme}://me:secret@{address}", timeout=PATIENCE)


def test_the_frames_of_a_live_stream_become_rgb_when_they_are_needed(tmp_path, monkeypatch):
    path, converted = make_clip(tmp_path / "a.ts", 6), []
    with open_stream(str(path)) as video:
        to_rgb = video.to_rgb
        monkeypatch.setattr(video, "to_rgb", lambda stored, size: converted.append(stored.pts) or to_rgb(stored, size))
        frames = [frame for frame, _ in video.pictures(Decoding())]
        assert len(converted) == 1  # the first, to see whether its format can be read
    # after the stream is closed too, once each
    assert [number(as_rgb(frame)) for frame in (frames[4], frames[2], frames[4])] == [4, 2, 4]
    assert len(converted) == 3


def test_a_live_stream_whose_pixel_format_cannot_be_read_is_told_by_who_reads_it(tmp_path, monkeypatch):
    path = make_clip(tmp_path / "a.ts", 6)
    with open_stream(str(path)) as video:
        monkeypatch.setattr(video, "reformat", failing(ValueError("no such format")))
        with pytest.raises(ValueError, match="has a pixel format that cannot be read"):
            next(video.pictures(Decoding()))


def test_packets_are_copied_whole(tmp_path):
    with av.open(str(make_clip(tmp_path / "a.mkv", 4, codec="rawvideo"))) as container:
        codec = container.streams.video[0].codec_context
        copies = [copy_packet(packet) for packet in container.demux(video=0) if packet.size]
        frames = [frame for packet in copies for frame in codec.decode(packet)]
    # their memory is not the container's
    assert [number(to_tensor(frame.reformat(format="rgb24"), Orientation())) for frame in frames] == [0, 1, 2, 3]
    assert [frame.pts * frame.time_base for frame in frames] == [i / Fraction(25) for i in range(4)]


def write_stream_of_two_sizes(path, codec, pixels):
    """Write a stream that joins two others, as a camera sends whose size is set while it is watched."""
    sizes = ((48, 64), (96, 80))
    parts = [make_clip(path.with_stem(f"part{i}"), 5, size=sizes[i], codec=codec, pixels=pixels) for i in range(2)]
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


@pytest.mark.parametrize(
    ("name", "codec", "pixels"), [("a.mjpeg", "mjpeg", "yuvj420p"), ("a.h264", "libx264", "yuv420p")]
)
@pytest.mark.parametrize("planes", [False, True], ids=["RGB", "planes"])
def test_a_live_stream_may_change_the_size_of_its_frames(tmp_path, name, codec, pixels, planes):
    with open_stream(str(write_stream_of_two_sizes(tmp_path / name, codec, pixels))) as video:
        frames = [as_rgb(frame) for frame, _ in video.pictures(Decoding(planes=planes))]
    assert [tuple(frame.shape) for frame in frames] == [(3, 48, 64)] * 5 + [(3, 96, 80)] * 5
    for i, frame in enumerate(frames):
        assert (frame.int() - picture(i % 5, frame.shape[1:]).int()).abs().float().mean() < 8
    with open_video(tmp_path / name) as video:
        assert {tuple(frame.shape) for frame, _ in video} == {(3, 48, 64)}  # a file has one size


@pytest.mark.skipif(sys.platform != "linux", reason="devices have other names")
def test_a_camera_that_is_missing_or_none_is_told():
    with pytest.raises(FileNotFoundError, match="^No camera 97 here: plug one in, or give another number"):
        open_camera("97")
    with pytest.raises(FileNotFoundError, match="^No camera /dev/video97 here"):
        open_camera("/dev/video97")
    with pytest.raises(OSError, match="^Camera /dev/null cannot be used: "):
        open_camera("/dev/null")


@pytest.mark.parametrize("width", [66, 70, 72, 97, 120, 514])
def test_every_column_of_a_video_is_read(tmp_path, width):
    rows = torch.linspace(40, 200, 64).view(1, 64, 1)
    columns = torch.linspace(0, 40, width).view(1, 1, width)
    frame = (rows + columns * torch.tensor([1.0, 0.5, 0.0]).view(3, 1, 1)).byte()
    streamseg.write_frames(tmp_path / "a.mp4", [frame] * 3, 10)
    for found in streamseg.read_frames(tmp_path / "a.mp4"):
        far = (found[:, :, :width].int() - frame.int()).abs().amax(dim=(0, 1))
        assert far.max() < 16, f"columns {far.ge(16).nonzero().flatten().tolist()}"


def test_a_video_of_colours_holds_no_labels(tmp_path):
    with pytest.raises(ValueError, match=r"a\.mp4 is no video of labels: it holds h264 of yuv420p"):
        list(read_label_video(make_clip(tmp_path / "a.mp4", 3)))
