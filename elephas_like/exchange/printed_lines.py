"""What workers print, handed on line by line while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from elephas_like.core.types import Order
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.request_handler import RequestHandler
from elephas_like.exchange.trial_reports import NO_STATE

Show = Callable[[int, str], None]
"""(worker, a line without its end)."""


class PrintedLines:
    """Puts together what workers send, and shows each line when it is whole. A text that is sent twice is shown once.

    show: called under a lock.
    """

    def __init__(self, show: Show, num_workers: int) -> None:
        self.num_workers = num_workers
        self._show = show
        self._lock = threading.Lock()
        self._letters: dict[tuple[int, int], int] = {}
        self._begun: dict[tuple[int, int], str] = {}

    def take(self, worker: int, attempt: int, number: int, text: str) -> None:
        """Take what a worker's attempt has printed after its first `number` letters."""
        with self._lock:
            known = self._letters.get((worker, attempt), 0)
            new = text[max(0, known - number) :]
            self._letters[worker, attempt] = max(known, number + len(text))
            begun = self._begun.get((worker, attempt), "")
            *whole, self._begun[worker, attempt] = (begun + new).split("\n")
            for line in whole:
                self._show(worker, line)

    def stop(self) -> None:
        """Show the lines that have no end."""
        with self._lock:
            for (worker, _), line in sorted(self._begun.items()):
                if line:
                    self._show(worker, line)
            self._begun.clear()


class PrintedRequestHandler(RequestHandler):
    """Answers workers that print, and refuses other requests."""

    def __init__(self, store: PrintedLines, sizes: protocol.Sizes = NO_STATE) -> None:
        super().__init__(sizes)
        self._store = store

    def _reply(self, source: wire.ByteSource, head: wire.Head) -> Order | protocol.Sign:
        message = wire.read_rest(source, head) if head.kind == "printed" else None
        if not isinstance(message, protocol.Printed):
            raise wire.FrameError(f"expected what a worker has printed, got {head.kind!r}.")
        self._store.take(message.worker, message.attempt, message.number, message.text)
        return protocol.Sign("done")
