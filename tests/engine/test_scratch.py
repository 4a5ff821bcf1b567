import copy
import pickle
import threading

import pytest
import torch

from streamseg.engine import scratch
from streamseg.engine.scratch import DeviceLock, PackedWeights, Scratch


def zeros(*shape):
    return lambda: [torch.zeros(shape)]


def test_consecutive_calls_share_their_memory():
    memory, shape = Scratch(), torch.Size((2, 3))
    with memory.borrow(shape, zeros(2, 3)) as (first,):
        first.fill_(7)
    with memory.borrow(shape, zeros(2, 3)) as (second,):
        assert second is first
    with memory.borrow(torch.Size((4,)), zeros(4)) as (other,):
        assert other.shape == (4,)
    assert [known for known, _ in memory.idle] == [(4,)]  # as many are kept as were in use at once


def test_concurrent_calls_do_not_share_memory():
    memory, shape = Scratch(), torch.Size((2, 3))
    with memory.borrow(shape, zeros(2, 3)) as (first,), memory.borrow(shape, zeros(2, 3)) as (second,):
        assert first is not second
    assert len(memory.idle) == 2
    for _ in range(3):
        with memory.borrow(torch.Size((5,)), zeros(5)):
            pass
    assert len(memory.idle) == 2


def test_a_failed_allocation_changes_nothing():
    memory = Scratch()

    def fail():
        raise MemoryError

    with pytest.raises(MemoryError), memory.borrow(torch.Size((1,)), fail):
        pass
    assert (memory.borrowed, memory.idle) == (0, [])


def test_memory_allocated_in_inference_mode_can_be_changed_outside_of_it():
    memory, packed = Scratch(), PackedWeights()
    with torch.inference_mode():
        with memory.borrow(torch.Size((2,)), zeros(2)) as (made,):
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
        assert [packed.get(key, pack(key)).item() for key in range(scratch.MAX_PACKED)] == list(
            range(scratch.MAX_PACKED)
        )
    assert made == list(range(scratch.MAX_PACKED))
    packed.get(99, pack(99))
    assert len(packed.cached) == scratch.MAX_PACKED
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


def test_the_lock_admits_one_call_at_a_time_and_is_released_after_an_error():
    lock, inside, most = DeviceLock(torch.device("cpu")), [], []
    start = threading.Barrier(4)

    def work(i):
        start.wait()
        for _ in range(50):
            with lock:
                inside.append(i)
                most.append(len(inside))
                inside.remove(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.lock.locked()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_in_the_lock_its_gpu_is_the_current_one():
    lock, before = DeviceLock(torch.device("cuda", 1)), torch.cuda.current_device()
    with lock:
        assert torch.cuda.current_device() == 1
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert torch.cuda.current_device() == before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_starts_empty(copied):
    memory, packed, lock = Scratch(), PackedWeights(), DeviceLock(torch.device("cpu"))
    with memory.borrow(torch.Size((2,)), zeros(2)), lock:
        packed.get(1, lambda: torch.zeros(2))
        assert copied(memory).idle == []
        assert copied(memory).borrowed == 0
        assert copied(packed).cached == {}
        assert not copied(lock).lock.locked()
