"""A single video whose codecs are processes, which the network thread reads and writes itself."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from clips import REPRODUCIBLE, cut, make_clip
from pipelines import Callbacks, interrupt_twice, run
from waiting import PATIENCE, until

from streamseg.io import codec_pool
from streamseg.io.codec_client import ProcessVideo, ProcessWriter
from streamseg.io.codec_pool import IDLE
from streamseg.io.outputs import LiveOutput, OutputFiles
from streamseg.io.sources import Decoding, PlayedVideo, VideoFile
from streamseg.io.video_reading import read_label_video
from streamseg.parallel.threads import ThreadGroup
from streamseg.stream import network_thread, pipeline, shared_run
from streamseg.stream.latency import Meter
from streamseg.stream.source_threads import SourceStream

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.fixture(autouse=True)
def beside_a_gpu(monkeypatch):
    """Work as beside a GPU, with codecs in processes."""
    monkeypatch.setattr(shared_run, "works_on_device", lambda device: True)
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    yield
    IDLE.end()


@pytest.fixture
def started(monkeypatch):
    """The names of the threads that a pipeline starts."""
    names, start = [], ThreadGroup.start

    def note(group, name, *given, **options):
        names.append(name)
        return start(group, name, *given, **options)

    monkeypatch.setattr(ThreadGroup, "start", note)
    return names


@pytest.fixture
def streams(monkeypatch):
    """The streams of the runs; their inboxes are closed as the main thread does after Ctrl-C."""
    found, init = [], SourceStream.__init__

    def note(stream, *given):
        found.append(stream)
        init(stream, *given)

    monkeypatch.setattr(SourceStream, "__init__", note)
    return found


def outputs(folder):
    return OutputFiles(folder / "overlay.mp4", folder / "labels.mkv", folder / "confidence.mkv", folder / "colours.mp4")


def test_one_thread_writes_the_same_files_and_lines_as_several(model, tmp_path, monkeypatch, started):
    video, found = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 17, sound="aac", size=REPRODUCIBLE))), {}
    for way in ("several", "one"):
        (tmp_path / way).mkdir()
        with monkeypatch.context() as patch:
            if way == "several":
                patch.setattr(pipeline, "needs_threads", lambda stream: True)
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
    monkeypatch.setattr(ProcessVideo, "is_ready", lambda video, seconds: True)
    answer, predict, write = ProcessVideo.answer, network_thread.step_batch, ProcessWriter.write

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
    monkeypatch.setattr(ProcessWriter, "write", lambda *given: (order.append("write"), write(*given)))
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 3)))
    done = run(model, video, results=[OutputFiles(labels=tmp_path / "a.mkv")])
    opened, each = ["read"], ["label", "read", "write"]
    assert order == [*opened, "read", *each, *each, *each]
    assert done.summary.stages["network"].mean == pytest.approx(1.0)
    assert done.summary.stages["decode"].mean == pytest.approx(5.0 * 4 / 3)  # opening is part of it


def test_labels_do_not_wait_for_the_decoder_of_the_next_frame(model, tmp_path, monkeypatch):
    now, order, answer, write = [0.0], [], ProcessVideo.answer, ProcessWriter.write
    monkeypatch.setattr(network_thread.time, "perf_counter", lambda: now[0])

    def is_ready(video, seconds):  # never at once
        order.append(f"wait {seconds:g}")
        now[0] += 50 * seconds
        return seconds > 0

    monkeypatch.setattr(ProcessVideo, "is_ready", is_ready)
    monkeypatch.setattr(ProcessVideo, "answer", lambda video: (order.append("read"), answer(video))[1])
    monkeypatch.setattr(ProcessWriter, "write", lambda *given: (order.append("write"), write(*given)))
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 3)))
    done = run(model, video, results=[OutputFiles(labels=tmp_path / "a.mkv")])
    opened, each = ["read"], ["wait 0", "write", "wait 0.1", "read"]
    assert order == [*opened, "read", *each, *each, *each]
    assert done.summary.stages["decode"].mean == pytest.approx(5.0)  # what it waited for is decoding


def test_a_decoder_that_hangs_is_not_waited_for_once_the_run_is_stopped(model, tmp_path, monkeypatch, streams):
    answer, written, hung = ProcessVideo.answer, [], []

    def hang(video):
        message = answer(video)
        if message.get("frame") is not None and message["seconds"] > 0.3 and not hung:
            os.kill(video.process.process.pid, signal.SIGSTOP)
            hung.append(video)
        return message

    def stop(capture, *_):
        written.append(capture.index)
        if hung:
            streams[0].inbox.close()

    monkeypatch.setattr(ProcessVideo, "answer", hang)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 90)))
    results, observer = [OutputFiles(labels=tmp_path / "a.mkv")], Callbacks(frame_written=stop)
    done = run(model, video, results=results, observer=observer)
    assert len(written) == done.outcome.frames == len([*read_label_video(tmp_path / "a.mkv")]) < 90
    assert not done.outcome.problems


def test_a_second_ctrl_c_waits_until_the_unfinished_file_is_removed(model, tmp_path, monkeypatch):
    handler, fail, failed = signal.getsignal(signal.SIGINT), ThreadGroup.fail, threading.Event()

    def note(group, error):
        fail(group, error)
        failed.set()

    def interrupt(capture, *_):
        if capture.index == 3:
            interrupt_twice(handler)
            assert failed.wait(PATIENCE)
            time.sleep(0.5)  # the thread still runs; the main thread has to wait for it

    monkeypatch.setattr(ThreadGroup, "fail", note)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 40)))
    results, observer = [OutputFiles(labels=tmp_path / "out" / "a.mkv")], Callbacks(frame_written=interrupt)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(model, video, results=results, observer=observer)
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_damaged_video_is_written_up_to_there_and_reported(model, tmp_path):
    damaged = cut(make_clip(tmp_path / "in.mkv", 40), 0.7)
    done = run(model, VideoFile("clip", str(damaged)), results=[OutputFiles(labels=tmp_path / "a.mkv")])
    assert 0 < done.outcome.frames < 40
    assert len([*read_label_video(tmp_path / "a.mkv")]) == done.outcome.frames == done.summary.read
    (sentence,) = done.outcome.problems
    assert f"is cut short: only {done.outcome.frames} frames could be read" in sentence


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
    decoder, encoder = processes
    assert not decoder.alive
    assert encoder in IDLE.processes  # for the next video


@pytest.mark.parametrize("error", [RuntimeError("no memory"), OSError(28, "No space left on device")])
def test_a_network_that_fails_ends_the_run_with_its_error_and_without_files(model, tmp_path, monkeypatch, error):
    calls, step = [], network_thread.step_batch

    def fail(*given, **options):
        calls.append(1)
        if len(calls) == 3:
            raise error
        return step(*given, **options)

    monkeypatch.setattr(network_thread, "step_batch", fail)
    video = VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 9)))
    (tmp_path / "out").mkdir()
    with pytest.raises(type(error)) as raised:
        run(model, video, results=[OutputFiles(labels=tmp_path / "out" / "a.mkv")])
    assert raised.value is error  # not a failure to write the output
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_run_that_is_stopped_writes_what_it_has_read(model, tmp_path, monkeypatch, streams):
    def stop(*_):
        streams[0].inbox.close()

    monkeypatch.setattr(ProcessVideo, "is_ready", lambda video, seconds: True)
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


def stream_of(tmp_path, source="in.mp4", results="a.mkv", early=True, **shared):
    """What tells whether a stream needs threads."""
    defaults = {"raw": None, "shows": False, "records_labels": False, "decoding": Decoding(process=True)}
    return SimpleNamespace(
        shared=SimpleNamespace(**(defaults | shared)),
        source=VideoFile("clip", source) if isinstance(source, str) else source,
        results=OutputFiles(labels=tmp_path / results) if isinstance(results, str) else results,
        drawn_early=early,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"raw": object()},
        {"shows": True},
        {"records_labels": True},
        {"decoding": Decoding()},
        {"early": False},
        {"results": LiveOutput()},
        {"results": "%05d.png"},
        {"source": "http://127.0.0.1:9/in.mp4"},
        {"source": "https://example.org/in.mp4?token=" + 5000 * "x"},
        {"source": PlayedVideo("clip", VideoFile("clip", "in.mp4"))},
    ],
)
def test_what_may_wait_for_something_else_needs_threads(tmp_path, change):
    assert pipeline.needs_threads(stream_of(tmp_path)) is False
    assert pipeline.needs_threads(stream_of(tmp_path, **change)) is True


def test_a_run_leaves_no_thread(model, tmp_path):
    before = {*threading.enumerate()}
    run(model, VideoFile("clip", str(make_clip(tmp_path / "in.mp4", 4))), results=[outputs(tmp_path)], confident=True)
    until(lambda: {*threading.enumerate()} <= before)  # the last one ends a moment after the run
