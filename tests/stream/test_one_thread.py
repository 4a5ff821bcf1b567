"""A single video whose codecs are processes, which the network thread reads and writes itself."""

import threading
from types import SimpleNamespace

import pytest
import torch
from clips import make_clip
from pipelines import Callbacks, run

from streamseg.evaluate.bare_video import copy_start
from streamseg.io import codec_pool
from streamseg.io.codec_client import ProcessVideo, ProcessWriter
from streamseg.io.codec_pool import IDLE
from streamseg.io.outputs import LiveOutput, OutputFiles
from streamseg.io.sources import Decoding, PlayedVideo, VideoFile
from streamseg.io.video_reading import read_label_video
from streamseg.stream import network_thread, source_threads
from streamseg.stream.latency import Meter
from streamseg.stream.source_threads import SourceStream

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.fixture(autouse=True)
def beside_a_gpu(monkeypatch):
    """Work as beside a GPU, with codecs in processes."""
    monkeypatch.setattr(source_threads, "works_on_device", lambda device: True)
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    yield
    IDLE.end()


@pytest.fixture
def started(monkeypatch):
    """The names of the threads that a pipeline starts."""
    names, start = [], source_threads.ThreadGroup.start

    def note(group, name, *given, **options):
        names.append(name)
        return start(group, name, *given, **options)

    monkeypatch.setattr(source_threads.ThreadGroup, "start", note)
    return names


def outputs(folder):
    return OutputFiles(folder / "overlay.mp4", folder / "labels.mkv", folder / "confidence.mkv", folder / "colours.mp4")


def test_one_thread_writes_the_same_files_and_lines_as_several(model, tmp_path, monkeypatch, started):
    video, found = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 17, sound="aac"))), {}
    for way in ("several", "one"):
        (tmp_path / way).mkdir()
        with monkeypatch.context() as patch:
            if way == "several":
                patch.setattr(SourceStream, "needs_threads", True)
            done = run(model, video, results=[outputs(tmp_path / way)], frames=2, confident=True)
        assert done.outcome.frames == len(done.records) == 17
        files = {path.name: path.read_bytes() for path in (tmp_path / way).iterdir()}
        shares = [(line["frame"], line["seconds"], line["shares"]) for line in done.records]
        found[way] = files, shares, done.outcome.shares
    assert sorted(found["one"][0]) == ["colours.mp4", "confidence.mkv", "labels.mkv", "overlay.mp4"]
    assert found["one"] == found["several"]
    assert started == ["network", "read 0", "draw 0", "write 0", "network"]


def test_no_other_thread_is_started_and_all_is_measured(model, tmp_path, started):
    video, meter = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 9))), Meter()
    done = run(model, video, results=[OutputFiles(labels=tmp_path / "a.mkv")], meter=meter)
    assert started == ["network"]
    assert (done.summary.read, done.summary.labelled, done.summary.written) == (9, 9, 9)
    assert list(done.summary.stages) == ["decode", "upload", "network", "download", "draw", "encode"]
    assert all(names <= {"network"} for names in meter.threads.values())
    assert len([*read_label_video(tmp_path / "a.mkv")]) == 9


def test_the_next_frame_is_read_while_the_device_works_and_is_no_part_of_the_network(model, tmp_path, monkeypatch):
    now, order = [0.0], []
    monkeypatch.setattr(network_thread.time, "perf_counter", lambda: now[0])
    answer, predict = ProcessVideo.answer, network_thread.step_batch

    def slowly(video):
        order.append("read")
        now[0] += 5.0
        return answer(video)

    def label(*given, **options):
        order.append("label")
        now[0] += 1.0
        return predict(*given, **options)

    monkeypatch.setattr(ProcessVideo, "answer", slowly)
    monkeypatch.setattr(network_thread, "step_batch", label)
    write = ProcessWriter.write
    monkeypatch.setattr(ProcessWriter, "write", lambda *given: (order.append("write"), write(*given)))
    done = run(
        model,
        VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 3))),
        results=[OutputFiles(labels=tmp_path / "a.mkv")],
    )
    opened, each = ["read"], ["label", "read", "write"]
    assert order == [*opened, "read", *each, *each, *each]
    assert done.summary.stages["network"].mean == pytest.approx(1.0)
    assert done.summary.stages["decode"].mean == pytest.approx(5.0 * 4 / 3)  # opening is part of it


def test_a_damaged_video_is_written_up_to_there(model, tmp_path):
    path = make_clip(tmp_path / "in.mp4", 40)
    damaged = tmp_path / "damaged.mkv"
    copy_start(path, damaged, 40)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    done = run(model, VideoFile("clip", str(damaged)), results=[OutputFiles(labels=tmp_path / "a.mkv")])
    assert 0 < done.outcome.frames < 40
    assert len([*read_label_video(tmp_path / "a.mkv")]) == done.outcome.frames == done.summary.read


