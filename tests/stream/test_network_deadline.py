"""The network thread under a deadline."""

import io
import math
import time
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from pipelines import FULL, Callbacks, Clip, run, shade

from streamseg.stream import network_thread


@pytest.mark.parametrize("share", [0.9, 0.6, 0.35])
def test_the_network_input_shrinks_to_meet_the_deadline_and_grows_when_there_is_time(model, priced, share):
    priced.price, deadline = 1e-6, share * 1e-6 * 192 * 320

    def frames():
        for i in range(360):
            priced.price = 1e-9 if i >= 240 else 3e-6 if 60 <= i < 120 else 1e-6
            yield shade(i, FULL)

    raw = io.BytesIO()
    done = run(model, Clip(frames()), deadline=deadline, raw=raw)
    sizes = [tuple(record["size"]) for record in done.records]
    late = [record["frame"] for record in done.records if record["latency_ms"] > 1000 * deadline]
    assert sizes[0] < FULL  # its sizes were measured before
    assert late
    assert 50 < min(late) <= 60
    assert math.prod(min(sizes[60:120], key=math.prod)) < math.prod(sizes[0])
    assert max(late) < 110
    assert done.outcome.late == len(late)
    assert done.outcome.size == sizes[-1] == FULL
    assert len(raw.getvalue()) == 360 * 192 * 320


def test_a_deadline_that_cannot_be_met_keeps_a_useful_size(model, priced):
    priced.price, said = 1.0, []
    done = run(model, Clip([shade(0, FULL)] * 40), deadline=1e-3, observer=Callbacks(message=said.append))
    assert done.outcome.sizes == {(96, 160): 40}
    assert done.outcome.late == 40
    assert said == []


def test_sizes_below_half_are_used_late_and_with_a_message(model, priced):
    priced.price, said = 1e-6, []
    done = run(model, Clip([shade(0, FULL)] * 60), deadline=0.1e-6 * 192 * 320, observer=Callbacks(message=said.append))
    sizes = [tuple(record["size"]) for record in done.records]
    half, least = sizes.count((96, 160)), sizes.count((64, 64))
    assert sizes == [(96, 160)] * half + [(64, 64)] * least
    assert half >= 22
    assert done.outcome.size == done.outcome.smallest == (64, 64)
    assert done.outcome.late == half
    assert said == [
        "To meet the deadline, the network input is now 64 x 64, where labels are poor; the smallest is 64 x 64."
    ]


def test_preparing_small_sizes_causes_no_message(model, priced):
    priced.price, said = 1e-6, []
    done = run(model, Clip([shade(0, FULL)] * 5), deadline=0.3e-6 * 192 * 320, observer=Callbacks(message=said.append))
    assert done.outcome.sizes == {(96, 160): 5}
    assert (64, 64) in priced.seen
    assert said == []


def test_each_record_has_the_network_input_size_of_its_frame(model, priced):
    priced.price = 1e-6

    def frames():
        for i in range(60):
            priced.price = 1e-6 if i < 20 else 2e-6
            yield shade(i, FULL)

    done = run(model, Clip(frames()), deadline=0.8e-6 * 192 * 320)
    sizes = [tuple(record["size"]) for record in done.records]
    # the passes before the last of a frame prepared a size
    assert sizes == [priced.last[i] for i in range(60)]
    assert done.outcome.sizes == Counter(sizes)
    assert len(done.outcome.sizes) > 1
    assert list(done.outcome.sizes) == sorted(done.outcome.sizes, key=math.prod, reverse=True)
    assert done.outcome.smallest == min(sizes, key=math.prod)


def test_preparing_a_size_makes_no_frame_late_and_causes_no_other_change(model, costly):
    costly.price, deadline = 1e-6, 0.8e-6 * 192 * 320

    def frames():
        for i in range(200):
            costly.price = 3e-6 if 60 <= i < 120 else 1e-6
            yield shade(i, FULL)

    done = run(model, Clip(frames()), deadline=deadline)
    sizes = [tuple(record["size"]) for record in done.records]
    assert sum(a != b for a, b in pairwise(sizes)) <= 4
    assert max(record["latency_ms"] for record in done.records) < 1000 * 1000 * 1e-6 * 192 * 320
    assert done.outcome.late < 0.1 * 200
    assert min(map(math.prod, sizes)) >= 96 * 160


def test_frames_of_a_batch_that_was_not_prepared_are_late_but_decide_nothing(model, costly):
    costly.price = 1e-6
    clips = [Clip([shade(i, FULL)] * length, f"clip{i}") for i, length in enumerate((6, 12))]
    done = run(model, *clips, deadline=2.5e-6 * 192 * 320)
    assert done.outcome.sizes == {FULL: 18}
    assert done.outcome.late <= 2 * 2 + 2  # of two frames at once, and then of one


def test_int8_is_calibrated_on_frames_of_the_stream_and_not_on_warm_up_passes(model, priced, monkeypatch):
    engine = SimpleNamespace(predict=None, device=torch.device("cpu"), calibrating=True)
    priced.price, step = 1e-6, network_thread.step_batch

    def learn(model, images, *rest, **options):
        if len(priced.seen) == 8:
            engine.calibrating = False
        return step(model, images, *rest, **options)

    monkeypatch.setattr(network_thread, "step_batch", learn)
    done = run(engine, Clip([shade(i, FULL) for i in range(20)]), deadline=0.5e-6 * 192 * 320)
    assert priced.seen[:9] == [FULL] * 9
    assert [tuple(record["size"]) for record in done.records][:9] == [FULL] * 9
    assert done.outcome.late == 9
    assert done.outcome.size == (96, 160)


def test_slow_drawing_and_writing_do_not_shrink_the_network_input(model, priced):
    priced.price = 1e-6

    def wrote(capture, shares, results):
        time.sleep(0.002)

    done = run(model, Clip([shade(0, (64, 96))] * 60), deadline=2e-6 * 64 * 96, observer=Callbacks(frame_written=wrote))
    assert done.outcome.size == done.outcome.smallest == (64, 96)
    assert done.outcome.late == 0
