import pytest
import torch
from safetensors import SafetensorError

from streamseg.io.tensors import check_state_dict, open_tensors, read_tensors, write_tensors

DENSE = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_tensors_are_read_as_they_were_written(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write_tensors(path, {"a": DENSE}, {}) if suffix == ".safetensors" else torch.save({"a": DENSE}, path)
    assert read_tensors(path)["a"].equal(DENSE)


@pytest.mark.parametrize(
    "content",
    [
        [DENSE],
        {1: DENSE},
        {"a": "text"},
        {"a": DENSE.to_sparse()},
        {"a": DENSE.to("meta")},
        {"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)},
    ],
)
def test_a_torch_file_of_anything_but_named_dense_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a\.pth (does not hold dense tensors by their names|is no torch file)"):
        read_tensors(tmp_path / "a.pth")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_what_is_no_file_is_refused(tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(FileNotFoundError, match="No weights at .*nowhere"):
        read_tensors(tmp_path / f"nowhere{suffix}")
    with pytest.raises(ValueError, match="is a folder or a device"):
        read_tensors(tmp_path / f"folder{suffix}")


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("streamseg.io.tensors.save_file", full)
    with pytest.raises(OSError, match=rf"Could not write {tmp_path / 'a'}: No space left on device"):
        write_tensors(tmp_path / "a", {"a": DENSE}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_that_networks_have_is_accepted(dtype):
    count = {"bn.num_batches_tracked": torch.tensor(3)}
    check_state_dict("x", {"bn.running_var": DENSE.to(dtype), **count}, {"bn.running_var": DENSE, **count})
    long = {"bn.num_batches_tracked": torch.tensor(100_000), "bn.running_var": DENSE.to(dtype)}  # above fp16's greatest
    check_state_dict("x", long, long)


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        ("b", DENSE, "^x: 'a' is missing"),
        ("a", DENSE.T, "has shape"),
        ("a", DENSE.to(torch.int64), "is no dense tensor of"),
        ("a", DENSE.to(torch.complex64), "is no dense tensor of"),
        ("a", DENSE.to(torch.float8_e4m3fn), "is no dense tensor of"),
        ("a", DENSE.to("meta"), "is no dense tensor of"),
        ("a", DENSE / 0, "not finite"),
        ("a", DENSE.double() * 1e300, "not finite"),
        ("a.running_var", -DENSE, "variances below zero"),
        ("num_batches_tracked", DENSE, "is no dense tensor of torch.int64"),
    ],
)
def test_what_no_network_can_use_is_refused(name, tensor, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_state_dict("x", {name: tensor}, {"a" if name == "b" else name: DENSE})


def test_a_file_of_torch_is_not_taken_for_a_damaged_checkpoint(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt is a file of torch\.save, .* load_state_dict\.$"):
        open_tensors(tmp_path / "a.pt")


def test_the_tensor_with_the_wrong_numbers_is_named():
    weights = {name: DENSE.clone() for name in ("a", "b", "c.running_var")} | {"num_batches_tracked": torch.tensor(3)}
    check_state_dict("x", weights, weights)
    weights["b"][1, 1] = torch.nan
    with pytest.raises(ValueError, match="^x: 'b' holds numbers that are not finite"):
        check_state_dict("x", weights, weights)
    check_state_dict("x", {}, {})
