"""Data sets packed into shards: a few large tar files instead of many small files, on a disk or in an object store.

A folder of shards holds, for each split, SPLIT-00000.tar, … and the index SPLIT.json with the position of each frame:

    00000007/NAME.image.jpg     the picture, a copy of its file
    00000007/NAME.labels.png    its labels: each pixel the number of its class, 255 for none

Any reader of tar files or of WebDataset can read them from start to end. Here each frame is read by itself from the
middle of its shard, so that training gets the same frames in the same order as from the original files.
"""

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from streamseg.classes import IGNORE, Classes
from streamseg.data.datasets import DATASETS, Dataset, in_parallel, list_splits
from streamseg.data.labels import translate
from streamseg.data.layouts import Pair
from streamseg.io.checksums import BLANK_CHECKSUM, check_bytes, damaged_file_error, pop_checksum, write_checksum
from streamseg.io.files import written_whole
from streamseg.io.images import read_downloaded, read_downloaded_label_ids, write_labels
from streamseg.io.stores import read_range, read_text
from streamseg.io.web import is_address, restore_address

MEGABYTES = 256
"""Size of a shard; its last frame may exceed it."""


class ByteRange(NamedTuple):
    """Position of a file in a shard."""

    start: int
    size: int
    crc32: int | None = None
    """Checksum of the bytes; older shards have none."""


class PackedFrame(NamedTuple):
    """Position of a frame and its labels."""

    shard: str
    stem: str
    suffix: str
    """Suffix of the picture's name."""
    image: ByteRange
    labels: ByteRange


def open_dataset(name: str, data: Path, split: str) -> Dataset:
    """Open one split of a data set, from its files, or from shards on a disk or in an object store."""
    index = read_text(f"{restore_address(data)}/{split}.json")
    if index is None:
        return DATASETS[name](data, split)
    check_bytes(f"{data / split}.json", index.encode())
    try:
        entry = json.loads(index)
        pop_checksum(f"{data / split}.json", entry)
        classes = Classes(tuple(entry["classes"]), tuple(map(tuple, entry["colours"])))
        dataset, pairs, spans = entry["dataset"], [], dict[Path, ByteRange]()
        for number, (shard, stem, suffix, image, labels) in enumerate(entry["frames"]):
            folder = data / shard / f"{number:08}"
            pair = Pair(folder / f"{stem}.image{suffix}", folder / f"{stem}.labels.png")
            spans |= {pair.image: to_byte_range(image), pair.labels: to_byte_range(labels)}
            pairs.append(pair)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{data / split}.json is not an index of shards: pack the data set again.") from error
    if dataset != name:
        raise ValueError(
            f"{restore_address(data)} holds shards of {dataset}, not of {name}: choose a recipe for {dataset}."
        )
    return Dataset(
        name,
        split,
        classes,
        tuple(pairs),
        read_labels=partial(read_labels, spans, len(classes)),
        read_image=partial(read_image, spans),
        size_of=partial(size_of, spans),
    )


def has_split(name: str, data: Path, split: str) -> bool:
    """Return whether a data set has a split of its own by this name, in its files or in shards."""
    if read_text(f"{restore_address(data)}/{split}.json") is not None:
        return True
    if is_address(restore_address(data)):
        return False  # a store holds shards only
    # a folder of shards, with other splits, has no files to list
    return not any(data.glob("*-00000.tar")) and bool(getattr(list_splits(name, data).get(split), "pairs", ()))


def to_byte_range(numbers: list[int]) -> ByteRange:
    """Return a position in a shard from the numbers of an index."""
    span = ByteRange(*numbers)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{numbers} is not a position in a shard.")
    return span


def read_image(spans: Mapping[Path, ByteRange], path: Path) -> Tensor:
    """Read a frame from a shard."""
    return read_downloaded(fetch(spans, path), restore_address(path))[0]


def read_labels(spans: Mapping[Path, ByteRange], classes: int, path: Path) -> Tensor:
    """Read labels from a shard."""
    label_of = {label: label for label in (*range(classes), IGNORE)}
    return translate(read_downloaded_label_ids(fetch(spans, path), restore_address(path)), label_of, path)


def size_of(spans: Mapping[Path, ByteRange], path: Path) -> int:
    """Return the size of a file in a shard."""
    return spans[path].size


def fetch(spans: Mapping[Path, ByteRange], path: Path) -> io.BytesIO:
    """Read a file from a shard; its path is that of the shard, a number and a name."""
    shard, span = restore_address(path.parents[1]), spans[path]
    data = read_range(shard, span.start, span.size)
    if span.crc32 not in (None, zlib.crc32(data)):
        raise damaged_file_error(shard)
    return io.BytesIO(data)


def pack(
    name: str,
    data: Path,
    out: Path,
    splits: tuple[str, ...] = (),
    *,
    megabytes: float = MEGABYTES,
    threads: int = 2,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Pack splits of a data set, by default all, into shards; returns the number of frames of each.

    Args:
        progress: Called after each frame with the number of frames done and the total.
    """
    datasets = [DATASETS[name](data, split) for split in splits or list_splits(name, data)]
    for dataset in datasets:
        if (out / f"{dataset.split}.json").exists():
            raise ValueError(f"{out} already holds shards of the split {dataset.split}: give another folder.")
    out.mkdir(parents=True, exist_ok=True)
    done, total = 0, sum(map(len, datasets))
    for dataset in datasets:
        frames = []
        for frame in pack_split(dataset, out, megabytes * 2**20, threads):
            frames.append(frame)
            done += 1
            progress(done, total)
        index = {"dataset": name, "classes": dataset.classes.names, "colours": dataset.classes.colours}
        with written_whole(out / f"{dataset.split}.json") as temporary:
            temporary.write_text(
                json.dumps({**index, "frames": frames, "checksum": BLANK_CHECKSUM}) + "\n", encoding="utf-8"
            )
            write_checksum(temporary)
    return {dataset.split: len(dataset) for dataset in datasets}


def pack_split(dataset: Dataset, out: Path, max_bytes: float, threads: int) -> Iterator[PackedFrame]:
    """Write the shards of a split and yield the positions of its frames; an unfinished shard leaves no file."""
    encoded = in_parallel(partial(encode, dataset), range(len(dataset)), threads)
    tar, count = None, 0
    with ExitStack() as files:
        for number, (pair, (image, labels)) in enumerate(zip(dataset.pairs, encoded, strict=True)):
            if tar is None or tar.offset >= max_bytes:
                files.close()
                shard, count = f"{dataset.split}-{count:05}.tar", count + 1
                temporary = files.enter_context(written_whole(out / shard))
                tar = files.enter_context(tarfile.open(temporary, "w"))
            # WebDataset takes everything after the first dot as the suffix
            stem, suffix = pair.image.stem.replace(".", "_"), pair.image.suffix.lower()
            path = f"{number:08}/{stem}"
            yield PackedFrame(
                shard,
                stem,
                suffix,
                append(tar, f"{path}.image{suffix}", image),
                append(tar, f"{path}.labels.png", labels),
            )


def encode(dataset: Dataset, i: int) -> tuple[bytes, bytes]:
    """Return the contents of a frame's file and of its label file, after checking that both can be read."""
    _, labels = dataset[i]
    file = io.BytesIO()
    write_labels(file, labels, dataset.classes)
    return dataset.pairs[i].image.read_bytes(), file.getvalue()


def append(tar: tarfile.TarFile, name: str, data: bytes) -> ByteRange:
    """Add a file to a shard, and return its position."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
    padded = -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return ByteRange(tar.offset - padded, len(data), zlib.crc32(data))
