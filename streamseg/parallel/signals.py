"""Stop at a safe point when the user presses Ctrl-C or the system sends SIGTERM."""

import signal
import threading
from types import FrameType


class StopSignals:
    """Within it, the first Ctrl-C or SIGTERM is noted and lets the iteration end; a second one is obeyed at once.

    Only a process's first thread can hear signals: in another one, nothing changes.
    """

    signal = 0

    def __enter__(self) -> "StopSignals":
        heard = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if heard else ()
        self.before = {number: signal.signal(number, self.note) for number in numbers}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, self.before[signal.Signals(number)])

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
