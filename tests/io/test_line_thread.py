"""Lines that a thread of its own writes."""

import threading

import pytest
from waiting import PATIENCE, until

from streamseg.io import line_thread
from streamseg.io.line_thread import LineThread


class Place:
    """A place for lines that waits while its reader does not read, and then fails if it is to."""

    def __init__(self, failure=None):
        self.lines, self.failure = [], failure
        self.reading, self.begun = threading.Event(), threading.Event()

    def write(self, line):
        self.begun.set()
        assert self.reading.wait(PATIENCE)
        if self.failure:
            raise self.failure
        self.lines.append(line)


@pytest.fixture
def place():
    place = Place()
    yield place
    place.reading.set()


def test_lines_arrive_in_order_and_all_are_there_at_the_end(place):
    place.reading.set()
    with LineThread(place, "a.jsonl", pytest.fail) as lines:
        for i in range(500):
            lines.write(f"{i}\n")
    assert place.lines == [f"{i}\n" for i in range(500)]


def test_a_reader_who_does_not_read_holds_up_nobody_and_gets_the_newest_lines(place, monkeypatch):
    monkeypatch.setattr(line_thread, "CAPACITY", 3)
    said = []
    with LineThread(place, "a.jsonl", said.append) as lines:
        lines.write("0\n")
        assert place.begun.wait(PATIENCE)
        for i in range(1, 8):
            lines.write(f"{i}\n")
        until(lambda: said == ["a.jsonl takes lines too slowly: the oldest are dropped."])
        assert lines.dropped == 4
        place.reading.set()
    assert place.lines == ["0\n", "5\n", "6\n", "7\n"]
    assert said[1:] == ["a.jsonl took lines too slowly: 4 of them were dropped."]


def test_long_lines_that_wait_do_not_fill_the_memory(place, monkeypatch):
    monkeypatch.setattr(line_thread, "CAPACITY_LETTERS", 100)
    with LineThread(place, "a.jsonl", lambda sentence: None) as lines:
        lines.write("0")
        assert place.begun.wait(PATIENCE)
        for letter in "abc":
            lines.write(40 * letter)
        lines.write(200 * "d")  # longer than all that may wait
        assert [line[0] for line in lines.waiting] == ["d"]
        place.reading.set()
    assert place.lines == ["0", 200 * "d"]


def test_a_user_who_cannot_be_told_holds_up_nobody(place, monkeypatch):
    monkeypatch.setattr(line_thread, "CAPACITY", 1)
    told = threading.Event()
    with LineThread(place, "a.jsonl", lambda sentence: told.wait(PATIENCE)) as lines:
        for i in range(4):
            lines.write(f"{i}\n")
        told.set()
        place.reading.set()


def test_a_reader_who_hangs_is_not_waited_for_at_the_end(place, monkeypatch):
    monkeypatch.setattr(line_thread, "CLOSE_SECONDS", 0.05)
    said = []
    with LineThread(place, "a.jsonl", said.append) as lines:
        for i in range(3):
            lines.write(f"{i}\n")
    assert lines.hangs
    assert said == ["a.jsonl took lines too slowly: 3 of them were dropped."]


def test_an_error_of_the_place_is_raised_by_every_write_after_it(place):
    place.failure = OSError("full")
    place.reading.set()
    raised = []
    with pytest.raises(OSError, match="^full$"), LineThread(place, "a.jsonl", pytest.fail) as lines:
        lines.write("0\n")
        until(lambda: lines.failure)
        for i in range(20):
            with pytest.raises(OSError, match="^full$") as error:
                lines.write(f"{i}\n")
            raised.append(len(error.traceback))
    assert raised == [raised[0]] * 20  # none keeps the frames of those before


def test_an_error_of_the_last_line_is_raised_at_the_end(place):
    place.failure = OSError("full")
    place.reading.set()
    with pytest.raises(OSError, match="^full$"), LineThread(place, "a.jsonl", pytest.fail) as lines:
        lines.write("0\n")


def test_an_error_of_the_place_hides_no_other_error(place):
    place.failure = OSError("full")
    place.reading.set()
    with pytest.raises(KeyError), LineThread(place, "a.jsonl", pytest.fail) as lines:
        lines.write("0\n")
        raise KeyError
