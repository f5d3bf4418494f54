"""A lock for many readers or one writer."""

from __future__ import annotations

import threading


class RWLock:
    """Held by any number of readers or by one writer. Waiting writers go before new readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    def acquire_read(self) -> None:
        """Wait until nobody writes or waits to write; then hold the lock together with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1

    def acquire_write(self) -> None:
        """Wait until nobody holds the lock; then hold it alone."""
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
                self._writing = True
            finally:
                self._writers_waiting -= 1

    def release(self) -> None:
        """Release the lock, once per `acquire_read` or `acquire_write`.

        Raises:
            RuntimeError: nobody holds the lock.
        """
        with self._changed:
            if self._writing:
                self._writing = False
            elif self._readers:
                self._readers -= 1
            else:
                raise RuntimeError("release() without acquire_read() or acquire_write(): nobody holds this lock.")
            self._changed.notify_all()
