import threading

import pytest
from waiting import PATIENCE, until

from streamseg.io import live_sender
from streamseg.io.live_sender import LiveSender


class Peer:
    """A peer in this process: it can refuse, break and hang."""

    def __init__(self):
        self.got, self.ends = [], []
        self.refuses = self.breaks = False
        self.free, self.called = threading.Event(), threading.Event()
        self.free.set()
        self.attempts = 0

    def connect(self, item):
        self.attempts += 1
        if self.refuses:
            raise ConnectionRefusedError("Connection refused.")
        return self

    def send(self, item):
        self.called.set()
        assert self.free.wait(PATIENCE)
        if self.breaks:
            raise BrokenPipeError("broken pipe")
        self.got.append(item)

    def close(self):
        self.ends.append("closed")

    def abort(self):
        self.ends.append("aborted")
        self.free.set()


@pytest.fixture
def peer(monkeypatch):
    monkeypatch.setattr(live_sender, "PAUSES", (0.001,))
    return Peer()


@pytest.fixture
def notes():
    return []


@pytest.fixture
def sender(peer, notes):
    return LiveSender("cam", "rtsp://host/x", peer.connect, capacity=2, noun="frame", notify=notes.append)


def test_all_that_waits_is_sent_at_the_end(peer, sender, notes):
    for i in range(2):
        sender.put(i)
    sender.close()
    assert (peer.got, peer.ends, sender.sent, sender.dropped) == ([0, 1], ["closed"], 2, 0)
    assert (sender.problem, notes) == ("", [])
    assert sender.counts == "rtsp://host/x  (2 frames sent)"


def test_a_slow_peer_gets_the_newest_and_nobody_waits_for_it(peer, sender):
    peer.free.clear()
    sender.put(0)
    assert peer.called.wait(PATIENCE)
    for i in range(1, 100):
        sender.put(i)
    peer.free.set()
    sender.close()
    assert (peer.got, sender.sent, sender.dropped) == ([0, 98, 99], 3, 97)
    assert sender.counts == "rtsp://host/x  (3 frames sent, 97 dropped)"
    sender.put(100)
    assert sender.dropped == 98


def test_a_lost_connection_is_opened_again_and_said_once_each(peer, sender, notes):
    sender.put(0)
    until(lambda: peer.got == [0])
    peer.breaks = peer.refuses = True
    sender.put(1)
    until(lambda: peer.attempts > 5)
    peer.breaks = peer.refuses = False
    until(lambda: peer.got == [0, 1])
    sender.close()
    assert sender.problem == ""
    lost, back = notes
    assert lost == "cam: rtsp://host/x was lost: broken pipe. Trying again while the run goes on."
    assert back.startswith("cam: rtsp://host/x came back after ")


def test_a_peer_that_never_answers_is_one_sentence_and_one_problem(peer, sender, notes):
    peer.refuses = True
    for i in range(5):
        sender.put(i)
    until(lambda: peer.attempts > 3)
    sender.close()
    assert notes == ["cam: rtsp://host/x cannot be reached: Connection refused. Trying again while the run goes on."]
    assert sender.problem == "cam: rtsp://host/x could not be reached: Connection refused."
    assert (sender.sent, sender.dropped) == (0, 5)


def test_a_peer_that_answers_later_is_welcome(peer, sender, notes):
    peer.refuses = True
    sender.put(0)
    until(lambda: peer.attempts > 2)
    peer.refuses = False
    until(lambda: peer.got == [0])
    sender.close()
    assert notes[1].startswith("cam: rtsp://host/x answers now, after ")
    assert sender.problem == ""


def test_a_peer_that_hangs_at_the_end_is_given_up_and_said(peer, sender, monkeypatch):
    monkeypatch.setattr(live_sender, "CLOSE_SECONDS", 0.01)
    peer.free.clear()
    sender.put(0)
    assert peer.called.wait(PATIENCE)
    sender.put(1)
    sender.close()
    sender.thread.join(PATIENCE)
    assert sender.problem == (
        "cam: rtsp://host/x was lost and took only 1 frame, 1 frame dropped: it did not take the rest within 0 s."
    )
    assert "aborted" in peer.ends


def test_a_connection_that_breaks_at_the_end_is_tried_once_more(peer, sender):
    peer.breaks = True
    sender.put(0)
    sender.close()
    assert (peer.attempts, sender.dropped, set(peer.ends)) == (2, 1, {"aborted"})
    assert sender.problem == "cam: rtsp://host/x could not be reached: broken pipe."


def test_after_an_abort_no_connection_is_opened_or_kept(peer, notes):
    connecting, released = threading.Event(), threading.Event()

    def connect(item):
        connecting.set()
        assert released.wait(PATIENCE)
        return peer.connect(item)

    sender = LiveSender("cam", "rtsp://host/x", connect, capacity=2, noun="frame", notify=notes.append)
    sender.put(0)
    assert connecting.wait(PATIENCE)
    sender.abort()
    released.set()
    sender.thread.join(PATIENCE)
    assert not sender.thread.is_alive()
    assert (peer.got, peer.attempts, peer.ends, sender.dropped, notes) == ([], 1, ["aborted"], 1, [])


def test_an_aborted_send_is_not_tried_again(peer, sender):
    peer.free.clear()
    peer.breaks = True
    sender.put(0)
    assert peer.called.wait(PATIENCE)
    sender.abort()
    sender.thread.join(PATIENCE)
    assert not sender.thread.is_alive()
    assert (peer.attempts, sender.dropped) == (1, 1)


def test_a_hint_follows_the_first_failure_only(peer, notes):
    peer.refuses = True
    sender = LiveSender(
        "cam", "x", peer.connect, capacity=2, noun="frame", notify=notes.append, hint="Name it with -o."
    )
    sender.put(0)
    until(lambda: peer.attempts > 2)
    sender.abort()
    assert notes == [
        "cam: x cannot be reached: Connection refused. Trying again while the run goes on. Name it with -o."
    ]


def test_the_pauses_grow_up_to_ten_seconds():
    pauses = live_sender.PAUSES
    assert (pauses[0], pauses[-1], [*pauses]) == (0.5, 10.0, sorted(pauses))
