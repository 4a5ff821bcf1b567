"""The work of a GPU in one thread, tried on the CPU: the same files, numbers and failures as with a thread a stage."""

import pytest
import torch
from clips import make_clip
from pipelines import Camera, Clip, Screen, noise, one_by_one, run

import streamseg
from streamseg import draw
from streamseg.engine.labels import count_batch, count_labels
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import VideoFile
from streamseg.io.video_reading import read_label_video
from streamseg.stream import shared_run
from streamseg.stream.device_work import DETAILED_INTERVAL, STAGES, StageMarks
from streamseg.stream.latency import Meter
from streamseg.stream.settings import DrawStyle
from streamseg.stream.source_threads import SourceStream


@pytest.fixture
def on_device(monkeypatch):
    """Work as on a GPU."""

    def switch():
        monkeypatch.setattr(shared_run, "works_on_device", lambda device: True)

    return switch


def read_all(path):
    return torch.stack([*streamseg.read_frames(path)])


def test_one_thread_writes_the_same_files_and_numbers_as_many(model, tmp_path, on_device):
    video = make_clip(tmp_path / "in.mp4", 12)
    done = {}
    for way in ("threads", "device"):
        if way == "device":
            on_device()
        sources = [VideoFile(f"clip{i}", str(video)) for i in range(2)]
        results = [
            OutputFiles(*(tmp_path / f"{way}-{i}-{part}" for part in ("a.mp4", "b.mkv", "c.mkv", "d.mp4")))
            for i in range(2)
        ]
        done[way] = run(model, *sources, results=results, frames=2, confident=True, style=DrawStyle(legend=True))
    several, one = done["threads"], done["device"]
    assert one.outcome.frames == several.outcome.frames == 24
    assert one.outcome.shares == pytest.approx(several.outcome.shares, abs=0.01)
    shares = {(line["source"], line["frame"]): line["shares"] for line in several.records}
    for line in one.records:
        assert sum(line["shares"].values()) == pytest.approx(1)
        assert line["shares"].keys() >= {k for k, v in shares[line["source"], line["frame"]].items() if v > 0.2}
        assert line["latency_ms"] > 0
    for i in range(2):
        for part in ("b.mkv", "c.mkv"):
            first, second = (
                torch.stack([x for x, _ in read_label_video(tmp_path / f"{way}-{i}-{part}")]) for way in done
            )
            # frames are converted to RGB by another program, to one step of 8 bits
            assert (first.int() - second.int()).abs().float().mean() < 2
        for part in ("a.mp4", "d.mp4"):
            first, second = (read_all(tmp_path / f"{way}-{i}-{part}").int() for way in done)
            assert (first - second).abs().float().mean() < 6


def test_every_stage_on_the_device_is_measured_and_drawers_have_nothing_to_do(model, tmp_path, on_device):
    on_device()
    meter = Meter()
    done = run(model, Clip(noise(0, 6)), results=[OutputFiles(tmp_path / "a.mp4")], meter=meter)
    assert list(done.summary.stages) == ["decode", "upload", "network", "download", "draw", "encode"]
    assert all(meter.threads[name] == {"network"} for name in ("upload", "network", "download", "draw"))
    assert all(meter.frames[name] == 6 for name in meter.frames)


def test_what_depends_on_labels_on_the_host_is_drawn_by_the_drawer(model, tmp_path, on_device):
    pictures, style = noise(1, 3), DrawStyle(legend=True)
    meter, expected = Meter(), run(model, Clip(pictures, moving=False), style=style, display=(before := Screen()))
    on_device()
    done = run(model, Clip(pictures, moving=False), style=style, display=(after := Screen()), meter=meter)
    assert meter.threads["draw"] == {"draw 0"}
    assert meter.frames["draw"] == meter.frames["download"] == 3
    assert after.frames[-1].equal(before.frames[-1])
    assert done.outcome.shares == expected.outcome.shares


def test_cameras_in_one_thread_keep_their_own_labels_and_order(model, quick, on_device):
    on_device()
    camera = Camera(30, name="camera")
    done = run(model, camera, observer=one_by_one(camera))
    assert [line["frame"] for line in done.records] == list(range(30))
    names = [max(line["shares"], key=line["shares"].get) for line in done.records]
    assert names == [streamseg.CAMVID.names[i % 11] for i in range(30)]
    assert (done.summary.labelled, done.summary.dropped) == (30, 0)


