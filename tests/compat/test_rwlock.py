"""Many readers or one writer, with real threads."""

from __future__ import annotations

import threading

import pytest

from elephas_like.compat.rwlock import RWLock

SECONDS = 10


def started(target: object) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_readers_read_together() -> None:
    lock, together = RWLock(), threading.Barrier(2)

    def read() -> None:
        lock.acquire_read()
        together.wait(SECONDS)
        lock.release()

    for thread in [started(read), started(read)]:
        thread.join(SECONDS)
    assert not together.broken


def test_a_writer_is_alone_and_updates_are_not_lost() -> None:
    lock, number = RWLock(), [0]

    def add() -> None:
        for _ in range(300):
            lock.acquire_write()
            number[0] += 1
            lock.release()

    for thread in [started(add) for _ in range(4)]:
        thread.join(SECONDS)
    assert number == [1200]


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock, order = RWLock(), []
    lock.acquire_read()

    def write() -> None:
        lock.acquire_write()
        order.append("writer")
        lock.release()

    def read() -> None:
        lock.acquire_read()
        order.append("reader")
        lock.release()

    writer = started(write)
    while not lock._writers_waiting:
        threading.Event().wait(0.001)
    reader = started(read)
    reader.join(0.05)
    assert order == []
    lock.release()
    writer.join(SECONDS)
    reader.join(SECONDS)
    assert order == ["writer", "reader"]


def test_a_lock_that_nobody_holds_cannot_be_released() -> None:
    with pytest.raises(RuntimeError, match="nobody holds this lock"):
        RWLock().release()
