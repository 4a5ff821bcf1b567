import io
import json

import torch
from pipelines import Callbacks, Clip, changing_camera, run, shade

import streamseg
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.io.video_reading import open_video
from streamseg.regions.writing import region_writer
from streamseg.regions.zones import Lane, Zone
from streamseg.stream.region_outputs import RegionOutputs, RegionSettings

HALF = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))
CLASSES = streamseg.CAMVID
ROAD, CAR = CLASSES.names.index("Road"), CLASSES.names.index("Car")


def labels_with_car(left):
    labels = torch.full((40, 60), ROAD, dtype=torch.uint8)
    labels[10:20, left : left + 15] = CAR
    return labels


def examine(settings, frames, moving=True):
    outputs = RegionOutputs(settings, Clip([], "clip", moving=moving))
    for i, labels in enumerate(frames):
        seconds = i / 25 if moving else 0.0
        outputs.examine(Capture(torch.zeros(3, *labels.shape), f"picture{i}", i, seconds, 0.0), labels)
    return outputs


def test_regions_of_a_video_keep_their_ids():
    written = []
    examine(RegionSettings(CLASSES, written.append), [labels_with_car(2 * i) for i in range(4)])
    assert [[region.id for region in frame.regions] for frame in written] == [[1, 2]] * 4
    assert [frame.index for frame in written] == [0, 1, 2, 3]


def test_regions_of_pictures_have_no_ids():
    written = []
    examine(RegionSettings(CLASSES, written.append, 10, ("car",)), [labels_with_car(5)] * 2, moving=False)
    assert [[(region.name, region.id) for region in frame.regions] for frame in written] == [[("Car", None)]] * 2
    assert [frame.name for frame in written] == ["picture0", "picture1"]


def test_every_sink_gets_every_event_with_its_frame():
    one, two = [], []
    zone = Zone("left", HALF, ("Car",), debounce=0.04)
    frames = [labels_with_car(45)] * 2 + [labels_with_car(5)] * 3 + [labels_with_car(45)] * 3
    examine(RegionSettings(CLASSES, areas=(zone,), sinks=(one.append, two.append)), frames)
    assert one == two
    assert [(event["event"], event["frame"], event["seconds"]) for event in one] == [
        ("enter", 3, 0.12),
        ("leave", 6, 0.24),
    ]
    assert one[0].keys() == {"event", "zone", "class", "source", "name", "frame", "time", "seconds", "share"}
    assert (one[0]["zone"], one[0]["class"], one[0]["source"], one[0]["share"]) == ("left", "Car", "clip", 0.125)


def test_each_picture_begins_anew():
    sent = []
    zone = Zone("left", HALF, ("Car",), debounce=5)
    settings = RegionSettings(CLASSES, areas=(zone,), sinks=(sent.append,))
    examine(settings, [labels_with_car(5)] * 3, moving=False)
    assert [(event["event"], event["name"]) for event in sent] == [("enter", f"picture{i}") for i in range(3)]


def test_a_blocked_lane_reports_its_distance():
    sent = []
    labels = labels_with_car(0)
    labels[10:20] = CAR
    lane = Lane("lane", ((0.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)), ("Road",), min_distance=30, debounce=0)
    examine(RegionSettings(CLASSES, areas=(lane,), sinks=(sent.append,)), [labels])
    assert (sent[0]["event"], sent[0]["pixels"]) == ("blocked", 20)
    assert "class" not in sent[0]


def test_the_pipeline_writes_regions_of_several_sources_and_draws_zones(model, quick, tmp_path):
    file, sent = io.StringIO(), []
    zone = Zone("left", HALF, ("Car",), debounce=0)
    results = [OutputFiles(overlay=tmp_path / f"{name}.mp4") for name in "ab"]
    with region_writer(file, "lines", CLASSES) as write:
        settings = RegionSettings(CLASSES, write, areas=(zone,), sinks=(sent.append,))
        # the fake network gives a frame the label of its colour
        clips = [Clip([shade(value, (48, 64)) for value in (ROAD, CAR, ROAD)], name) for name in "ab"]
        done = run(model, *clips, results=results, regions=settings)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert done.outcome.frames == len(lines) == 6
    for name in "ab":
        own = [line for line in lines if line["source"] == name]
        assert [(line["frame"], line["regions"][0]["class"]) for line in own] == [(0, "Road"), (1, "Car"), (2, "Road")]
        events = [(event["event"], event["frame"]) for event in sent if event["source"] == name]
        assert events == [("enter", 1), ("leave", 2)]
        with open_video(tmp_path / f"{name}.mp4") as video:
            plain, active, _ = (frame.int() for frame, _ in video)
        # the zone's outline, in another colour than before, between two even halves
        assert (active[:, 40, 28:36] - active[:, 40, 44:52]).abs().max() > 40
        assert (plain[:, 40, 28:36] - plain[:, 40, 44:52]).abs().max() > 40


GATE = Zone("gate", ((0, 0), (60, 0), (60, 20)), ("Car",))
NO_FIT = "Zone 'gate' has the point [60, 0], outside of a frame that is 48 wide"


def test_a_zone_outside_of_the_frame_is_one_sentence(model, quick):
    done = run(model, Clip([shade(0)] * 9), regions=RegionSettings(CLASSES, areas=(GATE,)))
    (problem,) = done.outcome.problems
    assert problem.startswith(NO_FIT)
    assert done.outcome.frames == 0


def test_a_zone_that_fits_one_source_only_ends_the_other_alone(model, quick, tmp_path):
    results = [OutputFiles(overlay=tmp_path / f"{name}.mp4") for name in "ab"]
    clips = Clip([shade(0)] * 9, "a"), Clip([shade(0, (48, 64))] * 20, "b")
    done = run(model, *clips, results=results, regions=RegionSettings(CLASSES, areas=(GATE,)))
    (problem,) = done.outcome.problems
    assert problem.startswith(f"a: {NO_FIT}")
    assert done.outcome.frames == 20
    assert not results[0].overlay.exists()
    with open_video(results[1].overlay) as written:
        assert sum(1 for _ in written) == 20


def test_frames_before_a_failure_of_regions_are_kept(model, quick, tmp_path):
    def write(frame):
        if (frame.source, frame.index) == ("a", 4):
            raise OSError("No space left on device.")

    results = [OutputFiles(overlay=tmp_path / f"{name}.mp4") for name in "ab"]
    clips = [Clip([shade(0)] * 20, name) for name in "ab"]
    done = run(model, *clips, results=results, regions=RegionSettings(CLASSES, write))
    assert done.outcome.problems == ["a: No space left on device."]
    for files, length in zip(results, (4, 20), strict=True):
        with open_video(files.overlay) as video:
            assert sum(1 for _ in video) == length


def test_a_camera_that_no_longer_fits_its_zones_ends_with_its_frames(model, quick):
    camera = changing_camera(3, 2, 1)  # 48, 96 and 32 wide
    zone = Zone("gate", ((0, 0), (40, 0), (40, 20)), ("Car",))
    settings = RegionSettings(CLASSES, areas=(zone,))
    observer = Callbacks(frame_written=lambda capture, *_: capture.name == "camera" and camera.release(1))
    done = run(model, camera, Clip([shade(0)] * 5, "b"), observer=observer, regions=settings)
    (problem,) = done.outcome.problems
    assert problem.startswith("camera: Zone 'gate' has the point [40, 0], outside of a frame that is 32 wide")
    assert [record["frame"] for record in done.records if record["source"] == "camera"] == [0, 1, 2, 3, 4]
    assert sum(record["source"] == "b" for record in done.records) == 5
