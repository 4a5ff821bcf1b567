import gc
import io
import random
import re
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from clips import make_clip, number, picture
from commands import failing
from PIL import Image
from pipelines import Callbacks, Camera, Clip, Screen, changing_camera, fake_predictions, noise, one_by_one, run, shade
from source_files import damage
from waiting import PATIENCE, until

import streamseg
from streamseg import draw
from streamseg.checks import CutShort
from streamseg.io.decoded_frame import DecodedFrame
from streamseg.io.files import UNFINISHED
from streamseg.io.outputs import OutputFiles, plan_outputs
from streamseg.io.resolve import find_sources
from streamseg.io.sources import Capture, VideoFile
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.stream import latency, network_thread, source_threads
from streamseg.stream.latency import Meter
from streamseg.stream.settings import DrawStyle
from streamseg.stream.shared_run import SharedRun


def test_a_lost_stream_is_the_bottleneck(model, priced, monkeypatch):
    came = threading.Event()

    @dataclass(eq=False)
    class Gate(Clip):
        def captures(self):
            for i in range(50):  # in a burst, of which most are dropped
                yield Capture(shade(i), self.name, i, i / 25, priced.now)
            came.set()
            priced.now += 30.0
            raise CutShort("It went away.")

    def step(model, images, states, window, **options):
        assert came.wait(PATIENCE)
        return fake_predictions(images, **options)

    monkeypatch.setattr(network_thread, "step_batch", step)
    done = run(model, Gate([], "gate", live=True), meter=Meter(priced.monotonic))
    assert done.summary.dropped > 0
    assert latency.bottleneck(done.summary).startswith(
        "Bottleneck: the source gate, which was silent for 30.0 of 30.0 s."
    )


@pytest.mark.parametrize("problem", [CutShort("it is cut short."), ValueError("it is damaged."), OSError("it left.")])
def test_a_source_that_fails_keeps_its_frames_and_stops_no_other(model, quick, tmp_path, problem):
    def frames():
        yield from (shade(i) for i in range(7))
        raise problem

    places = [OutputFiles(overlay=tmp_path / "a.mp4"), OutputFiles(overlay=tmp_path / "b.mp4")]
    done = run(model, Clip(frames(), "a"), Clip([shade(0)] * 20, "b"), results=places)
    assert done.outcome.problems == [str(problem)]
    assert done.outcome.frames == 27
    for path, length in ((tmp_path / "a.mp4", 7), (tmp_path / "b.mp4", 20)):
        with open_video(path) as written:
            assert sum(1 for _ in written) == length


def test_a_video_ends_where_its_size_changes(model, quick, tmp_path):
    frames = [shade(0, (32, 48))] * 5 + [shade(0, (64, 96))] * 5
    done = run(model, Clip(frames, live=False), results=[OutputFiles(overlay=tmp_path / "a.mp4")])
    assert done.outcome.problems == [
        "clip ends after 5 frames: the next one has 64 x 96 pixels, not 32 x 48; scale all of them to one size."
    ]
    with open_video(tmp_path / "a.mp4") as written:
        assert sum(1 for _ in written) == 5


def test_a_live_source_goes_on_with_a_new_size_and_without_its_past(model, monkeypatch):
    camera, said, states = changing_camera(3, 2, 2), [], []

    def step(network, images, known, window, **options):
        states.append((tuple(images.shape[2:]), known[0]))
        predictions, _ = fake_predictions(images, **options)
        return predictions, ["a past"]

    monkeypatch.setattr(network_thread, "step_batch", step)
    done = run(model, camera, observer=one_by_one(camera, message=said.append))
    assert done.outcome.problems == []
    assert [record["frame"] for record in done.records] == list(range(7))
    # the first pass is for the libraries
    assert states[1:] == [
        ((32, 48), None),
        ((32, 48), "a past"),
        ((32, 48), "a past"),
        ((64, 96), None),
        ((64, 96), "a past"),
        ((48, 32), None),
        ((48, 32), "a past"),
    ]
    assert said == [
        "camera now sends frames of 64 x 96 pixels, not 32 x 48: it goes on with these.",
        "camera now sends frames of 48 x 32 pixels, not 64 x 96: it goes on with these.",
    ]


