"""The interfaces through which a pipeline reports progress and frames."""

from streamseg.io.outputs import Output
from streamseg.io.sources import Capture


class PipelineObserver:
    """Receives the events of a pipeline. Each method does nothing unless a subclass overrides it."""

    def message(self, sentence: str) -> None:
        """Handle a note for the user. Called from the threads that read and label."""

    def frame_written(self, capture: Capture, shares: list[float], files: Output) -> None:
        """Handle a written frame, with the share of each class. Called from the thread that writes its source."""

    def tick(self) -> None:
        """Update a progress display. Called by the main thread, about ten times a second."""
