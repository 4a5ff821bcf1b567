"""Files that are whole or told: each kind that we write holds a checksum, and is not used if it does not match."""

import json
import random
import shutil
import zipfile

import onnx
import pytest
import torch
from commands import complaint
from exports import exported as exported, moving
from safetensors import safe_open
from torch import nn

import streamseg
from streamseg.engine.runtime import open_exported
from streamseg.io import checksums
from streamseg.io.checksums import BLANK_CHECKSUM, PREFIX, check_checksum, check_zip, write_checksum
from streamseg.io.images import write_image
from streamseg.io.tensors import read_tensors, write_tensors
from streamseg.models.bundled import find_weights
from streamseg.stream.state import State

DAMAGED = r"is damaged \(its checksum does not match\): copy or download it again\.$"


def zero_an_eighth(data):
    """The last eighth but one, where no file has its metadata."""
    eighth = len(data) // 8
    data[6 * eighth : 7 * eighth] = bytes(eighth)


def flip_200_bits(data):
    dice = random.Random(0)
    for _ in range(200):
        data[dice.randrange(len(data) // 4, 3 * len(data) // 4)] ^= 1 << dice.randrange(8)


def flip_one_bit(data):
    data[len(data) // 2] ^= 1


DAMAGES = [zero_an_eighth, flip_200_bits, flip_one_bit]


def spoil(path, damage):
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def network():
    """The smallest there is."""
    return streamseg.models.baselines.enet(11).eval()


@pytest.fixture
def saved(network, tmp_path):
    streamseg.save(network, streamseg.CAMVID, tmp_path / "a.safetensors", window=3, source="a test")
    return tmp_path / "a.safetensors"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_one_sentence(saved, damage, monkeypatch, capsys):
    spoil(saved, damage)
    for use in (streamseg.load, streamseg.describe, read_tensors):
        with pytest.raises(ValueError, match=DAMAGED):
            use(saved)
    write_image(saved.with_name("a.png"), torch.zeros(3, 64, 64, dtype=torch.uint8))
    said = complaint(monkeypatch, capsys, "segment", saved.with_name("a.png"), "-", "--weights", saved)
    assert "a.safetensors is damaged (its checksum does not match): copy or download it again." in said


def test_a_check_that_was_started_ahead_counts_once(saved, monkeypatch):
    read = []
    monkeypatch.setattr(checksums, "check_bytes", lambda path, data, others=(): read.append(others))
    checksums.check_ahead(saved)
    checksums.check_checksum(saved, saved)  # of two files: another checksum
    for _ in range(2):
        checksums.check_checksum(saved)
    assert sorted(read) == [(), (), (saved,)]  # one of them by the thread


def test_a_file_that_has_changed_since_is_checked_again(saved):
    checksums.check_ahead(saved)
    checksums.CHECKED_AHEAD[saved].join()
    saved.write_bytes(saved.read_bytes()[:-1] + b"xx")
    with pytest.raises(ValueError, match=DAMAGED):
        check_checksum(saved)


def test_any_error_of_the_thread_is_raised(saved, monkeypatch):
    def fail(*given):
        raise MemoryError

    monkeypatch.setattr(checksums, "check_bytes", fail)
    checksums.check_ahead(saved)
    with pytest.raises(MemoryError):
        check_checksum(saved)


def test_damage_that_is_found_ahead_is_told_where_the_file_is_opened(saved, tmp_path):
    spoil(saved, flip_one_bit)
    for path, error in ((saved, DAMAGED), (tmp_path / "missing", "No such file")):
        checksums.check_ahead(path)
        with pytest.raises((ValueError, OSError), match=error):
            check_checksum(path)
    assert checksums.CHECKED_AHEAD == {}


@pytest.mark.parametrize("old", ["Tree", "Road", "a test", "enet", 'window\\": 3', "running_mean"])
def test_the_checksum_is_of_the_description_too(saved, old):
    data = saved.read_bytes()
    changed = data.replace(old.encode(), old[:-1].encode() + (b"4" if old.endswith("3") else b"q"), 1)
    assert changed != data
    saved.write_bytes(changed)
    with pytest.raises(ValueError, match=f"{DAMAGED}|cannot be used|cut short"):
        streamseg.load(saved)


@pytest.mark.parametrize("part", ["checksum", "streamseg-sha256", ":", "last digit"])
def test_a_damaged_checksum_does_not_pass_for_an_older_file(saved, part):
    data = saved.read_bytes()
    start = data.index(PREFIX.encode())
    at = {
        "checksum": start - 14,
        "streamseg-sha256": start + 3,
        ":": start + 16,
        "last digit": start + len(BLANK_CHECKSUM) - 1,
    }
    spoiled = bytearray(data)
    spoiled[at[part]] ^= 1
    saved.write_bytes(spoiled)
    with pytest.raises(ValueError, match="is damaged|has invalid metadata"):
        streamseg.load(saved)


def test_other_readers_take_a_file_with_a_checksum_and_older_files_need_none(saved, network, image):
    with safe_open(saved, "pt") as file:
        entry, weights = json.loads(file.metadata()["streamseg"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert entry.pop("checksum").startswith(PREFIX)
    assert BLANK_CHECKSUM not in saved.read_text(errors="replace")
    write_tensors(saved, weights, {"format": "pt", "streamseg": json.dumps(entry)})
    assert streamseg.load(saved)[0](image).equal(network(image))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_of_the_bundled_weights_is_told(tmp_path, damage):
    path = tmp_path / "mine.safetensors"
    shutil.copyfile(find_weights(), path)
    spoil(path, damage)
    for use in (streamseg.load, streamseg.describe):
        with pytest.raises(ValueError, match=DAMAGED):
            use(path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_of_a_stream_is_told(tmp_path, damage):
    path = tmp_path / "state.safetensors"
    state = State(torch.rand(4, 8, 960), (1.0, 1.0, 1.0, 1.0), 0.16)
    streamseg.save_state(state, path)
    assert streamseg.load_state(path).contexts.equal(state.contexts)
    spoil(path, damage)
    with pytest.raises(ValueError, match=DAMAGED):
        streamseg.load_state(path)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["still.onnx", "fixed.xml", "fixed.bin", "fixed.pt2"])
def test_a_damaged_exported_file_is_told(exported, tmp_path, name, damage):
    for part in {name, "fixed.xml", "fixed.bin"} if name.endswith(("xml", "bin")) else {name}:
        shutil.copyfile(exported(part), tmp_path / part)
    path = tmp_path / name.replace(".bin", ".xml")
    file = open_exported(path, trust=True)
    assert file.classes == 11
    spoil(tmp_path / name, damage)
    with pytest.raises(ValueError, match=DAMAGED):
        open_exported(path, trust=True)


def test_other_programs_read_an_onnx_file_with_a_checksum(exported):
    runtime = pytest.importorskip("onnxruntime")
    path = exported("still.onnx")
    onnx.checker.check_model(str(path))
    (frame,) = moving(1)
    found = runtime.InferenceSession(str(path)).run(["labels"], {"frame": frame.permute(1, 2, 0)[None].numpy()})
    assert found[0].shape == (1, *frame.shape[1:])


def test_an_exported_file_without_a_checksum_is_an_older_one_and_runs(exported, tmp_path):
    written = onnx.load(exported("still.onnx"))
    (prop,) = written.metadata_props
    entry = json.loads(prop.value)
    del entry["checksum"]
    prop.value = json.dumps(entry)
    onnx.save(written, tmp_path / "older.onnx")
    assert open_exported(tmp_path / "older.onnx").classes == 11


def test_the_files_that_belong_together_share_a_checksum(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text(f"before {BLANK_CHECKSUM} after")
    other.write_text("more")
    write_checksum(path, other)
    assert path.read_text() != f"before {BLANK_CHECKSUM} after"
    assert len(path.read_text()) == len(f"before {BLANK_CHECKSUM} after")
    check_checksum(path, other)
    other.write_text("less")
    with pytest.raises(ValueError, match=DAMAGED):
        check_checksum(path, other)
    with pytest.raises(ValueError, match="has no place for its checksum"):
        write_checksum(other)


def test_a_torch_file_with_one_wrong_byte_is_told(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(nn.Conv2d(64, 64, 3).state_dict(), path)
    check_zip(path)
    spoil(path, flip_one_bit)
    with pytest.raises(ValueError, match=DAMAGED):
        read_tensors(path)


def test_a_zip_file_whose_parts_overlap_is_not_read_again_and_again(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w") as archive:
        archive.writestr("a/data.pkl", bytes(2**20))
        archive.filelist.extend([archive.filelist[0]] * 5)
    with pytest.raises(ValueError, match=DAMAGED):
        check_zip(tmp_path / "bomb.pth")


def test_a_zip_file_is_not_unfolded_to_be_checked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2**24))
    check_zip(tmp_path / "bomb.pth")
    with pytest.raises(ValueError, match="is no torch file of plain tensors"):
        read_tensors(tmp_path / "bomb.pth")
