"""What a function on a worker prints: sent to the driver while it runs, where there is a way, and else kept for the end."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Protocol

from elephas_like.core.errors import ElephasError
from elephas_like.exchange.protocol import PRINTED_LETTERS

log = logging.getLogger(__name__)

EACH_SECONDS = 0.2
"""Between two messages of a worker that prints all the time."""
KEPT_LETTERS = 256 * 2**10
"""Letters that are kept for the end: the last ones."""


class Printer(Protocol):
    """A worker's way to the driver (exchange/client.py)."""

    def print(self, number: int, text: str) -> None:
        """Sends what comes after the first `number` letters."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class LiveOutput(io.TextIOBase):
    """A stream whose text a thread sends now and then. A context manager: leaving it sends the rest.

    After a message that did not arrive nothing is sent any more: `rest` has what the driver has not seen.
    """

    def __init__(self, printer: Printer | None) -> None:
        self._printer, self._before = printer, sys.stderr
        self._waiting = ""
        self._sent = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._send_all, name="elephas_like-print", daemon=True)

    @property
    def rest(self) -> str:
        """What was not sent, or at least its end."""
        return self._waiting[-KEPT_LETTERS:]

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str, /) -> int:
        """Take text."""
        with self._changed:
            if self._closed:  # handlers of loggers that were made meanwhile keep this stream
                return self._before.write(text)
            self._waiting += text
            if self._printer is None:
                self._waiting = self._waiting[-KEPT_LETTERS:]
            self._changed.notify_all()
        return len(text)

    def __enter__(self) -> LiveOutput:
        """Begin to send."""
        if self._printer is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Send the rest."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _send_all(self) -> None:
        printer = self._printer
        assert printer is not None
        try:
            while self._wait():
                text = self._waiting[:PRINTED_LETTERS]
                printer.print(self._sent, text)
                with self._changed:
                    self._sent += len(text)
                    self._waiting = self._waiting[len(text) :]
        except ElephasError as error:
            log.warning("what this worker prints is shown at its end: %s", error)
            with self._changed:
                self._printer = None
        finally:
            printer.close()

    def _wait(self) -> bool:
        """Wait until there is something to send, for a moment longer. Return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._changed.wait_for(lambda: self._closed or len(self._waiting) >= PRINTED_LETTERS, EACH_SECONDS)
            return bool(self._waiting)


@contextlib.contextmanager
def printing(printer: Printer | None) -> Iterator[LiveOutput]:
    """Catch what this process prints, in Python, for as long as the context lasts."""
    with LiveOutput(printer) as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        yield output
