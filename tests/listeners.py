"""Peers for live outputs on this machine: receivers of video, made with the FFmpeg inside PyAV."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import av
from waiting import PATIENCE

LOCALHOST = "127.0.0.1"


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port that nobody uses."""
    with socket.socket(type=kind) as probe:
        probe.bind((LOCALHOST, 0))
        return probe.getsockname()[1]


@dataclass(eq=False)
class Receiver:
    """Takes one stream at an address, and keeps its frames."""

    address: str
    """Where to send to."""
    opened: str
    """What FFmpeg opens in order to receive."""
    options: dict[str, str]
    frames: list[av.VideoFrame] = field(default_factory=list)
    first: threading.Event = field(default_factory=threading.Event)
    codec: str = ""

    def receive(self) -> None:
        try:
            with av.open(
                self.opened, options=self.options | {"analyzeduration": "200000"}, timeout=PATIENCE
            ) as container:
                self.codec = container.streams.video[0].codec_context.name
                for frame in container.decode(video=0):
                    self.frames.append(frame)
                    self.first.set()
        except av.error.FFmpegError:  # how an interrupted stream ends
            pass

    def greys(self) -> list[int]:
        """Return the first pixel's red of each frame."""
        return [int(frame.to_ndarray(format="rgb24")[0, 0, 0]) for frame in self.frames]

    def seconds(self) -> list[float]:
        """Return the times of the frames that have one, from the first of these."""
        times = [frame.time for frame in self.frames if frame.pts is not None]
        return [time - times[0] for time in times]


def rtmp_receiver() -> Receiver:
    address = f"rtmp://{LOCALHOST}:{free_port()}/live/road"
    return Receiver(address, address, {"listen": "1"})


def rtsp_receiver() -> Receiver:
    address = f"rtsp://{LOCALHOST}:{free_port()}/road"
    return Receiver(address, address, {"rtsp_flags": "listen", "listen_timeout": str(int(PATIENCE))})


def udp_receiver() -> Receiver:
    address = f"udp://{LOCALHOST}:{free_port(socket.SOCK_DGRAM)}"
    # UDP has no end: the receiver stops after a silence
    return Receiver(address, f"{address}?timeout=3000000", {})


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    """Receive until the stream ends."""
    thread = threading.Thread(target=receiver.receive, daemon=True)
    thread.start()
    yield receiver
    thread.join(PATIENCE)
    assert not thread.is_alive()


@contextmanager
def silent_server() -> Iterator[int]:
    """Accept connections and never answer; yield the port."""
    with socket.create_server((LOCALHOST, 0)) as server:
        yield server.getsockname()[1]
