import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from clips import cut, make_clip
from commands import run
from limits import full_disk
from pyarrow import parquet

import streamseg
from streamseg import cli
from streamseg.deploy import archive
from streamseg.deploy.archive import (
    ArchiveSettings,
    ArchiveWorker,
    Report,
    find_finished,
    find_videos,
    format_report,
    open_archive,
)
from streamseg.io.stores import open_store, read_text
from streamseg.io.video_reading import read_label_video
from streamseg.stream.settings import DrawStyle
from streamseg.stream.state import LastFrames

SETTINGS = ArchiveSettings(None, LastFrames(1))

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install '.[distributed]'")


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Four videos on two days; one is cut short, and one is not a video."""
    folder = tmp_path_factory.mktemp("videos")
    for name, frames in (("day1/a.mp4", 4), ("day1/b.mp4", 6), ("day2/a.mp4", 5), ("day2/cut.mkv", 60)):
        (folder / name).parent.mkdir(exist_ok=True)
        make_clip(folder / name, frames, size=(64, 96))
    cut(folder / "day2" / "cut.mkv", 0.5)
    (folder / "day2" / "none.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture(scope="module")
def make_worker():
    return lambda out, settings=SETTINGS: ArchiveWorker(settings, str(out), "cpu")


@pytest.fixture
def labelled_here(monkeypatch):
    """Run the work of the cluster in this process; the list of folders that were labelled, in order."""
    folders = []

    def map_here(worker, arguments, rows, *, gpus):
        work = worker(*arguments, "cpu")
        for row in rows:
            folders.append(row["folder"])
            yield work(row)

    class NoCluster:
        def __init__(self, address):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("streamseg.parallel.cluster.require_ray", lambda: None)
    monkeypatch.setattr("streamseg.parallel.cluster.ray_cluster", NoCluster)
    monkeypatch.setattr("streamseg.parallel.cluster.map_on_cluster", map_here)
    return folders


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def read_labels(path):
    return [labels for labels, _ in read_label_video(path)]


def test_the_folder_of_a_video_is_its_path(videos, tmp_path):
    root, found = find_videos([f"{videos}/**/*.mp4"], str(tmp_path))
    assert root == str(videos)
    assert [video.folder for video in found] == ["day1/a.mp4", "day1/b.mp4", "day2/a.mp4", "day2/none.mp4"]
    assert [Path(video.address) for video in found] == [videos / video.folder for video in found]
    assert [video.size for video in found] == [(videos / video.folder).stat().st_size for video in found]
    root, found = find_videos([str(videos / "day2"), str(videos / "day1" / "b.mp4")], str(tmp_path))
    assert root == str(videos)
    assert [video.folder for video in found] == ["day2/a.mp4", "day2/cut.mkv", "day2/none.mp4", "day1/b.mp4"]
    # the names decide, not the videos that they match
    assert find_videos([f"{videos}/*/b.mp4"], str(tmp_path))[0] == str(videos)


def test_videos_can_be_given_as_a_list(videos, tmp_path):
    (tmp_path / "list.txt").write_text(f"{videos}/day1\n{videos}/day2/a.mp4\n")
    root, found = find_videos([str(tmp_path / "list.txt")], str(tmp_path / "out"))
    assert (root, len(found)) == (str(videos), 3)


def test_results_in_the_same_folder_are_not_taken_for_videos(videos, tmp_path):
    shutil.copytree(videos, tmp_path, dirs_exist_ok=True)
    make_clip(tmp_path / "overlay.mp4", 1)
    (tmp_path / "out" / "day1" / "a.mp4").mkdir(parents=True)
    shutil.move(tmp_path / "overlay.mp4", tmp_path / "out" / "day1" / "a.mp4" / "overlay.mp4")
    _, found = find_videos([f"{tmp_path}/**/*.mp4"], str(tmp_path / "out"))
    assert [video.folder for video in found] == ["day1/a.mp4", "day1/b.mp4", "day2/a.mp4", "day2/none.mp4"]


def test_a_folder_whose_name_only_begins_like_the_results_is_searched(tmp_path):
    for place in ("out-2/a.mp4", "output/b.mp4", "out.mp4", "out/c.mp4/overlay.mp4"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"a video")
    _, found = find_videos([f"{tmp_path}/**/*.mp4"], str(tmp_path / "out"))
    assert sorted(video.folder for video in found) == ["out-2/a.mp4", "out.mp4", "output/b.mp4"]


def test_names_that_match_no_video_are_rejected(videos, tmp_path):
    with pytest.raises(FileNotFoundError, match="No video at .*/nothing: looked for .mp4"):
        find_videos([f"{videos}/nothing"], str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"No video at .*/\*.png"):
        find_videos([f"{videos}/*.png"], str(tmp_path))


def test_labels_and_statistics_of_each_frame_are_written(videos, tmp_path, make_worker):
    row = make_worker(tmp_path)({"address": str(videos / "day1" / "b.mp4"), "folder": "day1/b.mp4"})
    assert row == {"folder": "day1/b.mp4", "frames": 6, "problem": "", "stop": ""}
    assert files(tmp_path) == ["day1/b.mp4/frames.parquet", "day1/b.mp4/labels.mkv"]
    model, classes = streamseg.load()
    expected = [labels for _, labels in streamseg.label_frames(model, streamseg.read_frames(videos / "day1" / "b.mp4"))]
    found = read_labels(tmp_path / "day1" / "b.mp4" / "labels.mkv")
    assert all(ours.equal(theirs) for ours, theirs in zip(found, expected, strict=True))
    table = parquet.read_table(tmp_path / "day1" / "b.mp4" / "frames.parquet").to_pydict()
    assert table["frame"] == [0, 1, 2, 3, 4, 5]
    assert table["seconds"] == pytest.approx([0.0, 0.04, 0.08, 0.12, 0.16, 0.2])
    assert all(latency > 0 for latency in table["latency_ms"])
    for number, name in enumerate(classes.names):
        shares = [(labels == number).float().mean().item() for labels in expected]
        assert table[f"share_{name}"] == pytest.approx(shares, abs=1e-6)


def test_overlays_and_confidence_are_written_on_request(videos, tmp_path, make_worker):
    settings = replace(SETTINGS, overlay=True, labels=False, confidence=True)
    make_worker(tmp_path, settings)({"address": str(videos / "day1" / "a.mp4"), "folder": "a.mp4"})
    assert files(tmp_path) == ["a.mp4/confidence.mkv", "a.mp4/frames.parquet", "a.mp4/overlay.mp4"]


def test_the_readable_part_of_a_damaged_video_is_labelled_with_a_problem(videos, tmp_path, make_worker):
    row = make_worker(tmp_path)({"address": str(videos / "day2" / "cut.mkv"), "folder": "cut.mkv"})
    assert 0 < row["frames"] < 60
    assert row["problem"].startswith(f"{videos}/day2/cut.mkv is cut short: only ")
    assert files(tmp_path) == ["cut.mkv/frames.parquet", "cut.mkv/labels.mkv", "cut.mkv/problem.txt"]
    assert find_finished(str(tmp_path)) == ({"cut.mkv"}, {"cut.mkv": row["problem"]})


def test_a_file_that_is_not_a_video_is_a_problem_and_writes_nothing(videos, tmp_path, make_worker):
    row = make_worker(tmp_path)({"address": str(videos / "day2" / "none.mp4"), "folder": "none.mp4"})
    assert row["frames"] == 0
    assert row["problem"].startswith(f"{videos}/day2/none.mp4 is not a video that can be read")
    assert files(tmp_path) == []


def test_a_full_disk_stops_the_job(videos, tmp_path, make_worker, monkeypatch, labelled_here):
    work = make_worker(tmp_path)
    with full_disk(400):
        row = work({"address": str(videos / "day1" / "b.mp4"), "folder": "b.mp4"})
    assert row["stop"].startswith(f"Could not write {tmp_path}/b.mp4")
    assert files(tmp_path) == []
    monkeypatch.setattr(ArchiveWorker, "__call__", lambda self, row: {"stop": "Could not write x: Full."})
    with pytest.raises(OSError, match="^Could not write x: Full. Finished videos are kept: run the same command"):
        archive.segment_archive([f"{videos}/day1"], str(tmp_path / "out"), SETTINGS, "local")


@pytest.mark.slow
def test_a_job_labels_unfinished_videos_only(videos, tmp_path, labelled_here):
    out = tmp_path / "out"
    finished = []
    report = archive.segment_archive(
        [f"{videos}/**/*.mp4"], str(out), SETTINGS, "local", progress=lambda report: finished.append(report.finished)
    )
    assert labelled_here == ["day1/b.mp4", "day2/a.mp4", "day1/a.mp4", "day2/none.mp4"]  # the largest first
    assert (report.videos, report.finished, report.frames) == (4, 3, 15)
    assert finished == [1, 2, 3, 3]
    assert list(report.problems) == ["day2/none.mp4"]
    assert json.loads((out / "report.json").read_text())["frames"] == 15
    whole = {name: (out / name).read_bytes() for name in files(out) if name.endswith("labels.mkv")}

    # unfinished folders are removed, missing results are made again, videos with problems are tried again
    (out / "day1" / ".streamseg-1").mkdir()
    shutil.rmtree(out / "day1" / "a.mp4")
    labelled_here.clear()
    report = archive.segment_archive([f"{videos}/**/*.mp4"], str(out), SETTINGS, "local")
    assert labelled_here == ["day1/a.mp4", "day2/none.mp4"]
    assert (report.finished_before, report.finished) == (2, 1)
    assert {name: (out / name).read_bytes() for name in whole} == whole  # byte by byte
    assert not (out / "day1" / ".streamseg-1").exists()

    labelled_here.clear()
    report = archive.segment_archive([f"{videos}/day1/*.mp4"], str(tmp_path / "other"), SETTINGS, "local")
    assert archive.segment_archive([f"{videos}/day1/*.mp4"], str(tmp_path / "other"), SETTINGS, "local").finished == 0
    assert labelled_here == ["b.mp4", "a.mp4"]


def test_videos_and_results_can_be_in_an_object_store(videos, labelled_here):
    store, path = open_store("memory://bucket")
    store.put(str(videos / "day1"), f"{path}/videos", recursive=True)
    job = ["memory://bucket/videos/*.mp4"], "memory://bucket/out", SETTINGS, "local"
    report = archive.segment_archive(*job)
    assert (report.finished, report.frames, report.problems) == (2, 10, {})
    assert store.exists(f"{path}/out/a.mp4/labels.mkv")
    assert json.loads(read_text("memory://bucket/out/report.json"))["videos"] == 2
    assert archive.segment_archive(*job).finished_before == 2
    assert labelled_here == ["b.mp4", "a.mp4"]
    store.rm(path, recursive=True)


def test_a_worker_that_keeps_dying_loses_only_its_video(videos, tmp_path, labelled_here, monkeypatch):
    monkeypatch.setattr("streamseg.parallel.cluster.map_on_cluster", lambda *_, **__: iter(()))
    report = archive.segment_archive([f"{videos}/day1"], str(tmp_path / "out"), SETTINGS, "local")
    assert report.problems["a.mp4"] == "a.mp4 was not finished: its worker failed or died 3 times."
    assert report.finished == 0


def test_an_archive_is_continued_with_the_same_settings_only(tmp_path):
    settings = archive.settings_as_json(SETTINGS, "/videos")
    open_archive(str(tmp_path / "new"), settings)
    open_archive(str(tmp_path / "new"), settings)
    other = archive.settings_as_json(replace(SETTINGS, window=LastFrames(2), size=(64, 96)), "/videos")
    with pytest.raises(ValueError, match=r"was created with different settings \(window, size\): give the same ones"):
        open_archive(str(tmp_path / "new"), other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for taken in (tmp_path / "full", tmp_path / "full" / "mine.txt"):
        with pytest.raises(ValueError, match="exists and is not an archive: give a new folder to write to.$"):
            open_archive(str(taken), settings)


def test_an_archive_that_was_begun_before_borders_and_colours_is_continued(tmp_path):
    (tmp_path / "old").mkdir()
    plain = archive.settings_as_json(SETTINGS, "/videos")
    style = {"alpha": 0.5, "only": [], "legend": False, "side_by_side": False}
    old = {name: value for name, value in plain.items() if name != "colours"} | {"style": style}
    bright = replace(SETTINGS, style=DrawStyle(borders=True, classes=streamseg.CAMVID))
    (tmp_path / "old" / "archive.json").write_text(json.dumps(old))
    for settings in (SETTINGS, bright):  # nothing is drawn
        open_archive(str(tmp_path / "old"), archive.settings_as_json(settings, "/videos"))
    with pytest.raises(ValueError, match=r"different settings \(colours\)"):
        open_archive(str(tmp_path / "old"), archive.settings_as_json(replace(SETTINGS, colours=True), "/videos"))

    (tmp_path / "old" / "archive.json").write_text(json.dumps(old | {"overlay": True}))
    open_archive(str(tmp_path / "old"), archive.settings_as_json(replace(SETTINGS, overlay=True), "/videos"))
    with pytest.raises(ValueError, match=r"different settings \(style\)"):
        open_archive(str(tmp_path / "old"), archive.settings_as_json(replace(bright, overlay=True), "/videos"))


@pytest.mark.parametrize("text", ['{"style": 3}', "", "{", "3", "[]x", "[1]", "null", "[" * 100_000])
def test_damaged_settings_of_an_archive_are_an_error(tmp_path, text):
    open_archive(str(tmp_path / "out"), archive.settings_as_json(SETTINGS, "/videos"))
    (tmp_path / "out" / "archive.json").write_text(text)
    with pytest.raises(ValueError, match="archive.json is damaged: restore it, or give another folder to write to.$"):
        open_archive(str(tmp_path / "out"), archive.settings_as_json(SETTINGS, "/videos"))


def test_damaged_statistics_of_a_video_are_an_error(tmp_path):
    (tmp_path / "frames.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="frames.parquet is damaged: remove it to label the video again.$"):
        archive.count_frames(str(tmp_path))


def test_an_archive_is_not_continued_with_other_weights_of_the_same_name(tmp_path):
    settings = replace(SETTINGS, weights=tmp_path / "mine.safetensors")
    settings.weights.write_bytes(b"some weights")
    open_archive(str(tmp_path / "out"), archive.settings_as_json(settings, "/videos"))
    moved = replace(settings, weights=tmp_path / "the same elsewhere")
    moved.weights.write_bytes(b"some weights")
    open_archive(str(tmp_path / "out"), archive.settings_as_json(moved, "/videos"))
    settings.weights.write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"was created with different settings \(weights\): give the same ones"):
        open_archive(str(tmp_path / "out"), archive.settings_as_json(settings, "/videos"))


def test_the_progress_of_a_job_is_a_line():
    report = Report(40, 10, 15, 1500, 60.0, 0.5, {"a.mp4": "bad"})
    assert format_report(report) == "25/40 videos  1,500 frames  25.0 frames/s  0:01:00 left  1 with problems"
    assert format_report(Report(40, 40)) == "40/40 videos  0 frames"


def test_the_command_line_continues_an_archive_with_overlays_of_before_there_was_a_palette(
    videos, tmp_path, labelled_here, monkeypatch, capsys
):
    command = ("segment", f"{videos}/day1", tmp_path / "out", "--ray", "--overlay", "--palette", "own", "--no-borders")
    assert run(monkeypatch, *command) == 0
    settings = json.loads((tmp_path / "out" / "archive.json").read_text())
    for name in ("borders", "classes"):
        del settings["style"][name]
    del settings["colours"]
    (tmp_path / "out" / "archive.json").write_text(json.dumps(settings))
    assert run(monkeypatch, *command) == 0
    assert len(labelled_here) == 2
    assert run(monkeypatch, *command[:5]) == 2
    assert "different settings (style)" in capsys.readouterr().err


def test_the_command_line_lists_problems_and_exits_with_1(videos, tmp_path, labelled_here, monkeypatch, capsys):
    assert run(monkeypatch, "segment", f"{videos}/day2", tmp_path / "out", "--ray", "--overlay") == 1
    output = capsys.readouterr()
    assert "2/3 videos" in output.out
    assert "none.mp4 is not a video that can be read" in output.err
    assert "cut.mkv is cut short" in output.err
    assert files(tmp_path / "out" / "a.mp4") == ["frames.parquet", "labels.mkv", "overlay.mp4"]


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["segment", "a", "b", "--ray"], ["a", "b", "--ray", "local", "--no-overlay", "--labels"]),
        (["segment", "--ray", "a", "b"], ["--ray", "local", "a", "b", "--no-overlay", "--labels"]),
        (["segment", "--ray", "auto", "a"], ["--ray", "auto", "a", "--no-overlay", "--labels"]),
        (["segment", "a", "--ray", "head:6379", "--overlay"], ["a", "--ray", "head:6379", "--overlay", "--labels"]),
        (["segment", "a", "--ray=ray://h:1", "--no-labels"], ["a", "--ray=ray://h:1", "--no-labels", "--no-overlay"]),
        (["evaluate", "--ray"], ["--ray", "local"]),
        (["segment", "a"], ["a"]),
    ],
)
def test_ray_stands_for_this_machine_labels_and_no_overlay(given, completed):
    assert cli.complete_ray(given) == given[:1] + completed


@pytest.mark.parametrize("option", [["--json", "a.json"], ["--show"], ["--deadline", "50"], ["--rate", "5"]])
def test_options_that_videos_on_a_cluster_do_not_have_are_refused(option, monkeypatch, capsys, labelled_here):
    assert run(monkeypatch, "segment", "a.mp4", "out", "--ray", *option) == 2
    assert "--ray labels videos into a folder" in capsys.readouterr().err


@needs_ray
def test_a_job_on_ray_survives_the_death_of_a_worker(tmp_path, monkeypatch, capsys):
    videos, out, alone = tmp_path / "videos", tmp_path / "out", tmp_path / "alone"
    videos.mkdir()
    for i in range(6):
        make_clip(videos / f"{i}.mp4", 30 + i, size=(64, 96))
    # the workers find what this process does
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    killed = []

    def kill():
        while not killed:
            time.sleep(0.02)
            if any(out.glob("*.mp4/frames.parquet")) and (begun := list(out.glob(".streamseg-*"))):
                for process in Path("/proc").glob("[0-9]*"):
                    if holds(process, begun):
                        killed.append(int(process.name))
                        os.kill(killed[0], signal.SIGKILL)
                        return

    threading.Thread(target=kill, daemon=True).start()
    assert run(monkeypatch, "segment", f"{videos}/*.mp4", out, "--ray", "local") == 0
    assert killed
    assert "6/6 videos  195 frames" in capsys.readouterr().out
    assert not list(out.glob(".streamseg-*"))
    work = ArchiveWorker(SETTINGS, str(alone), "cpu")
    for i in range(6):
        work({"address": str(videos / f"{i}.mp4"), "folder": f"{i}.mp4"})
        ours, theirs = (folder / f"{i}.mp4" / "labels.mkv" for folder in (out, alone))
        assert ours.read_bytes() == theirs.read_bytes()
    assert run(monkeypatch, "segment", f"{videos}/*.mp4", out, "--ray", "local") == 0
    assert "6/6 videos  0 frames" in capsys.readouterr().out


def holds(process, folders):
    """Whether a process has a file open in one of the folders."""
    try:
        opened = [handle.readlink() for handle in (process / "fd").iterdir()]
    except OSError:  # it has ended, or is not ours
        return False
    return any(file.parent in folders for file in opened)
