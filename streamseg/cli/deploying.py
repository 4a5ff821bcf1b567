"""The verbs export and serve: a network for other programs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from streamseg.checks import EXPORT_SUFFIXES, check_count, check_positive, pick_export_format
from streamseg.cli.messages import check_figures, loading, open_messages, print_error, write_figures
from streamseg.cli.options import (
    Device,
    Json,
    Palette,
    Precision,
    Quiet,
    Weights,
    check_exported,
    check_weights,
    option,
    parse_size,
    parse_steadiness,
    parse_steady,
    pick_device,
    pick_palette,
    set_key_interval,
    steady_by_default,
)
from streamseg.io.files import check_writable
from streamseg.models.bundled import find_weights

if TYPE_CHECKING:
    from streamseg.serve import ServedModel


def export(
    *names: Annotated[Path, option("[WEIGHTS] OUT")],
    out: Annotated[Path | None, Parameter(name=("--out", "-o"), metavar="OUT", show_default="the last name")] = None,
    to: Annotated[str, option(default="by the suffix", choices=EXPORT_SUFFIXES)] = "",
    size: Annotated[str, option("HEIGHTxWIDTH", "any size")] = "",
    confidence: bool = False,
    video: bool = False,
    int8: bool = False,
    steady: Annotated[str, option("HOW", "off", choices=("off", "low", "high"))] = "",
    pictures: Annotated[str | None, option("DIR", "the samples")] = None,
    json: Json = None,
    device: Device = "",
    quiet: Quiet = False,
) -> int:
    """Write a network as a file for another runtime.

    Args:
        names: The weights, a checkpoint or a name that streamseg weights lists; and the file to write: .onnx, .xml
            (OpenVINO), .pt2 (torch.export, or with --to an AOTInductor package). A file that disagrees with the network
            is deleted.
        out: The file to write; a name is then that of the weights.
        to: The format to write.
        size: A fixed size of the frames, which makes the file faster.
        confidence: Also give the confidence of each label.
        video: Carry the state of a stream: a matrix for each stage with attention in, and one out.
        int8: Quantise most layers to int8 (ONNX), calibrated on half of the pictures and compared on the others.
        steady: With --video and --size, keep the labels of a stream steady: low or high; see streamseg segment.
        pictures: A folder, a video or the like to compare on and, with --int8, to calibrate on: use frames like those
            that the file will label.
        json: A file for the figures, how well it agrees with the network; - for standard output.
        device: The device that aotinductor compiles for: cuda or cpu.
        quiet: Print only warnings and errors.

    Examples:
        streamseg export model.onnx
        streamseg export run/weights.safetensors model.onnx --size 512x1024 --video
        streamseg export model.xml --size 720x1280
        streamseg export model.onnx --int8 --pictures photos --size 512x1024
    """
    from dataclasses import asdict

    given, target = split_export_names(names, out)
    kind = pick_export_format(target, to)
    check_writable(target)
    check_weights(given)
    check_figures(json)
    if int8 and pictures is None:
        raise ValueError("--int8 is calibrated on pictures like those to label: give them with --pictures DIR.")
    with loading(quiet):
        from streamseg.deploy import export as exporter
        from streamseg.models import checkpoint

        weights = find_weights(given)
        network, classes = checkpoint.load(weights)
        model = checkpoint.require_fanet(network, "export")
        description = checkpoint.describe(weights)
    agreement = exporter.export_model(
        model.to(pick_device(device if kind == "aotinductor" else "cpu")),
        classes,
        target,
        to=kind,
        size=parse_size("--size", size),
        confidence=confidence,
        video=video,
        int8=int8,
        steady=parse_steadiness(steady),
        pictures=pictures,
        window=description.window,
        source=description.source,
    )
    messages = open_messages(quiet, json)
    print(exporter.format_agreement(target, agreement), file=messages)
    write_figures(json, {"file": str(target), "kind": kind, **asdict(agreement)}, messages)
    return 0


def split_export_names(names: tuple[Path, ...], out: Path | None) -> tuple[Path | None, Path]:
    """Return the checkpoint among the names, if any, and the file to write."""
    if out and (len(names) > 1 or (names and names[0].suffix in EXPORT_SUFFIXES.values())):
        raise ValueError(f"OUT is given twice, as {names[-1]} and as --out {out}: leave out one.")
    if out:
        names = (*names, out)
    if not names:
        raise ValueError("There is nothing to write: give OUT, such as model.onnx.")
    if len(names) > 2:
        raise ValueError(f"{len(names)} names are too many: give the weights, if not the default ones, and OUT.")
    return names[0] if len(names) == 2 else None, names[-1]


def serve(
    weights: Weights = None,
    /,
    *,
    host: Annotated[str, option("ADDRESS")] = "127.0.0.1",
    port: int = 8000,
    token: Annotated[str, option("TEXT", "the variable STREAMSEG_TOKEN, or none")] = "",
    window: Annotated[int | None, option("FRAMES", "what the weights were trained with")] = None,
    steady: Annotated[str, option("HOW", "low for streams")] = "",
    queue: int = 32,
    batch: int = 8,
    megabytes: float = 32.0,
    megapixels: float = 32.0,
    seconds: float = 30.0,
    source: Annotated[tuple[str, ...], option("NAME=ADDRESS", "none")] = (),
    palette: Palette = "bright",
    device: Device = "",
    precision: Precision = "",
    trust: bool = False,
    quiet: Quiet = False,
) -> int:
    """Serve a network over HTTP, with a web page.

    Args:
        weights: A name that streamseg weights lists, a checkpoint, or a file that export wrote (.onnx, .xml, .pt2).
        host: The address to listen on: 127.0.0.1 is reached only from this machine, 0.0.0.0 from everywhere.
        port: The port to listen on; 0 for any free one.
        token: The token that clients must send, as Authorization: Bearer TEXT.
        window: How many frames of a stream the network attends to.
        steady: How steady the labels of a stream are kept: off, low, high, or a margin; see streamseg segment.
        queue: The most requests at a time, received, waiting or running; more get 503 with Retry-After.
        batch: The most frames of several clients in one batch.
        megabytes: The largest picture, as a file.
        megapixels: The largest picture, in millions of pixels.
        seconds: Timeout for receiving a picture, and for labelling it.
        source: A camera, stream or video that the server reads and shows at /streams/NAME.mjpeg; may be repeated.
        palette: Colours of overlays and of the page: bright ones, or the data set's own. Label files keep its own.
        device: cuda or cpu.
        precision: Precision of the network; int8 is 1.2 to 1.8 times as fast as fp32 on a CPU.
        trust: Allow a .pt2 file, which is a program and can run any code.
        quiet: Print only warnings and errors.

    Examples:
        streamseg serve
        streamseg serve --host 0.0.0.0 --token mine --precision int8
        streamseg serve --source door=rtsp://camera/1 --source drive=drive.mp4
        curl localhost:8000/segment --data-binary @photo.jpg -o labels.png
    """
    from importlib.util import find_spec

    for module in ("fastapi", "uvicorn", "websockets"):
        if find_spec(module) is None:
            raise ImportError(f"serve needs {module}: pip install 'streamseg[serve]'")
    for name, number in (("queue", queue), ("batch", batch)):
        check_count(name, number)
    for name, amount in (("megabytes", megabytes), ("megapixels", megapixels), ("seconds", seconds)):
        check_positive(name, amount)
    check_weights(weights)
    with loading(quiet):
        from streamseg import serve as server
        from streamseg.io.images import allow_large_pictures

    token = token or os.environ.get("STREAMSEG_TOKEN", "")
    if token and not server.TOKEN.fullmatch(token):
        raise ValueError("The token may hold only letters, digits and . _ ~ + -: choose another.")
    sources = server.parse_sources(source)
    with server.listen(host, port) as listening:
        model = open_served(weights, device, precision, window, trust, palette, steady)
        allow_large_pictures()  # the server has limits of its own
        limits = server.Limits(round(megabytes * 2**20), round(megapixels * 1e6), seconds, queue)
        gate = server.RequestGate(model, limits, token, batch)
        server.add_sources(gate, sources)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        print(f"{address} serves {model.weights.name}. Ctrl-C stops it.", file=open_messages(quiet), flush=True)
        if not (token or server.is_private(listening)):
            print_error("Everybody who can reach this machine can use the server: give --token to restrict it.")
        caught = server.run_server(gate, listening)
    return 128 + caught if caught else 0


def open_served(
    weights: Path | None, device: str, precision: str, window: int | None, trust: bool, palette: str, steady: str = ""
) -> "ServedModel":
    """Open the network to serve."""
    from streamseg import serve as server
    from streamseg.engine import runtime
    from streamseg.engine.open import open_preparing_engine
    from streamseg.stream.label_frames import check_window
    from streamseg.stream.state import LastFrames

    place = pick_device(device or runtime.default_device(weights))
    engine, classes, trained = open_preparing_engine(weights, place, precision, trust=trust)
    if isinstance(engine, runtime.ExportedEngine):
        given = None if window is None else LastFrames(window)
        check_exported(engine, given, precision=precision, steady=parse_steady(steady))
    frames = trained if window is None else window
    if window is not None and set_key_interval(engine, LastFrames(window)) != LastFrames(window):
        frames = 1  # the streams of a video method have a key interval, and no window
    policy = LastFrames(frames, steady=parse_steady(steady))
    check_window(engine, policy)
    steadied = policy if steady else steady_by_default(policy, engine)
    drawn = pick_palette(classes, palette)
    return server.ServedModel(engine, classes, frames, find_weights(weights), drawn, steadied.steady)
