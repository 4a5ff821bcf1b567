"""A process that decodes a video, or encodes one, for the process that started it (codec_pool.py).

Only one thread of a process runs Python at a time. Codecs in processes of their own never wait for the threads that
feed a GPU, nor these for them. It imports PyAV and numpy, not torch, to start at once.

The frames lie in a few slots of memory that both processes share (its file descriptor is the argument); lines of JSON
on standard input and output say which. One job follows the other:

    read   {"read": {folder, address, name, hardware, planes}}  ──▶  opened, a line for each frame, end or error
           {"free": slot} gives a slot back
    write  {"write": {folder, path, size, rate, labels, audio_from}}  ──▶  opened
           {"frame": slot, "kind", "seconds", "shape"}  ──▶  {"free": slot}, or error
           {"close": true}  ──▶  end, or error

Standard input ends with the process that started this one.
"""

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy

from streamseg.io.codec_slots import PLANES, RGB, SLOTS, Slots
from streamseg.io.planes import PlaneFormat
from streamseg.io.pyav import copy_planes, find_planes, require_av, to_array
from streamseg.io.video_reading import Video, open_video
from streamseg.io.video_writing import VideoWriter, open_label_writer, open_video_writer, planes_to_video_frame

if TYPE_CHECKING:
    from av import VideoFrame

Message = dict[str, Any]

ENCODED_AHEAD = 2
"""Frames that an encoder works on or has waiting."""


def slot_size(size: tuple[int, int]) -> int:
    """Return the bytes that a frame (H, W) takes at most: planes of 16 bits, which is not less than RGB."""
    return 2 * PlaneFormat(size).count


def main() -> None:
    """Do jobs until standard input ends."""
    # signals are for the process that started this one, which finishes its files and then closes the pipe
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else may write between the answers
    serve(int(sys.argv[1]), sys.stdin.buffer, lambda message: answers.write(json.dumps(message) + "\n"))


def serve(file: int, lines: BinaryIO, answer: Callable[[Message], object]) -> None:
    """Do the jobs of lines."""
    for line in lines:
        job = json.loads(line)
        try:
            require_av()
            if "read" in job:
                enter_folder(job["read"])
                read_video(job["read"], file, lines, answer)
            elif "write" in job:
                enter_folder(job["write"])
                write_video(job["write"], file, lines, answer)
            else:  # of a job that has failed
                continue
        except Exception as error:  # FFmpeg has some of its own
            answer(describe_error(error))
        else:
            answer({"end": True})


def enter_folder(job: Message) -> None:
    """Make the folder of a job the current one."""
    if "folder" in job:
        os.chdir(job["folder"])


def describe_error(error: Exception) -> Message:
    """Return an error as a message."""
    number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
    return {"error": type(error).__name__, "text": str(error), "errno": number, "strerror": reason}


def read_video(job: Message, file: int, lines: BinaryIO, answer: Callable[[Message], object]) -> None:
    """Decode a video, and put its frames into slots as these become free."""
    with open_video(job["address"], name=job["name"], hardware=job["hardware"]) as video:
        slots, free = Slots(file, slot_size(video.stored_size)), list(range(SLOTS))
        rate = [video.rate.numerator, video.rate.denominator]
        answer(
            {
                "opened": slots.slot_bytes,
                "rate": rate,
                "length": video.length,
                "note": video.note,
                "orientation": [video.orientation.transposed, video.orientation.rows, video.orientation.columns],
            }
        )

        def convert(stored: "VideoFrame") -> Message:
            if not free:
                line = lines.readline()
                if not line:  # the other process has gone
                    sys.exit()
                free.append(json.loads(line)["free"])
            slot = free.pop()
            return {"frame": slot, **copy_frame(video, stored, slots, slot, job["planes"])}

        for message, seconds in video.read(convert):
            answer(message | {"seconds": seconds})


def copy_frame(video: Video, stored: "VideoFrame", slots: Slots, slot: int, planes: bool) -> Message:
    """Copy a decoded frame into a slot: its planes, if they are wanted and it has them, else RGB."""
    fits = (stored.height, stored.width) == video.stored_size
    found = find_planes(stored, video.orientation) if fits and planes else None
    if found is None:
        rgb = to_array(video.to_rgb(stored, video.stored_size), video.orientation)
        slots.array(slot, rgb.size)[:] = rgb.reshape(-1)
        return {"kind": RGB, "shape": rgb.shape}
    copy_planes(stored, found.size, slots.array(slot, found.count, "uint8" if found.bits == 8 else "uint16"))
    return {
        "kind": PLANES,
        "shape": found.size,
        "bits": found.bits,
        "matrix": found.matrix,
        "full_range": found.full_range,
    }


def write_video(job: Message, file: int, lines: BinaryIO, answer: Callable[[Message], object]) -> None:
    """Encode the frames that come in slots. A thread encodes, while the next frame is copied from its slot."""
    path, (height, width), rate = Path(job["path"]), job["size"], Fraction(*job["rate"])
    if job["labels"]:
        writer = open_label_writer(path, (height, width), rate)
    else:
        writer = open_video_writer(path, (height, width), rate, audio_from=job["audio_from"])
    with writer, ThreadPoolExecutor(1) as encoder:
        # an odd size grows by a row and a column
        slots = Slots(file, slot_size((height + 1, width + 1)))
        answer({"opened": slots.slot_bytes})
        waiting: deque[Future[None]] = deque()
        try:
            for message in frames_to_write(lines):
                picture = to_picture(writer, message, slots)
                answer({"free": message["frame"]})  # the encoder has a copy
                if len(waiting) == ENCODED_AHEAD:
                    waiting.popleft().result()
                waiting.append(encoder.submit(writer.encode, picture, message["seconds"]))
            for encoded in waiting:
                encoded.result()
        finally:
            encoder.shutdown(cancel_futures=True)  # after an error no further frame


def frames_to_write(lines: BinaryIO) -> Iterator[Message]:
    """Yield the messages of frames up to the one that closes the video."""
    for line in lines:
        message = json.loads(line)
        if "close" in message:
            return
        yield message
    sys.exit()  # the other process has gone


def to_picture(writer: VideoWriter, message: Message, slots: Slots) -> "VideoFrame":
    """Return a frame in a slot as a frame for the encoder."""
    shape = tuple(message["shape"])
    if message["kind"] == PLANES:
        height, width = shape
        return planes_to_video_frame(slots.array(message["frame"], PlaneFormat((height, width)).count), (height, width))
    writer.check_size(shape)
    pixels = slots.array(message["frame"], int(numpy.prod(shape)))
    return writer.to_video_frame(pixels.reshape(-1, *writer.size))


if __name__ == "__main__":
    main()
