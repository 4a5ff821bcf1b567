"""What is seen of a pipeline while it runs."""

from types import SimpleNamespace

import pytest

from streamseg.evaluate.pipeline_samples import Samples, describe_queue, sampled
from streamseg.parallel.threads import BoundedQueue, ThreadGroup
from streamseg.stream.latency import Meter


def test_the_queues_of_running_streams_are_sampled():
    group = ThreadGroup()
    inbox, labelled, drawn = (BoundedQueue(group, 2) for _ in range(3))
    inbox.put("frame")
    drawn.close()
    queues = {"inbox": inbox, "labelled": labelled, "drawn": drawn}
    pipeline = SimpleNamespace(
        streams=[SimpleNamespace(threads=threads, drawn_early=False, **queues) for threads in (["draw"], [])]
    )
    meter, samples = Meter(clock=iter([3.0, 5.0]).__next__), Samples()
    samples.take(pipeline, meter)
    assert samples.first_labels == 0
    meter.labelled(0.1)
    inbox.put("frame")
    for _ in range(2):
        samples.take(pipeline, meter)
    assert samples.first_labels == 2.0
    assert samples.fills() == pytest.approx({"decode, network": 2.5 / 3, "network, draw": 0.0})


def test_where_the_network_thread_draws_there_is_a_queue_less():
    group = ThreadGroup()
    inbox, labelled, drawn = (BoundedQueue(group, 2) for _ in range(3))
    drawn.put("frame")
    stream = SimpleNamespace(threads=["draw"], drawn_early=True, inbox=inbox, labelled=labelled, drawn=drawn)
    samples = Samples()
    samples.take(SimpleNamespace(streams=[stream]), Meter())
    assert samples.fills() == {"decode, network": 0.0, "network, encode": 0.5}


def test_the_waits_for_the_lock_are_sampled_until_the_end():
    with sampled(SimpleNamespace(streams=[]), Meter()) as samples:
        while len(samples.lock_waits) < 3:
            pass
    count = len(samples.lock_waits)
    assert min(samples.lock_waits) >= 0
    assert len(samples.lock_waits) == count


@pytest.mark.parametrize(
    ("fill", "sentence"),
    [
        (0.9, "draw waits for encode (queue 90 % full)"),
        (0.1, "encode waits for draw (queue 10 % full)"),
        (0.5, "draw and encode keep pace (queue 50 % full)"),
    ],
)
def test_a_full_queue_holds_up_what_is_before_it_and_an_empty_one_what_is_behind(fill, sentence):
    assert describe_queue("draw, encode", fill) == sentence
