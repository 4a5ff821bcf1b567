import json
import math
import random
import sys
import threading

import pytest

from streamseg.stream import latency
from streamseg.stream.latency import (
    STAGES,
    Histogram,
    Meter,
    bottleneck,
    format_progress,
    format_summary,
    summary_to_json,
)


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return Meter(clock)


def run(meter, clock, frames=100, wall=10.0, dropped=0, **stages):
    """A run with frames that all took the same time in each stage, and the same in all."""
    for _ in range(frames):
        meter.read()
        for name, seconds in stages.items():
            meter.stage(name, seconds)
        meter.labelled(0.038)
        meter.shown(0.060)
    for _ in range(dropped):
        meter.read()
        meter.dropped(1)
    clock.now += wall
    return meter.summary()


@pytest.mark.parametrize(
    "draw",
    [
        lambda dice: dice.lognormvariate(-3, 0.5),
        lambda dice: dice.uniform(0.001, 0.1),
        lambda dice: dice.expovariate(100),
        lambda dice: 0.02 if dice.random() < 0.9 else 3.0,
        lambda dice: dice.uniform(1000, 100_000),
    ],
)
@pytest.mark.parametrize("number", [1, 2, 17, 5000])
def test_percentiles_are_the_exact_ones_to_1_percent(draw, number):
    dice = random.Random(0)
    times = sorted(draw(dice) for _ in range(number))
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    spread = histogram.spread()
    for percent, found in ((50, spread.p50), (95, spread.p95), (99, spread.p99)):
        assert found == pytest.approx(times[math.ceil(number * percent / 100) - 1], rel=0.0105)
    assert spread.max == times[-1]


@pytest.mark.parametrize("seconds", [0.0, -1e-9, 1e-9, 1e9])
def test_no_time_is_too_short_or_too_long_to_count(seconds):
    histogram = Histogram()
    histogram.add(seconds)
    assert histogram.spread().p50 == pytest.approx(max(0, seconds))


def test_memory_does_not_grow_with_the_length_of_a_run(meter):
    def size():
        parts = (meter.latency.counts, meter.age.counts, meter.seconds, meter.frames, meter.threads, meter.frames_read)
        return sum(map(sys.getsizeof, parts))

    sizes = []
    for _ in range(2):
        for i in range(5000):
            meter.read("gate")
            meter.stage("network", 0.01)
            meter.labelled(i / 1000)
            meter.shown(i / 500)
        sizes.append(size())
    assert sizes[0] == sizes[1]


def test_a_summary_counts_frames_and_tells_their_times(meter, clock):
    summary = run(meter, clock, frames=90, dropped=10, wall=4.0, network=0.02, draw=0.01)
    assert (summary.read, summary.labelled, summary.written, summary.dropped) == (100, 90, 90, 10)
    assert summary.wall == 4.0
    assert summary.latency == latency.Spread(0.038, 0.038, 0.038, 0.038)
    assert summary.age == latency.Spread(0.060, 0.060, 0.060, 0.060)
    assert (summary.source_fps, summary.output_fps) == (25.0, 22.5)
    assert summary.network_fps == pytest.approx(50)
    assert list(summary.stages) == ["network", "draw"]
    assert summary.stages["network"].mean == pytest.approx(0.02)
    assert summary.stages["network"].share == pytest.approx(90 * 0.02 / 4)


def test_frames_of_a_batch_share_its_time(meter, clock):
    meter.stage("network", 0.1, frames=4)
    clock.now += 1
    summary = meter.summary()
    assert summary.stages["network"].mean == pytest.approx(0.025)
    assert summary.stages["network"].share == pytest.approx(0.1)
    assert summary.network_fps == pytest.approx(40)


