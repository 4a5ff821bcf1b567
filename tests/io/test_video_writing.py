import errno
import gc
import random
import sys
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from clips import NTSC, UNEVEN, even, make_clip, number, picture, read, write

from streamseg.checks import check_video_suffix
from streamseg.io.files import written_whole
from streamseg.io.video_reading import (
    open_video,
    read_label_video,
)
from streamseg.io.video_streams import video_made_by_streamseg
from streamseg.io.video_writing import VIDEO_FORMATS, open_label_writer, open_video_writer, write_frames


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.webm", "a.MP4"])
@pytest.mark.parametrize("rate", [NTSC, Fraction(24000, 1001), Fraction(25), Fraction(60), Fraction(10, 3)])
def test_a_written_video_is_the_read_video(tmp_path, name, rate):
    path = write(tmp_path / name, even(20, rate), rate)
    numbers, times = read(path)
    assert numbers == list(range(20))
    assert times == pytest.approx(even(20, rate), abs=1e-3)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == rate
        assert not stream.start_time
        assert container.duration / 1e6 == pytest.approx(float(20 / rate), abs=2e-3)
    with open_video(path) as video:
        for i, (frame, _) in enumerate(video):
            assert (frame.int() - picture(i).int()).abs().float().mean() < 8


def test_frames_are_written_in_one_call(tmp_path):
    write_frames(tmp_path / "a.mp4", (picture(i) for i in range(5)), 12.5)
    numbers, times = read(tmp_path / "a.mp4")
    assert (numbers, times) == (list(range(5)), pytest.approx(even(5, Fraction(25, 2))))
    with pytest.raises(ValueError, match=r"There is no frame to write to .*b\.mp4"):
        write_frames(tmp_path / "b.mp4", iter(()), 25)
    with pytest.raises(ValueError, match="does not fit a video"):
        write_frames(tmp_path / "c.mp4", [picture(0), picture(1, (32, 32))], 25)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_frames_may_be_arrays_and_take_the_place_of_a_video_that_is_there(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 9)
    write_frames(path, [picture(i).permute(1, 2, 0).numpy() for i in range(3)], 25)
    assert read(path)[0] == [0, 1, 2]
    before = path.read_bytes()
    with pytest.raises(ValueError, match="The picture is a NoneType"):
        write_frames(path, [picture(0), None], 25)
    assert path.read_bytes() == before


@pytest.mark.parametrize("rate", [0, -25, 1e9, float("nan"), "25", None])
def test_a_rate_that_no_video_has_is_told(tmp_path, rate):
    with pytest.raises(ValueError, match=f"^A rate of {rate!r} frames a second; expected 0.001 to 1000.$"):
        write_frames(tmp_path / "a.mp4", [picture(0)], rate)


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.webm"])
def test_uneven_times_are_written(tmp_path, name):
    numbers, times = read(write(tmp_path / name, UNEVEN, Fraction(8)))
    assert numbers == list(range(11))
    assert times == pytest.approx(UNEVEN, abs=1e-3)
    with av.open(str(tmp_path / name)) as container:
        assert container.duration / 1e6 == pytest.approx(1.5 + 1 / 8, abs=2e-3)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
@pytest.mark.parametrize("size", [(48, 64), (720, 64)])
def test_colours_survive_writing(tmp_path, name, size):
    colours = torch.tensor([(255, 0, 0), (0, 255, 0), (30, 60, 200), (128, 128, 128), (0, 0, 0), (255, 255, 255)])
    for colour in colours:
        with open_video_writer(tmp_path / name, size, NTSC) as writer:
            writer.write(colour.to(torch.uint8)[:, None, None].expand(3, *size), 0.0)
        with open_video(tmp_path / name) as video:
            frame, _ = next(iter(video))
        assert (frame.float().mean((1, 2)) - colour).abs().max() <= 4


@pytest.mark.parametrize("size", [(47, 63), (48, 63), (47, 64), (1, 1)])
def test_an_odd_size_grows_by_its_edge(tmp_path, size):
    height, width = size
    with open_video(write(tmp_path / "a.mp4", even(3), size=size)) as video:
        assert video.size == (height + height % 2, width + width % 2)
        frames = torch.stack([frame for frame, _ in video]).int()
    if size != (1, 1):
        assert (frames[:, :, height - 1] - frames[:, :, -1]).abs().float().mean() < 8
        assert (frames[..., width - 1] - frames[..., -1]).abs().float().mean() < 8
        assert [number(frame) for frame in frames] == [0, 1, 2]


