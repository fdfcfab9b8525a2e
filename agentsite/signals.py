"""Ctrl-C and SIGTERM as something to wait for."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Set by the first signal. A second one means "now": it raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._asked.wait(timeout)

    def __call__(self, signum: int, _frame: FrameType | None) -> None:
        if self.asked and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked.set()


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Only in the main thread, as Python wants it. The handlers before are put back."""
    stop = Stop()
    before = {signum: signal.signal(signum, stop) for signum in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
