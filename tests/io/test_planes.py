"""The format of planes, without torch."""

import subprocess
import sys

import pytest

from streamseg.io.planes import BT601, BT709, PlaneFormat, chroma_size, default_matrix


@pytest.mark.parametrize(("size", "chroma"), [((4, 6), (2, 3)), ((5, 7), (3, 4))])
def test_planes_have_a_value_of_luma_for_each_pixel_and_half_as_many_rows_and_columns_of_chroma(size, chroma):
    assert chroma_size(size) == chroma
    assert PlaneFormat(size).count == size[0] * size[1] + 2 * chroma[0] * chroma[1]


def test_players_assume_the_colours_of_television_by_the_height():
    assert (default_matrix(576), default_matrix(577)) == (BT601, BT709)


def test_videos_are_read_and_written_without_torch():
    program = (
        "import sys, streamseg.io.video_reading, streamseg.io.video_writing; "
        "print([name for name in ('torch', 'PIL') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
