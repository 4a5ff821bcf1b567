from pipelines import shade

import streamseg
from streamseg.io.captions import render_legend
from streamseg.stream.legend import LegendCache


def test_a_legend_is_drawn_again_only_for_other_classes_or_another_size():
    cache, small, large = LegendCache(), shade(0, (96, 128)), shade(0, (480, 640))
    first = cache.get(streamseg.CAMVID, (0, 1), small)
    assert first.equal(render_legend(streamseg.CAMVID, (0, 1), 96, 128))
    assert cache.get(streamseg.CAMVID, (0, 1), shade(9, (96, 128))) is first
    assert cache.get(streamseg.CAMVID, (0, 1), large).equal(render_legend(streamseg.CAMVID, (0, 1), 480, 640))
    assert cache.get(streamseg.CAMVID, (0, 2), large).equal(render_legend(streamseg.CAMVID, (0, 2), 480, 640))