def test_a_failure_of_drawing_on_the_device_ends_the_run(model, quick, on_device, monkeypatch, tmp_path):
    on_device()

    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(SourceStream, "paint", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        run(model, Clip(noise(0, 5)), results=[OutputFiles(tmp_path / "a.mp4")])
    assert list(tmp_path.iterdir()) == []


def test_the_window_of_a_device_shows_overlays(model, quick, on_device):
    on_device()
    screen = Screen()
    run(model, Clip(noise(0, 3)), display=screen)
    frame = noise(0, 3)[2]
    labels = torch.full(frame.shape[1:], int(frame[0, 0, 0]) % 11, dtype=torch.uint8)
    assert screen.frames[-1].equal(draw.overlay(frame, labels, streamseg.CAMVID))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_labels_of_a_batch_are_counted_frame_by_frame(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    dice = torch.Generator().manual_seed(0)
    frames = [torch.randint(0, 13, (9, 7), dtype=torch.uint8, generator=dice).to(device) for _ in range(5)]
    frames[1][0, 0] = 255
    expected = [torch.bincount(frame.cpu().flatten(), minlength=256).tolist() for frame in frames]
    assert count_batch(frames).view(5, 256).tolist() == expected
    assert count_batch(frames[1:2]).tolist() == expected[1]
    assert count_labels(frames[1], 11).tolist() == expected[1][:11]
    smaller = torch.bincount(frames[1][:5].cpu().flatten(), minlength=256).tolist()
    assert count_batch([frames[0], frames[1][:5]]).tolist() == expected[0] + smaller


def test_counting_on_a_gpu_numbers_the_labels_of_each_frame_anew():
    """The sum that a GPU takes, on the CPU in floats, for which histc is there."""
    frames = torch.tensor([[0, 1, 1, 255], [2, 2, 0, 254]])
    numbers = frames + torch.arange(0, 512, 256)[:, None]
    counts = torch.histc(numbers.float(), 512, 0, 512).view(2, 256)
    assert counts[:, :3].tolist() == [[1, 2, 0], [1, 0, 2]]


def test_marks_beyond_the_last_stage_are_ignored():
    marks = StageMarks(torch.device("cpu"))
    marks.start()
    for _ in range(7):
        marks.end_stage()
    assert list(marks.seconds(1)) == ["upload", "network", "draw", "download"]
    assert min(marks.seconds(1).values()) >= 0


class TickingEvent:
    """An event of a GPU whose clock advances by a number of milliseconds at each mark."""

    now, steps, recorded = 0.0, (), 0

    def record(self):
        TickingEvent.now += TickingEvent.steps[TickingEvent.recorded]
        TickingEvent.recorded += 1
        self.time = TickingEvent.now

    def elapsed_time(self, later):
        return later.time - self.time


def mark_batch(marks, *steps, frames=1):
    """Mark a batch whose marks are some milliseconds apart; return milliseconds of the stages, and the marks made."""
    TickingEvent.steps, TickingEvent.recorded = (0.0, *steps), 0
    marks.start()
    for _ in range(4):
        marks.end_stage()
    found = marks.seconds(frames)
    return [1000 * found[name] for name in STAGES], TickingEvent.recorded


@pytest.fixture
def marks():
    """Marks of a GPU whose clock a test sets."""
    found = StageMarks(torch.device("cpu"))
    found.events = [TickingEvent() for _ in range(5)]
    return found


def test_a_gpu_marks_all_stages_of_some_batches_and_the_whole_of_each(marks):
    for _ in range(DETAILED_INTERVAL):
        assert mark_batch(marks, 1.0, 6.0, 2.0, 1.0) == (pytest.approx([1.0, 6.0, 2.0, 1.0]), 5)
    assert mark_batch(marks, 3.0, 2.0, 2.0, 2.0) == (pytest.approx([3.0, 2.0, 2.0, 2.0]), 5)
    for i in range(DETAILED_INTERVAL - 1):  # what the other stages take is known; the network has the rest
        assert mark_batch(marks, 8.0 + i) == (pytest.approx([3.0, 1.0 + i, 2.0, 2.0]), 2)
    assert mark_batch(marks, 1.0, 6.0, 2.0, 1.0) == (pytest.approx([1.0, 6.0, 2.0, 1.0]), 5)


def test_stages_between_marks_count_for_each_frame_and_are_no_more_than_the_whole(marks):
    for _ in range(DETAILED_INTERVAL + 1):
        mark_batch(marks, 2.0, 6.0, 4.0, 2.0, frames=2)
    assert mark_batch(marks, 30.0, frames=4) == (pytest.approx([4.0, 14.0, 8.0, 4.0]), 2)
    assert mark_batch(marks, 2.5, frames=1) == (pytest.approx([1.0, 0.0, 1.5, 0.0]), 2)
