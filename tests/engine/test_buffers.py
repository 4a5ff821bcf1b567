"""What a graph of the fast engine is captured for."""

import torch

from streamseg.engine.buffers import key_of
from streamseg.engine.engine import FrameBatch
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW


def test_batches_share_a_graph_unless_it_would_compute_something_else():
    plain = FrameBatch(torch.zeros(1, 3, 8, 8), None, [0.0], [(8, 8)])
    others = [
        plain._replace(images=torch.zeros(2, 3, 8, 8)),
        plain._replace(with_confidence=True),
        plain._replace(mask=torch.ones(1, 8, 8)),
        plain._replace(shares=torch.ones(1)),
        plain._replace(steady=STEADY_LOW),
        plain._replace(steady=STEADY_HIGH),
        plain._replace(steady=STEADY_HIGH, sizes=[(4, 4)]),
        plain._replace(steady=STEADY_HIGH, sizes=[(4, 4), (8, 8)]),
    ]
    assert len({key_of(batch) for batch in [plain, *others]}) == len(others) + 1
    assert key_of(plain._replace(weights=[1.0], sizes=[(4, 4)], steady=0.5)) == key_of(plain)
    assert key_of(plain._replace(steady=STEADY_HIGH, weights=[1.0])) == key_of(others[-3])
