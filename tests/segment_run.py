"""What tests of segment share: starting it, making its input, and reading its output."""

import subprocess
import sys
from pathlib import Path

import av
from clips import picture
from PIL import Image

import streamseg
from streamseg.io.video_reading import open_video

DRAWN = streamseg.bright_colours(streamseg.CAMVID)
"""The classes of the network in the colours that are drawn."""


def start(weights, *arguments, **pipes):
    """Start the verb in a process of its own."""
    command = [sys.executable, "-m", "streamseg", "segment", *map(str, arguments), "--weights", weights]
    return subprocess.Popen([*command, "--device", "cpu"], **pipes)


def paint(path, i=0, size=(48, 64)):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(i, size).permute(1, 2, 0).numpy()).save(path)
    return Path(path)


def overlay_of(model, frame, classes=DRAWN, borders=True, **options):
    """The picture that is to be written of a frame."""
    return streamseg.overlay(frame, streamseg.segment(frame, model), classes, borders=borders, **options)


def watch(path):
    """The frames and times of a video."""
    with open_video(path) as video:
        return list(video)


def duration(path):
    """How long a video is, in seconds, as a player sees it."""
    with av.open(str(path)) as container:
        return container.duration / av.time_base


def made(folder, *besides):
    """The files in a folder, but for those named."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return sorted(found - set(besides))
