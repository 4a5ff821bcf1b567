"""Archives: many videos, each a separate stream, labelled by the workers of a Ray cluster.

Under OUT each video has a folder with its path and name:

    DIR/day1/a.mp4  ──▶  OUT/day1/a.mp4/labels.mkv, frames.parquet, overlay.mp4, …

A folder is written completely or not at all. Videos whose folder has a frames.parquet are finished, and are skipped
when the same command runs again. Videos and OUT may be on a disk or at an fsspec address, such as s3://bucket/folder.
"""

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from streamseg.classes import Classes
from streamseg.engine.open import open_engine
from streamseg.io.files import UNFINISHED
from streamseg.io.outputs import OutputFiles
from streamseg.io.resolve import READABLE_VIDEOS, absolute, is_list, read_list
from streamseg.io.sources import VideoFile
from streamseg.io.stores import (
    folder_of_pattern,
    is_on_disk,
    list_files,
    local_copy,
    open_store,
    read_text,
    write_folder,
    write_text,
)
from streamseg.io.web import is_address, redact
from streamseg.models.bundled import find_weights
from streamseg.parallel import cluster
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import Policy

STATISTICS, SETTINGS, REPORT, PROBLEM = "frames.parquet", "archive.json", "report.json", "problem.txt"
"""Files of an archive: statistics of a video, settings of the archive, report of a job, problem of a damaged video."""


@dataclass(frozen=True)
class ArchiveSettings:
    """How to label each video, and what to write; plain values, which are sent to the workers."""

    weights: Path | None
    """A file with the same path on every machine, or the name of bundled weights; None for the default of these."""
    window: Policy
    precision: str = ""
    cut: float | None = None
    size: tuple[int, int] | None = None
    overlay: bool = False
    labels: bool = True
    confidence: bool = False
    style: DrawStyle = field(default_factory=DrawStyle)
    trust: bool = False
    colours: bool = False


@dataclass(frozen=True)
class ArchiveVideo:
    """A video of an archive."""

    address: str
    folder: str
    """The folder of its results, relative to OUT."""
    size: int
    """In bytes."""


@dataclass
class Report:
    """The progress of a job."""

    videos: int
    finished_before: int
    finished: int = 0
    frames: int = 0
    """Of the videos that this job finished."""
    seconds: float = 0.0
    share: float = 1.0
    """How much of this job is done, by the bytes of its videos."""
    problems: dict[str, str] = field(default_factory=dict)
    """A sentence for each video that is damaged or could not be read, by its folder."""


class ArchiveWorker:
    """Labels videos, one after the other."""

    def __init__(self, settings: ArchiveSettings, out: str, device: str):
        self.settings, self.out = settings, out
        self.label_settings = load_label_settings(settings, torch.device(device))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Label a video; return its folder and frames, its problem, and a problem that must stop the whole job."""
        settings, label_settings = self.settings, self.label_settings
        if settings.precision == "int8":  # calibrated with the first frames of each video: a new engine for each
            label_settings = load_label_settings(settings, label_settings.device)
        result = {"folder": row["folder"], "frames": 0, "problem": "", "stop": ""}
        try:
            return result | segment_video(row["address"], self.out, row["folder"], settings, label_settings)
        except OSError as error:  # the results of other videos could not be written either
            return result | {"stop": str(error)}
        except (ValueError, MemoryError) as error:
            return result | {"problem": str(error) or "There is not enough memory for frames of this size."}


def load_label_settings(settings: ArchiveSettings, device: torch.device) -> LabelSettings:
    """Load the network of a job onto a device, and return it with the options for labelling."""
    engine, classes, _ = open_engine(settings.weights, device, settings.precision, trust=settings.trust)
    return LabelSettings(
        engine, classes, settings.window, settings.cut, settings.size, with_confidence=settings.confidence
    )


def segment_archive(
    names: Sequence[str],
    out: str,
    settings: ArchiveSettings,
    address: str,
    *,
    gpus: bool = True,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Label all videos that are not finished yet, and write the results under OUT; see the top of this file.

    Args:
        names: Videos, folders, patterns such as 'DIR/**/*.mp4', and lists (.txt) of these, all on one disk or store.
        address: The address of a Ray cluster; see cluster.ray_cluster.
        gpus: Whether to use GPUs, if there are any.
        progress: Called after each video.
    """
    cluster.require_ray()
    out = out.rstrip("/") if is_address(out) else str(absolute(out))
    root, videos = find_videos(names, out)
    open_archive(out, settings_as_json(settings, root))
    finished, problems = find_finished(out)
    begin, left = time.monotonic(), {video.folder: video for video in videos if video.folder not in finished}
    report = Report(len(videos), len(videos) - len(left))
    report.problems = {video.folder: problems[video.folder] for video in videos if video.folder in problems}
    if left:
        total = max(1, sum(video.size for video in left.values()))
        report.share = 0.0
        # largest first, so that no worker is left with a large video at the end
        rows = [asdict(video) for video in sorted(left.values(), key=lambda video: -video.size)]
        with cluster.ray_cluster(address):
            for row in cluster.map_on_cluster(ArchiveWorker, (settings, out), rows, gpus=gpus):
                if row["stop"]:
                    raise OSError(f"{row['stop']} Finished videos are kept: run the same command again to continue.")
                report.share += left.pop(row["folder"]).size / total
                if row["problem"]:
                    report.problems[row["folder"]] = row["problem"]
                report.finished += row["frames"] > 0
                report.frames += row["frames"]
                report.seconds = time.monotonic() - begin
                progress(report)
        for folder in left:
            report.problems[folder] = (
                f"{folder} was not finished: its worker failed or died {cluster.MAX_ATTEMPTS} times."
            )
        remove_unfinished(out)
        write_text(f"{out}/{REPORT}", json.dumps(asdict(report), indent=2) + "\n")
    return report


