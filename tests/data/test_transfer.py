import torch

from streamseg.data.transfer import on_device


def test_a_copy_is_pinned_for_a_gpu_only_and_not_waited_for(monkeypatch):
    asked = []
    tensor = torch.arange(3)
    assert on_device(tensor, torch.device("cpu")).equal(tensor)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, *, non_blocking: asked.append((device, non_blocking)))
    for name in ("cpu", "cuda"):
        on_device(tensor, torch.device(name))
    assert asked == [(torch.device("cpu"), True), "pinned", (torch.device("cuda"), True)]
