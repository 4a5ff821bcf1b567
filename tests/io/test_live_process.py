import io
import struct
from fractions import Fraction

import av
import pytest
import torch

from streamseg.io import live_process, live_video


@pytest.mark.parametrize("size", [(46, 62), (47, 63), (48, 64)])
def test_frames_of_any_size_are_encoded_and_what_is_cut_short_is_left_out(tmp_path, size):
    frame = torch.zeros(3, *size, dtype=torch.uint8)
    frame[0] = 200  # red
    whole = b"".join(struct.pack("<q", 3600 * i) + frame.numpy().tobytes() for i in range(3))
    answers, path = [], tmp_path / "a.mkv"
    header = {
        "address": str(path),
        "format": "matroska",
        "options": {},
        "size": size,
        "planes": "gbrp",
        "rate": (25, 1),
    }
    header |= {"matrix": "ITU601", "matrix_number": 6}
    live_process.send_frames(header, io.BytesIO(whole + whole[:100]), answers.append)
    assert answers == ["open\n", "sent\n", "sent\n", "sent\n"]
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        assert container.streams.video[0].average_rate == 25
    assert len(frames) == 3
    assert (frames[0].height, frames[0].width) == (size[0] + size[0] % 2, size[1] + size[1] % 2)
    pixels = frames[-1].to_ndarray(format="rgb24").astype(int)
    assert abs(pixels - [200, 0, 0]).max() < 6
    assert [float(f.pts * f.time_base - frames[0].pts * frames[0].time_base) for f in frames] == [0, 0.04, 0.08]


def test_both_sides_count_in_the_same_ticks():
    assert live_process.TICKS == live_video.TICKS
    assert Fraction(1, live_process.TICKS) == Fraction(1, 90_000)
