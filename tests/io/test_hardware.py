import av
import pytest
from clips import make_clip

from streamseg.io import hardware
from streamseg.io.sources import Decoding, VideoFile
from streamseg.io.video_reading import open_video


@pytest.fixture(autouse=True)
def nothing_failed(monkeypatch):
    monkeypatch.setattr(hardware, "FAILED", set())


@pytest.fixture
def no_devices(monkeypatch):
    """A machine without hardware decoders."""
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", list)


@pytest.mark.parametrize(("wanted", "named"), [("cuda", "cuda decoder"), ("auto", "hardware decoder")])
def test_without_a_hardware_decoder_the_cpu_decodes_and_it_is_said_once(tmp_path, no_devices, wanted, named):
    source = VideoFile("a", str(make_clip(tmp_path / "a.mp4", 3)))
    captures = list(source.captures(Decoding(hardware=wanted)))
    expected = list(source.captures())
    assert all(a.frame.equal(b.frame) for a, b in zip(captures, expected, strict=True))
    note = f"{tmp_path / 'a.mp4'} is decoded on the CPU: this machine, or this PyAV, has no {named} for it."
    assert [capture.note for capture in captures] == [note, "", ""]


@pytest.mark.skipif(hardware.is_too_old(), reason="this PyAV may crash without a device")
def test_a_device_that_cannot_be_opened_falls_back_to_the_cpu(tmp_path, monkeypatch):
    opened = []

    def open_container(accelerator):
        opened.append(accelerator)
        if accelerator:
            raise av.error.ExternalError(1, "no device")
        return "on the CPU"

    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", lambda: ["cuda", "vaapi", "drm"])
    assert hardware.open_accelerated(open_container, "auto") == "on the CPU"
    assert [bool(accelerator) for accelerator in opened] == [True, True, False]
    hardware.open_accelerated(open_container, "auto")  # what failed is not tried again
    assert [bool(accelerator) for accelerator in opened] == [True, True, False, False]


@pytest.mark.skipif(hardware.is_too_old(), reason="this PyAV is not asked for hardware")
def test_an_address_that_does_not_answer_is_waited_for_once(monkeypatch):
    opened = []

    def open_container(accelerator):
        opened.append(accelerator)
        raise av.error.ExitError(1, "it took too long")

    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", lambda: ["cuda", "vaapi"])
    with pytest.raises(av.error.ExitError):
        hardware.open_accelerated(open_container, "auto")
    assert len(opened) == 1
    assert not hardware.FAILED


def test_a_bad_file_is_the_same_error_with_a_hardware_decoder(tmp_path, no_devices):
    (tmp_path / "a.mp4").write_bytes(b"no video at all\n" * 50)
    with pytest.raises(ValueError, match=r"a\.mp4 is not a video that can be read"):
        open_video(tmp_path / "a.mp4", hardware="auto")


def test_an_old_pyav_is_not_asked_for_hardware(tmp_path, monkeypatch):
    monkeypatch.setattr(av, "__version__", "16.1.0")
    with open_video(make_clip(tmp_path / "a.mp4", 2), hardware="cuda") as video:
        assert video.note.endswith("hardware decoding needs PyAV 17 or later, and this is 16.1.0.")


def test_frames_of_a_hardware_decoder_need_no_note():
    assert hardware.fallback_note("a.mp4", "cuda", "nv12") == ""
    assert hardware.fallback_note("a.mp4", "", "yuv420p") == ""


@pytest.mark.gpu
def test_nvdec_decodes_what_the_cpu_does(tmp_path):
    path = make_clip(tmp_path / "a.mp4", 8, size=(240, 320))
    with open_video(path, hardware="cuda") as video:
        if video.note:
            pytest.skip(video.note)
        found = [frame for frame, _ in video]
    with open_video(path) as video:
        expected = [frame for frame, _ in video]
    assert all((a.int() - b.int()).abs().float().mean() < 2 for a, b in zip(found, expected, strict=True))
