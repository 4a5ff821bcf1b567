import io

import numpy
import pytest
import torch
from PIL import Image

import streamseg
from streamseg.io.images import (
    decode_upload,
    lookup_labels,
    picture_made_by_streamseg,
    read_colour_codes,
    read_downloaded,
    read_first,
    read_image,
    read_label_ids,
    to_frame,
    to_jpeg,
    write_grey,
    write_image,
    write_labels,
)
from streamseg.io.pictures import TooLargeError, UnknownFormatError


@pytest.fixture
def photo():
    """A colourful picture, 40 pixels high and 60 wide, that survives JPEG."""
    rows, columns = numpy.mgrid[0:40, 0:60]
    return Image.fromarray(numpy.stack([rows * 6, columns * 4, 255 - rows * 6], axis=2).astype(numpy.uint8))


def difference(frame, picture):
    expected = torch.from_numpy(numpy.array(picture.convert("RGB"))).permute(2, 0, 1)
    assert frame.shape == expected.shape
    assert frame.dtype == torch.uint8
    return (frame.int() - expected.int()).abs().float().mean().item()


@pytest.mark.parametrize(
    ("name", "mode", "limit"),
    [("a.png", "RGB", 0), ("a.jpg", "RGB", 6), ("a.webp", "RGB", 6), ("a.tiff", "RGB", 0), ("a.bmp", "RGB", 0)]
    + [("a.png", "L", 0), ("a.png", "1", 0), ("a.png", "P", 0), ("a.png", "LA", 0), ("a.png", "RGBA", 0)]
    + [("a.tiff", "CMYK", 0), ("a.jpg", "CMYK", 12)],
)
def test_any_kind_of_picture_becomes_an_rgb_frame(photo, tmp_path, name, mode, limit):
    picture = photo.convert(mode)
    picture.save(tmp_path / name)
    assert difference(read_image(tmp_path / name), picture) <= limit


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_16_bits_are_scaled_not_clipped(photo, tmp_path, name):
    grey = numpy.asarray(photo.convert("L"))
    Image.fromarray(grey.astype(numpy.uint16) * 257).save(tmp_path / name)
    assert difference(read_image(tmp_path / name), photo.convert("L")) == 0


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_an_array_of_16_bits_is_the_picture_that_it_is_saved_as(tmp_path, name):
    values = numpy.arange(2**16, dtype=numpy.uint16).reshape(256, 256)
    Image.fromarray(values).save(tmp_path / name)
    expected = read_image(tmp_path / name)
    assert expected[0].flatten().tolist() == [value // 256 for value in range(2**16)]
    assert to_frame(values).equal(expected)


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.pgm"])
def test_a_dark_picture_of_16_bits_stays_dark(tmp_path, name):
    dark = numpy.full((40, 60), 200, dtype=numpy.int32 if name == "a.pgm" else numpy.uint16)
    Image.fromarray(dark).save(tmp_path / name)
    assert read_image(tmp_path / name).eq(0).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_a_picture_taken_sideways_is_turned_upright(photo, tmp_path, orientation, mode, name):
    photo = photo.convert("RGB" if mode == "RGB" else "L")
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose that a camera held so would have applied
    stored = photo if orientation == 1 else photo.transpose(Image.Transpose(turn[orientation]))
    if mode == "I;16":
        stored = Image.fromarray(numpy.asarray(stored).astype(numpy.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / name, exif=exif)
    assert difference(read_image(tmp_path / name), photo) == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
def test_exif_that_cannot_be_read_spoils_no_picture(photo, tmp_path, name, exif):
    photo.save(tmp_path / name, exif=exif, **({"lossless": True} if name == "a.webp" else {}))
    assert difference(read_image(tmp_path / name), photo) < 6


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("transparency", [3, bytes(range(256))])
def test_a_palette_s_transparency_is_left_out_in_silence(photo, tmp_path, transparency):
    picture = photo.convert("P")
    picture.save(tmp_path / "a.png", transparency=transparency)
    assert difference(read_image(tmp_path / "a.png"), picture) == 0


def test_of_an_animation_the_first_picture_is_read(photo, tmp_path):
    photo.save(tmp_path / "a.webp", save_all=True, append_images=[Image.new("RGB", photo.size)], lossless=True)
    assert difference(read_image(tmp_path / "a.webp"), photo) < 1


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tiff"])
def test_whether_more_pictures_follow_the_first_is_known(photo, tmp_path, name):
    photo.save(tmp_path / name)
    assert not read_first(tmp_path / name)[1]
    photo.save(tmp_path / name, save_all=True, append_images=[photo.rotate(180)])
    frame, more = read_first(tmp_path / name)
    assert more
    assert frame.equal(read_image(tmp_path / name))


def test_the_second_view_in_a_telephone_s_photo_does_not_count(photo, tmp_path):
    photo.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[photo])
    assert not read_first(tmp_path / "a.jpg")[1]


def test_a_picture_from_elsewhere_is_read_as_from_a_file(photo, tmp_path):
    photo.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    frame, more = read_downloaded(io.BytesIO(data), "http://host/a")
    assert frame.equal(read_image(tmp_path / "a.png"))
    assert not more
    with pytest.raises(ValueError, match="^http://host/a is damaged or cut short"):
        read_downloaded(io.BytesIO(data[:-50]), "http://host/a")


def test_what_is_written_is_read_again(tmp_path):
    frame = torch.randint(0, 256, (3, 33, 47), dtype=torch.uint8)
    write_image(tmp_path / "a.png", frame)
    assert read_image(tmp_path / "a.png").equal(frame)


def test_label_files_hold_the_labels_and_show_the_colours(tmp_path):
    labels = torch.randint(0, 11, (33, 47))
    labels[0, 0] = 255
    write_labels(tmp_path / "a.png", labels, streamseg.CAMVID)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.mode == "P"
        assert torch.from_numpy(numpy.array(picture)).equal(labels.to(torch.uint8))
    assert read_image(tmp_path / "a.png")[:, 5, 5].tolist() == list(streamseg.CAMVID.colours[labels[5, 5]])


def test_a_missing_picture_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No picture at .*nowhere\.png"):
        read_image(tmp_path / "nowhere.png")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_image(tmp_path)


@pytest.mark.parametrize("content", [b"", b"text", b"\x00" * 1000, b"%PDF-1.4"])
def test_a_file_that_is_no_picture_is_refused(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.tiff"])
def test_a_truncated_picture_is_refused(photo, tmp_path, name):
    photo.resize((300, 200)).save(tmp_path / name)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[: (tmp_path / name).stat().st_size // 2])
    with pytest.raises(ValueError, match="damaged or cut short|not a picture"):
        read_image(tmp_path / name)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.int32])
def test_a_picture_of_fractions_or_of_32_bits_is_refused(tmp_path, dtype):
    Image.fromarray(numpy.full((40, 40), 100, dtype)).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match="floats or 32-bit numbers of unknown range.*save it as a PNG"):
        read_image(tmp_path / "a.tiff")


