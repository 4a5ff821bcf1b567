"""Labels as text."""

import base64
import zlib

import torch

from streamseg.io.packed_labels import pack_labels


def test_packed_labels_are_one_byte_a_pixel_row_by_row():
    labels = torch.randint(0, 256, (7, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for one in (labels, labels.T.contiguous().T):  # whatever their layout in memory
        assert zlib.decompress(base64.b64decode(pack_labels(one))) == bytes(labels.flatten().tolist())
