import signal
import threading

from streamseg.parallel.signals import StopSignals


def test_in_another_thread_than_the_first_signals_stay_as_they_are():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with StopSignals() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.signal))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, 0)]
