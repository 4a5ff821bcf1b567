import logging
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from clips import make_clip
from servers import RtspServer
from serving import run_server
from source_files import shade
from waiting import PATIENCE, until

from streamseg.io import sources as kinds
from streamseg.io.sources import Capture
from streamseg.serve import ServedZones, sources
from streamseg.serve.counters import format_metrics
from streamseg.serve.gate import Limits
from streamseg.serve.sources import SourceCounters, View, parse_sources


def make_served(limits=None, submit=None, hardware=""):
    """A source of a server without a network, whose threads are not started."""
    gate = SimpleNamespace(
        limits=limits or Limits(),
        batcher=SimpleNamespace(submit=submit),
        zones=ServedZones(),
        served=SimpleNamespace(classes=None, drawn=None, mask=None),
    )
    return sources.ServedSource("cam", "0", gate, SourceCounters(), hardware)


def test_a_dead_source_gets_503_with_a_sentence_and_is_found_when_it_comes(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "PAUSES", (0.02,))
    monkeypatch.setattr(kinds, "RECONNECT_DELAYS", ())
    path = tmp_path / "later.mp4"
    with run_server(sources={"door": str(path), "gate": "rtsp://user:secret@127.0.0.1:9/x"}) as server:
        until(lambda: "refused" in server.gate.sources["gate"].problem)
        answer = server.ask("/streams/gate.mjpeg")
        assert answer.status == 503
        assert answer.json["error"].startswith("gate is not available: rtsp://127.0.0.1:9/x cannot be read: ")
        assert answer.json["error"].endswith("The server tries again.")
        assert "secret" not in answer.body.decode() + server.ask("/streams").body.decode()
        assert answer.headers["retry-after"] == "5"
        assert server.ask("/healthz").status == 200
        assert server.ask("/streams/door.mjpeg").status == 503
        make_clip(tmp_path / "made.mp4", 3)
        (tmp_path / "made.mp4").rename(path)
        until(lambda: not server.gate.sources["door"].problem)


