import asyncio
import json
import subprocess
import sys
from importlib import import_module

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'streamseg[serve]'")

from starlette.middleware import Middleware

from streamseg.parallel import proxy

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]}
BODY = {"type": "http.response.body", "body": b"labels", "more_body": False}


def pass_through(kind, *messages, received=()):
    """Return what a client gets if the proxy receives some messages, answers with some and then ends."""
    sent, waiting = [], list(received)

    async def ray_proxy(scope, receive, send):
        for _ in received:
            await receive()
        for message in messages:
            await send(message)

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "method": "POST", "path": "/segment", "headers": []}
    asyncio.run(proxy.DeadReplicaMiddleware(ray_proxy)(scope, receive, send))
    return sent


@pytest.mark.parametrize("answer", [(), (START,)], ids=["before its answer", "before its body"])
def test_a_request_whose_replica_died_gets_503_with_a_sentence(answer):
    start, body = pass_through("http", *answer)
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert json.loads(body["body"]) == {"error": "The replica that worked on this request died: send it again."}


@pytest.mark.parametrize(
    "answer",
    [(START, BODY), (START, {**BODY, "more_body": True}, BODY), (START, {**BODY, "more_body": True})],
    ids=["whole", "in parts", "cut after a part"],
)
def test_an_answer_that_has_a_body_is_passed_on_as_it_is(answer):
    assert pass_through("http", *answer) == [*answer]


def test_a_503_of_ray_itself_gets_a_retry_after_and_one_of_the_application_keeps_its_own():
    own = {**START, "status": 503, "headers": [(b"Retry-After", b"7")]}
    assert pass_through("http", own, BODY) == [own, BODY]
    (start, _) = pass_through("http", {**START, "status": 503}, BODY)
    assert start["headers"] == [*START["headers"], (b"retry-after", b"1")]


ACCEPT, CLOSE = {"type": "websocket.accept"}, {"type": "websocket.close", "code": 1001}
GONE = {"type": "websocket.disconnect", "code": 1005}


def test_a_stream_whose_replica_died_is_closed_with_the_code_of_a_restart():
    accepted, closed = pass_through("websocket", ACCEPT)
    assert accepted == ACCEPT
    assert closed["type"] == "websocket.close"
    assert closed["code"] == 1012
    assert closed["reason"] == "The replica of this stream died: open the stream again."
    # a reason may have 123 bytes
    assert len(closed["reason"].encode()) <= 123


def test_a_stream_whose_replica_died_before_it_opened_gets_503():
    start, _ = pass_through("websocket")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
    assert (b"retry-after", b"1") in start["headers"]


def test_a_stream_that_either_side_has_ended_is_left_alone():
    assert pass_through("websocket", ACCEPT, CLOSE) == [ACCEPT, CLOSE]
    assert pass_through("websocket", ACCEPT, received=[GONE]) == [ACCEPT]
    denied = {"type": "websocket.http.response.start", "status": 401, "headers": []}
    assert pass_through("websocket", denied) == [denied]


def test_what_is_neither_is_passed_on():
    assert pass_through("lifespan", {"type": "lifespan.startup.complete"}) == [{"type": "lifespan.startup.complete"}]


def test_the_name_that_ray_is_given_is_that_of_the_middleware():
    name = proxy.PROXY_ENVIRONMENT["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    module, _, function = name.partition(":")
    (found,) = getattr(import_module(module), function)()
    assert isinstance(found, Middleware)
    assert found.cls is proxy.DeadReplicaMiddleware


def test_a_proxy_need_not_import_torch():
    program = "import sys, streamseg.parallel.proxy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
