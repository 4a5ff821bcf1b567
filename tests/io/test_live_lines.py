import importlib.util

import pytest
from listeners import LOCALHOST, Broker, free_port, silent_server, websocket_server
from waiting import until

from streamseg.io import live_lines, live_sender
from streamseg.io.live_lines import LineSender, check_line_address


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(live_sender, "PAUSES", (0.02,))


@pytest.fixture
def notes():
    return []


def require_websockets():
    pytest.importorskip("websockets", reason="websockets is not installed: pip install 'streamseg[serve]'")


def require_paho():
    pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed: pip install 'streamseg[mqtt]'")


def test_a_websocket_gets_every_line(notes):
    require_websockets()
    with websocket_server() as (address, messages):
        lines = LineSender(address, "--json", notes.append)
        for i in range(200):
            assert lines.write(f'{{"frame": {i}}}\n') > 0
        lines.sender.close()
        until(lambda: len(messages) == 200)
    assert messages == [f'{{"frame": {i}}}' for i in range(200)]
    assert (lines.sender.sent, lines.sender.dropped, lines.sender.problem, notes) == (200, 0, "", [])


def test_a_lost_websocket_is_opened_again_and_its_lines_wait(notes):
    require_websockets()
    with websocket_server() as (address, messages):
        lines = LineSender(address.replace("//", "//user:secret@"), "--json", notes.append)
        lines.write("0\n")
        until(lambda: messages == ["0"])
    number = 1
    while not notes:  # the first lines after the end may still go into the closed connection
        lines.write(f"{number}\n")
        number += 1
        until(lambda: not lines.sender.waiting or notes)
    port = int(address.split(":")[2].split("/")[0])
    with websocket_server(port) as (_, messages):
        lines.write("last\n")
        lines.sender.close()
        until(lambda: messages and messages[-1] == "last")
    assert "was lost: " in notes[0]
    assert "came back after" in notes[1]
    assert "secret" not in "".join(notes)
    assert lines.sender.problem == ""


@pytest.mark.parametrize("scheme", ["ws", "mqtt"])
def test_a_server_that_refuses_or_is_silent_is_a_sentence(notes, monkeypatch, scheme):
    (require_paho if scheme == "mqtt" else require_websockets)()
    monkeypatch.setattr(live_lines, "ANSWER_SECONDS", 0.2)
    port = free_port()
    lines = LineSender(f"{scheme}://user:secret@{LOCALHOST}:{port}/x", "--json", notes.append)
    lines.write("0\n")
    until(lambda: notes)
    lines.sender.close()
    assert lines.sender.problem == f"--json: {scheme}://{LOCALHOST}:{port}/x could not be reached: Connection refused."
    with silent_server() as port:
        lines = LineSender(f"{scheme}://user:secret@{LOCALHOST}:{port}/x", "--json", notes.append)
        lines.write("0\n")
        lines.sender.close()
        assert lines.sender.problem.startswith(f"--json: {scheme}://{LOCALHOST}:{port}/x could not be reached: ")
    assert "secret" not in "".join(notes) + lines.sender.problem


def test_a_broker_gets_every_line_under_its_topic_with_user_and_password(notes):
    require_paho()
    broker = Broker()
    lines = LineSender(f"mqtt://me:a%2Fb@{LOCALHOST}:{broker.port}/road/labels", "--json", notes.append)
    for i in range(50):
        lines.write(f"{i}\n")
    lines.sender.close()
    until(lambda: len(broker.messages) == 50)
    broker.close()
    assert broker.messages == [("road/labels", str(i)) for i in range(50)]
    assert broker.connects[0].endswith(b"\x00\x02me\x00\x03a/b")
    assert (lines.sender.sent, lines.sender.problem, notes) == (50, "", [])


def test_a_broker_that_rejects_the_user_is_a_sentence(notes):
    require_paho()
    broker = Broker(refusal=5)
    lines = LineSender(f"mqtt://me:secret@{LOCALHOST}:{broker.port}/t", "--json", notes.append)
    lines.write("0\n")
    until(lambda: notes)
    lines.sender.close()
    broker.close()
    assert lines.sender.problem == (
        f"--json: mqtt://{LOCALHOST}:{broker.port}/t could not be reached: it refused: Not authorized."
    )


def test_a_lost_broker_is_found_again(notes):
    require_paho()
    first = Broker()
    lines = LineSender(f"mqtt://{LOCALHOST}:{first.port}/t", "--json", notes.append)
    lines.write("0\n")
    until(lambda: first.messages)
    first.close()
    number = 1
    while not notes:
        lines.write(f"{number}\n")
        number += 1
        until(lambda: not lines.sender.waiting or notes)
    second = Broker(port=first.port)
    lines.write("last\n")
    lines.sender.close()
    until(lambda: second.messages and second.messages[-1] == ("t", "last"))
    second.close()
    assert "came back after" in notes[-1]
    assert lines.sender.problem == ""


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (
            "http://u:secret@h/x",
            "http://h/x is no address for lines of JSON: expected ws://, wss://, mqtt://, mqtts://",
        ),
        ("mqtt://h", "mqtt://h is no address for lines of JSON: expected mqtt://host:port/topic."),
        ("mqtt://h/a/%23", "mqtt://h/a/%23 is no address for lines of JSON: expected mqtt://host:port/topic."),
        ("ws://", "ws:// is no address for lines of JSON: expected ws://host:port/."),
        ("ws://h:many/x", "ws://h:many/x is no address for lines of JSON: expected ws://host:port/."),
    ],
)
def test_an_address_that_takes_no_lines_is_an_error(address, expected):
    with pytest.raises(ValueError, match=expected):
        check_line_address(address)


@pytest.mark.parametrize(
    ("address", "package", "extra"), [("mqtt://h/t", "paho", "mqtt"), ("ws://h", "websockets", "serve")]
)
def test_a_missing_package_is_named_with_what_to_install(monkeypatch, address, package, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ImportError, match=rf"needs {package}.*: pip install 'streamseg\[{extra}\]'"):
        check_line_address(address)
