"""The pipeline with codecs in processes of their own: the same files, and a process that dies is its source's."""

import os
import signal

import pytest
import torch
from clips import REPRODUCIBLE, make_clip
from pipelines import run

from streamseg.io import codec_pool, video_reading
from streamseg.io.codec_client import ProcessVideo
from streamseg.io.codec_pool import IDLE
from streamseg.io.outputs import plan_outputs
from streamseg.io.resolve import find_sources
from streamseg.io.sources import Decoding, VideoFile
from streamseg.stream import shared_run

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.fixture
def apart(monkeypatch):
    """Codecs run in processes, and planes go through the pipeline as beside a GPU."""
    monkeypatch.setenv("STREAMSEG_CODECS", "processes")
    yield
    IDLE.end()


def segment(model, folder, out):
    sources = find_sources([str(path) for path in sorted(folder.glob("*.mp4"))])
    results = plan_outputs(sources, str(out), labels=True, confidence=True)
    return run(model, *sources, results=results, confident=True).outcome


@pytest.mark.parametrize("on_device", [False, True])
def test_processes_write_the_same_files_as_threads(model, quick, tmp_path, monkeypatch, on_device):
    monkeypatch.setattr(shared_run, "works_on_device", lambda device: on_device)
    (tmp_path / "in").mkdir()
    for name, sound in (("a", "aac"), ("b", None)):
        make_clip(tmp_path / "in" / f"{name}.mp4", 9, size=REPRODUCIBLE, sound=sound)
    for way in ("threads", "processes"):
        monkeypatch.setenv("STREAMSEG_CODECS", way)
        assert segment(model, tmp_path / "in", tmp_path / way).frames == 18
    found = [{path.name: path.read_bytes() for path in (tmp_path / way).iterdir()} for way in ("threads", "processes")]
    assert len(found[0]) == 6
    assert found[0] == found[1]
    IDLE.end()


def test_a_decoder_that_dies_ends_its_own_source_with_a_sentence(model, quick, tmp_path, monkeypatch, apart):
    answer = ProcessVideo.answer

    def dying(video):
        message = answer(video)
        if video.name.endswith("a.mp4") and message.get("seconds", 0) > 0.1:
            os.kill(video.process.process.pid, signal.SIGKILL)
        return message

    monkeypatch.setattr(ProcessVideo, "answer", dying)
    (tmp_path / "in").mkdir()
    for name in "ab":
        make_clip(tmp_path / "in" / f"{name}.mp4", 20)
    outcome = segment(model, tmp_path / "in", tmp_path / "out")
    (sentence,) = outcome.problems
    assert "a.mp4: the process of its codec ended with status -9" in sentence
    assert 20 < outcome.frames < 40


def test_processes_are_started_ahead_for_all_videos_that_are_read_and_written(
    model, quick, tmp_path, monkeypatch, apart
):
    started = []
    monkeypatch.setattr(IDLE, "start", started.append)
    for name in "ab":
        make_clip(tmp_path / f"{name}.mp4", 3)
    segment(model, tmp_path, tmp_path / "out")
    assert started == [2 + 2 * 3]  # overlay, labels and confidence of each


def test_where_no_process_starts_codecs_are_threads(model, quick, tmp_path, monkeypatch, apart):
    def refuse(count):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(IDLE, "start", refuse)
    monkeypatch.setattr(codec_pool, "CodecProcess", None)
    make_clip(tmp_path / "a.mp4", 3)
    assert segment(model, tmp_path, tmp_path / "out").frames == 3


def test_a_video_is_not_opened_again_for_its_rate(tmp_path, monkeypatch):
    source = VideoFile("a", str(make_clip(tmp_path / "a.mp4", 3)))
    for _ in source.captures():
        monkeypatch.delattr(video_reading, "open_video")
        assert source.rate == 25
        monkeypatch.undo()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_frames_of_a_process_go_to_a_gpu_from_pinned_memory(tmp_path):
    decoding = Decoding(planes=True, pinned=True, process=True)
    with ProcessVideo(str(make_clip(tmp_path / "a.mp4", 3)), "a", decoding) as video:
        assert all(pixels.pixels.is_pinned() for pixels, _ in video.pictures(decoding))
    IDLE.end()
