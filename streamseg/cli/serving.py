"""The verb serve: a network over HTTP, with a web page."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from streamseg.checks import check_count, check_positive
from streamseg.cli.masks import BONNET, check_mask_file, read_mask_option
from streamseg.cli.messages import STANDARD_OUTPUT, loading, open_messages, print_error
from streamseg.cli.options import (
    Device,
    HardwareDecoder,
    Palette,
    Precision,
    Quiet,
    Ray,
    Weights,
    check_exported,
    check_weights,
    default_device,
    leave_core,
    option,
    parse_steady,
    pick_device,
    pick_palette,
    set_key_interval,
    steady_by_default,
    weights_on_cluster,
)
from streamseg.cli.records import open_live_text
from streamseg.cli.replicas import serve_replicas
from streamseg.io.hub import is_hub_address
from streamseg.models.bundled import find_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamseg.regions.sinks import EventSink
    from streamseg.serve import Limits, ServedModel


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The options of serve that limit requests."""

    queue: int = 32
    """The most requests at a time, received, waiting or running; more get 503 with Retry-After."""
    batch: int = 8
    """The most frames of several clients in one batch."""
    batch_time: Annotated[float | None, option("MS", "50 on a GPU, none on the CPU")] = None
    """How many milliseconds a batch may take: batches have as many frames as the network labels in this time, and one
    at least."""
    megabytes: float = 32.0
    """The largest picture, as a file."""
    megapixels: float = 32.0
    """The largest picture, in millions of pixels."""
    seconds: float = 30.0
    """Timeout for receiving a picture, and for labelling it."""

    def check(self) -> None:
        """Raise a ValueError if one is not positive."""
        for name in ("queue", "batch"):
            check_count(name, getattr(self, name))
        for name in ("megabytes", "megapixels", "seconds"):
            check_positive(name, getattr(self, name))
        if self.batch_time is not None:
            check_positive("batch-time", self.batch_time)

    def limits(self) -> "Limits":
        """Return the limits of the server."""
        from streamseg.serve import Limits

        return Limits(
            round(self.megabytes * 2**20),
            round(self.megapixels * 1e6),
            self.seconds,
            self.queue,
            batch_seconds=None if self.batch_time is None else self.batch_time / 1000,
        )


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options of serve for streams and files, which replicas cannot share."""

    source: Annotated[tuple[str, ...], option("NAME=ADDRESS", "none")] = ()
    """A camera, stream or video that the server reads and shows at /streams/NAME.mjpeg; may be repeated."""
    fleet: Annotated[Path | None, option("FILE", "none")] = None
    """A TOML file with a table [[camera]] for each source, as in segment: name, address, size, classes, mask. Keys of
    outputs have no effect."""
    hardware_decoding: HardwareDecoder = ""
    """Decode sources by hardware: cuda (NVDEC), vaapi, videotoolbox, or auto for the first that works. What it cannot
    decode is decoded on the CPU, and the log says so."""
    zones: Annotated[tuple[str, ...], option("[NAME=]FILE", "none")] = ()
    """A file of zones and lanes to watch, for the stream NAME or for all; may be repeated (docs/regions.md)."""
    events: Annotated[str, option("TARGET,...", "none")] = ""
    """Where events of the zones go: a file, an http, ws or mqtt address, - for standard output."""
    save: Annotated[Path | None, option("FOLDER", "none")] = None
    """A folder for labelled pictures and zones that people correct and save on the page, as images/ and labels/."""

    def check_unused(self) -> None:
        """Raise a ValueError if one was given beside replicas."""
        if wrong := ", ".join(f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value):
            raise ValueError(f"{wrong} is for one process: leave out {wrong}, or --replicas and --ray.")


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """The options of serve for replicas on Ray."""

    replicas: Annotated[str, option("N or N-M", "one process, without Ray")] = ""
    """Processes with a network each behind one address, on Ray: a number, or from N to M by the load."""
    gpu_share: Annotated[float | None, option("SHARE", "the GPUs divided evenly")] = None
    """The share of a GPU that each replica takes: 0.25 puts four on one."""
    ray: Ray = ""
    """The Ray cluster of the replicas: local, auto, HOST:PORT or ray://HOST:PORT. Replicas on a cluster that runs
    already stay when the command ends, and the same command replaces them one by one."""


LIMITS, STREAMS, REPLICAS = LimitOptions(), StreamOptions(), ReplicaOptions()


def serve(
    weights: Weights = None,
    /,
    *,
    host: Annotated[str, option("ADDRESS")] = "127.0.0.1",
    port: int = 8000,
    token: Annotated[str, option("TEXT", "the variable STREAMSEG_TOKEN, or none")] = "",
    window: Annotated[int | None, option("FRAMES", "what the weights were trained with")] = None,
    steady: Annotated[str, option("HOW", "low")] = "",
    limits: Annotated[LimitOptions, Parameter(name="*")] = LIMITS,
    streams: Annotated[StreamOptions, Parameter(name="*")] = STREAMS,
    processes: Annotated[ReplicaOptions, Parameter(name="*")] = REPLICAS,
    mask: Annotated[str, option("FILE", "none")] = "",
    palette: Palette = "bright",
    device: Device = "",
    precision: Precision = "",
    trust: bool = False,
    quiet: Quiet = False,
) -> int:
    """Serve a network over HTTP, with a web page.

    Args:
        weights: A name that streamseg weights lists, hf:USER/NAME, a checkpoint, or a file of export: .onnx, .xml or
            .pt2.
        host: The address to listen on: 127.0.0.1 is reached only from this machine, 0.0.0.0 from everywhere.
        port: The port to listen on; 0 for any free one.
        token: The token that clients must send, as Authorization: Bearer TEXT.
        window: How many frames of a stream the network attends to.
        steady: How steady the labels of a stream are kept: off, low, high, or a margin; see streamseg segment.
        mask: A picture whose black pixels are ignored in all pictures, streams and sources.
        palette: Colours of overlays and of the page: bright ones, or the data set's own. Label files keep its own.
        device: cuda or cpu.
        precision: Precision of the network; int8 is 1.3 to 1.8 times as fast as fp32 on a CPU.
        trust: Allow a .pt2 file, which is a program and can run any code.
        quiet: Print only warnings and errors.

    Examples:
        streamseg serve --host 0.0.0.0 --token mine --precision int8
        streamseg serve --source door=rtsp://camera/1 --zones door=door.toml
        streamseg serve --replicas 1-8 --gpu-share 0.25 --ray auto
        curl localhost:8000/segment --data-binary @photo.jpg -o labels.png
    """
    check_libraries()
    limits.check()
    check_weights(weights)
    check_mask_file(mask, bonnet=False)
    parse_steady(steady)  # an error now rather than in a replica
    with loading(quiet):
        token = find_token(token)
    # absolute, as the processes of replicas may have another folder
    options = (device, precision, window, trust, palette, str(Path(mask).absolute()) if mask else "", steady)
    if not (processes.replicas or processes.ray):
        if processes.gpu_share is not None:
            raise ValueError("--gpu-share is for replicas: give --replicas too, or leave it out.")
        return serve_here(partial(open_served, weights, *options), limits, streams, host, port, token, quiet)
    streams.check_unused()
    return serve_replicas(
        partial(open_served, weights_on_cluster(weights), *options),
        limits.limits(),
        host=host,
        port=port,
        token=token,
        batch=limits.batch,
        count=processes.replicas or "1",
        gpu_share=processes.gpu_share,
        gpus=(device or default_device(weights)) != "cpu",
        address=processes.ray or "local",
        quiet=quiet,
    )


def serve_here(
    open_model: "Callable[[], ServedModel]",
    limits: LimitOptions,
    streams: StreamOptions,
    host: str,
    port: int,
    token: str,
    quiet: bool,
) -> int:
    """Serve in this process until a signal; return the exit status."""
    from streamseg import serve as server
    from streamseg.cli.fleets import read_served_fleet, served_settings
    from streamseg.io.pictures import allow_large_pictures

    cameras = read_served_fleet(streams.fleet) if streams.fleet else []
    sources = server.parse_sources(streams.source, {camera.name: camera.source.address for camera in cameras})
    areas = server.parse_zone_files(streams.zones)
    if streams.hardware_decoding and not sources:
        raise ValueError(
            "--hardware-decoding is for what the server reads: give --source or --fleet too, or leave it out."
        )
    lost: list[str] = []
    with server.listen(host, port) as listening, open_events(streams.events, areas, lost) as sinks:
        model = open_model()
        own = served_settings(cameras, model)
        bonnets = [camera.name for camera in cameras if camera.mask == BONNET]
        allow_large_pictures()  # the server has limits of its own
        watched = server.ServedZones(areas, sinks)
        folder = server.DataFolder(streams.save, model.classes) if streams.save else None
        gate = server.RequestGate(model, limits.limits(), token, limits.batch, watched, folder)
        server.add_sources(gate, sources, streams.hardware_decoding, own, bonnets)
        announce(host, listening.getsockname()[1], model.title, quiet)
        if not (token or server.is_private(listening)):
            print_error("Everybody who can reach this machine can use the server: give --token to restrict it.")
        caught = server.run_server(gate, listening)
    for sentence in lost:
        print_error(sentence)
    return 128 + caught if caught else 0


def find_token(given: str) -> str:
    """Return the token of the option or of the environment; an error if headers cannot hold it."""
    from streamseg import serve as server

    token = given or os.environ.get("STREAMSEG_TOKEN", "")
    if token and not server.TOKEN.fullmatch(token):
        raise ValueError("The token may hold only letters, digits and . _ ~ + -: choose another.")
    return token


def announce(host: str, port: int, weights: str, quiet: bool) -> None:
    """Print where the server is."""
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port} serves {weights}. Ctrl-C stops it.", file=open_messages(quiet), flush=True)


def check_libraries() -> None:
    """Raise an ImportError if a library of the server is missing."""
    from importlib.util import find_spec

    for module in ("fastapi", "uvicorn", "websockets"):
        if find_spec(module) is None:
            raise ImportError(f"serve needs {module}: pip install 'streamseg[serve]'")


@contextmanager
def open_events(events: str, areas: Mapping[str, object], lost: list[str]) -> Iterator[list["EventSink"]]:
    """Open what the events of zones are sent to.

    Args:
        events: Targets, with commas between them.
        areas: The zones; without any, targets are an error.
        lost: Receives a sentence for each target that did not get all events.
    """
    from streamseg.regions.sinks import check_target, open_sink

    targets = [target.strip() for target in events.split(",") if target.strip()]
    if targets and not areas:
        raise ValueError("--events reports what happens in zones: give a file of them with --zones.")
    for target in targets:
        check_target(target)
    with ExitStack() as stack:
        output = stack.enter_context(open_live_text(STANDARD_OUTPUT, print_error)) if "-" in targets else sys.stdout
        yield [stack.enter_context(open_sink(target, output, lost.append)) for target in targets]


def open_served(
    weights: Path | None,
    device: str,
    precision: str,
    window: int | None,
    trust: bool,
    palette: str,
    mask: str = "",
    steady: str = "",
) -> "ServedModel":
    """Open the network to serve."""
    from streamseg import serve as server
    from streamseg.engine import runtime
    from streamseg.engine.open import open_preparing_engine
    from streamseg.stream.label_frames import check_window
    from streamseg.stream.state import LastFrames, Policy

    place = pick_device(device or default_device(weights))
    engine, classes, trained = open_preparing_engine(weights, place, precision, trust=trust)
    if isinstance(engine, runtime.ExportedEngine):
        given = None if window is None else LastFrames(window)
        check_exported(engine, given, precision=precision, steady=parse_steady(steady), mask=bool(mask))
    frames = trained if window is None else window
    if window is not None and set_key_interval(engine, LastFrames(window)) != LastFrames(window):
        frames = 1  # the streams of a video method have a key interval, and no window
    policy: Policy = LastFrames(frames, steady=parse_steady(steady))
    check_window(engine, policy)
    policy = policy if steady else steady_by_default(policy, engine)
    leave_core(engine, policy)
    drawn, path = pick_palette(classes, palette), find_weights(weights)
    name = str(weights) if is_hub_address(weights) else path.name
    return server.ServedModel(engine, classes, frames, path, drawn, name, read_mask_option(mask), policy.steady)
