from streamseg.serve.counters import Counter, Gauge, PrometheusHistogram, format_metrics, merge_metrics


def test_all_that_is_counted_is_in_the_format_of_prometheus():
    asked, taken = (
        Counter("asked_total", "What was asked."),
        PrometheusHistogram("taken_seconds", "How long.", (0.1, 1)),
    )
    asked.add(path="/a", status="200")
    asked.add(path="/a", status="200")
    asked.add(path="/b", status="404")
    for seconds in (0.1, 0.5, 7.0):
        taken.add(seconds)
    assert format_metrics([asked, taken, Gauge("open", "What is open.", lambda: 3)]).splitlines() == [
        "# HELP asked_total What was asked.",
        "# TYPE asked_total counter",
        'asked_total{path="/a",status="200"} 2',
        'asked_total{path="/b",status="404"} 1',
        "# HELP taken_seconds How long.",
        "# TYPE taken_seconds histogram",
        'taken_seconds_bucket{le="0.1"} 1',
        'taken_seconds_bucket{le="1"} 2',
        'taken_seconds_bucket{le="+Inf"} 3',
        "taken_seconds_sum 7.6",
        "taken_seconds_count 3",
        "# HELP open What is open.",
        "# TYPE open gauge",
        "open 3",
    ]


def test_a_count_above_a_million_is_exact_and_a_sum_has_no_more_digits_than_it_is_exact_to():
    frames = Counter("frames_total", "Frames.")
    frames.add(1_234_567, source="a")
    for _ in range(3):
        frames.add(0.1, source="b")
    assert [*frames.lines()][2:] == ['frames_total{source="a"} 1234567', 'frames_total{source="b"} 0.3']


def test_the_number_of_labels_without_any_is_0():
    frames = Counter("frames_total", "Frames.")
    frames.add(2, source="a")
    assert [frames.value(source=name) for name in ("a", "b")] == [2, 0]


def test_the_numbers_of_a_stream_are_forgotten_when_it_is_closed():
    frames = Counter("frames_total", "Frames.")
    for stream in ("1", "2", "2"):
        frames.add(stream=stream, answer="labelled")
    frames.add(0.5, stream="1", answer="rejected")
    frames.forget(stream="1")
    assert list(frames.lines())[2:] == ['frames_total{stream="2",answer="labelled"} 2']


def test_the_metrics_of_replicas_have_their_names_and_each_comment_once():
    lines = []
    for count in (2, 5):
        asked, waiting = Counter("asked_total", "What was asked."), Gauge("waiting", "What waits.", lambda: 1)
        asked.add(count, path="/a", status="200")
        lines.append([[*asked.lines()], [*waiting.lines()]])
    # one that has been asked nothing yet
    lines.append([[*Counter("asked_total", "What was asked.").lines()], lines[0][1]])
    assert merge_metrics(dict(zip(("x1", "y2", "z3"), lines, strict=True))).splitlines() == [
        "# HELP asked_total What was asked.",
        "# TYPE asked_total counter",
        'asked_total{replica="x1",path="/a",status="200"} 2',
        'asked_total{replica="y2",path="/a",status="200"} 5',
        "# HELP waiting What waits.",
        "# TYPE waiting gauge",
        'waiting{replica="x1"} 1',
        'waiting{replica="y2"} 1',
        'waiting{replica="z3"} 1',
    ]
