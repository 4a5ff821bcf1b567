import streamseg
from streamseg.engine.engine import EagerEngine
from streamseg.stream.settings import LabelSettings
from streamseg.stream.state import LastFrames


def test_settings_know_the_device_of_a_network_and_of_an_engine(model):
    for network in (model, EagerEngine(model)):
        assert LabelSettings(network, streamseg.CAMVID, LastFrames(1)).device == model.mean.device
