"""Reference implementation of FANet on the tensors of a state_dict, which the network must equal.

It uses nothing of streamseg, and follows torchvision's ResNet and the authors' decoder layer by layer.
"""

import torch
from torch.nn import functional as F


def randomise(network, seed=0):
    """Give batch norms and DANet's scale random values, so that an error in them shows; returns the network in fp64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.ndim == 1:
                low = -0.5 if name.endswith(("bias", "running_mean")) else 0.5
                tensor.copy_(low + torch.rand(tensor.shape, generator=generator))
    return network.eval().double()


def normed(w, name, norm, x, **options):
    """Convolution without bias, then batch norm."""
    x = F.conv2d(x, w[f"{name}.weight"], **options)
    parts = (w[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, *parts, training=False, eps=1e-5)


def resnet(w, x, blocks, strides):
    """Return the feature maps of ResNet's four stages; strides are those of each first block."""
    x = F.relu(normed(w, "conv1", "bn1", x, stride=2, padding=3))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    maps = []
    for stage, (count, stride) in enumerate(zip(blocks, strides, strict=True), start=1):
        for block in range(count):
            name, step = f"layer{stage}.{block}", stride if block == 0 else 1
            y = F.relu(normed(w, f"{name}.conv1", f"{name}.bn1", x, stride=step, padding=1))
            y = normed(w, f"{name}.conv2", f"{name}.bn2", y, padding=1)
            if f"{name}.downsample.0.weight" in w:
                x = normed(w, f"{name}.downsample.0", f"{name}.downsample.1", x, stride=step)
            x = F.relu(y + x)
        maps.append(x)
    return maps


def layer(w, name, x):
    """Convolution that keeps the size (`name.0`), then batch norm (`name.1`)."""
    return normed(w, f"{name}.0", f"{name}.1", x, padding=w[f"{name}.0.weight"].shape[-1] // 2)


def attention(w, name, x, past, others):
    """Paper Eq. 2 as written, with the full affinity matrix, plus the past of Eq. 6 and the residual of Fig. 2b.

    others: feature maps of earlier frames, which the frame attends to pixel by pixel: Eq. 6 without factored sums.
    """
    pixels = x.shape[2] * x.shape[3]
    q = layer(w, f"{name}.query", x).flatten(2)  # (B, D, N)
    k = torch.cat([layer(w, f"{name}.key", frame).flatten(2) for frame in (x, *others)], dim=2)
    v = torch.cat([F.relu(layer(w, f"{name}.value", frame)).flatten(2) for frame in (x, *others)], dim=2)  # (B, C, N)
    q, k = q / q.norm(dim=1, keepdim=True), k / k.norm(dim=1, keepdim=True)
    y = torch.einsum("bdn,bdm,bcm->bcn", q, k, v) / pixels
    if past is not None:
        y = y + torch.einsum("bdn,bdc->bcn", q, past)
    context = torch.einsum("bdm,bcm->bdc", k, v) / pixels
    return x + F.relu(layer(w, f"{name}.out", y.view(x.shape))), context


def fanet(w, image, blocks, past=(None, None, None, None), others=()):
    """Return logits and context of FANet with the extra reduction at Res-1; others are earlier frames to attend to."""
    mean, std = (torch.tensor(x).double().view(1, 3, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    encoder = {name.removeprefix("encoder."): tensor for name, tensor in w.items() if name.startswith("encoder.")}
    of_frames = [resnet(encoder, (frame / 255 - mean) / std, blocks, (2, 2, 2, 2)) for frame in (image, *others)]
    stages = zip(past, zip(*of_frames, strict=True), strict=True)
    attended = [attention(w, f"attend{i}", x, p, more) for i, (p, (x, *more)) in enumerate(stages, start=1)]
    x1, x2, x3, x4 = (x for x, _ in attended)

    def bilinear(x, like):
        return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)

    x3 = x3 + bilinear(F.relu(layer(w, "narrow4", x4)), x3)
    x2 = x2 + bilinear(F.relu(layer(w, "narrow3", x3)), x2)
    x1 = x1 + bilinear(F.relu(layer(w, "narrow2", x2)), x1)
    x = torch.cat([bilinear(F.relu(layer(w, "smooth3", x3)), x1), F.relu(layer(w, "smooth1", x1))], dim=1)
    x = F.relu(layer(w, "classify.0", x))
    return bilinear(F.conv2d(x, w["classify.1.weight"]), image), [context for _, context in attended]
