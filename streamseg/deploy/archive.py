"""Archives: many videos, each a stream of its own, labelled by the workers of a Ray cluster.

Under OUT each video gets a folder of its own name, in the folders that it lies in itself:

    DIR/day1/a.mp4  ──▶  OUT/day1/a.mp4/labels.mkv, frames.parquet, overlay.mp4, …

A folder appears whole or not at all: one that has its frames.parquet is finished, and is passed over when a job is
started again. Videos and OUT may be on a disk or at any address that fsspec knows, such as s3://bucket/folder.
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
from streamseg.io.resolve import VIDEO_SUFFIXES, absolute, is_list, read_list
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
from streamseg.models import checkpoint
from streamseg.parallel import cluster
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import Policy

STATISTICS, SETTINGS, REPORT, PROBLEM = "frames.parquet", "archive.json", "report.json", "problem.txt"
"""The files of an archive beside its videos: of each video, of all, of a job, and of a video that is damaged."""


@dataclass(frozen=True)
class ArchiveSettings:
    """What becomes of each video, and how; plain values, which travel to other machines."""

    weights: Path | None
    """A file under the same name on every machine; None for the weights that ship."""
    window: Policy
    precision: str = ""
    cut: float | None = None
    size: tuple[int, int] | None = None
    overlay: bool = False
    labels: bool = True
    confidence: bool = False
    style: DrawStyle = field(default_factory=DrawStyle)
    trust: bool = False


@dataclass(frozen=True)
class ArchiveVideo:
    """A video of an archive."""

    address: str
    place: str
    """Of its results, within OUT."""
    size: int
    """In bytes."""


@dataclass
class Report:
    """How a job stands."""

    videos: int
    finished_before: int
    finished: int = 0
    frames: int = 0
    """Of those that this job finished."""
    seconds: float = 0.0
    share: float = 1.0
    """How much of this job is done, by the bytes of its videos."""
    problems: dict[str, str] = field(default_factory=dict)
    """A sentence for each video that is damaged or could not be read, by its place."""


class ArchiveWorker:
    """Labels videos, one after the other."""

    def __init__(self, orders: ArchiveSettings, out: str, device: str):
        self.orders, self.out = orders, out
        self.labeller = open_labeller(orders, torch.device(device))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """What came of a video: its place and frames, a problem that it has, and one that must stop the whole job."""
        labeller, orders = self.labeller, self.orders
        if orders.precision == "int8":  # it learns from a video's first frames, and not from those of the video before
            labeller = open_labeller(orders, labeller.device)
        result = {"place": row["place"], "frames": 0, "problem": "", "stop": ""}
        try:
            return result | segment_video(row["address"], self.out, row["place"], labeller, orders)
        except OSError as error:  # what cannot be written now cannot be written for the other videos either
            return result | {"stop": str(error)}
        except (ValueError, MemoryError) as error:
            return result | {"problem": str(error) or "There is not enough memory for frames of this size."}


def open_labeller(orders: ArchiveSettings, device: torch.device) -> LabelSettings:
    """The network of a job, on a device."""
    engine, classes, _ = open_engine(orders.weights, device, orders.precision, trust=orders.trust)
    return LabelSettings(engine, classes, orders.window, orders.cut, orders.size, confident=orders.confidence)


def segment_archive(
    names: Sequence[str],
    out: str,
    orders: ArchiveSettings,
    address: str,
    *,
    gpus: bool = True,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Label every video that names stand for and that is not finished yet; see the top of this file.

    Args:
        names: Videos, folders, patterns such as 'DIR/**/*.mp4', and lists (.txt) of these, all on one disk or store.
        address: That of a Ray cluster; see cluster.connected.
        gpus: Whether GPUs are used, if there are any.
        progress: Told of each video that is done.
    """
    cluster.require_ray()
    out = out.rstrip("/") if is_address(out) else str(absolute(out))
    root, recordings = find_recordings(names, out)
    open_archive(out, describe_archive(orders, root))
    finished, problems = find_finished(out)
    begun, left = time.monotonic(), {one.place: one for one in recordings if one.place not in finished}
    report = Report(len(recordings), len(recordings) - len(left))
    report.problems = {one.place: problems[one.place] for one in recordings if one.place in problems}
    if left:
        # the largest first: at the end none is left that all others wait for
        whole = max(1, sum(one.size for one in left.values()))
        report.share = 0.0
        rows = [asdict(one) for one in sorted(left.values(), key=lambda one: -one.size)]
        with cluster.ray_cluster(address):
            for row in cluster.map_on_cluster(ArchiveWorker, (orders, out), rows, gpus=gpus):
                if row["stop"]:
                    raise OSError(f"{row['stop']} What is finished stays: the same command goes on from there.")
                report.share += left.pop(row["place"]).size / whole
                if row["problem"]:
                    report.problems[row["place"]] = row["problem"]
                report.finished += row["frames"] > 0
                report.frames += row["frames"]
                report.seconds = time.monotonic() - begun
                progress(report)
        for place in left:
            report.problems[place] = (
                f"{place} was not finished: its worker failed, or died {cluster.MAX_ATTEMPTS} times."
            )
        remove_unfinished(out)
        write_text(f"{out}/{REPORT}", json.dumps(asdict(report), indent=2) + "\n")
    return report


