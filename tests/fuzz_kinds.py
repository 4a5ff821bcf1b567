"""The kinds of files that streamseg reads: a small original of each, and how to read all of it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """A kind of file that streamseg reads."""

    file: str
    """The file to damage, relative to the folder of the originals."""
    read: Callable[[Path], object]
    """Reads the whole file at a path; results are compared by their repr."""
    has_checksum: bool = False
    beside: tuple[str, ...] = ()
    """Other files and folders that reading needs."""
    share: int = 4
    """How often it is damaged, relative to other kinds."""


# originals


def make_originals(folder: Path, exported: Callable[[str], Path]) -> None:
    """Write a small file of each kind into a folder."""
    import torch
    from clips import make_clip, picture
    from PIL import Image
    from torch import nn

    import streamseg
    from streamseg.data import shards
    from streamseg.deploy import archive
    from streamseg.io.images import write_image
    from streamseg.io.tensors import write_tensors
    from streamseg.io.video_writing import open_label_writer
    from streamseg.models.bundled import find_weights
    from streamseg.models.encoder import resnet18
    from streamseg.stream.state import LastFrames, State
    from streamseg.train import resume

    torch.manual_seed(0)
    streamseg.save(
        streamseg.models.baselines.enet(3),
        streamseg.Classes(("a", "b", "c"), ((1, 2, 3),) * 3),
        folder / "w.safetensors",
    )
    streamseg.save_state(
        State(torch.rand(2, 8, 96), (1.0, 1.0), 0.5, torch.zeros(9, 9).byte()), folder / "s.safetensors"
    )
    shutil.copyfile(find_weights(), folder / "bundled.safetensors")
    for name in ("still.onnx", "fixed.xml", "fixed.bin", "fixed.pt2"):
        shutil.copyfile(exported(name), folder / name)
    strip_checksum(folder / "still.onnx", folder / "older.onnx")
    encoder = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in resnet18().state_dict().items()
    }
    torch.save(encoder, folder / "encoder.pth")
    write_tensors(folder / "encoder.safetensors", encoder, {"format": "pt"})
    resume.save_training_state(folder, 7, {"batch": 2, "leave_out": ""}, {"trainee": nn.Linear(64, 64)})
    (folder / "log.jsonl").write_text("".join(json.dumps({"step": i, "loss": 1 / i}) + "\n" for i in range(1, 9)))
    (folder / "run.json").write_text(
        json.dumps(
            {
                "config": {"dataset": "folder", "split": "train", "iterations": 6},
                "initial": "nothing",
                "sessions": [{"a": 1}],
            }
        )
    )

    data = folder / "data"
    for kind in ("images", "labels"):
        (data / kind).mkdir(parents=True)
    (data / "classes.txt").write_text("ground #804080\nbox\ndisc #0000ff\n")
    for i in range(6):
        noise = torch.randint(256, (40, 56, 3), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(data / "images" / f"{i}.png")
        Image.fromarray((noise[:, :, 0] % 3).numpy()).save(data / "labels" / f"{i}.png")
    (data / "train.txt").write_text("0\n1\n2.png\n3\n")
    (data / "val.txt").write_text("4\n5\n")
    shards.pack("folder", data, folder / "shards")

    frame = torch.randint(256, (3, 40, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for suffix in ("png", "jpg", "webp", "bmp", "tiff"):
        write_image(folder / f"a.{suffix}", frame)
    Image.fromarray(frame[0].numpy().astype("uint16") * 257).save(folder / "deep.png")
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / "a.gif")
    (folder / "list.txt").write_text("a.png\na.jpg\n")
    for name, codec in (
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.webm", "libvpx-vp9"),
        ("a.avi", "mpeg4"),
        ("a.ts", "libx264"),
    ):
        make_clip(folder / name, 25, codec=codec)
    make_clip(folder / "sound.mp4", 25, sound="aac")
    with open_label_writer(folder / "labels.mkv", (40, 56), Fraction(25)) as writer:
        for i in range(9):
            writer.write(picture(i, (40, 56))[0] % 11, i / 25)

    archive.open_archive(
        str(folder / "archive"), archive.settings_as_json(archive.ArchiveSettings(None, LastFrames(1)), "/videos")
    )
    rows = [{"frame": i, "seconds": i / 25, "latency_ms": 1.0, "shares": {}} for i in range(9)]
    archive.write_statistics(folder / "archive" / "frames.parquet", iter(rows), streamseg.CAMVID)


def strip_checksum(source: Path, target: Path) -> None:
    """Write an ONNX file as streamseg exported it before files had checksums."""
    import onnx

    model = onnx.load(source)
    entry = json.loads(model.metadata_props[0].value)
    del entry["checksum"]
    model.metadata_props[0].value = json.dumps(entry)
    onnx.save(model, target)


# readers; imports are inside, so that a child process loads only what its files need


def hash_tensors(tensors: dict) -> str:
    """Return a hash of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].contiguous().cpu()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode() + array.view(-1).numpy().tobytes())
    return digest.hexdigest()


def read_weights(path: Path) -> object:
    from streamseg.models import checkpoint

    model, description = checkpoint.read_checkpoint(path)
    assert checkpoint.describe(path) == description
    return hash_tensors(model.state_dict()), description


def read_stream_state(path: Path) -> object:
    import streamseg

    state = streamseg.load_state(path)
    tensors = {"contexts": state.contexts, "coarse": state.low_res_labels}
    tensors |= state.evidence._asdict() if state.evidence else {}
    return hash_tensors(tensors), state.weights, state.seconds


