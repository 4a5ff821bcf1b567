"""Frames as a decoder holds them."""

import threading

import pytest
import torch
from waiting import PATIENCE

from streamseg.io.decoded_frame import DecodedFrame


def test_a_frame_is_converted_once_whoever_asks():
    asked, frame = threading.Event(), torch.zeros(3, 4, 6, dtype=torch.uint8)
    conversions, found = [], []

    def convert():
        conversions.append(threading.current_thread())
        assert asked.wait(PATIENCE)
        return frame

    decoded = DecodedFrame((4, 6), convert)
    threads = [threading.Thread(target=lambda: found.append(decoded.to_rgb())) for _ in range(4)]
    for thread in threads:
        thread.start()
    asked.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(conversions) == 1
    assert [one is frame for one in found] == [True] * 4
    assert decoded.convert is None  # the decoder has its memory back


def test_the_shape_is_known_without_a_conversion():
    assert DecodedFrame((4, 6), lambda: pytest.fail("It was converted.")).shape == torch.Size((3, 4, 6))