def test_an_own_car_is_sought_again_when_the_proportions_change(monkeypatch):
    asked = []

    def submit(frame, state, seconds, *, size, mask):
        height, width = frame.shape[1:]
        asked.append((height, width, mask is not None and mask.looked_at.shape))
        labels = torch.zeros(height, width, dtype=torch.uint8)
        labels[-height // 4 :] = 4
        answer = Future()
        answer.set_result((labels, state))
        return answer

    served = make_served(submit=submit)
    served.bonnet, served.viewers = True, 1
    monkeypatch.setattr(sources, "own_car_label", lambda classes: 4)
    monkeypatch.setattr(served, "publish", lambda view: None)
    monkeypatch.setattr(served, "make_view", lambda capture, labels: None)
    labels = threading.Thread(target=served.label, daemon=True)
    labels.start()
    sizes = [(48, 64)] * 30 + [(24, 32)] + [(48, 48)] * 30  # the second has the proportions of the first
    for number, size in enumerate(sizes):
        served.offer(Capture(torch.zeros(3, *size, dtype=torch.uint8), "cam", number, 0.04 * number, time.monotonic()))
        until(lambda: served.frame is None)
    served.close()
    labels.join(PATIENCE)
    masks = [mask for *_, mask in asked]
    first = sources.BONNET_FRAMES
    assert masks[:first] == [False] * first
    assert set(masks[first : 30 - 1]) == {(48, 64)}
    assert asked[30 - 1] == (24, 32, (48, 64))
    assert masks[30 : 30 + first] == [False] * first
    assert set(masks[30 + first :]) == {(48, 48)}


def read_attempts(monkeypatch, served, attempts):
    """Read a source until its attempts are used up, each an error or a number of frames; return what is logged."""
    left, logged = iter(attempts), []

    def captures(decoding):
        attempt = next(left, None)
        if attempt is None:
            served.closed.set()
            return
        if isinstance(attempt, Exception):
            raise attempt
        for i in range(attempt):
            note = f"0 has no {decoding.hardware} decoder." if decoding.hardware and i == 0 else ""
            yield Capture(torch.zeros(3, 32, 32, dtype=torch.uint8), "cam", i, 0.0, time.monotonic(), note)

    monkeypatch.setattr(sources, "PAUSES", (0.0,))
    monkeypatch.setattr(sources, "find_source", lambda address: SimpleNamespace(captures=captures))
    monkeypatch.setattr(logging.getLogger("streamseg"), "warning", lambda text, *given: logged.append(text % given))
    served.read()
    return logged


def test_a_source_that_is_dead_from_the_start_is_one_warning_and_one_when_it_comes(monkeypatch):
    dead = OSError("0 cannot be read.")
    assert read_attempts(monkeypatch, make_served(), [dead, dead, dead, 2, dead, dead, 1, 1]) == [
        "cam delivers no frames: 0 cannot be read.",
        "cam delivers frames now.",
        "cam was lost: it has ended",
        "cam delivers frames now.",
        "cam was lost: it has ended",
        "cam delivers frames now.",
        "cam was lost: it has ended",
    ]


def test_a_source_that_delivers_frames_from_the_start_is_no_warning_until_it_is_lost(monkeypatch):
    assert read_attempts(monkeypatch, make_served(), [3]) == ["cam was lost: it has ended"]


def test_a_source_that_hardware_cannot_decode_is_one_warning(monkeypatch):
    assert read_attempts(monkeypatch, make_served(hardware="vaapi"), [2, 1]) == [
        "cam: 0 has no vaapi decoder.",
        "cam was lost: it has ended",
        "cam delivers frames now.",
        "cam was lost: it has ended",
    ]


def test_a_video_is_decoded_by_hardware_if_the_server_is_asked_to(monkeypatch, tmp_path):
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", list)
    path, gate = make_clip(tmp_path / "road.mp4", 2), make_served().gate
    gate.metrics = []
    sources.add_sources(gate, {"road": str(path)}, "cuda")
    with closing(sources.find_source(str(path)).captures(gate.sources["road"].decoding)) as captures:
        assert next(captures).note.startswith(f"{path} is decoded on the CPU: ")


def test_a_camera_that_is_lost_is_opened_again(monkeypatch):
    monkeypatch.setattr(sources, "PAUSES", (0.02,))
    monkeypatch.setattr(kinds, "RECONNECT_DELAYS", ())
    with (
        RtspServer([shade(i) for i in range(3)], [3, 3, 3]) as camera,
        run_server(sources={"cam": camera.address}) as server,
    ):
        until(lambda: camera.requests.count("PLAY") >= 3)
        until(lambda: server.gate.sources["cam"].fault)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["rtsp://u:secret@h/x"], "--source is 'rtsp://h/x'; expected NAME=ADDRESS, such as front=rtsp://h/x."),
        (
            ["rtsp://u:secret@h/x?channel=1"],
            r"--source is 'rtsp://h/x\?…'; expected NAME=ADDRESS, such as front=rtsp://h/x\?….",
        ),
        (["drive.mp4"], "--source is 'drive.mp4'; expected NAME=ADDRESS, such as front=drive.mp4."),
        (["a b=0"], "'a b' does not fit"),
        (["a="], "--source takes NAME=ADDRESS"),
        (["a=0", "a=1"], "Two sources are called a"),
        (["a=ftp://u:secret@h/x"], "ftp://h/x is no address that can be read"),
        (["a=missing.mp4"], "Nothing at missing.mp4"),
    ],
)
def test_a_wrong_source_is_one_sentence(given, expected):
    with pytest.raises((ValueError, OSError), match=expected) as caught:
        parse_sources(given)
    assert "secret" not in str(caught.value)


def test_several_videos_are_no_source(tmp_path):
    for name in ("a.mp4", "b.mp4"):
        make_clip(tmp_path / name, 2)
    with pytest.raises(ValueError, match="holds 2 sources: give one of them, such as a"):
        parse_sources([f"road={tmp_path}"])


