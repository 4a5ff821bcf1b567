import numpy
import pytest
import torch

from streamseg import from_bgr, to_bgr


@pytest.fixture
def array():
    return numpy.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=numpy.uint8)


def test_a_pixel_of_opencv_is_blue_green_red(array):
    frame = from_bgr(array)
    assert (frame.shape, frame.dtype) == ((3, 5, 7), torch.uint8)
    blue, green, red = array[2, 3].tolist()
    assert frame[:, 2, 3].tolist() == [red, green, blue]


def test_there_and_back_is_the_same_array(array):
    back = to_bgr(from_bgr(array))
    assert numpy.array_equal(back, array)
    assert back.flags.c_contiguous  # as OpenCV needs it to draw
    assert back.flags.writeable
    assert not numpy.shares_memory(back, array)


def test_views_grey_pictures_and_alpha_are_taken_as_opencv_gives_them(array):
    array.flags.writeable = False
    assert torch.equal(from_bgr(array[::-1, ::2]), from_bgr(numpy.ascontiguousarray(array[::-1, ::2])))
    grey = array[:, :, 0]
    assert from_bgr(grey)[:, 1, 1].tolist() == [grey[1, 1]] * 3
    with_alpha = numpy.dstack([array, grey])
    assert torch.equal(from_bgr(with_alpha), from_bgr(array))


def test_what_is_no_array_is_refused(array):
    with pytest.raises(ValueError, match=r"^The picture is a NoneType; .* Did the camera or the file end\?$"):
        from_bgr(None)  # of cv2.imread and of a capture at its end
    with pytest.raises(ValueError, match=r"^The picture is a str; expected an array of OpenCV, \(H, W, 3\)\.$"):
        from_bgr("photo.jpg")
    with pytest.raises(ValueError, match=r"^The picture is a Tensor; expected an array of OpenCV"):
        from_bgr(torch.zeros(3, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="expected bytes in 0–255: numpy.uint8, after multiplying by 255"):
        from_bgr(array / 255)
    with pytest.raises(ValueError, match=r"expected a frame: RGB, torch.uint8, \(3, H, W\)"):
        to_bgr(torch.zeros(4, 4))
