"""Copying the labels of the last key frame."""

import torch

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video.copying import copying


@torch.no_grad()
def test_all_frames_have_the_labels_of_the_last_key_frame():
    torch.manual_seed(0)
    method = copying(swiftnet18(3), interval=2).eval()
    frames = torch.randint(0, 256, (4, 1, 3, 64, 64), dtype=torch.uint8)
    state, results = None, []
    for frame in frames:
        logits, state = method.step(frame, state)
        results.append(logits)
    keys = [method.backbone.network(frame) for frame in frames[::2]]
    assert results[0].equal(keys[0])
    assert results[1].equal(keys[0])
    assert results[2].equal(keys[1])
    assert results[3].equal(keys[1])


def test_the_backbone_is_trained_on_the_labelled_frame():
    torch.manual_seed(0)
    method = copying(swiftnet18(3)).eval()
    frames = torch.randint(0, 256, (2, 1, 3, 64, 64), dtype=torch.uint8)
    logits, _ = method.clip_outputs([*frames])
    assert logits.equal(method.backbone(frames[1]))