def format_report(report: Report) -> str:
    """Return the progress of a job as a line."""
    done = report.finished_before + report.finished
    line = f"{done}/{report.videos} videos  {report.frames:,} frames"
    if report.frames:
        line += f"  {report.frames / report.seconds:.1f} frames/s"
    if 0 < report.share < 0.999:
        left = round(report.seconds / report.share * (1 - report.share))
        line += f"  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
    return line + (f"  {len(report.problems)} with problems" if report.problems else "")


def segment_video(
    address: str, out: str, folder: str, settings: ArchiveSettings, label_settings: LabelSettings
) -> dict[str, Any]:
    """Label a video, unless it is finished already; return the number of its frames, and its problem if it has one.

    Raises an OSError if results cannot be written, and a ValueError if no frame can be read.
    """
    target = f"{out}/{folder}"
    if frames := count_frames(target):  # its worker died just after finishing it
        return {"frames": frames}
    records = io.StringIO()
    with local_copy(address) as path, write_folder(target, last=STATISTICS) as results:
        outputs = OutputFiles(
            results / "overlay.mp4" if settings.overlay else None,
            results / "labels.mkv" if settings.labels else None,
            results / "confidence.mkv" if settings.confidence else None,
            results / "colours.mp4" if settings.colours else None,
        )
        source = VideoFile(PurePosixPath(folder).stem, str(path))
        run = Pipeline([(source, outputs)], label_settings, settings.style, Meter(), records=records).run()
        problem = " ".join(run.problems).replace(str(path), redact(address))
        if not run.frames:
            raise ValueError(problem or f"No frame of {redact(address)} could be read.")
        if problem:
            (results / PROBLEM).write_text(problem + "\n", encoding="utf-8")
        write_statistics(results / STATISTICS, map(json.loads, records.getvalue().splitlines()), label_settings.classes)
    return {"frames": run.frames, "problem": problem}


