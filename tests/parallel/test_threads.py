import sys
import threading

import pytest
import torch
from waiting import PATIENCE, until

from streamseg.parallel.threads import TURN_SECONDS, BoundedQueue, GroupStopped, RightOfWay, ThreadGroup, short_turns


@pytest.fixture
def group():
    return ThreadGroup()


def wait_for(*threads):
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_what_goes_into_a_line_comes_out_in_order_and_never_more_than_it_holds(group):
    line, found, most = BoundedQueue(group, 3), [], 0

    def write():
        for i in range(1000):
            assert line.put(i)
        line.close()

    def read():
        nonlocal most
        for item in line:
            most = max(most, len(line.waiting))
            found.append(item)

    wait_for(group.start("write", write), group.start("read", read))
    assert group.failure is None
    assert found == list(range(1000))
    assert most <= 3


def test_a_line_that_is_closed_takes_nothing_and_gives_what_it_has(group):
    line = BoundedQueue(group, 2)
    assert line.put("a")
    line.close()
    assert not line.put("b")
    assert line.replace("c") is None
    assert not line.ended
    assert list(line) == ["a"]
    assert line.ended


def test_closing_a_full_line_sets_its_writer_free(group):
    line, found = BoundedQueue(group, 1), []
    line.put("a")
    writer = group.start("write", lambda: found.append(line.put("b")))
    line.close()
    wait_for(writer)
    assert found == [False]


def test_the_newest_takes_the_place_of_all_that_waits(group):
    line = BoundedQueue(group, 2)
    assert [line.replace(i) for i in range(3)] == [0, 1, 1]
    line.close()
    assert list(line) == [2]


def test_a_writer_that_waits_is_woken_when_half_the_line_is_free(group):
    line, woken = BoundedQueue(group, 4), []
    notify = line.change.notify_all
    line.change.notify_all = lambda: woken.append(len(line.waiting)) or notify()
    for item in range(4):
        line.put(item)
    woken.clear()
    with group.lock:
        assert [line.take() for _ in range(4)] == [0, 1, 2, 3]
    assert woken == [2, 1, 0]


def test_a_queue_wakes_its_own_threads_and_the_watcher_only(group):
    asked, lines = [0, 0, 0], [BoundedQueue(group, 1, group.change if i == 0 else None) for i in range(3)]

    def watch():
        with group.lock:
            group.wait_until(lambda: asked.__setitem__(2, asked[2] + 1) or lines[0].waiting)

    def read(i):
        with group.lock:
            group.wait_until(lambda: asked.__setitem__(i, asked[i] + 1) or lines[i].waiting, lines[i].change)

    readers = [group.start("read", read, i) for i in range(2)] + [group.start("watch", watch)]
    until(lambda: asked == [1, 1, 1])
    lines[2].put("a")
    lines[0].put("a")
    wait_for(readers[0], readers[2])
    assert asked == [2, 1, 2]
    lines[1].put("a")
    wait_for(readers[1])
    assert asked == [2, 2, 2]


def test_the_first_error_is_everybody_s_and_the_others_leave(group):
    empty, full, left = BoundedQueue(group, 1), BoundedQueue(group, 1), []
    full.put("a")

    def leave(work):
        try:
            work()
        except GroupStopped:
            left.append(work)
            raise

    threads = [group.start("read", leave, lambda: list(empty)), group.start("write", leave, lambda: full.put("b"))]
    first = group.start("fail", [].pop)
    wait_for(first, *threads)
    assert len(left) == 2
    assert isinstance(group.failure, IndexError)
    group.fail(KeyError())
    assert isinstance(group.failure, IndexError)
    with pytest.raises(GroupStopped):
        empty.put("c")


def test_each_thread_computes_with_the_threads_that_it_is_given(group):
    found = {}
    before = torch.get_num_threads()
    try:
        for count in (2, 1):
            wait_for(
                group.start(
                    str(count),
                    lambda: found.update({threading.current_thread().name: torch.get_num_threads()}),
                    threads=count,
                )
            )
    finally:
        torch.set_num_threads(before)
    assert found == {"2": 2, "1": 1}


def test_turns_are_short_within_the_context_only_and_never_longer_than_they_were():
    before = sys.getswitchinterval()
    with pytest.raises(KeyError), short_turns():
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS, abs=2e-6)
        raise KeyError
    with short_turns(False):
        assert sys.getswitchinterval() == before
    try:
        sys.setswitchinterval(TURN_SECONDS / 2)
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS / 2, abs=2e-6)
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def computing():
    """Starts a thread that computes in Python and gives way; returns the number of its steps, which it counts."""
    ends, threads = threading.Event(), []

    def start(way):
        steps = [0]

        def step():
            steps[0] += 1

        def work():
            with way.given():
                while not ends.is_set():
                    step()

        threads.append(threading.Thread(target=work))
        threads[0].start()
        return steps

    yield start
    ends.set()
    for thread in threads:
        thread.join()


def test_a_thread_that_computes_waits_for_those_that_have_the_right_of_way(computing):
    way = RightOfWay(wait_seconds=PATIENCE, go_seconds=0.0)
    steps = computing(way)
    with way.taken(), way.taken():
        before = steps[0]
        threading.Event().wait(0.2)
        assert steps[0] <= before + 1  # it was in the middle of one
    before = steps[0]
    until(lambda: steps[0] > before + 10)


def test_a_thread_waits_for_the_right_of_way_for_a_while_only(computing):
    way = RightOfWay(wait_seconds=0.001, go_seconds=0.001)
    steps = computing(way)
    with way.taken():
        before = steps[0]
        until(lambda: steps[0] > before + 10)


def test_a_right_of_way_ends_with_an_error_and_leaves_the_profiler_as_it_was():
    way, before = RightOfWay(), sys.getprofile()
    with pytest.raises(KeyError), way.taken(), way.given():
        assert sys.getprofile() is not before
        raise KeyError
    assert sys.getprofile() is before
    assert way.running == 0
    assert way.is_free.is_set()
