import time
from fractions import Fraction

import pytest
import torch
from listeners import (
    LOCALHOST,
    free_port,
    receiving,
    rtmp_receiver,
    rtsp_receiver,
    silent_server,
    udp_receiver,
)
from waiting import PATIENCE, until

from streamseg.io import live_sender, live_video
from streamseg.io.live_video import LiveFrame, VideoProcess, check_live_address, format_of, video_sender
from streamseg.io.yuv import BT601, to_yuv

STEP = 12


def grey(i, size=(48, 64)):
    return LiveFrame(torch.full((3, *size), 40 + STEP * (i % 10), dtype=torch.uint8), i / 25)


def as_planes(frame):
    """The same frame as a GPU gives it."""
    return LiveFrame(to_yuv(frame.picture, BT601), frame.seconds)


def connect(receiver, size, planes="gbrp"):
    """Connect as soon as the receiver listens."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return VideoProcess(receiver.address, size, Fraction(25), planes)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.parametrize("receiver", [rtmp_receiver, rtsp_receiver])
@pytest.mark.parametrize("size", [(48, 64), (47, 63)])
def test_a_server_gets_every_frame_at_its_time(receiver, size):
    with receiving(receiver()) as peer:
        process = connect(peer, size)
        for i in range(10):
            process.send(grey(i, size))
        process.close()
    assert peer.codec == "h264"
    assert (peer.frames[0].height, peer.frames[0].width) == (48, 64)
    assert peer.greys() == pytest.approx([40 + STEP * i for i in range(10)], abs=4)
    # of RTSP, the first frame may come before its clock is known
    times = peer.seconds()
    assert times == pytest.approx([i / 25 for i in range(len(times))], abs=0.002)
    assert len(times) >= 9


def test_planes_and_rgb_arrive_as_the_same_colours():
    colours = torch.tensor([200, 60, 90], dtype=torch.uint8)[:, None, None]
    frames = [LiveFrame(colours.expand(3, 48, 64).contiguous(), i / 25) for i in range(5)]
    came = []
    for planes, sent in (("gbrp", frames), ("yuv420p", [as_planes(frame) for frame in frames])):
        with receiving(rtmp_receiver()) as peer:
            process = connect(peer, (48, 64), planes)
            for frame in sent:
                assert frame.planes == planes
                process.send(frame)
            process.close()
        came.append(peer.frames[-1].to_ndarray(format="rgb24").astype(int))
    assert abs(came[0] - came[1]).max() <= 2
    assert abs(came[1] - [200, 60, 90]).max() < 6


def test_frames_of_other_planes_need_another_connection():
    with receiving(rtmp_receiver()) as peer:
        process = connect(peer, (48, 64))
        process.send(grey(0))
        with pytest.raises(ValueError, match="the pixels changed to yuv420p"):
            process.send(as_planes(grey(1)))
        process.close()


def test_udp_gets_a_transport_stream():
    with receiving(udp_receiver()) as peer:
        process = connect(peer, (48, 64))
        number = 0
        while not peer.first.is_set():  # until it listens, packets are lost
            process.send(grey(number))
            number += 1
            time.sleep(0.02)
        process.close()
    assert peer.codec == "h264"
    assert set(peer.greys()) <= {grey for i in range(10) for grey in range(36 + STEP * i, 45 + STEP * i)}


@pytest.mark.parametrize("scheme", ["rtmp", "rtsp"])
def test_a_server_that_does_not_answer_is_given_up(monkeypatch, scheme):
    monkeypatch.setattr(live_video, "ANSWER_SECONDS", 0.5)
    with silent_server() as port, pytest.raises(TimeoutError, match="it did not answer within 0 s"):
        VideoProcess(f"{scheme}://{LOCALHOST}:{port}/a/b", (48, 64), Fraction(25))


def test_a_lost_server_is_found_again(monkeypatch):
    monkeypatch.setattr(live_sender, "PAUSES", (0.05,))
    notes, first, sent = [], rtmp_receiver(), 0
    sender = video_sender("cam", first.address.replace("//", "//user:secret@"), None, notes.append)
    with receiving(first):
        while not first.first.is_set():
            sender.put(grey(sent))
            sent += 1
            time.sleep(0.02)
        sender.connection.process.kill()  # as if the network had failed
    second = type(first)(first.address, first.opened, first.options)
    with receiving(second):
        while not second.first.is_set():
            sender.put(grey(sent))
            sent += 1
            time.sleep(0.02)
        sender.close()
    assert sender.problem == ""
    assert "came back after" in notes[-1]
    assert all(note.startswith(f"cam: {first.address.removesuffix('road')}… ") for note in notes)
    assert sender.sent + sender.dropped == sent


def test_a_server_that_refuses_is_a_sentence_without_the_password():
    notes, port = [], free_port()
    sender = video_sender("cam", f"rtsp://user:secret@{LOCALHOST}:{port}/x?key=secret", None, notes.append)
    sender.put(grey(0))
    until(lambda: notes)
    sender.close()
    address = f"rtsp://{LOCALHOST}:{port}/x?…"
    assert notes == [
        f"cam: {address} cannot be reached: Connection refused. Trying again while the run goes on. If it is a camera "
        "to read too, name the place to write with -o."
    ]
    assert sender.problem == f"cam: {address} could not be reached: Connection refused."


def test_the_password_is_not_among_the_arguments_of_a_process(monkeypatch):
    monkeypatch.setattr(live_video, "ANSWER_SECONDS", 0.2)
    started, popen = [], live_video.subprocess.Popen

    def start(arguments, **options):
        started.append(arguments)
        return popen(arguments, **options)

    monkeypatch.setattr(live_video.subprocess, "Popen", start)
    with silent_server() as port, pytest.raises(TimeoutError):
        VideoProcess(f"rtmp://user:secret@{LOCALHOST}:{port}/a/b", (48, 64), Fraction(25))
    assert "secret" not in str(started)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://user:secret@host/x", "http://host/x is no address to send to: expected rtsp://, rtmp://"),
        ("udp://host", "udp://host is no address to send to: expected udp://host:port."),
        ("rtsp://", "rtsp:// is no address to send to: expected rtsp://host:port/path."),
        ("rtsp://host:many/x", "rtsp://host:many/x is no address to send to: expected rtsp://host:port/path."),
    ],
)
def test_an_address_that_takes_no_video_is_an_error(address, expected):
    with pytest.raises(ValueError, match=expected.replace("?", r"\?")):
        check_live_address(address)


def test_srt_needs_an_ffmpeg_that_has_it(monkeypatch):
    monkeypatch.setattr(live_video, "has_srt", lambda: False)
    with pytest.raises(ValueError, match="srt://host:9000 cannot be sent to: the FFmpeg inside PyAV was built without"):
        check_live_address("srt://host:9000")
    monkeypatch.undo()
    if live_video.has_srt():
        check_live_address("srt://host:9000")


def test_packets_of_udp_fit_a_network_unless_the_address_says_otherwise():
    assert live_video.with_packet_size("udp://h:1") == "udp://h:1?pkt_size=1316"
    assert live_video.with_packet_size("udp://h:1?ttl=3") == "udp://h:1?ttl=3&pkt_size=1316"
    for same in ("udp://h:1?pkt_size=9", "rtsp://h/x"):
        assert live_video.with_packet_size(same) == same


def test_the_format_is_that_of_the_address_whatever_its_path_ends_with():
    assert format_of("rtmp://host/live/a.m3u8") == ("flv", {})
    assert format_of("/tmp/a.m3u8")[0] == "hls"