def test_a_decoder_that_dies_is_a_problem_and_its_frames_are_written(model, tmp_path, monkeypatch):
    answer = ProcessVideo.answer

    def dying(video):
        message = answer(video)
        if message.get("seconds", 0) > 0.2:
            video.process.process.kill()
        return message

    monkeypatch.setattr(ProcessVideo, "answer", dying)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 60)))
    done = run(model, video, results=[OutputFiles(labels=tmp_path / "a.mkv")])
    (sentence,) = done.outcome.problems
    assert "the process of its codec ended with status -9" in sentence
    assert len([*read_label_video(tmp_path / "a.mkv")]) == done.outcome.frames < 60


def test_a_failure_to_write_leaves_no_file_and_no_process(model, tmp_path, monkeypatch):
    processes, write = [], ProcessWriter.write

    def fail(writer, frame, seconds):
        if seconds > 0.1:
            raise OSError(28, "No space left on device", str(writer.path))
        write(writer, frame, seconds)

    start = IDLE.start_job
    monkeypatch.setattr(IDLE, "start_job", lambda *job: processes.append(start(*job)) or processes[-1])
    monkeypatch.setattr(ProcessWriter, "write", fail)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 60)))
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="No space left"):
        run(model, video, results=[OutputFiles(labels=tmp_path / "out" / "a.mkv")])
    assert [*(tmp_path / "out").iterdir()] == []
    decoder, _ = processes
    assert not decoder.alive


def test_a_network_that_fails_ends_the_run_without_files(model, tmp_path, monkeypatch):
    calls, step = [], network_thread.step_batch

    def fail(*given, **options):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("no memory")
        return step(*given, **options)

    monkeypatch.setattr(network_thread, "step_batch", fail)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 9)))
    (tmp_path / "out").mkdir()
    with pytest.raises(RuntimeError, match="no memory"):
        run(model, video, results=[OutputFiles(labels=tmp_path / "out" / "a.mkv")])
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_run_that_is_stopped_writes_what_it_has_read(model, tmp_path, monkeypatch):
    streams, init = [], SourceStream.__init__

    def note(stream, *given):
        streams.append(stream)
        init(stream, *given)

    def stop(*_):
        streams[0].inbox.close()  # as the main thread does after Ctrl-C

    monkeypatch.setattr(SourceStream, "__init__", note)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 60)))
    results = [OutputFiles(labels=tmp_path / "a.mkv")]
    done = run(model, video, results=results, observer=Callbacks(frame_written=stop))
    assert done.outcome.frames == 2  # the next one was read already
    assert (done.summary.read, done.summary.labelled, done.summary.written) == (2, 2, 2)
    assert len([*read_label_video(tmp_path / "a.mkv")]) == 2


def test_several_videos_have_threads(model, tmp_path, started):
    videos = [VideoFile(name, str(make_clip(tmp_path / f"{name}.mp4", 3))) for name in "ab"]
    run(model, *videos, results=[OutputFiles(labels=tmp_path / f"{video.name}.mkv") for video in videos])
    assert {"read 0", "write 0", "read 1", "write 1"} < {*started}


def stream_of(tmp_path, source=None, results=None, early=True, **shared):
    """What tells whether a stream needs threads."""
    path = tmp_path / "in.mp4"
    path.touch()
    defaults = {"raw": None, "shows": False, "decoding": Decoding(process=True)}
    return SimpleNamespace(
        shared=SimpleNamespace(**(defaults | shared)),
        source=source or VideoFile("clip", str(path)),
        results=results or OutputFiles(labels=tmp_path / "a.mkv"),
        drawn_early=early,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"source": VideoFile("clip", "http://127.0.0.1:9/in.mp4")},
        {"raw": object()},
        {"shows": True},
        {"decoding": Decoding()},
        {"early": False},
        {"results": LiveOutput()},
        {"results": OutputFiles(labels="%05d.png")},
        {"source": VideoFile("clip", "none.mp4")},
        {"source": PlayedVideo("clip", VideoFile("clip", "none.mp4"))},
    ],
)
def test_what_may_wait_for_something_else_needs_threads(tmp_path, change):
    if isinstance(change.get("results"), OutputFiles):
        change = {"results": OutputFiles(labels=tmp_path / "%05d.png")}
    assert not SourceStream.needs_threads.fget(stream_of(tmp_path))
    assert SourceStream.needs_threads.fget(stream_of(tmp_path, **change))


def test_a_run_leaves_no_thread(model, tmp_path):
    before = threading.active_count()
    run(model, VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 4))), results=[outputs(tmp_path)], confident=True)
    assert threading.active_count() == before
    assert torch.is_inference_mode_enabled() is False
