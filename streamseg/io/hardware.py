"""Hardware decoders of video, by PyAV: NVDEC (cuda), VAAPI and VideoToolbox."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from streamseg.io.pyav import av
from streamseg.io.sources import HARDWARE_DECODERS

if TYPE_CHECKING:
    from av.codec.hwaccel import HWAccel
    from av.container import InputContainer

HARDWARE_FORMATS = ("nv12", "p010le")
"""The pixel formats of frames that a hardware decoder hands back; on the CPU only raw video may have them."""

FAILED: set[str] = set()
"""The decoders that could not be opened in this process: they are not tried again."""

LEAST_VERSION = 17
"""The first PyAV that does not crash where a hardware decoder fails."""


def open_accelerated(open_container: "Callable[[HWAccel | None], InputContainer]", hardware: str) -> "InputContainer":
    """Open a container with a hardware decoder, or without if the machine has none.

    Args:
        open_container: Opens it, given a decoder or None.
        hardware: A name of HARDWARE_DECODERS, auto for the first that works, or empty for none.
    """
    failed = []
    for name, accelerator in accelerators(hardware):
        try:
            container = open_container(accelerator)
        except (av.error.ExitError, av.error.TimeoutError):  # the address does not answer: no decoder changes that
            raise
        except av.error.FFmpegError:  # no such device; a fault of the file comes again below
            failed.append(name)
            continue
        if any(stream.codec_context and stream.codec_context.is_hwaccel for stream in container.streams.video):
            return container
        container.close()
    container = open_container(None)
    FAILED.update(failed)  # it can be opened, so it was the device
    return container


def accelerators(hardware: str) -> "Iterator[tuple[str, HWAccel]]":
    """Yield the decoders of a name that this PyAV offers, with their own names."""
    if not hardware or is_too_old():
        return
    from av.codec.hwaccel import HWAccel, hwdevices_available

    offered = hwdevices_available()
    for name in HARDWARE_DECODERS if hardware == "auto" else (hardware,):
        if name in offered and name not in FAILED:
            yield name, HWAccel(name, allow_software_fallback=True)


def fallback_note(name: str, hardware: str, pixel_format: str) -> str:
    """Return a sentence if a video's first frame shows that it is decoded on the CPU although hardware was wanted."""
    if not hardware or pixel_format in HARDWARE_FORMATS:
        return ""
    if is_too_old():
        reason = f"hardware decoding needs PyAV {LEAST_VERSION} or later, and this is {av.__version__}"
    else:
        decoder = "hardware decoder" if hardware == "auto" else f"{hardware} decoder"
        reason = f"this machine, or this PyAV, has no {decoder} for it"
    return f"{name} is decoded on the CPU: {reason}."


def is_too_old() -> bool:
    return int(av.__version__.split(".")[0]) < LEAST_VERSION
