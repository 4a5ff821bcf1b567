"""The verbs export and serve: a network for other programs."""

import os
import sys
from pathlib import Path
from typing import Annotated

import tyro

from streamseg.checks import check_count, check_positive, pick_export_format
from streamseg.cli.options import (
    Device,
    Json,
    Quiet,
    check_exported,
    check_weights,
    optional_arg,
    parse_size,
    pick_device,
)
from streamseg.cli.say import check_figures, loading, open_messages, print_error, write_figures
from streamseg.io.files import check_writable


def export(
    names: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="[WEIGHTS] OUT", help_behavior_hint="(required)")],
    /,
    *,
    to: Annotated[str, optional_arg("{onnx,openvino,torch,aotinductor}", "by the suffix")] = "",
    size: Annotated[str, optional_arg("HEIGHTxWIDTH", "any size")] = "",
    confidence: bool = False,
    video: bool = False,
    int8: bool = False,
    pictures: Annotated[str | None, optional_arg("DIR", "the samples")] = None,
    json: Json = None,
    device: Device = "",
    quiet: Quiet = False,
) -> None:
    """Write a network as a file for another runtime.

    Args:
        names: A checkpoint, without which it is the one that ships; and the file to write: .onnx, .xml (OpenVINO),
            .pt2 (torch.export, or with --to an AOTInductor package). One that disagrees with the network is not kept.
        to: What to write.
        size: The size of the frames that it takes, which makes it faster.
        confidence: Give how sure the network is as well.
        video: Carry the state of a stream: four matrices in, four out.
        int8: Compute in bytes for the most part (ONNX), calibrated with half of the pictures, compared on the others.
        pictures: A folder, a video or the like, to compare on; for --int8 like what is to come, to calibrate with too.
        json: A file for the figures: how far it agrees with the network; - for standard output.
        device: What aotinductor compiles for: cuda or cpu.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg export model.onnx
        streamseg export run/weights.safetensors model.onnx --size 512x1024 --video
        streamseg export model.xml --size 720x1280
        streamseg export model.onnx --int8 --pictures photos --size 512x1024
    """
    from dataclasses import asdict

    if not names:
        raise ValueError("There is nothing to write: give OUT, such as model.onnx.")
    if len(names) > 2:
        raise ValueError(f"{len(names)} names are too many: give a checkpoint, if not the one that ships, and OUT.")
    *given, out = names
    kind = pick_export_format(out, to)
    check_writable(out)
    check_weights(given[0] if given else None)
    check_figures(json)
    if int8 and pictures is None:
        raise ValueError("--int8 is calibrated with pictures like those to come: give them with --pictures DIR.")
    with loading(quiet):
        from streamseg.deploy import export as exporter
        from streamseg.models import checkpoint

        weights = given[0] if given else checkpoint.BUNDLED
        network, classes = checkpoint.load(weights)
        model = checkpoint.require_fanet(network, "export")
        description = checkpoint.describe(weights)
    agreement = exporter.export_model(
        model.to(pick_device(device if kind == "aotinductor" else "cpu")),
        classes,
        out,
        to=kind,
        size=parse_size("--size", size),
        confidence=confidence,
        video=video,
        int8=int8,
        pictures=pictures,
        window=description.window,
        source=description.source,
    )
    words = open_messages(quiet, json)
    print(exporter.format_agreement(out, agreement), file=words)
    write_figures(json, {"file": str(out), "kind": kind, **asdict(agreement)}, words)


def serve(
    weights: Annotated[Path | None, optional_arg("[WEIGHTS]", "those that ship")] = None,
    /,
    *,
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1",
    port: int = 8000,
    token: Annotated[str, optional_arg("TEXT", "that of STREAMSEG_TOKEN, or none")] = "",
    window: Annotated[int | None, optional_arg("FRAMES", "what the weights were trained with")] = None,
    queue: int = 32,
    batch: int = 8,
    megabytes: float = 32.0,
    megapixels: float = 32.0,
    seconds: float = 30.0,
    device: Device = "",
    precision: Annotated[str, optional_arg("{fp32,fp16,bf16,int8}", "fp16 on a GPU, fp32 on the CPU")] = "",
    trust: bool = False,
    quiet: Quiet = False,
) -> None:
    """Serve a network to programs and, as a page, to people.

    Args:
        weights: A checkpoint, or a file that export wrote (.onnx, .xml, .pt2).
        host: The address to listen at; this machine alone reaches 127.0.0.1, and everybody 0.0.0.0.
        port: The port to listen at; 0 for any that is free.
        token: What clients must know, sent as Authorization: Bearer TEXT.
        window: How many frames of a stream the network looks at.
        queue: How many pictures may be received, waited with or labelled at a time; more are told to come again.
        batch: The most frames of several clients that the network sees at once.
        megabytes: The largest picture, as a file.
        megapixels: The largest picture, in millions of pixels.
        seconds: How long a picture may take to arrive, and to be labelled.
        device: cuda or cpu.
        precision: What the network computes in; int8 is 1.2 to 1.8 times as fast on a CPU, with nearly the same labels.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg serve
        streamseg serve run/weights.safetensors --port 8080
        streamseg serve --host 0.0.0.0 --token mine --precision int8
        curl localhost:8000/segment --data-binary @photo.jpg -o labels.png
    """
    from importlib.util import find_spec

    for module in ("fastapi", "uvicorn", "websockets"):
        if find_spec(module) is None:
            raise ImportError(f"serve needs {module}: pip install 'streamseg[serve]'")
    for option, number in (("queue", queue), ("batch", batch)):
        check_count(option, number)
    for option, amount in (("megabytes", megabytes), ("megapixels", megapixels), ("seconds", seconds)):
        check_positive(option, amount)
    check_weights(weights)
    with loading(quiet):
        from streamseg import serve as server
        from streamseg.engine import runtime
        from streamseg.engine.open import open_engine
        from streamseg.io.images import allow_large_pictures
        from streamseg.models import checkpoint
        from streamseg.stream.label_frames import check_window
        from streamseg.stream.state import LastFrames

    token = token or os.environ.get("STREAMSEG_TOKEN", "")
    if token and not server.TOKEN.fullmatch(token):
        raise ValueError("The token holds other characters than letters, digits and . _ ~ + -: choose another.")
    listening = server.listen(host, port)
    place = pick_device(device or runtime.default_device(weights))
    engine, classes, trained = open_engine(weights, place, precision, trust=trust)
    if isinstance(engine, runtime.ExportedEngine):
        check_exported(engine, None if window is None else LastFrames(window), precision=precision)
    frames = trained if window is None else window
    check_window(engine, LastFrames(frames))
    allow_large_pictures()  # what is sent has limits of its own
    limits = server.Limits(round(megabytes * 2**20), round(megapixels * 1e6), seconds, queue)
    gate = server.RequestGate(
        server.ServedModel(engine, classes, frames, weights or checkpoint.BUNDLED), limits, token, batch
    )
    shown = f"[{host}]" if ":" in host else host
    told = f"http://{shown}:{listening.getsockname()[1]} serves {gate.served.weights.name}. Ctrl-C ends it."
    print(told, file=open_messages(quiet), flush=True)
    if not (token or server.is_private(listening)):
        print_error("Whoever reaches this machine can use the server: give --token to choose who.")
    caught = server.run_server(gate, listening)
    if caught:
        sys.exit(128 + caught)
