"""Stop at a safe point after Ctrl-C or SIGTERM."""

import signal
import threading
from types import FrameType


class StopSignals:
    """A context in which the first Ctrl-C or SIGTERM only sets `signal`; a second one acts at once.

    Only the main thread can receive signals: in other threads nothing changes.
    """

    signal = 0

    def __enter__(self) -> "StopSignals":
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        self.before = {number: signal.signal(number, self.note) for number in numbers}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, self.before[signal.Signals(number)])

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
