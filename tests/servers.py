"""Local servers for tests: files and endless streams over HTTP, video over RTSP."""

import base64
import functools
import io
import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import av
import numpy
from PIL import Image

LOCALHOST = "127.0.0.1"
KINDS = {".png": "image/png", ".mp4": "video/mp4", ".m3u8": "application/vnd.apple.mpegurl", ".html": "text/html"}


@contextmanager
def serve_http(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer HTTP requests with a handler; yield the address of the server."""
    server = ThreadingHTTPServer((LOCALHOST, 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    # polled often, so that the shutdown is quick
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://{LOCALHOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Files(BaseHTTPRequestHandler):
    """The files of a folder.

    Args:
        ranges: Whether Range requests are supported, which players use to seek.
        share: The share of a file after which the connection breaks.
        length: Whether the response has a Content-Length.
        kind: The content type of every file; by default by the suffix.
        login: The required user:password.
    """

    def __init__(
        self,
        *request: object,
        folder: Path,
        ranges: bool = True,
        share: float = 1.0,
        length: bool = True,
        kind: str = "",
        login: str = "",
    ):
        self.folder, self.ranges, self.share, self.length = folder, ranges, share, length
        self.kind, self.login = kind, login
        super().__init__(*request)

    def do_GET(self) -> None:
        path = self.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        expected = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if not path.is_file():
            self.send_error(404)
            return
        data, begin = path.read_bytes(), 0
        end = len(data)
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested and self.ranges:
            begin, end = int(requested[1]), int(requested[2] or end - 1) + 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes" if self.ranges else "none")
        self.send_header("Content-Type", self.kind or KINDS.get(path.suffix, "application/octet-stream"))
        if self.length:
            self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        with suppress(OSError):  # the client has closed the connection
            self.wfile.write(data[begin : min(end, int(len(data) * self.share))])

    def log_message(self, *_: object) -> None:
        """Do not log."""


def file_server(folder: Path, **options: object) -> Iterator[str]:
    return serve_http(functools.partial(Files, folder=folder, **options))


def motion_jpeg_server(frames: Sequence[numpy.ndarray], visits: Sequence[int]) -> Iterator[str]:
    """An endless stream of JPEG pictures: each request gets the next number of visits, and later requests get 503."""
    pictures = [jpeg(frame) for frame in frames]
    remaining = list(visits)
    lock = threading.Lock()

    class MotionJpeg(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with lock:
                count = remaining.pop(0) if remaining else 0
            if not count:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            try:
                for i in range(count):
                    picture = pictures[i % len(pictures)]
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
                    self.wfile.write(head.encode() + picture + b"\r\n")
            except OSError:  # the client has closed the connection
                pass

        def log_message(self, *_: object) -> None:
            pass

    return serve_http(MotionJpeg)


def jpeg(frame: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, format="JPEG", quality=95)
    return file.getvalue()


def encode(frames: Sequence[numpy.ndarray]) -> list[list[bytes]]:
    """Encode frames (H, W, 3) as H.264 without delay; return the NAL units of each. Every frame is a key frame."""
    height, width, _ = frames[0].shape
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.framerate = width, height, "yuv420p", 25
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "10", "g": "1"}
    pictures = [av.VideoFrame.from_ndarray(frame, format="rgb24") for frame in frames]
    packets = [bytes(packet) for picture in [*pictures, None] for packet in encoder.encode(picture)]
    return [[unit for unit in re.split(rb"\x00?\x00\x00\x01", packet) if unit] for packet in packets]


def packetise(units: Sequence[bytes], number: int, timestamp: int, room: int = 1200) -> list[bytes]:
    """Return the RTP packets of a frame (RFC 6184): small units whole, large ones in fragments (FU-A)."""
    payloads = []
    for unit in units:
        if len(unit) <= room:
            payloads.append(unit)
            continue
        indicator, kind, rest = unit[0] & 0xE0 | 28, unit[0] & 0x1F, unit[1:]
        parts = [rest[i : i + room] for i in range(0, len(rest), room)]
        for i, part in enumerate(parts):
            edge = 0x80 * (i == 0) | 0x40 * (i == len(parts) - 1)
            payloads.append(bytes([indicator, edge | kind]) + part)
    last = len(payloads) - 1
    return [
        struct.pack("!BBHII", 0x80, 0x80 * (i == last) | 96, (number + i) & 0xFFFF, timestamp & 0xFFFFFFFF, 7) + payload
        for i, payload in enumerate(payloads)
    ]


class RtspServer:
    """A network camera: H.264 over RTSP, interleaved in the TCP connection.

    Each client that sends PLAY gets the next number of frames in visits, and is then disconnected; None means until the
    client leaves. After the last visit the server closes.
    """

    def __init__(self, frames: Sequence[numpy.ndarray], visits: Sequence[int | None], login: str = ""):
        self.coded, self.visits, self.login = encode(frames), list(visits), login
        self.listener = socket.create_server((LOCALHOST, 0))
        self.address = f"rtsp://{LOCALHOST}:{self.listener.getsockname()[1]}/live"
        self.requests: list[str] = []
        """Methods that clients sent, in order."""
        self.clients: list[threading.Thread] = []
        self.thread = threading.Thread(target=self.listen, daemon=True)

    def __enter__(self) -> "RtspServer":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.thread.join()
        for client in self.clients:
            client.join(timeout=2.0)

    def close(self) -> None:
        """Accept no more clients."""
        with suppress(OSError):  # closed already
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self.listener.close()

    def listen(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.clients.append(threading.Thread(target=self.serve_client, args=(connection,), daemon=True))
            self.clients[-1].start()

    def serve_client(self, connection: socket.socket) -> None:
        """Answer the requests of one client, from OPTIONS to TEARDOWN."""
        try:
            with connection, connection.makefile("rb") as lines:
                while request := read_request(lines):
                    method, number, authorization = request
                    self.requests.append(method)
                    if not self.answer(connection, method, number, authorization):
                        return
                    if method == "PLAY":
                        self.play(connection, self.visits.pop(0) if self.visits else 0)
                        if not self.visits:
                            self.close()
                        return
        except OSError:  # the client has left
            pass

    def answer(self, connection: socket.socket, method: str, number: str, authorization: str) -> bool:
        """Answer a request; return False after the last."""
        lines, body = [], ""
        status = "200 OK"
        if self.login and authorization != "Basic " + base64.b64encode(self.login.encode()).decode():
            status = "401 Unauthorized"
            lines.append('WWW-Authenticate: Basic realm="test"')
        elif method == "OPTIONS":
            lines.append("Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN")
        elif method == "DESCRIBE":
            body = self.session_description()
            lines += ["Content-Type: application/sdp", f"Content-Base: {self.address}/", f"Content-Length: {len(body)}"]
        elif method == "SETUP":
            lines += ["Transport: RTP/AVP/TCP;unicast;interleaved=0-1", "Session: 1"]
        elif method in ("PLAY", "TEARDOWN"):
            lines.append("Session: 1")
        else:
            status = "405 Method Not Allowed"
        head = "\r\n".join([f"RTSP/1.0 {status}", f"CSeq: {number}", *lines])
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        return method != "TEARDOWN"

    def session_description(self) -> str:
        """Return the session in SDP, with the parameter sets that a decoder needs first."""
        sets = [unit for unit in self.coded[0] if unit[0] & 0x1F in (7, 8)]
        parameters = ",".join(base64.b64encode(unit).decode() for unit in sets)
        lines = ["v=0", f"o=- 0 0 IN IP4 {LOCALHOST}", "s=test", f"c=IN IP4 {LOCALHOST}", "t=0 0"]
        lines += ["m=video 0 RTP/AVP 96", "a=rtpmap:96 H264/90000", "a=framerate:25", "a=control:track1"]
        lines.append(f"a=fmtp:96 packetization-mode=1;sprop-parameter-sets={parameters}")
        return "\r\n".join(lines) + "\r\n"

    def play(self, connection: socket.socket, count: int | None) -> None:
        """Send frames as RTP packets, each after a dollar sign, its channel and its length."""
        number = index = 0
        while count is None or index < count:
            packets = packetise(self.coded[index % len(self.coded)], number, index * 3600)
            connection.sendall(b"".join(b"$\0" + struct.pack("!H", len(packet)) + packet for packet in packets))
            number, index = number + len(packets), index + 1
            if count is None and select.select([connection], [], [], 0.01)[0]:
                data = connection.recv(2**16)  # reception reports, which are ignored, or the last request
                if b"TEARDOWN" in data:
                    self.requests.append("TEARDOWN")
                if not data or b"TEARDOWN" in data:
                    return


def read_request(lines: io.BufferedReader) -> tuple[str, str, str] | None:
    """Return the method, the number and the authorization of an RTSP request; None at the end."""
    head = []
    while line := lines.readline().decode(errors="replace").strip():
        head.append(line)
    if not head:
        return None
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    return head[0].split()[0], fields.get("cseq", "0"), fields.get("authorization", "")