def write_statistics(path: Path, records: Iterator[dict[str, Any]], classes: Classes) -> None:
    """Write a row for each frame: its number, time and latency, and the share of each class."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = list(records)
    columns = {
        "frame": pa.array([row["frame"] for row in rows], pa.int32()),
        "seconds": pa.array([row["seconds"] for row in rows], pa.float64()),
        "latency_ms": pa.array([row["latency_ms"] for row in rows], pa.float32()),
    }
    for name in classes.names:
        columns[f"share_{name}"] = pa.array([row["shares"].get(name, 0.0) for row in rows], pa.float32())
    parquet.write_table(pa.table(columns), path)


def count_frames(target: str) -> int:
    """Return the number of frames in a finished folder; 0 if there is none."""
    from pyarrow import parquet

    store, path = open_store(target)
    if not store.exists(f"{path}/{STATISTICS}"):
        return 0
    try:
        with store.open(f"{path}/{STATISTICS}") as file:
            return parquet.ParquetFile(file).metadata.num_rows
    except (ValueError, OSError):  # the base classes of pyarrow's errors
        raise ValueError(f"{redact(target)}/{STATISTICS} is damaged: remove it to label the video again.") from None


def find_videos(names: Sequence[str], out: str) -> tuple[str, list[ArchiveVideo]]:
    """Return the folder or address that contains all videos, and the videos that names stand for, except those in OUT.

    The folder of a video follows from the names alone: videos that are added later do not change it.
    """
    found: dict[str, int] = {}
    roots, stores = [], set()
    entries = [entry for name in names for entry in (list_entries(name) if is_list(name) else [name])]
    for entry in entries:
        store, path = open_store(entry)
        stores.add(store)
        matching = list_files(store, path, READABLE_VIDEOS)
        if not matching:
            raise FileNotFoundError(f"No video at {redact(entry)}: looked for {' '.join(READABLE_VIDEOS)}.")
        found |= matching
        roots.append(folder_of_pattern(store, path))
    if len(stores) > 1:
        raise ValueError("The videos are on different disks or stores: give those of one at a time.")
    _, results = open_store(out)
    root = os.path.commonpath(roots)
    return root, [
        ArchiveVideo(
            path if is_on_disk(store) else store.unstrip_protocol(path),
            PurePosixPath(path).relative_to(root).as_posix(),
            size,
        )
        for path, size in found.items()
        if not path.startswith(f"{results}/")
    ]


def list_entries(name: str) -> list[str]:
    """Return the names in a list file."""
    return [entry for entry, _ in read_list(Path(name))]


def settings_as_json(settings: ArchiveSettings, root: str) -> dict[str, Any]:
    """Return the settings that must be the same whenever an archive is continued."""
    weights = find_weights(settings.weights).read_bytes()
    values = {**asdict(settings), "window": repr(settings.window), "weights": hashlib.sha256(weights).hexdigest()}
    del values["trust"]
    return {"videos": root, **json.loads(json.dumps(values))}


def open_archive(out: str, settings: dict[str, Any]) -> None:
    """Create an archive, or check that it was created with the same settings; other folders are not touched."""
    store, path = open_store(out)
    if store.exists(f"{path}/{SETTINGS}"):
        before = read_settings(f"{out}/{SETTINGS}")
        drawn = settings["overlay"] or settings["colours"]
        compared = [name for name in settings if name != "style" or drawn]
        if changed := [name for name in compared if settings[name] != before.get(name)]:
            raise ValueError(
                f"The archive in {redact(out)} was created with different settings ({', '.join(changed)}): give the "
                "same ones to continue it, or another folder to write to."
            )
        return
    if store.exists(path) and not (store.isdir(path) and not store.ls(path)):
        raise ValueError(f"{redact(out)} exists and is not an archive: give a new folder to write to.")
    write_text(f"{out}/{SETTINGS}", json.dumps(settings, indent=2) + "\n")


def read_settings(address: str) -> dict[str, Any]:
    """Return the settings that an archive was created with; those that an older archive lacks have their defaults."""
    try:
        found = dict(json.loads(read_text(address) or ""))
        style = {**asdict(DrawStyle()), **found.get("style", {})}
        return {"colours": ArchiveSettings.colours, **found, "style": style}
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{redact(address)} is damaged: restore it, or give another folder to write to.") from None


def find_finished(out: str) -> tuple[set[str], dict[str, str]]:
    """Return the folders of the finished videos of an archive, and the problems of those that are damaged."""
    store, path = open_store(out)
    files = [PurePosixPath(file).relative_to(path) for file in store.find(path)]
    finished = {str(file.parent) for file in files if file.name == STATISTICS}
    damaged = [str(file.parent) for file in files if file.name == PROBLEM and str(file.parent) in finished]
    return finished, {
        folder: store.cat_file(f"{path}/{folder}/{PROBLEM}").decode(errors="replace").strip() for folder in damaged
    }


def remove_unfinished(out: str) -> None:
    """Remove unfinished folders of killed workers from a disk."""
    store, path = open_store(out)
    if is_on_disk(store):
        for folder in list(Path(path).rglob(f"{UNFINISHED}*")):
            shutil.rmtree(folder, ignore_errors=True)
