"""Ctrl-C during a fit, also where Python drops it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """Record Ctrl-C while a fit, a prediction or an evaluation runs, so that it can be raised again. A context manager.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In the callback of a weak reference, in a
    destructor, or in a call from C code that clears errors, it is dropped, and training would go on. `check` raises it. So does
    the end, where an error has come of it: PySpark's handler also cancels all jobs.

    A handler of the user's own that does not raise is left alone, and so are fits outside of the main thread.
    """

    def __init__(self) -> None:
        self.seen = False
        self._previous: Handler | None = None

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.seen:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        """Take the place of the handler of SIGINT, and call it."""
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._previous = handler
            signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former handler back, unless somebody has installed another one meanwhile.

        Raises:
            KeyboardInterrupt: in place of another error after Ctrl-C.
        """
        if self._previous is not None and signal.getsignal(signal.SIGINT) == self._record:
            signal.signal(signal.SIGINT, self._previous)
        if self.seen and isinstance(error, Exception):
            raise KeyboardInterrupt from error

    def _record(self, number: int, frame: FrameType | None) -> None:
        assert self._previous is not None
        try:
            self._previous(number, frame)
        except BaseException:
            self.seen = True
            raise