def test_whatever_a_source_raises_it_is_opened_again(monkeypatch):
    def break_down(address):
        raise RuntimeError

    monkeypatch.setattr(sources, "PAUSES", (0.02,))
    monkeypatch.setattr(sources, "find_source", break_down)
    with run_server(sources={"cam": "0"}) as server:
        cam = server.gate.sources["cam"]
        until(lambda: cam.fault == "RuntimeError")
        assert all(thread.is_alive() for thread in cam.threads)


def test_the_frames_of_a_source_and_their_seconds_from_capture_to_labels_are_counted(monkeypatch):
    answered = Future()
    answered.set_result((torch.zeros(32, 32, dtype=torch.uint8), None))
    source = make_served(submit=lambda frame, state, seconds, **settings: answered)
    assert source.to_json() == {
        "status": "cam is not available: it has not delivered a frame yet. The server tries again.",
        "up": False,
        "viewers": 0,
        "frames": 0,
        "dropped": 0,
        "mean_latency_ms": None,
    }
    source.viewers = 2
    pixels = torch.zeros(3, 32, 32, dtype=torch.uint8)
    for i in range(3):  # of which the last is labelled
        source.offer(Capture(pixels, "cam", i, i / 10, 10.0 + i / 10))
    frames = iter([source.next_frame(), Capture(pixels, "cam", 3, 0.3, 10.3), None])
    monkeypatch.setattr(source, "next_frame", lambda: next(frames))
    monkeypatch.setattr(source, "make_view", lambda capture, labels: View(1))
    monkeypatch.setattr(source, "publish", lambda view: None)
    monkeypatch.setattr(sources.time, "monotonic", lambda: 10.45)
    source.latest = 10.3
    source.label()
    listed = {"status": "ok", "up": True, "viewers": 2, "frames": 2, "dropped": 2, "mean_latency_ms": 200.0}
    assert source.to_json() == listed
    values = [line for line in format_metrics(source.counters.all).splitlines() if not line.startswith("#")]
    assert values == [
        'streamseg_source_frames_total{source="cam"} 2',
        'streamseg_source_seconds_total{source="cam"} 0.4',
        'streamseg_source_dropped_total{source="cam"} 2',
    ]


@pytest.mark.parametrize(("viewers", "kept"), [(0, False), (1, True)])
def test_a_frame_that_nobody_wanted_before_a_source_was_lost_is_not_shown_afterwards(monkeypatch, viewers, kept):
    source = make_served()
    source.viewers = viewers
    read_attempts(monkeypatch, source, [1])
    assert (source.frame is not None) == kept


def test_an_answer_that_is_late_is_cancelled(monkeypatch):
    answer = Future()
    source = make_served(Limits(seconds=0.01), lambda frame, state, seconds, **settings: answer)
    frames = iter([SimpleNamespace(frame=None, captured=0.0), None])
    monkeypatch.setattr(source, "next_frame", lambda: next(frames))
    source.closed.set()
    labelling = threading.Thread(target=source.label)
    labelling.start()
    labelling.join(PATIENCE)
    assert answer.cancelled()


def test_a_picture_is_no_source(tmp_path):
    from PIL import Image

    Image.fromarray(shade(1)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="a is a picture: give a camera, a stream or a video"):
        parse_sources([f"a={tmp_path / 'a.png'}"])


def test_sources_have_names(tmp_path):
    make_clip(Path(tmp_path / "v.mp4"), 2)
    given = [f"drive={tmp_path / 'v.mp4'}", "door=rtsp://host/x?a=b"]
    assert parse_sources(given) == {"drive": str(tmp_path / "v.mp4"), "door": "rtsp://host/x?a=b"}
    assert parse_sources([]) == {}


def test_sources_add_up_with_those_of_a_fleet(tmp_path):
    fleet = {"front": "rtsp://me:secret@host/x"}
    assert parse_sources(["door=0"], fleet) == fleet | {"door": "0"}
    assert fleet == {"front": "rtsp://me:secret@host/x"}
    with pytest.raises(ValueError, match="^Two sources are called front: give each a name of its own"):
        parse_sources(["front=0"], fleet)
