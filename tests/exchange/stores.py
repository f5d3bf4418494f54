"""Stores for tests: on a clock that is set by hand, and time that passes on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from small_world import AT_ONCE, LAYOUT, HandClock, joined, state, train_order, update

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import HogwildCenter, LockedCenter
from elephas_like.core.strategies.asynchronous import DownPour
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.store import Store


def rounds(num_workers: int = 2, **waits: object) -> tuple[RoundStore, HandClock]:
    clock = HandClock()
    store = RoundStore(num_workers, LAYOUT.hash, waits=replace(AT_ONCE, **waits), clock=clock)  # type: ignore[arg-type]
    return store, clock


def asynchronous(
    num_workers: int = 2,
    *,
    epochs: int = 2,
    rows: int = 8,
    validates: bool = False,
    recalls: bool = False,
    lock_free: bool = False,
    center: LockedCenter | HogwildCenter | None = None,
    rounds: tuple[int, ...] | None = None,
    **waits: object,
) -> tuple[CenterStore, HandClock]:
    clock = HandClock()
    store = CenterStore(
        num_workers,
        LAYOUT.hash,
        lock_free=lock_free,
        waits=replace(AT_ONCE, **waits),  # type: ignore[arg-type]
        clock=clock,
    )
    for worker in range(num_workers):
        assert store.join(joined(worker)).kind == "wait"
    progress = AsyncProgress(rows, epochs, AsyncSchedule(rounds or (2,) * num_workers))
    center = center or LockedCenter(state(), LAYOUT, DownPour(), num_workers)
    store.begin(center, progress, lambda epoch: validates, lambda epoch: recalls)
    return store, clock


def let_time_pass(store: Store, clock: HandClock, *events: tuple[float, Callable[[], object]]) -> None:
    """Waits end at once, at their end or at the next event: (seconds from now, what happens then)."""
    start = clock.now
    coming = [(start + seconds, act) for seconds, act in sorted(events, key=lambda event: event[0])]

    def wait_until(end: float) -> bool:
        if clock.now >= end:
            return False
        if coming and coming[0][0] <= end:
            clock.now, act = coming.pop(0)
            act()
        else:
            clock.now = end
        return True

    store._wait_until = wait_until  # type: ignore[method-assign]


def beats(store: Store, worker: int, first: int, last: int, progress: bool = False) -> Iterator[tuple[float, Callable]]:
    """A heartbeat every 20 seconds; the worker has done another step every time if `progress`."""
    for second in range(first, last, 20):
        yield second, lambda second=second: store.beat(worker, 100, second if progress else 0)


def after_a_round(num_workers: int = 2) -> tuple[RoundStore, HandClock]:
    """A store whose driver has the updates of round 0, and runs callbacks."""
    clock = HandClock()
    store = RoundStore(num_workers, LAYOUT.hash, waits=AT_ONCE, clock=clock)
    updates = store.train(train_order())
    for worker in range(num_workers):
        assert store.join(joined(worker)).kind == "train"
        assert store.answer(100, update(worker)).kind == "wait"
    assert len(list(updates)) == num_workers
    return store, clock
