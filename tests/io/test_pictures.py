"""Label files that are written without PIL are those that PIL reads, and uploads need no torch."""

import io
import subprocess
import sys

import numpy
import pytest
from PIL import Image

from streamseg.classes import CAMVID
from streamseg.io.images import picture_made_by_streamseg
from streamseg.io.pictures import decode_upload, encode_labels, to_rgb


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (7, 5), (120, 200)])
def test_pil_reads_the_labels_of_an_encoded_file(size, tmp_path):
    labels = numpy.random.default_rng(0).integers(0, 256, size, dtype=numpy.uint8)
    (tmp_path / "a.png").write_bytes(encode_labels(labels, CAMVID.colours))
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.mode == "P"
        assert numpy.array_equal(numpy.asarray(picture), labels)
        palette = picture.getpalette()
    assert palette[: 3 * len(CAMVID)] == [part for colour in CAMVID.colours for part in colour]
    assert len(palette) == 3 * 256
    assert picture_made_by_streamseg(tmp_path / "a.png")


def test_labels_may_be_a_part_of_an_array():
    labels = numpy.arange(200, dtype=numpy.uint8).reshape(10, 20)[::2, 3:9]
    with Image.open(io.BytesIO(encode_labels(labels, CAMVID.colours))) as picture:
        assert numpy.array_equal(numpy.asarray(picture), labels)


def test_runs_of_labels_take_no_more_bytes_than_with_pil():
    labels = numpy.repeat(numpy.arange(8, dtype=numpy.uint8), 20 * 320).reshape(160, 320)
    labels[40:80, 100:200] = 3
    file = io.BytesIO()
    Image.fromarray(labels).save(file, format="PNG")
    assert len(encode_labels(labels, ())) < len(file.getvalue()) + 3 * 256 + 200


def test_rgb_is_not_copied():
    picture = Image.new("RGB", (4, 3), (1, 2, 3))
    assert to_rgb(picture) is picture
    file = io.BytesIO()
    picture.save(file, format="PNG")
    pixels = decode_upload(file.getvalue(), 12)
    assert pixels.shape == (3, 3, 4)
    assert pixels[:, 0, 0].tolist() == [1, 2, 3]


def test_pictures_need_no_torch():
    program = "import sys\nimport streamseg.io.picture_process\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
