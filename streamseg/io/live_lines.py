"""Send lines of JSON to a server: text messages of a WebSocket, or messages of an MQTT topic."""

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from streamseg.io.live_sender import ANSWER_SECONDS, Connection, LiveSender
from streamseg.io.web import redact, redact_address_in, split_if_valid

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

CAPACITY = 1000
"""Lines that may wait for a server."""
SCHEMES = ("ws", "wss", "mqtt", "mqtts")
"""Kinds of addresses that take lines."""


class WebSocketLines:
    """A connection to a WebSocket server, which gets each line as a text message."""

    def __init__(self, address: str):
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ImportError:
            raise missing_websockets() from None
        self.failures = (WebSocketException, OSError)
        self.opened = ExitStack()
        try:
            opening = connect(address, open_timeout=ANSWER_SECONDS, close_timeout=ANSWER_SECONDS)
            self.socket = self.opened.enter_context(opening)
        except self.failures as error:
            words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise OSError(redact_address_in(words, address)) from None
        if os.name == "posix":  # a server that no longer reads must not hold up the thread for ever
            limit = struct.pack("ll", int(ANSWER_SECONDS), 0)
            self.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, line: str) -> None:
        try:
            self.socket.send(line)
        except self.failures as error:
            raise OSError(str(error) or "the connection was closed") from None

    def close(self) -> None:
        self.opened.close()

    def abort(self) -> None:
        with suppress(OSError):
            self.socket.socket.shutdown(socket.SHUT_RDWR)


class MqttLines:
    """A connection to an MQTT broker, which gets each line as a message of a topic, at most once (QoS 0)."""

    def __init__(self, parts: SplitResult):
        try:
            from paho.mqtt.client import Client
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError:
            raise missing_paho() from None
        self.topic = unquote(parts.path.lstrip("/"))
        self.answered = threading.Event()
        self.refusal = ""
        self.client = Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
        self.client.connect_timeout = ANSWER_SECONDS
        self.client.on_connect = self.take_answer
        if parts.username:
            self.client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        secure = parts.scheme.lower() == "mqtts"
        if secure:
            self.client.tls_set()
        try:
            self.client.connect(parts.hostname or "", parts.port or (8883 if secure else 1883), keepalive=10)
        except OSError as error:
            raise OSError(error.strerror or str(error)) from None
        self.client.loop_start()
        try:
            if not self.answered.wait(ANSWER_SECONDS):
                raise TimeoutError(f"it did not answer within {ANSWER_SECONDS:.0f} s")
            if self.refusal:
                raise OSError(f"it refused: {self.refusal}")
        except OSError:
            self.abort()
            raise

    def take_answer(
        self,
        client: "Client",
        data: object,
        flags: "ConnectFlags",
        reason: "ReasonCode",
        properties: "Properties | None",
    ) -> None:
        """Keep whether the broker accepts; called by the thread of paho-mqtt."""
        self.refusal = str(reason) if reason.is_failure else ""
        self.answered.set()

    def send(self, line: str) -> None:
        try:
            message = self.client.publish(self.topic, line)
            message.wait_for_publish(ANSWER_SECONDS)
        except (RuntimeError, ValueError) as error:
            raise OSError(str(error)) from None
        if not message.is_published() or not self.client.is_connected():
            raise OSError("the connection was closed")

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def abort(self) -> None:
        self.client.disconnect()
        if threading.current_thread() is not self.client._thread:
            self.client.loop_stop()


def missing_websockets() -> ImportError:
    return ImportError("Sending lines to a WebSocket needs websockets: pip install 'streamseg[serve]'")


def missing_paho() -> ImportError:
    return ImportError("Sending lines over MQTT needs paho-mqtt: pip install 'streamseg[mqtt]'")


class LineSender:
    """Takes lines of text as a file does, and sends each to an address. Never waits for the server.

    Args:
        name: The name of what is sent, for messages.
        notify: Receives a sentence when the connection is lost, and when it is back.
    """

    def __init__(self, address: str, name: str, notify: Callable[[str], None]):
        def connect(line: str) -> Connection[str]:
            parts = urlsplit(address)
            return MqttLines(parts) if parts.scheme.lower().startswith("mqtt") else WebSocketLines(address)

        self.sender = LiveSender(name, redact(address), connect, capacity=CAPACITY, noun="line", notify=notify)

    @property
    def dropped(self) -> int:
        """How many lines were dropped."""
        return self.sender.dropped

    def write(self, text: str) -> int:
        self.sender.put(text.rstrip("\n"))
        return len(text)


def check_line_address(address: str) -> None:
    """Raise an error if lines cannot be sent to an address, or the package for it is missing."""
    from importlib.util import find_spec

    scheme, shown = address.partition("://")[0].lower(), redact(address)
    if scheme not in SCHEMES:
        raise ValueError(
            f"{shown} is no address for lines of JSON: expected ws://, wss://, mqtt://, mqtts:// or a file's name."
        )
    parts, mqtt = split_if_valid(address), scheme.startswith("mqtt")
    topic = unquote(parts.path.lstrip("/")) if parts else ""
    if not (parts and parts.hostname) or (mqtt and (not topic or set(topic) & set("#+\0"))):
        raise ValueError(f"{shown} is no address for lines of JSON: expected {scheme}://host:port/{'topic' * mqtt}.")
    if find_spec("paho" if mqtt else "websockets") is None:
        raise missing_paho() if mqtt else missing_websockets()
