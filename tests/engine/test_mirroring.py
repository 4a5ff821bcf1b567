"""Maps with left and right exchanged."""

import torch

from streamseg.engine.mirroring import mirror


def test_mirroring_twice_changes_nothing():
    maps = torch.randn(3, 2, 4, 5)
    for flags in ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0]):
        once = mirror(maps, torch.tensor(flags))
        assert not once.equal(maps)
        assert mirror(once, torch.tensor(flags)).equal(maps)
    assert mirror(maps, None) is maps