def test_frames_in_any_layout_of_memory_are_written(tmp_path):
    with open_video_writer(tmp_path / "a.mkv", (48, 64), NTSC) as writer:
        for i in range(3):
            writer.write(picture(i).permute(1, 2, 0).contiguous().permute(2, 0, 1), i / 30)
    assert read(tmp_path / "a.mkv")[0] == [0, 1, 2]


def test_without_x264_another_codec_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264"})
    numbers, times = read(write(tmp_path / "a.mp4", UNEVEN))
    assert numbers == list(range(11))
    assert times == pytest.approx(UNEVEN, abs=1e-3)
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libvpx-vp9"})
    with pytest.raises(ValueError, match=r"built without libvpx-vp9, which .*a\.webm needs: write an \.mp4"):
        write(tmp_path / "a.webm", UNEVEN)


def test_what_was_written_before_an_error_is_playable(tmp_path):
    with pytest.raises(KeyError), open_video_writer(tmp_path / "a.mp4", (48, 64), NTSC) as writer:
        for i in range(7):
            writer.write(picture(i), i / 30)
        raise KeyError
    assert read(tmp_path / "a.mp4")[0] == list(range(7))


def test_a_frame_of_another_size_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match=r"A frame of \(3, 48, 32\) does not fit a video of 48 x 64 pixels"),
        open_video_writer(tmp_path / "a.mp4", (48, 64), NTSC) as writer,
    ):
        writer.write(picture(0)[..., :32], 0.0)


def test_a_name_without_a_kind_of_video_is_refused(tmp_path):
    for name in ("a.txt", "a", "a.avi"):
        with pytest.raises(ValueError, match=rf"{name} .* suffix of a video; .*\.mp4 \.mov \.mkv \.webm\."):
            open_video_writer(tmp_path / name, (48, 64), NTSC)
    for suffix in VIDEO_FORMATS:
        check_video_suffix(tmp_path / f"a{suffix}")
    with pytest.raises(ValueError, match=r"a\.mp4 .* end it in \.mkv"):
        open_label_writer(tmp_path / "a.mp4", (48, 64), NTSC)


def test_a_path_that_cannot_be_written_is_told_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_video_writer(tmp_path / "nowhere" / "a.mp4", (48, 64), NTSC)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is full")
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_a_full_disk_is_told(tmp_path, name):
    noise = torch.randint(0, 256, (3, 240, 320), dtype=torch.uint8)
    with (
        pytest.raises(OSError, match=rf"^Could not write .*{name}: No space left on device\.$"),
        written_whole(tmp_path / name) as temporary,
    ):
        temporary.unlink()
        temporary.symlink_to("/dev/full")
        with open_video_writer(temporary, (240, 320), NTSC) as writer:
            for i in range(100):
                writer.write(noise, i / 30)
    (tmp_path / "b.mkv").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught, open_video_writer(tmp_path / "b.mkv", (48, 64), NTSC):
        pass
    assert caught.value.errno == errno.ENOSPC


