"""Hostile requests for the tests and the benchmark of the server; the same in every run."""

import contextlib
import io
import json
import random
import socket
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

PATHS = (
    "/../../../etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
    "/samples/../__init__.py",
    "/samples/..%5c..%5c__init__.py",
    "/library/1.30.0/../../__init__.py",
    "/model.onnx/../x",
    "/__init__.py",
    "/samples/",
    "/healthz/..",
    "/%00",
    "/page.js%00.html",
    "/samples/%00",
    "/%ff%fe",
    "/%zz",
    "/?a=%00",
    "/;/",
    "/*",
    "/stream",
    "/segment/",
    "/segment?alpha=",
    "/segment?alpha=nan",
    "/segment?alpha=1e999",
    "/segment?alpha[]=1",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
ACCEPTS = ("image/png", "image/*", "*/*;q=0", "application/json;q=x", ";;;", ",,,", "q=1", "image/png;q=99999", "a/b")
TYPES = (
    "image/png",
    "text/plain",
    "application/json",
    "multipart/form-data",
    "multipart/form-data; boundary=",
    'multipart/form-data; boundary="',
    "multipart/form-data; boundary=x; boundary=y",
    "multipart/form-data; boundary*=utf-8''%ff",
    "multipart/form-data; boundary*0=a; boundary*1*=%zz",
    "multipart/form-data; charset=nonsense; boundary=x",
    "\x01\x02",
    "image/png; " + "a" * 4000,
)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG whose header claims a size, with little data."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zlib.compress(bytes(100_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def pictures(dice: random.Random) -> list[bytes]:
    """Small pictures of every format, to be damaged, and decompression bombs."""
    noise = Image.frombytes("RGB", (40, 36), dice.randbytes(40 * 36 * 3))
    found = []
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = io.BytesIO()
        noise.save(file, format=kind)
        found.append(file.getvalue())
    sizes = ((2**31 - 1, 2**31 - 1), (65535, 65535), (0, 5), (30_000, 30_000), (1, 2**31 - 1), (100_000, 7))
    return found + [bomb(*size) for size in sizes] + [bomb(30_000, 30_000, 1, 0), bomb(9, 9, 3, 7)]


def damage(dice: random.Random, data: bytes) -> bytes:
    """A file cut short, with wrong bytes, with a repeated part, or with bytes in front."""
    way, position = dice.randrange(5), dice.randrange(1, max(2, len(data)))
    if way == 0:
        return data[:position]
    if way == 1:
        return data[:position] + dice.randbytes(4) + data[position + 4 :]
    if way == 2:
        return data[:position] + data[position // 2 :]
    if way == 3:
        return dice.randbytes(dice.randrange(1, 40)) + data
    wrong = bytearray(data)
    for _ in range(20):
        wrong[dice.randrange(len(wrong))] = dice.randrange(256)
    return bytes(wrong)


def form(dice: random.Random, data: bytes) -> bytes:
    edge = dice.choice((b"x", b"", b"--", b"\x00", b"y"))
    head = dice.choice((b"", b'Content-Disposition: form-data; name="a"; filename="../../a.png"', b"filename", b":"))
    return b"--" + edge + b"\r\n" + head + dice.choice((b"\r\n\r\n", b"\n\n", b"")) + data + b"\r\n--" + edge + b"--"


def requests(number: int, seed: int = 0) -> Iterator[bytes]:
    """A number of requests, as bytes to send."""
    dice = random.Random(seed)
    files = pictures(dice)
    for i in range(number):
        yield KINDS[i % len(KINDS)](dice, files)


def posted(dice: random.Random, files: list[bytes]) -> bytes:
    """A damaged picture or form, with wrong headers."""
    head, body = wrong_headers(dice, files)
    return b"POST /segment HTTP/1.1\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def posted_in_parts(dice: random.Random, files: list[bytes]) -> bytes:
    head, body = wrong_headers(dice, files)
    size = dice.choice((b"%x" % len(body), b"%x" % len(body), b"-1", b"zz", b"f" * 30, b"%x" % (len(body) // 2)))
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    return b"POST /segment HTTP/1.1\r\n" + head + size + b"\r\n" + body + b"\r\n0\r\n\r\n"


def of_wrong_length(dice: random.Random, files: list[bytes]) -> bytes:
    head, body = wrong_headers(dice, files)
    length = dice.choice((b"-5", b"abc", b"99999999999999999999999", b"9" * 12, b"1, 2", b"", b"0x10"))
    return b"POST /segment HTTP/1.1\r\n" + head + b"Content-Length: " + length + b"\r\n\r\n" + body


def to_wrong_address(dice: random.Random, files: list[bytes]) -> bytes:
    """A wrong address or method."""
    head, body = wrong_headers(dice, files)
    line = f"{dice.choice(METHODS)} {dice.choice(PATHS)} HTTP/1.1\r\n".encode()
    return line + head + dice.choice((b"\r\n", b"Content-Length: %d\r\n\r\n" % len(body) + body))


def noise(dice: random.Random, files: list[bytes]) -> bytes:
    begin = dice.choice((b"", b"GET / HTTP/1.1\r\nHost: x\r\n"))
    return begin + dice.randbytes(200).replace(b"\n", b"") + b"\r\n\r\n"


def wrong_headers(dice: random.Random, files: list[bytes]) -> tuple[bytes, bytes]:
    """Headers, and a body that may fit them."""
    kind, accept = dice.choice(TYPES), dice.choice(("*/*", "*/*", dice.choice(ACCEPTS)))
    data = dice.choice((damage(dice, dice.choice(files)), dice.choice(files), dice.randbytes(50)))
    head = f"Host: x\r\nConnection: close\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n".encode("latin-1")
    return head, form(dice, data) if "multipart" in kind else data


def upgrade(dice: random.Random, files: list[bytes]) -> bytes:
    """A WebSocket handshake, usually wrong, and bytes after it."""
    lines = [
        f"GET {dice.choice(('/stream', '/stream', '/%00', '/stream/../x'))} HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Version: {dice.choice(('13', '13', '13', 'x'))}",
        f"Sec-WebSocket-Key: {dice.choice(('dGhlIHNhbXBsZSBub25jZQ==', 'dGhlIHNhbXBsZSBub25jZQ==', 'x'))}",
        dice.choice(("Origin: http://elsewhere", "Origin: http://[", "Sec-WebSocket-Protocol: ,,", "X: y")),
    ]
    # not a WebSocket frame, or one that claims 2^63 bytes
    rest = dice.choice((dice.randbytes(40), b"\x82\xff" + b"\x7f" + b"\xff" * 7 + b"abcd" * 4, b"\x88\x80abcd"))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + rest


KINDS = (posted, posted, posted_in_parts, of_wrong_length, to_wrong_address, upgrade, noise)


def send(port: int, data: bytes, seconds: float = 15.0) -> tuple[int, bytes]:
    """Return the status and body of the answer, 0 if the server disconnects; a TimeoutError if it does nothing."""
    # the bytes after a handshake are sent when it has been answered
    end = data.index(b"\r\n\r\n") + 4 if b"Upgrade: websocket" in data else len(data)
    found = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data[:end])
        while part := connection.recv(65536):
            found += part
            if b" 101 Switching" in found[:40] and b"\r\n\r\n" in found:
                connection.sendall(data[end:])
                connection.settimeout(0.2)  # a stream may send nothing
                with contextlib.suppress(TimeoutError):
                    while connection.recv(65536):
                        pass
                break
    head, _, body = found.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head.startswith(b"HTTP/1.1 ") else (0, b"")


def check(port: int, data: bytes) -> int:
    """Send a request; check that it gets no 500, and that an error has a sentence in JSON."""
    status, body = send(port, data)
    assert status in (0, 101) or 200 <= status < 500 or status == 503, (status, data[:300])
    method = data.partition(b" ")[0]
    # a wrong handshake is answered by the WebSocket library
    if status >= 400 and method != b"HEAD" and b"Upgrade: websocket" not in data:
        assert json.loads(body)["error"].endswith("."), (body, data[:300])
    return status
