"""Reference implementation of FANet and FANet+ on the tensors of a state_dict, which the network must equal.

It uses nothing of streamseg, and follows torchvision's ResNet and the authors' decoder layer by layer.
"""

import math

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


def resnet(w, x, blocks, strides, pooled=0):
    """Return the feature maps of ResNet's four stages; strides are those of each first block.

    pooled: the stage with an average pooling of 2 x 2, rounded up, in front of it.
    """
    x = F.relu(normed(w, "conv1", "bn1", x, stride=2, padding=3))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    maps = []
    for stage, (count, stride) in enumerate(zip(blocks, strides, strict=True), start=1):
        if stage == pooled:
            x = F.avg_pool2d(x, 2, ceil_mode=True)
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


def normalise(frame):
    mean, std = (torch.tensor(x).double().view(1, 3, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    return (frame / 255 - mean) / std


def encoder_of(w):
    return {name.removeprefix("encoder."): tensor for name, tensor in w.items() if name.startswith("encoder.")}


def bilinear(x, like):
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)


def fanet(w, image, blocks, past=(None, None, None, None), others=()):
    """Return logits and context of FANet with the extra reduction at Res-1; others are earlier frames to attend to."""
    encoder = encoder_of(w)
    of_frames = [resnet(encoder, normalise(frame), blocks, (2, 2, 2, 2)) for frame in (image, *others)]
    stages = zip(past, zip(*of_frames, strict=True), strict=True)
    attended = [attention(w, f"attend{i}", x, p, more) for i, (p, (x, *more)) in enumerate(stages, start=1)]
    x1, x2, x3, x4 = (x for x, _ in attended)
    x3 = x3 + bilinear(F.relu(layer(w, "narrow4", x4)), x3)
    x2 = x2 + bilinear(F.relu(layer(w, "narrow3", x3)), x2)
    x1 = x1 + bilinear(F.relu(layer(w, "narrow2", x2)), x1)
    x = torch.cat([bilinear(F.relu(layer(w, "smooth3", x3)), x1), F.relu(layer(w, "smooth1", x1))], dim=1)
    x = F.relu(layer(w, "classify.0", x))
    return bilinear(F.conv2d(x, w["classify.1.weight"]), image), [context for _, context in attended]


def fanet_plus(w, image, blocks, past=(None, None), others=()):
    """Return logits and context of FANet+; others are earlier frames to attend to."""
    encoder, of_frames = encoder_of(w), []
    for frame in (image, *others):
        size = [math.ceil(0.75 * side) for side in frame.shape[2:]]
        shrunk = F.interpolate(normalise(frame), size, mode="bilinear", align_corners=False)
        of_frames.append(resnet(encoder, shrunk, blocks, (1, 2, 2, 2), pooled=4))
    (x1, *_), (x2, *_), (x3, *others3), (x4, *others4) = zip(*of_frames, strict=True)
    x3, context3 = attention(w, "attend3", x3, past[0], others3)
    x4, context4 = attention(w, "attend4", x4, past[1], others4)
    y3 = F.relu(layer(w, "narrow3", x3))
    y3 = F.relu(layer(w, "smooth3", y3 + bilinear(pyramid(w, x4), y3)))
    y2 = F.relu(layer(w, "narrow2", x2))
    y2 = F.relu(layer(w, "smooth2", y2 + bilinear(y3, y2)))
    y1 = F.relu(layer(w, "narrow1", x1))
    y1 = F.relu(layer(w, "smooth1", y1 + bilinear(F.relu(layer(w, "blend1", y2)), y1)))
    logits = F.conv2d(y1, w["classify.weight"], w["classify.bias"])
    return bilinear(logits, image), [context3, context4]


def pyramid(w, x):
    """Average a map over grids of 8, 4 and 2 rows of nearly square cells, and merge the averages with it."""
    x = F.relu(layer(w, "pool.narrow", x))
    levels = [x]
    for i, rows in enumerate((8, 4, 2)):
        columns = max(2, math.floor(rows * x.shape[3] / x.shape[2] + 0.5))
        levels.append(bilinear(F.relu(layer(w, f"pool.levels.{i}", F.adaptive_avg_pool2d(x, (rows, columns)))), x))
    return F.relu(layer(w, "pool.fuse", torch.cat(levels, dim=1)))