def test_a_live_source_whose_size_never_rests_ends_with_a_sentence(model, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(source_threads, "MAX_SIZE_CHANGES", 1)
    camera = changing_camera(2, 2, 2)
    done = run(model, camera, results=[OutputFiles(tmp_path / "a.mp4")], observer=one_by_one(camera))
    assert done.outcome.problems == [
        "camera ends after 4 frames: the next one has 48 x 32 pixels, not 64 x 96; scale all of them to one size."
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2.mp4", "a.mp4"]


def test_of_a_size_that_never_rests_no_more_is_said_than_of_the_first_changes(model, quick, monkeypatch):
    monkeypatch.setattr(source_threads, "MAX_SIZE_CHANGES", 1)
    camera, said = changing_camera(2, 2, 2), []
    done = run(model, camera, observer=one_by_one(camera, message=said.append))
    assert done.outcome.problems == []
    assert (len(done.records), len(said)) == (6, 1)


def test_of_cameras_that_look_together_one_that_changes_its_size_ends(model, quick, tmp_path):
    cameras = {"a": changing_camera(2, 2, name="a"), "b": Camera(4, name="b")}
    observer = Callbacks(frame_written=lambda capture, *_: cameras[capture.name].release(1))
    results = [OutputFiles(tmp_path / "a.mp4"), OutputFiles(tmp_path / "b.mp4")]
    done = run(model, *cameras.values(), results=results, observer=observer, together=True)
    sentence = "a ends after 2 frames: the next one has 64 x 96 pixels, not 32 x 48; scale all of them to one size."
    assert done.outcome.problems == [sentence]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]
    assert [record["source"] for record in done.records].count("b") == 4


@dataclass(eq=False)
class DamagedCamera(Camera):
    """A camera whose second frame cannot be converted to RGB."""

    def captures(self):
        for capture in super().captures():
            fails = failing(ValueError("camera has a pixel format that cannot be read."))
            convert = fails if capture.index == 1 else lambda frame=capture.frame: frame
            yield replace(capture, pixels=DecodedFrame((32, 48), convert))


def test_a_live_frame_that_cannot_be_converted_ends_its_camera_only(model, quick, tmp_path):
    damaged, good = DamagedCamera(3), Camera(3, name="good")
    cameras = {"camera": damaged, "good": good}
    observer = Callbacks(frame_written=lambda capture, *_: cameras[capture.name].release(1))
    results = [OutputFiles(tmp_path / "a.mp4"), OutputFiles(tmp_path / "b.mp4")]
    done = run(model, damaged, good, results=results, observer=observer)
    assert done.outcome.problems == ["camera has a pixel format that cannot be read."]
    for path, length in ((tmp_path / "a.mp4", 1), (tmp_path / "b.mp4", 3)):
        with open_video(path) as written:
            assert sum(1 for _ in written) == length


def test_raw_labels_of_a_live_source_end_where_its_size_changes(model, quick):
    camera, raw = changing_camera(2, 2), io.BytesIO()
    done = run(model, camera, raw=raw, observer=one_by_one(camera))
    assert done.outcome.problems == [
        "camera ends after 2 frames: the next one has 64 x 96 pixels, not 32 x 48; scale all of them to one size."
    ]
    assert len(raw.getvalue()) == 2 * 32 * 48


def test_a_camera_that_stalls_is_told_of_by_name_and_again_when_it_is_back(model, quick, monkeypatch):
    monkeypatch.setattr(source_threads, "STALL_SECONDS", 0.0)
    camera, said = Camera(2, name="gate"), []

    def heard(sentence):
        said.append(re.sub(r"\d+ s", "N s", sentence))
        if sentence.startswith("gate has"):
            camera.release(1)

    done = run(model, camera, Clip([shade(0)] * 3, "yard", live=True), observer=Callbacks(message=heard))
    assert [sentence for sentence in said if "gate" in sentence][:2] == [
        "gate has sent no frame for N s; the others go on.",
        "gate sends frames again, after N s.",
    ]
    assert done.outcome.problems == []


def test_a_camera_that_does_not_begin_is_told_of(model, quick, monkeypatch):
    monkeypatch.setattr(source_threads, "OPENING_SECONDS", 0.0)
    camera, said = Camera(1, shown=0, name="gate"), []

    def heard(sentence):
        said.append(sentence)
        camera.release(1)

    run(model, camera, observer=Callbacks(message=heard))
    assert re.fullmatch(r"gate has sent no first frame for \d+ s\.", said[0])


def test_a_file_does_not_stall(model, quick, monkeypatch):
    monkeypatch.setattr(source_threads, "STALL_SECONDS", 0.0)
    ticks, enough, said = [], threading.Event(), []

    def frames():
        yield shade(0)
        assert enough.wait(PATIENCE)

    def tick():
        ticks.append(1)
        if len(ticks) > 3:
            enough.set()

    run(model, Clip(frames()), observer=Callbacks(message=said.append, tick=tick))
    assert said == []


def test_one_of_several_cameras_that_fails_is_told_at_once_by_its_name(model, quick):
    other, said = Camera(3, name="yard"), []

    def broken():
        yield shade(0)
        raise OSError("rtsp://10.0.0.1/live was lost.")

    def heard(sentence):
        said.append(sentence)
        other.release(2)  # it goes on after the other's end

    done = run(model, Clip(broken(), "gate", live=True), other, observer=Callbacks(message=heard))
    assert said == ["gate: rtsp://10.0.0.1/live was lost."] == done.outcome.problems
    assert done.outcome.reported == {"gate": said[0]}
    assert {record["source"] for record in done.records} == {"gate", "yard"}


def test_a_camera_that_came_back_is_counted(model, quick):
    @dataclass(eq=False)
    class Shaky(Clip):
        def captures(self):
            for i, capture in enumerate(super().captures()):
                yield replace(capture, reconnected=i == 2, note="It was lost and came back." if i == 2 else "")

    said, meter = [], Meter()
    clips = [Shaky([shade(0)] * 4, "gate", live=True), Clip([shade(0)], "yard", live=True)]
    run(model, *clips, meter=meter, observer=Callbacks(message=said.append))
    assert said == ["gate: It was lost and came back."]
    assert {name: stream.reconnects for name, stream in meter.stream_summaries().items()} == {"gate": 1, "yard": 0}


def test_pictures_may_differ_in_size(model, quick):
    raw = io.BytesIO()
    sizes = [(32, 48), (1, 1), (64, 33), (200, 2)]
    frames = [shade(i, size) for i, size in enumerate(sizes)]
    assert run(model, Clip(frames, moving=False), raw=raw).outcome.problems == []
    assert raw.getvalue() == b"".join(bytes([i]) * (height * width) for i, (height, width) in enumerate(sizes))


def test_a_frame_under_its_colours_is_what_overlay_draws(model, quick, tmp_path):
    frame, labels = noise(5, 1)[0], torch.empty(48, 64, dtype=torch.uint8)
    labels.fill_(int(frame[0, 0, 0]) % 11)
    for style, expected in (
        (DrawStyle(), draw.overlay(frame, labels, streamseg.CAMVID)),
        (DrawStyle(alpha=0.9), draw.overlay(frame, labels, streamseg.CAMVID, 0.9)),
        (DrawStyle(only=(3, 4)), draw.overlay(frame, labels, streamseg.CAMVID, 0.5, (3, 4))),
        (DrawStyle(side_by_side=True), torch.cat([frame, draw.overlay(frame, labels, streamseg.CAMVID)], dim=2)),
    ):
        run(model, Clip([frame], moving=False), results=[OutputFiles(tmp_path / "a.png")], style=style)
        assert streamseg.read_image(tmp_path / "a.png").equal(expected)


def with_planes(prepare):
    """SharedRun's __post_init__, as it is for a GPU."""

    def prepared(shared):
        prepare(shared)
        shared.on_device = True

    return prepared


@pytest.mark.parametrize("size", [(48, 64), (47, 63)])
def test_a_video_through_planes_is_the_same_but_for_the_last_steps(model, quick, tmp_path, monkeypatch, size):
    """On a GPU videos are read and written as planes; here on the CPU."""
    made = make_clip(tmp_path / "a.mkv", 8, size=size, codec="libx264" if size[0] % 2 == 0 else "ffv1")
    style = DrawStyle(borders=True, legend=True, side_by_side=True)
    for folder in ("rgb", "planes"):
        if folder == "planes":
            monkeypatch.setattr(SharedRun, "__post_init__", with_planes(SharedRun.__post_init__))
        (place := tmp_path / folder).mkdir()
        files = OutputFiles(place / "a.mp4", place / "a-labels.mkv", None, place / "a-colours.mp4")
        done = run(model, VideoFile("a", str(made)), results=[files], style=style)
        assert (done.outcome.frames, done.outcome.problems) == (8, [])
    for name in ("a.mp4", "a-colours.mp4"):
        with open_video(tmp_path / "rgb" / name) as one, open_video(tmp_path / "planes" / name) as other:
            assert one.size == other.size
            for (a, before), (b, after) in zip(one, other, strict=True):
                assert before == after
                assert (a.int() - b.int()).abs().float().mean() < 3
    labels = [[x for x, _ in read_label_video(tmp_path / folder / "a-labels.mkv")] for folder in ("rgb", "planes")]
    assert len(labels[0]) == len(labels[1]) == 8


def test_pictures_and_windows_get_rgb_where_videos_are_planes(model, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(SharedRun, "__post_init__", with_planes(SharedRun.__post_init__))
    made, screen = make_clip(tmp_path / "a.mp4", 3), Screen()
    run(model, VideoFile("a", str(made)), results=[OutputFiles(tmp_path / "%d.png")])
    assert streamseg.read_image(tmp_path / "2.png").shape == (3, 48, 64)
    run(model, VideoFile("a", str(made)), results=[OutputFiles(tmp_path / "b.mp4")], display=screen)
    assert {tuple(frame.shape) for frame in screen.frames} == {(3, 48, 64)}
    with open_video(tmp_path / "b.mp4") as video:
        assert len(list(video)) == 3


def test_the_legend_of_a_video_does_not_flicker(model, quick):
    screen = Screen()
    # what is coloured differs, what is under it does not
    frames = [shade(i, (300, 400)) for i in range(4)]

    def wrote(capture, *_):
        until(lambda: len(screen.frames) > capture.index)

    run(
        model,
        Clip(frames),
        display=screen,
        style=DrawStyle(alpha=0.0, legend=True),
        observer=Callbacks(frame_written=wrote),
    )
    assert len(screen.frames) == 4
    changed = [(frame != frame[:, :1, -1:]).any(dim=0) for frame in screen.frames]
    assert changed[0].any()
    assert all(changed[0].equal(other) for other in changed)


def test_the_shares_of_all_frames_are_those_of_their_pixels(model, quick):
    frames = [shade(1, (32, 32)), shade(2, (64, 96))]
    done = run(model, Clip(frames, moving=False))
    small, large = 32 * 32, 64 * 96
    assert done.outcome.shares[1] == pytest.approx(small / (small + large))
    assert done.outcome.shares[2] == pytest.approx(large / (small + large))
    assert [record["shares"] for record in done.records] == [{"Building": 1.0}, {"Pole": 1.0}]


def test_the_note_of_a_frame_is_passed_to_the_observer(model, quick):
    class Noted(Clip):
        def captures(self):
            yield Capture(shade(0), "a", 0, 0.0, time.monotonic(), "It came back.")

    said = []
    run(model, Noted([]), observer=Callbacks(message=said.append))
    assert said == ["It came back."]


def count_open_files():
    """How many files this process has open, where the system tells."""
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


def make_picture(path):
    first = Image.fromarray(picture(1, (20, 30)).permute(1, 2, 0).numpy())
    more = {"save_all": True, "append_images": [first.rotate(180)]} if path.suffix != ".jpg" else {}
    first.save(path, **more)


VIDEOS = [
    ("a.mp4", {"sound": "aac"}),
    ("a.mkv", {"codec": "mpeg4"}),
    ("a.avi", {"codec": "mjpeg", "pixels": "yuvj420p"}),
    ("a.webm", {"codec": "libvpx"}),
    ("a.mov", {"codec": "mpeg4"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [*VIDEOS, *((name, None) for name in ("a.png", "a.jpg", "a.webp", "a.tiff", "a.gif"))]
)
def test_a_damaged_file_gives_an_output_or_an_error_in_one_sentence(model, quick, tmp_path, name, options):
    path, out, dice = tmp_path / name, tmp_path / "out", random.Random(name)
    out.mkdir()
    if options is None:
        make_picture(path)
    else:
        make_clip(path, 5, size=(32, 48), **options)
    whole, written, sentences = path.read_bytes(), 0, []
    gc.collect()
    files, threads = count_open_files(), threading.active_count()
    for _ in range(100):
        path.write_bytes(damage(whole, dice))
        frames = 0
        try:
            sources = find_sources([str(path)])
            outcome = run(model, *sources, results=plan_outputs(sources, str(out), labels=True)).outcome
            frames, sentences = outcome.frames, sentences + outcome.problems
        except (ValueError, OSError) as problem:
            sentences.append(str(problem))
        assert not list(tmp_path.rglob(f"{UNFINISHED}*"))
        assert len(list(out.iterdir())) == (2 if frames else 0)
        for result in out.iterdir():
            result.unlink()
        written += frames > 0
    assert written > 20
    assert len(sentences) > 5
    assert all(line.endswith(".") and str(path) in line for line in sentences)
    # nothing leaks: a reader's end is not waited for, but comes
    deadline = time.monotonic() + PATIENCE
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.collect()
    assert (threading.active_count(), count_open_files()) == (threads, files)


def test_the_rest_of_a_truncated_video_keeps_frames_and_times(model, quick, tmp_path):
    path = make_clip(tmp_path / "a.mkv", 30)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    sources = find_sources([str(path)])
    done = run(model, *sources, results=[OutputFiles(tmp_path / "b.mp4")], style=DrawStyle(alpha=0.0))
    (sentence,) = done.outcome.problems
    assert f"{done.outcome.frames} frames" in sentence
    with open_video(tmp_path / "b.mp4") as written:
        frames = list(written)
    assert 3 < len(frames) == done.outcome.frames < 30
    assert [number(frame) for frame, _ in frames[:-1]] == list(range(len(frames) - 1))
    assert [seconds for _, seconds in frames] == pytest.approx([i / 25 for i in range(len(frames))], abs=1e-3)
