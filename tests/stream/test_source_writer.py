from contextlib import contextmanager
from itertools import pairwise

import pytest
from pipelines import Callbacks, Camera, Clip, changing_camera, one_by_one, run, shade

from streamseg.io.outputs import OutputFiles
from streamseg.io.video_reading import open_video
from streamseg.stream import source_writer


def test_a_live_source_that_is_written_slowly_does_not_fall_behind(model, quick):
    camera = Camera(400, shown=1)
    behind = []

    def wrote(capture, shares, results):
        behind.append(camera.came - 1 - capture.index)
        camera.let_through(10)

    done = run(model, camera, observer=Callbacks(frame_written=wrote))
    indices = [record["frame"] for record in done.records]
    assert all(before < after for before, after in pairwise(indices))
    assert len(indices) >= 400 / 10
    # a frame waits for those before it to be drawn and written, of which there are four at most
    assert max(behind) <= 50
    assert done.summary.read == 400 == done.summary.labelled + done.summary.dropped


def test_a_slow_writer_raises_the_age_of_a_mask_and_not_the_latency_of_the_network(model, priced, monkeypatch):
    priced.price = 1e-3

    @contextmanager
    def slow(*_):
        def keep(drawn):
            priced.now += 30.0

        yield keep

    monkeypatch.setattr(source_writer, "open_writer", slow)
    done = run(model, Clip([shade(0, (64, 96))]))
    (record,) = done.records
    network = 1e-3 * 64 * 96
    assert record["latency_ms"] == pytest.approx(1000 * network)
    assert record["mask_age_ms"] == pytest.approx(1000 * (network + 30))


def test_a_source_without_a_frame_leaves_no_file(model, quick, tmp_path):
    def frames():
        raise ValueError("there is nothing.")
        yield

    done = run(model, Clip(frames()), results=[OutputFiles(overlay=tmp_path / "a.mp4", labels=tmp_path / "b.mkv")])
    assert (done.outcome.frames, done.outcome.problems) == (0, ["there is nothing."])
    assert list(tmp_path.iterdir()) == []


def test_the_video_of_a_live_source_goes_on_in_another_file_when_the_size_changes(model, quick, tmp_path):
    (tmp_path / "a-2.mp4").write_text("somebody's")
    camera, said = changing_camera(3, 2, 4), []
    files = OutputFiles(tmp_path / "a.mp4", tmp_path / "a-labels.mkv")
    done = run(model, camera, results=[files], observer=one_by_one(camera, message=said.append))
    assert (done.outcome.frames, done.outcome.problems) == (9, [])
    for name, length, size in (("a", 3, (32, 48)), ("a-3", 2, (64, 96)), ("a-4", 4, (48, 32))):
        for path in (tmp_path / f"{name}.mp4", tmp_path / f"{name.replace('a', 'a-labels')}.mkv"):
            with open_video(path) as written:
                assert (sum(1 for _ in written), written.size) == (length, size)
    assert (tmp_path / "a-2.mp4").read_text() == "somebody's"
    assert len(list(tmp_path.iterdir())) == 7
    assert said[0] == "camera now sends frames of 64 x 96 pixels, not 32 x 48: another video file begins."


def test_a_camera_that_cannot_be_written_stops_no_other(model, quick, tmp_path, monkeypatch):
    other = Camera(3, name="yard")
    (tmp_path / "file").touch()
    results = [OutputFiles(tmp_path / "file" / "a.mp4"), OutputFiles(tmp_path / "b.mp4")]
    observer = Callbacks(message=lambda sentence: other.release(2))
    done = run(model, Camera(1, name="gate"), other, results=results, observer=observer)
    (problem,) = done.outcome.problems
    assert problem.startswith("gate: Could not make the folder ")
    with open_video(tmp_path / "b.mp4") as written:
        assert sum(1 for _ in written) > 0


def test_a_file_among_cameras_that_cannot_be_written_stops_no_camera(model, quick, tmp_path):
    yard = Camera(3, shown=3, name="yard")
    (tmp_path / "file").touch()
    results = [OutputFiles(tmp_path / "file" / "a.mp4"), OutputFiles(tmp_path / "b.mp4")]
    done = run(model, Clip([shade(i) for i in range(3)], "drive"), yard, results=results)
    (problem,) = done.outcome.problems
    assert problem.startswith("Could not make the folder ")
    with open_video(tmp_path / "b.mp4") as written:
        assert sum(1 for _ in written) > 0