def test_a_decompression_bomb_is_refused(monkeypatch, tmp_path):
    Image.new("1", (200, 200)).save(tmp_path / "a.png")
    for limit in (30_000, 15_000):  # PIL warns above the limit, and refuses above twice as much
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ValueError, match="has more than .* pixels"):
            read_image(tmp_path / "a.png")


@pytest.mark.parametrize(("name", "side"), [("a.webp", 16384), ("a.jpg", 65501)])
def test_a_picture_too_large_for_its_format_is_refused(tmp_path, name, side):
    with pytest.raises(ValueError, match=f"2 x {side} pixels is too large for .*, which holds up to {side - 1} a side"):
        write_image(tmp_path / name, torch.zeros(3, 2, side, dtype=torch.uint8))
    assert not (tmp_path / name).exists()


def test_a_name_without_a_kind_of_picture_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected one of \.png"):
        write_image(tmp_path / "a.mp4", torch.zeros(3, 40, 40, dtype=torch.uint8))


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16", "I"])
def test_ids_are_read_as_they_are(tmp_path, name, mode):
    if (name, mode) == ("a.png", "I"):
        pytest.skip("PIL writes no PNG of 32 bits")
    ids = numpy.array([[0, 1], [1, 0]]) if mode == "1" else numpy.array([[0, 1], [11, 255]])
    if mode.startswith("I"):
        ids[1, 1] = 1000
    kinds = {"I;16": numpy.uint16, "I": numpy.int32, "1": bool}
    picture = Image.fromarray(ids.astype(kinds.get(mode, numpy.uint8)))
    if mode == "P":
        picture.putpalette([7] * 768)
    picture.save(tmp_path / name)
    assert read_label_ids(tmp_path / name).tolist() == ids.tolist()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK"])