def sound(path):
    """Of the sound in a file the codec, the start, the end, and its packets."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        packets = [packet for packet in container.demux(stream) if packet.pts is not None and packet.size]
        times = [float(packet.pts * packet.time_base) for packet in packets]
        end = times[-1] + float(packets[-1].duration * packets[-1].time_base)
        return stream.codec_context.name, times[0], end, [bytes(packet) for packet in packets]


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv"])
@pytest.mark.parametrize(("source", "codec"), [("s.mp4", "aac"), ("s.ts", "aac"), ("s.mkv", "ac3")])
def test_audio_is_copied(tmp_path, name, source, codec):
    clip = make_clip(tmp_path / source, 50, sound=codec)
    write(tmp_path / name, even(50, Fraction(25)), Fraction(25), audio_from=str(clip))
    with open_video(clip) as before, open_video(tmp_path / name) as after:
        assert before.has_audio
        assert after.has_audio
    kind, start, end, packets = sound(tmp_path / name)
    assert kind == codec
    assert -0.001 < start < 0.05
    assert 1.9 < end <= 2.001
    originals = sound(clip)[-1]
    # AAC in a transport stream has headers, which other files have no use for
    assert all(any(original.endswith(packet) for original in originals) for packet in packets)
    assert read(tmp_path / name)[0] == [i % 32 for i in range(50)]


@pytest.mark.parametrize(
    ("name", "source", "codec", "expected"),
    [("a.mp4", "s.mkv", "pcm_s16le", "aac"), ("a.webm", "s.mp4", "aac", "opus"), ("a.mov", "s.webm", "libopus", "aac")],
)
def test_audio_that_the_format_does_not_take_is_encoded(tmp_path, name, source, codec, expected):
    video = "libvpx-vp9" if source == "s.webm" else "libx264"
    clip = make_clip(tmp_path / source, 50, codec=video, sound=codec)
    write(tmp_path / name, even(50, Fraction(25)), Fraction(25), audio_from=str(clip))
    kind, start, end, _ = sound(tmp_path / name)
    assert kind.removeprefix("lib") == expected
    assert -0.001 < start < 0.05
    assert 1.9 < end <= 2.01


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_audio_ends_with_the_frames_and_keeps_its_times(tmp_path, name):
    for seconds, start, frames, expected in [(4, 0, 20, 0.8), (0.5, 0, 50, 0.5), (0.5, 0.7, 50, 1.2)]:
        clip = make_clip(tmp_path / "s.mkv", 50, sound="aac", sound_seconds=seconds, sound_start=start)
        write(tmp_path / name, even(frames, Fraction(25)), Fraction(25), audio_from=clip)
        _, begin, end, _ = sound(tmp_path / name)
        assert begin == pytest.approx(start, abs=0.03)
        assert expected - 0.05 < end < expected + 0.03
        assert end <= frames / 25 + 0.001
        with av.open(str(tmp_path / name)) as container:
            assert container.duration / 1e6 == pytest.approx(frames / 25, abs=0.02)


def test_audio_of_a_video_that_starts_late_is_shifted_with_it(tmp_path):
    late = [2.0 + i / 25 for i in range(50)]
    clip = make_clip(tmp_path / "s.mkv", times=late, sound="aac", sound_seconds=1.5, sound_start=2.5)
    numbers, times = read(clip)
    write(tmp_path / "a.mp4", times, Fraction(25), audio_from=clip)
    assert (numbers[0], times[0]) == (0, 0.0)
    assert sound(tmp_path / "a.mp4")[1] == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
def test_missing_and_damaged_audio_costs_no_frame(tmp_path):
    quiet = make_clip(tmp_path / "s.mp4", 20)
    whole = make_clip(tmp_path / "t.mp4", 20, sound="aac").read_bytes()
    (tmp_path / "u.mp4").write_bytes(b"no video")
    sources = [quiet, tmp_path / "nowhere.mp4", tmp_path / "u.mp4"]
    chance = random.Random(0)
    for i in range(30):
        data = bytearray(whole)
        for _ in range(30):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        sources.append(tmp_path / f"{i}.mp4")
        sources[-1].write_bytes(data[: chance.randrange(len(data) // 2, len(data))])
    for source in sources:
        for name in ("a.mp4", "a.webm"):
            assert read(write(tmp_path / name, even(5), audio_from=source))[0] == list(range(5))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("name", "codec"), [("s.mp4", None), ("s.mkv", "pcm_s16le"), ("s.mp4", "aac")])
def test_the_source_of_audio_is_closed(tmp_path, name, codec):
    clip = make_clip(tmp_path / name, 5, sound=codec)
    gc.collect()
    gc.disable()  # which would close them at some time
    try:
        for kind in ("a.mp4", "a.webm"):
            write(tmp_path / kind, even(5), audio_from=clip)
        assert [path for path in Path("/proc/self/fd").iterdir() if path.resolve().parent == tmp_path] == []
    finally:
        gc.enable()


# large frames are encoded in 16 parts
@pytest.mark.parametrize("size", [(48, 64), (33, 47), (257, 256), (3, 44000), (44000, 3)])
def test_a_video_of_labels_holds_them_exactly(tmp_path, size):
    labels = torch.randint(0, 256, (len(UNEVEN), *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with open_label_writer(tmp_path / "a.mkv", size, NTSC) as writer:
        for seconds, one in zip(UNEVEN, labels, strict=True):
            writer.write(one, seconds)
    read_back = list(read_label_video(tmp_path / "a.mkv"))
    assert torch.stack([one for one, _ in read_back]).equal(labels)
    assert [seconds for _, seconds in read_back] == pytest.approx(UNEVEN, abs=1e-3)
    assert video_made_by_streamseg(tmp_path / "a.mkv")
