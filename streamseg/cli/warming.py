"""The verb warm: compile the kernels of a GPU ahead, for images and containers."""

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from streamseg.checks import check_count
from streamseg.cli.messages import loading, open_messages, out_of_memory
from streamseg.cli.options import (
    Device,
    Precision,
    Quiet,
    Weights,
    check_weights,
    default_device,
    option,
    parse_size,
    pick_device,
)

if TYPE_CHECKING:
    import torch

    from streamseg.classes import Classes
    from streamseg.engine.engine import Engine
    from streamseg.engine.fast import FastEngine

SIZES = ("720x1280", "1080x1920")
"""The sizes of the usual cameras."""


def warm(
    weights: Weights = None,
    /,
    *,
    size: Annotated[tuple[str, ...], option("HEIGHTxWIDTH", " and ".join(SIZES))] = (),
    batch: Annotated[tuple[int, ...], option("INT", "1")] = (),
    device: Device = "",
    precision: Precision = "",
    quiet: Quiet = False,
) -> int:
    """Compile the kernels of a GPU ahead, so that segment and serve are at full speed from the first frames on.

    Args:
        weights: A name that streamseg weights lists, hf:USER/NAME, or a checkpoint.
        size: A size of frames; repeat the option for several.
        batch: Frames per batch, such as the number of cameras; repeat the option for several.
        device: cuda or cpu; on the CPU nothing has to be prepared.
        precision: Precision of the network.
        quiet: Print only warnings and errors.

    Examples:
        streamseg warm
        streamseg warm --size 720x1280 --size 1080x1920 --batch 1 --batch 8
        streamseg warm run/weights.safetensors --size 512x1024
    """
    sizes = [side for text in size or SIZES if (side := parse_size("--size", text))]
    for number in batch:
        check_count("batch", number)
    check_weights(weights)
    with loading(quiet):
        from streamseg.engine import kernels, runtime
        from streamseg.engine.fast import FastEngine
        from streamseg.engine.open import open_engine

        place = pick_device(device or default_device(weights))
        exported = weights is not None and weights.suffix.lower() in runtime.OPENERS
        opened = None if exported else open_engine(weights, place, precision)
        engine = opened.engine if opened else None
    messages = open_messages(quiet)
    if opened is None or not isinstance(engine, FastEngine) or place.type != "cuda":
        print(f"Nothing to prepare: {why_nothing(weights, engine, place)}.", file=messages)
        return 0
    for height, width in sizes:
        for frames in batch or (1,):
            seconds = prepare_size(engine, (height, width), frames)
            print(f"{height} x {width}, batch {frames}: {seconds:.1f} s", file=messages, flush=True)
        run_pixel_kernels((height, width), opened.classes, place)
    print(f"The kernels are kept in {kernels.kernel_folder()}.", file=messages)
    return 0


def prepare_size(engine: "FastEngine", size: tuple[int, int], frames: int) -> float:
    """Prepare an engine for batches of pictures and of frames of videos of a size, and return the seconds it took."""
    import torch

    from streamseg.engine.engine import FrameBatch
    from streamseg.engine.steadying import STEADY_LOW
    from streamseg.stream.label_frames import network_size

    images = torch.empty(frames, 3, *network_size(*size), dtype=torch.uint8, device="meta")
    pictures = FrameBatch(images, None, [0.0] * frames, [size] * frames)
    begin = perf_counter()
    try:
        for batch in (pictures, pictures._replace(steady=STEADY_LOW)):  # as segment labels pictures and videos
            engine.prepare(batch)
    except Exception as error:
        if out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"The fast engine could not be prepared for frames of {size[0]} x {size[1]} ({reason}): segment and serve "
            "will use the network itself, which is slower."
        ) from error
    return perf_counter() - begin


def run_pixel_kernels(size: tuple[int, int], classes: "Classes", device: "torch.device") -> None:
    """Run the kernels that convert the frames of videos and draw on them, which compiles them."""
    import torch

    from streamseg import draw
    from streamseg.engine import kernels
    from streamseg.engine.labels import count_labels
    from streamseg.io.yuv import Yuv420, default_matrix, empty_yuv

    labels = torch.zeros(size, dtype=torch.uint8, device=device)
    for bits in (8, 10):
        frame = kernels.to_rgb(Yuv420(empty_yuv(size, bits).zero_().to(device), size, bits))
    for borders in (True, False):
        picture = draw.overlay(frame, labels, classes, borders=borders)
    kernels.to_yuv(picture, default_matrix(size[0]))
    count_labels(labels, len(classes))
    kernels.wait_until_compiled()


def why_nothing(weights: Path | None, engine: "Engine | None", device: "torch.device") -> str:
    """Return why nothing has to be prepared."""
    if engine is None:
        return f"{weights} is an exported file, which its runtime prepares"
    if device.type != "cuda":
        return "on the CPU no kernels are compiled"
    return "this network has no fast form"