def test_a_colour_picture_is_no_label_file(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match=r"a\.tiff is a colour picture .*, expected ids"):
        read_label_ids(tmp_path / "a.tiff")


def test_a_grey_picture_shows_no_colours(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png is no colour picture"):
        read_colour_codes(tmp_path / "a.png")


def test_looking_labels_up_is_indexing_a_table_whose_last_entry_is_for_ids_outside():
    table = torch.tensor([5, 255, 0, -1], dtype=torch.int16)
    ids = torch.randint(-3, 7, (33, 47), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    labels, foreign = lookup_labels(ids, table)
    expected = table[ids.where(ids >= 0, 3).clamp(max=3).long()]
    assert labels.equal(expected.to(torch.uint8))
    assert foreign == [-3, -2, -1, 3, 4, 5, 6]
    assert lookup_labels(ids.clamp(0, 2), table)[1] == []


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.tiff", "a.tif"])
def test_a_picture_that_was_written_tells_so(tmp_path, name):
    write_image(tmp_path / name, torch.full((3, 40, 60), 90, dtype=torch.uint8))
    assert picture_made_by_streamseg(tmp_path / name)
    with Image.open(tmp_path / name) as picture:
        assert picture.getexif()[0x0131] == "streamseg"  # as other programs see it: Software


def test_a_label_file_tells_who_wrote_it_and_keeps_its_palette(tmp_path):
    labels = torch.arange(256, dtype=torch.uint8).view(16, 16)
    write_labels(tmp_path / "a.png", labels, streamseg.CAMVID)
    assert picture_made_by_streamseg(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert torch.from_numpy(numpy.array(picture)).equal(labels)
        colours = [part for colour in streamseg.CAMVID.colours for part in colour]
        assert picture.getpalette() == colours + [0] * (768 - len(colours))


def test_a_format_without_exif_tells_it_in_its_header(tmp_path):
    frame = torch.randint(0, 256, (3, 33, 47), dtype=torch.uint8)
    write_image(tmp_path / "a.BMP", frame)
    assert read_image(tmp_path / "a.BMP").equal(frame)
    assert picture_made_by_streamseg(tmp_path / "a.BMP")


def test_grey_is_written_as_grey(tmp_path):
    values = torch.randint(0, 256, (33, 47), dtype=torch.uint8)
    write_grey(tmp_path / "a.png", values)
    assert picture_made_by_streamseg(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.mode == "L"
        assert torch.from_numpy(numpy.array(picture)).equal(values)


@pytest.mark.filterwarnings("error")
def test_what_others_made_is_not_streamseg_s(photo, tmp_path):
    photo.save(tmp_path / "plain.png")
    photo.save(tmp_path / "plain.bmp")
    (tmp_path / "short.bmp").write_bytes(b"BM")
    other = Image.Exif()
    other[0x0131] = "a camera"
    photo.save(tmp_path / "camera.jpg", exif=other)
    photo.save(tmp_path / "damaged.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    (tmp_path / "text.png").write_text("streamseg")
    (tmp_path / "empty.png").touch()
    for name in (
        "plain.png",
        "plain.bmp",
        "short.bmp",
        "nowhere.bmp",
        "camera.jpg",
        "damaged.jpg",
        "text.png",
        "empty.png",
        "nowhere.png",
        ".",
    ):
        assert not picture_made_by_streamseg(tmp_path / name), name


def test_any_kind_of_picture_is_the_same_frame(photo, tmp_path):
    photo.save(tmp_path / "a.png")
    frame = read_image(tmp_path / "a.png")
    array = numpy.asarray(photo)
    deep = array.astype(numpy.uint16) * 257
    clear = numpy.dstack([array, numpy.zeros((40, 60), numpy.uint8)])
    kinds = [tmp_path / "a.png", str(tmp_path / "a.png"), photo, photo.convert("RGBA"), array, clear, deep]
    for picture in [*kinds, deep.astype(">u2"), array[:, ::-1][:, ::-1], frame]:
        assert to_frame(picture).equal(frame)
    assert to_frame(frame) is frame
    grey = photo.convert("L")
    assert to_frame(numpy.asarray(grey)).equal(to_frame(grey))
    assert to_frame(numpy.asarray(grey)).shape == (3, 40, 60)


def test_a_frame_of_an_array_is_a_copy_in_planes(photo):
    array = numpy.array(photo)
    frame = to_frame(array)
    array[:] = 0
    assert frame.is_contiguous()
    assert frame.equal(to_frame(photo))


def test_a_pil_picture_is_taken_upright_and_left_as_it_is(photo, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as picture:
        assert to_frame(picture).equal(read_image(tmp_path / "a.png"))
    assert to_frame(Image.open(tmp_path / "a.png")).shape == (3, 60, 40)
    indexed = photo.convert("P")
    indexed.info["transparency"] = 3
    to_frame(indexed)
    assert indexed.info["transparency"] == 3


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (numpy.zeros((40, 60, 3)), "The picture is an array of float64; expected bytes in 0–255"),
        (numpy.zeros((40, 60, 3), numpy.int64), "an array of int64; expected bytes"),
        (numpy.zeros((3, 40, 60), numpy.uint8), r"an array of shape \(3, 40, 60\); expected RGB .H, W, 3."),
        (numpy.zeros((1, 40, 60, 3), numpy.uint8), r"an array of shape \(1, 40, 60, 3\)"),
        (numpy.zeros((40, 0, 3), numpy.uint8), r"an array of shape \(40, 0, 3\)"),
        (numpy.zeros(3, numpy.uint8), r"an array of shape \(3,\)"),
        (torch.zeros(3, 40, 60), r"a tensor of torch.float32 and shape \(3, 40, 60\); expected a frame"),
        (torch.zeros(40, 60, 3, dtype=torch.uint8), r"a tensor of torch.uint8 and shape \(40, 60, 3\)"),
        (Image.new("F", (60, 40)), "The picture cannot be read or has a rare format .its pixels are floats"),
        (None, "The picture is a NoneType; expected a path, a PIL image"),
        ([[0, 0, 0]], "The picture is a list"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(picture, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_frame(picture)


def test_a_pil_picture_of_a_file_that_is_cut_short_is_refused(photo, tmp_path):
    photo.resize((300, 200)).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:1000])
    with Image.open(tmp_path / "a.jpg") as picture, pytest.raises(ValueError, match="The picture cannot be read"):
        to_frame(picture)


def test_a_picture_from_a_stranger_is_of_a_plain_kind_and_of_limited_size(image):
    file = io.BytesIO()
    Image.fromarray(image[0].permute(1, 2, 0).numpy()).save(file, format="PNG")
    assert decode_upload(file.getvalue(), 64 * 96).equal(image[0])
    with pytest.raises(TooLargeError, match="The picture has more than 6,143 pixels: make it smaller first."):
        decode_upload(file.getvalue(), 64 * 96 - 1)
    with pytest.raises(ValueError, match="The picture is damaged or cut short"):
        decode_upload(file.getvalue()[:-100], 64 * 96)
    for other in (b"", b"hello", b"P6 1 1 255\n123"):
        with pytest.raises(UnknownFormatError, match="The data is no picture"):
            decode_upload(other, 64 * 96)


def test_a_frame_as_a_jpeg_is_nearly_the_frame():
    frame = torch.full((3, 40, 30), 100, dtype=torch.uint8)
    assert (decode_upload(to_jpeg(frame), 1200).int() - 100).abs().max() <= 2
