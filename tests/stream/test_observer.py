import torch

from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.stream.observer import PipelineObserver


def test_an_observer_ignores_the_events_that_it_does_not_override():
    class Messages(PipelineObserver):
        def __init__(self):
            self.sentences = []

        def message(self, sentence):
            self.sentences.append(sentence)

    observer = Messages()
    observer.message("The camera gives 15 frames a second.")
    observer.frame_written(Capture(torch.zeros(3, 1, 1), "a", 0, 0.0, 0.0), [1.0], OutputFiles())
    observer.tick()
    assert observer.sentences == ["The camera gives 15 frames a second."]
