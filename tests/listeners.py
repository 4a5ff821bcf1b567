"""Peers for live outputs on this machine: receivers of video, made with the FFmpeg inside PyAV."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class Broker:
    """The smallest MQTT broker: it takes connections and messages (QoS 0), and keeps them.

    Args:
        refusal: The return code of CONNACK; 5 stands for "not authorised".
    """

    def __init__(self, refusal: int = 0, port: int = 0):
        self.refusal = refusal
        self.server = socket.create_server((LOCALHOST, port))
        self.port = self.server.getsockname()[1]
        self.connects: list[bytes] = []
        self.messages: list[tuple[str, str]] = []
        self.clients: list[socket.socket] = []
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:  # closed
                return
            self.clients.append(client)
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as data:
            while head := data.read(1):
                size = shift = 0
                while True:  # seven bits a byte, the lowest first
                    (byte,) = data.read(1)
                    size |= (byte & 127) << shift
                    shift += 7
                    if not byte & 128:
                        break
                body, kind = data.read(size), head[0] >> 4
                if kind == 1:
                    self.connects.append(body)
                    client.sendall(bytes((0x20, 2, 0, self.refusal)))
                elif kind == 3:
                    length = int.from_bytes(body[:2], "big")
                    self.messages.append((body[2 : 2 + length].decode(), body[2 + length :].decode()))
                elif kind == 12:
                    client.sendall(bytes((0xD0, 0)))
                elif kind == 14:
                    return

    def close(self) -> None:
        """Break all connections, and take no more."""
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(PATIENCE)
        for client in self.clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


@contextmanager
def websocket_server(port: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Take text messages; yield the address and the list of messages."""
    from websockets.sync.server import serve

    messages: list[str] = []

    def take(connection) -> None:
        messages.extend(connection)

    with serve(take, LOCALHOST, port) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://{LOCALHOST}:{server.socket.getsockname()[1]}/lines", messages
        server.shutdown()
        thread.join(PATIENCE)