def read_exported(path: Path) -> object:
    import torch

    from streamseg import label_frame
    from streamseg.engine.runtime import open_exported

    path = path.with_name("fixed.xml") if path.suffix == ".bin" else path
    file = open_exported(path, trust=True)
    frame = torch.randint(256, (3, 72, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return file.manifest, hash_tensors({"labels": label_frame(file, frame)[0]})


def read_untrusted(path: Path) -> object:
    from streamseg.engine.runtime import open_exported

    open_exported(path)
    raise AssertionError("A .pt2 file was opened without trust.")


def read_encoder(path: Path) -> object:
    import torch

    from streamseg.models.encoder import load_imagenet, resnet18

    torch.manual_seed(0)
    encoder = resnet18()
    load_imagenet(encoder, path)
    return hash_tensors(encoder.state_dict())


def read_training_state(path: Path) -> object:
    import torch
    from torch import nn

    from streamseg.train import resume

    torch.manual_seed(1)
    part = nn.Linear(64, 64)
    step = resume.restore_training_state(path.parent, {"batch": 2, "leave_out": ""}, {"trainee": part})
    return step, hash_tensors(part.state_dict())


def read_run(path: Path) -> object:
    from streamseg.evaluate import reproduce
    from streamseg.train import runlog

    if path.name == "run.json":
        with suppress(ValueError):
            reproduce.read_run_summary(path)
        return runlog.read_run(path)
    runlog.RunLog(path.parent, 7, False)
    return runlog.summarise(path)


def read_data(path: Path) -> object:
    from streamseg.data.datasets import DATASETS
    from streamseg.evaluate.check import check_dataset, format_dataset_report

    data = next(folder for folder in path.parents if folder.name == "data")
    report = format_dataset_report(check_dataset("folder", data)).replace(str(data), "data")
    return report, sum(len(labels) for split in ("train", "val") for _, labels in DATASETS["folder"](data, split))


def read_shards(path: Path) -> object:
    from streamseg.data.shards import open_dataset

    found = {}
    for split in ("train", "val"):
        dataset = open_dataset("folder", path.parent, split)
        for i, (frame, labels) in enumerate(dataset):
            found |= {f"{split}{i}": frame, f"{split}{i}labels": labels}
    return hash_tensors(found), dataset.classes


def read_picture(path: Path) -> object:
    from streamseg.io.images import decode_upload, read_image, read_label_ids

    for read in (read_label_ids, lambda path: decode_upload(path.read_bytes(), 10**7)):
        with suppress(ValueError):
            read(path)
    return hash_tensors({"": read_image(path)})


def read_source(path: Path) -> object:
    from streamseg import read_frames

    return [hash_tensors({"": frame}) for frame in read_frames(path)]


def read_labels(path: Path) -> object:
    from streamseg.io.video_reading import read_label_video

    return [hash_tensors({"": labels}) for labels, _ in read_label_video(path)]


def read_archive(path: Path) -> object:
    from streamseg.deploy import archive
    from streamseg.stream.state import LastFrames

    out = str(path.parent)
    archive.open_archive(out, archive.settings_as_json(archive.ArchiveSettings(None, LastFrames(1)), "/videos"))
    return archive.count_frames(out), archive.find_finished(out)


DATA = ("data",)
KINDS = {
    "weights": Kind("w.safetensors", read_weights, True, share=12),
    "bundled weights": Kind("bundled.safetensors", read_weights, True, share=2),
    "stream state": Kind("s.safetensors", read_stream_state, True, share=8),
    "ONNX": Kind("still.onnx", read_exported, True, share=6),
    "ONNX without a checksum": Kind("older.onnx", read_exported, share=6),
    "OpenVINO .xml": Kind("fixed.xml", read_exported, True, ("fixed.bin",)),
    "OpenVINO .bin": Kind("fixed.bin", read_exported, True, ("fixed.xml",)),
    ".pt2 without trust": Kind("fixed.pt2", read_untrusted, share=2),
    ".pt2 with trust": Kind("fixed.pt2", read_exported, True, share=2),
    "encoder .pth": Kind("encoder.pth", read_encoder, True, share=2),
    "encoder .safetensors": Kind("encoder.safetensors", read_encoder, share=2),
    "training state": Kind("state.pt", read_training_state, True, share=8),
    "run.json": Kind("run.json", read_run),
    "log.jsonl": Kind("log.jsonl", read_run),
    "classes.txt": Kind("data/classes.txt", read_data, beside=DATA, share=8),
    "split list": Kind("data/train.txt", read_data, beside=DATA),
    "data set image": Kind("data/images/3.png", read_data, beside=DATA),
    "data set mask": Kind("data/labels/4.png", read_data, beside=DATA),
    "shard index": Kind("shards/train.json", read_shards, True, ("shards",)),
    "shard": Kind("shards/train-00000.tar", read_shards, True, ("shards",)),
    "PNG": Kind("a.png", read_picture),
    "16-bit PNG": Kind("deep.png", read_picture),
    "JPEG": Kind("a.jpg", read_picture),
    "WebP": Kind("a.webp", read_picture),
    "BMP": Kind("a.bmp", read_picture, share=2),
    "TIFF": Kind("a.tiff", read_picture),
    "GIF": Kind("a.gif", read_source, share=2),
    "picture list": Kind("list.txt", read_source, beside=("a.png", "a.jpg")),
    "MP4": Kind("a.mp4", read_source, share=6),
    "MP4 with sound": Kind("sound.mp4", read_source),
    "MKV": Kind("a.mkv", read_source, share=6),
    "WebM": Kind("a.webm", read_source, share=6),
    "AVI": Kind("a.avi", read_source),
    "transport stream": Kind("a.ts", read_source),
    "label video": Kind("labels.mkv", read_labels, True),
    "archive settings": Kind("archive/archive.json", read_archive, beside=("archive",), share=2),
    "video statistics": Kind("archive/frames.parquet", read_archive, beside=("archive",), share=2),
}