def test_threads_that_do_the_same_at_once_are_busy_on_average(meter, clock):
    barrier = threading.Barrier(2)  # both are there at once, or the second might get the first one's number

    def work(busy):
        barrier.wait()
        meter.stage("decode", busy)
        barrier.wait()

    threads = [threading.Thread(target=work, args=(busy,)) for busy in (0.9, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 1
    assert meter.summary().stages["decode"].share == pytest.approx(0.7)


def test_threads_that_take_over_from_each_other_are_one(meter, clock):
    for _ in range(3):
        thread = threading.Thread(target=meter.stage, args=("decode", 0.3), name="read 0")
        thread.start()
        thread.join()
    clock.now += 1
    assert meter.summary().stages["decode"].share == pytest.approx(0.9)


def test_there_is_one_network_whoever_tells_of_it(meter, clock):
    # as on a GPU, where only who fetches the labels of a stream knows how long they took
    for number in range(4):
        thread = threading.Thread(target=meter.stage, args=("network", 0.2), name=f"draw {number}")
        thread.start()
        thread.join()
    clock.now += 1
    assert meter.summary().stages["network"].share == pytest.approx(0.8)


def test_nothing_is_lost_when_threads_tell_at_once(meter):
    def work():
        for _ in range(2000):
            meter.read("gate")
            meter.dropped(1, "gate")
            meter.stage("draw", 1.0)
            meter.labelled(0.1)
            meter.shown(0.1)
            if meter.frames_read["gate"] % 500 == 0:
                meter.summary()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    summary = meter.summary()
    assert (summary.read, summary.labelled, summary.written, summary.dropped) == (8000, 8000, 8000, 8000)
    assert sum(meter.latency.counts) == 8000
    assert meter.seconds["draw"] == 8000


@pytest.mark.parametrize("slow", STAGES)
def test_the_bottleneck_is_the_busiest_stage_with_advice(meter, clock, slow):
    times = dict.fromkeys(STAGES, 0.02) | {slow: 0.09}
    sentence = bottleneck(run(meter, clock, **times))
    assert sentence.startswith(f"Bottleneck: {slow}, busy 90 % of the time; ")
    assert "; use " in sentence
    assert sentence.endswith(".")


def test_a_live_source_that_all_keep_up_with_is_the_bottleneck(meter, clock):
    sentence = bottleneck(run(meter, clock, frames=250, network=0.038, draw=0.01))
    assert sentence == "Bottleneck: the source, at 25.0 frames a second; the rest keeps up."


def test_a_live_source_whose_frames_are_dropped_is_not(meter, clock):
    assert bottleneck(run(meter, clock, dropped=150, network=0.098)).startswith("Bottleneck: network, busy 98 %")


def test_a_live_source_that_was_silent_is_the_bottleneck_whatever_was_dropped(meter, clock):
    meter.waited(9.0, "gate")  # until it was open
    meter.read("gate")
    meter.read("yard")
    meter.waited(0.1, "gate")
    assert bottleneck(run(meter, clock, dropped=150, network=0.098)).startswith("Bottleneck: network, busy 98 %")
    meter.waited(5.5, "gate")
    meter.waited(1.0, "yard")
    assert bottleneck(meter.summary()) == "Bottleneck: the source gate, which was silent for 5.5 of 10.0 s."


def test_a_run_without_frames_has_a_summary_too(meter):
    summary = meter.summary()
    assert bottleneck(summary) == "No frame was labelled."
    assert "0 read" in format_summary(summary)
    assert format_progress(summary) == "frame 0 · 0.0 fps"
    assert summary_to_json(summary)["latency_ms"] is None


def test_a_table_shows_a_run_in_few_aligned_lines(meter, clock):
    summary = run(meter, clock, frames=1000, wall=40.0, dropped=20, decode=0.003, network=0.036, encode=0.012)
    assert format_summary(summary).splitlines() == [
        "frames      1,020 read, 1,000 labelled, 1,000 written, 20 dropped (2.0 %)",
        "fps         source 25.5, network 27.8, output 25.0, in 40.0 s",
        "",
        "                   p50         p95         p99         max",
        "latency        38.0 ms     38.0 ms     38.0 ms     38.0 ms",
        "mask age       60.0 ms     60.0 ms     60.0 ms     60.0 ms",
        "",
        "               a frame        busy",
        "decode          3.0 ms         8 %  ███",
        "network        36.0 ms        90 %  ████████████████████████████████████",
        "encode         12.0 ms        30 %  ████████████",
        "",
        "Bottleneck: network, busy 90 % of the time; use a smaller --size, on a CPU",
        "--precision int8 (exported files: export --int8), or a faster --device.",
    ]


def watch(meter, stream, frames=1500, dropped=0, latency=0.02):
    """Tell of a live stream."""
    for _ in range(frames):
        meter.read(stream)
        meter.waited(0.03, stream)
        meter.labelled(latency, stream)
    meter.dropped(dropped, stream)


def test_a_table_of_several_streams_tells_what_became_of_each(meter, clock):
    watch(meter, "gate", dropped=3)
    watch(meter, "yard", latency=0.04)
    meter.reconnected("yard")
    meter.waited(2.0, "cellar")  # which never sent anything
    clock.now += 60
    lines = format_summary(meter.summary(), meter.stream_summaries()).splitlines()
    assert [line for line in lines if line.startswith(("stream", "gate", "yard", "cellar"))] == [
        "stream                          frames   dropped       p50       p95  reconnects",
        "gate                             1,500     0.2 %   20.0 ms   20.0 ms           0",
        "yard                             1,500     0.0 %   40.0 ms   40.0 ms           1",
        "cellar                               0     0.0 %         -         -           0",
    ]


def test_files_and_a_single_stream_have_no_table_of_streams(meter, clock):
    watch(meter, "gate")
    assert "stream " not in format_summary(meter.summary(), meter.stream_summaries())
    meter = Meter()
    meter.read("a")
    meter.read("b")
    assert "stream " not in format_summary(meter.summary(), meter.stream_summaries())


def test_of_many_streams_the_table_shows_the_worst(meter, clock):
    for i in range(200):
        watch(meter, f"camera{i}", 10, dropped=1 if i % 20 == 7 else 0, latency=0.5 if i in (3, 150) else 0.01)
    clock.now += 1
    lines = format_summary(meter.summary(), meter.stream_summaries()).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("camera")]
    assert shown == [
        "camera3",
        "camera7",
        *(f"camera{i}" for i in range(27, 150, 20)),
        "camera150",
        "camera167",
        "camera187",
    ]
    assert "and 188 more with fewer dropped frames; --json has all of them" in lines


@pytest.mark.parametrize("scale", [1e-5, 1, 1000])
def test_no_line_is_wider_than_a_terminal(meter, clock, scale):
    for i in range(40):
        meter.read(f"a camera with a name {i}")
    meter.frames_read["gate"] = meter.frames_labelled = meter.frames_written = 123_456_789
    meter.dropped(12_345_678, "gate")
    for name in STAGES:
        meter.stage(name, 3 * scale)
    meter.labelled(9.9 * scale)
    meter.shown(99.9 * scale)
    clock.now += 9.9 * scale
    meter.waited(1.0, "gate")
    summary = meter.summary()
    assert max(map(len, format_summary(summary, meter.stream_summaries()).splitlines())) <= 80
    for total in (None, 987_654_321):
        assert len(format_progress(summary, total)) <= 79
        assert format_progress(summary, total).endswith("dropped 12345678")


def test_a_line_of_79_letters_is_whole_and_one_of_80_loses_what_matters_least(meter, clock):
    meter.frames_labelled = meter.frames_written = 100
    meter.labelled(0.038)
    meter.shown(0.06)
    clock.now += 10
    wanted = "frame 101 · 10.1 fps · latency 38 ms (p95 38) · mask age 60 ms · dropped "
    for digits, whole in ((79 - len(wanted), True), (80 - len(wanted), False)):
        meter.frames_dropped["gate"] = 10 ** (digits - 1)
        shown = format_progress(meter.summary())
        assert ("mask age" in shown) == whole
        assert shown.endswith(f"dropped {10 ** (digits - 1)}")
        assert len(shown) == 79 or not whole


def test_the_live_line_tells_where_a_run_stands(meter, clock):
    summary = run(meter, clock, frames=312, wall=12.58, dropped=12)
    assert format_progress(summary) == "frame 312 · 24.8 fps · latency 38 ms (p95 38) · mask age 60 ms · dropped 12"


@pytest.mark.parametrize(
    ("total", "shown"), [(1500, "frame 312/1500 (20 %)"), (312, "frame 312/312 (100 %)"), (311, "frame 312")]
)
def test_the_live_line_tells_how_far_it_is_unless_a_video_was_wrong_about_its_length(meter, clock, total, shown):
    summary = run(meter, clock, frames=312, wall=12.58)
    assert format_progress(summary, total) == f"{shown} · 24.8 fps · latency 38 ms (p95 38) · mask age 60 ms"


def test_times_of_many_seconds_are_told_in_seconds(meter, clock):
    meter.labelled(12.3)
    clock.now += 20
    assert "12.3 s" in format_summary(meter.summary())
    assert "latency 12 s (p95 12)" in format_progress(meter.summary())


def test_json_holds_what_the_table_shows(meter, clock):
    meter.reconnected()
    summary = run(meter, clock, dropped=50, network=0.05)
    found = json.loads(json.dumps(summary_to_json(summary, meter.stream_summaries())))
    assert found["frames"] == {"read": 150, "labelled": 100, "written": 100, "dropped": 50}
    assert found["fps"] == {"source": 15.0, "network": pytest.approx(20), "output": 10.0}
    assert found["latency_ms"] == dict.fromkeys(("p50", "p95", "p99", "max"), pytest.approx(38))
    assert found["mask_age_ms"]["max"] == pytest.approx(60)
    assert found["stages"] == {"network": {"ms_per_frame": pytest.approx(50), "busy": pytest.approx(0.5)}}
    spread = dict.fromkeys(("p50", "p95", "p99", "max"), pytest.approx(38))
    assert found["streams"] == {
        "": {
            "read": 150,
            "labelled": 100,
            "dropped": 50,
            "latency_ms": spread,
            "reconnects": 1,
            "silent_seconds": 0.0,
        }
    }
    assert found["bottleneck"].startswith("Bottleneck: network")


def test_preparation_is_not_part_of_the_time_of_a_run(meter, clock):
    meter.read("a")
    clock.now += 5.0
    meter.prepared(4.0)
    meter.stage("network", 1.0)
    summary = meter.summary()
    assert summary.wall == 1.0
    assert summary.stages["network"].share == 1.0
    assert "in 1.0 s after 4.0 s of preparation" in format_summary(summary)
    assert summary_to_json(summary)["preparation_seconds"] == 4.0
