import copy
import pickle
import threading

import pytest
import torch

from streamseg.engine import scratch
from streamseg.engine.scratch import DeviceLock, PackedWeights, Scratch


def places(*shape):
    return lambda: [torch.zeros(shape)]


def test_calls_one_after_the_other_share_their_memory():
    memory, shape = Scratch(), torch.Size((2, 3))
    with memory.borrow(shape, places(2, 3)) as (first,):
        first.fill_(7)
    with memory.borrow(shape, places(2, 3)) as (second,):
        assert second is first
    with memory.borrow(torch.Size((4,)), places(4)) as (other,):
        assert other.shape == (4,)
    assert [known for known, _ in memory.idle] == [(4,)]  # as much is kept as was ever needed at once


def test_calls_at_the_same_time_do_not():
    memory, shape = Scratch(), torch.Size((2, 3))
    with memory.borrow(shape, places(2, 3)) as (first,), memory.borrow(shape, places(2, 3)) as (second,):
        assert first is not second
    assert len(memory.idle) == 2
    for _ in range(3):
        with memory.borrow(torch.Size((5,)), places(5)):
            pass
    assert len(memory.idle) == 2


def test_memory_that_cannot_be_had_leaves_the_rest_as_it_was():
    memory = Scratch()

    def fail():
        raise MemoryError

    with pytest.raises(MemoryError), memory.borrow(torch.Size((1,)), fail):
        pass
    assert (memory.borrowed, memory.idle) == (0, [])


def test_memory_from_inference_mode_can_be_changed_outside_of_it():
    memory, packed = Scratch(), PackedWeights()
    with torch.inference_mode():
        with memory.borrow(torch.Size((2,)), places(2)) as (made,):
            made.add_(1)
        weight = packed.get(1, lambda: torch.zeros(2))
    made.add_(1)
    weight.add_(1)
    assert made.tolist() == [2, 2]


def test_weights_are_packed_once_for_each_shape_and_those_of_a_few_shapes_are_kept():
    packed, made = PackedWeights(), []

    def pack(key):
        return lambda: made.append(key) or torch.full((1,), float(key))

    for _ in range(2):
        assert [packed.get(key, pack(key)).item() for key in range(scratch.PACKED)] == list(range(scratch.PACKED))
    assert made == list(range(scratch.PACKED))
    packed.get(99, pack(99))
    assert len(packed.known) == scratch.PACKED
    assert packed.get(0, pack(0)).item() == 0
    assert made[-2:] == [99, 0]


def test_threads_pack_weights_once():
    packed, made, start = PackedWeights(), [], threading.Barrier(4)
    found = [None] * 4

    def work(i):
        start.wait()
        found[i] = packed.get("key", lambda: made.append(i) or torch.zeros(1))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert all(weight is found[0] for weight in found)


def test_turns_come_one_at_a_time_and_end_with_an_error_too():
    turn, inside, most = DeviceLock(torch.device("cpu")), [], []
    start = threading.Barrier(4)

    def work(i):
        start.wait()
        for _ in range(50):
            with turn:
                inside.append(i)
                most.append(len(inside))
                inside.remove(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    with pytest.raises(KeyError), turn:
        raise KeyError
    assert not turn.lock.locked()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_begins_with_nothing(copied):
    memory, packed, turn = Scratch(), PackedWeights(), DeviceLock(torch.device("cpu"))
    with memory.borrow(torch.Size((2,)), places(2)), turn:
        packed.get(1, lambda: torch.zeros(2))
        assert copied(memory).idle == []
        assert copied(memory).borrowed == 0
        assert copied(packed).known == {}
        assert not copied(turn).lock.locked()