def format_report(report: Report) -> str:
    """How a job stands, in a line."""
    done = report.finished_before + report.finished
    told = f"{done}/{report.videos} videos  {report.frames:,} frames"
    if report.frames:
        told += f"  {report.frames / report.seconds:.1f} frames/s"
    if 0 < report.share < 0.999:
        left = round(report.seconds / report.share * (1 - report.share))
        told += f"  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
    return told + (f"  {len(report.problems)} with problems" if report.problems else "")


def segment_video(
    address: str, out: str, place: str, labeller: LabelSettings, orders: ArchiveSettings
) -> dict[str, Any]:
    """Label a video, unless it is finished already: how many frames, and what is wrong with it.

    An OSError says that results could not be written, a ValueError that there are none.
    """
    target = f"{out}/{place}"
    if frames := count_frames(target):  # its worker died just afterwards
        return {"frames": frames}
    records = io.StringIO()
    with local_copy(address) as path, write_folder(target, last=STATISTICS) as folder:
        results = OutputFiles(
            folder / "overlay.mp4" if orders.overlay else None,
            folder / "labels.mkv" if orders.labels else None,
            folder / "confidence.mkv" if orders.confidence else None,
        )
        source = VideoFile(PurePosixPath(place).stem, str(path))
        outcome = Pipeline([(source, results)], labeller, orders.style, Meter(), records=records).run()
        problem = " ".join(outcome.problems).replace(str(path), redact(address))
        if not outcome.frames:
            raise ValueError(problem or f"Not one frame of {redact(address)} can be read.")
        if problem:
            (folder / PROBLEM).write_text(problem + "\n", encoding="utf-8")
        write_statistics(folder / STATISTICS, map(json.loads, records.getvalue().splitlines()), labeller.classes)
    return {"frames": outcome.frames, "problem": problem}


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
    """How many frames a finished folder holds; 0 for one that is not there."""
    from pyarrow import parquet

    store, path = open_store(target)
    if not store.exists(f"{path}/{STATISTICS}"):
        return 0
    try:
        with store.open(f"{path}/{STATISTICS}") as file:
            return parquet.ParquetFile(file).metadata.num_rows
    except (ValueError, OSError):  # pyarrow's errors are of these kinds
        raise ValueError(
            f"{redact(target)}/{STATISTICS} is damaged: remove it, and the video is labelled again."
        ) from None


def find_recordings(names: Sequence[str], out: str) -> tuple[str, list[ArchiveVideo]]:
    """The videos that names stand for, but for those in OUT, and the folder or address that all of them lie in.

    What a video's place is follows from the names alone: others that are added later change nothing about it.
    """
    found: dict[str, int] = {}
    roots, stores = [], set()
    given = [entry for name in names for entry in (list_entries(name) if is_list(name) else [name])]
    for name in given:
        store, path = open_store(name)
        stores.add(store)
        matching = list_files(store, path, VIDEO_SUFFIXES)
        if not matching:
            raise FileNotFoundError(f"No video at {redact(name)}: looked for {' '.join(VIDEO_SUFFIXES)}.")
        found |= matching
        roots.append(folder_of_pattern(store, path))
    if len(stores) > 1:
        raise ValueError("The videos lie on different disks or stores: give those of one at a time.")
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
    """The names in a list."""
    return [entry for entry, _ in read_list(Path(name))]


def describe_archive(orders: ArchiveSettings, root: str) -> dict[str, Any]:
    """What must be the same whenever a job goes on."""
    weights = (orders.weights or checkpoint.BUNDLED).read_bytes()
    settings = {**asdict(orders), "window": repr(orders.window), "weights": hashlib.sha256(weights).hexdigest()}
    del settings["trust"]
    return {"videos": root, **json.loads(json.dumps(settings))}


def open_archive(out: str, settings: dict[str, Any]) -> None:
    """Begin an archive, or go on with one of the same settings; any other folder is left alone."""
    store, path = open_store(out)
    if store.exists(f"{path}/{SETTINGS}"):
        theirs = read_settings(f"{out}/{SETTINGS}")
        if changed := [name for name in settings if settings[name] != theirs.get(name)]:
            raise ValueError(
                f"The archive in {redact(out)} was begun with other {', '.join(changed)}: give the same ones to go on, "
                "or another folder to write to."
            )
        return
    if store.exists(path) and not (store.isdir(path) and not store.ls(path)):
        raise ValueError(f"{redact(out)} is there already, and no archive: give a new folder to write to.")
    write_text(f"{out}/{SETTINGS}", json.dumps(settings, indent=2) + "\n")


def read_settings(address: str) -> dict[str, Any]:
    """The settings that an archive was begun with."""
    try:
        return dict(json.loads(read_text(address) or ""))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{redact(address)} is damaged: restore it, or give another folder to write to.") from None


def find_finished(out: str) -> tuple[set[str], dict[str, str]]:
    """The places of the finished videos of an archive, and what is wrong with those that are damaged."""
    store, path = open_store(out)
    files = [PurePosixPath(file).relative_to(path) for file in store.find(path)]
    finished = {str(file.parent) for file in files if file.name == STATISTICS}
    damaged = [str(file.parent) for file in files if file.name == PROBLEM and str(file.parent) in finished]
    return finished, {
        place: store.cat_file(f"{path}/{place}/{PROBLEM}").decode(errors="replace").strip() for place in damaged
    }


def remove_unfinished(out: str) -> None:
    """Remove what killed workers left on a disk."""
    store, path = open_store(out)
    if is_on_disk(store):
        for folder in list(Path(path).rglob(f"{UNFINISHED}*")):
            shutil.rmtree(folder, ignore_errors=True)
