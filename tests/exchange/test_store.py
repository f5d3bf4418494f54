from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from small_world import (
    AT_ONCE,
    LAYOUT,
    SIZES,
    Background,
    HandClock,
    floats,
    joined,
    state,
    train_order,
    update,
)

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import Commit, HogwildCenter, LockedCenter
from elephas_like.core.errors import (
    DataError,
    ElephasError,
    Failure,
    NonFiniteError,
    StoppedError,
    SupersededError,
    WaitError,
)
from elephas_like.core.strategies.asynchronous import DownPour
from elephas_like.core.types import Evaluation, Order, Span, Update
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.membership import Waits
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
    store.begin(center or LockedCenter(state(), LAYOUT, DownPour(), num_workers), progress, lambda epoch: validates)
    return store, clock


# Membership.


def test_all_workers_are_returned_in_their_order() -> None:
    store, _ = rounds()
    assert store.join(joined(1)).kind == "wait"
    store.join(joined(0))
    assert [one.worker for one in store.joined()] == [0, 1]


def test_the_driver_waits_for_the_last_worker() -> None:
    store = RoundStore(2, LAYOUT.hash, waits=AT_ONCE)
    waiting = Background(store.joined)
    store.join(joined(0))
    store.join(joined(1))
    assert len(waiting.result()) == 2  # type: ignore[arg-type]


def test_who_does_not_join_is_named_and_the_others_are_stopped() -> None:
    store, _ = rounds(3, join_timeout=0.0)
    store.join(joined(1))
    with pytest.raises(
        WaitError, match=r"join within join_timeout=0 s; missing: worker 0 \(no sign of life\); worker 2"
    ):
        store.joined()
    assert store.ask(1, 100).kind == "stop"


def test_before_the_first_sign_of_life_another_limit_holds() -> None:
    store, _ = rounds(1, join_timeout=9.0, round_timeout=0.0)
    with pytest.raises(WaitError, match=r"round_timeout=0 s; missing: .* give SparkModel a longer round_timeout"):
        store.joined()


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


def test_a_worker_that_writes_a_large_shard_is_waited_for_as_long_as_it_lives() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(
        store,
        clock,
        (5, lambda: store.announce(0, 100, "host-0")),
        (6, lambda: store.announce(1, 100, "host-1")),
        (7, lambda: store.join(joined(0))),
        *beats(store, 0, 10, 500),
        *beats(store, 1, 11, 500),
        (500, lambda: store.join(joined(1))),
    )
    assert [one.worker for one in store.joined()] == [0, 1]


def test_a_worker_that_falls_silent_before_it_has_joined_is_named() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(
        store,
        clock,
        (5, lambda: store.join(joined(0))),
        (5, lambda: store.announce(1, 100, "host-1")),
        *beats(store, 1, 15, 300),
    )
    said = r"join_timeout=60 s; missing: worker 1 \(attempt 100 on host-1, has not joined, last heard of 60 s ago\)"
    with pytest.raises(WaitError, match=said):
        store.joined()
    assert clock.now == 1000 + 295 + 60


def test_a_worker_that_lives_and_does_not_join_ends_the_wait_too() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(
        store,
        clock,
        (0, lambda: store.join(joined(0))),
        (5, lambda: store.announce(1, 100, "host-1")),
        *beats(store, 1, 15, 3000),
    )
    with pytest.raises(WaitError, match=r"round_timeout=600 s; missing: worker 1 \(attempt 100 on host-1"):
        store.joined()
    assert clock.now == 1000 + 605


def test_earlier_stages_of_the_job_may_take_their_time() -> None:
    store, clock = rounds(1, join_timeout=60.0, round_timeout=600.0)
    stages = [(500 * number, lambda number=number: store.note_tasks(2, number)) for number in range(1, 8)]
    let_time_pass(store, clock, *stages, (4000, lambda: store.join(joined(0))))
    assert len(store.joined()) == 1
    assert not store.note_tasks(1, 9)  # nobody needs to know any more


def test_rows_that_are_made_before_their_task_can_speak_are_told_from_a_lack_of_slots() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    joins = [(100, lambda: store.join(joined(0))), (500, lambda: store.join(joined(1)))]
    let_time_pass(store, clock, (1, lambda: store.note_tasks(2, 0)), *joins)
    assert len(store.joined()) == 2

    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(store, clock, (1, lambda: store.note_tasks(1, 0)), (100, lambda: store.join(joined(0))))
    with pytest.raises(
        WaitError, match=r"join_timeout=60 s; missing: worker 1 \(no sign of life\).* runs 1 of 2 tasks"
    ):
        store.joined()
    assert clock.now == 1160


def test_an_attempt_that_has_lost_its_place_may_not_come_back_as_new() -> None:
    store, _ = rounds(1, lease_seconds=0.0)
    store.join(joined(0, 1))
    assert store.announce(0, 2, "host-0")
    store.join(joined(0, 2))
    with pytest.raises(SupersededError):
        store.announce(0, 1, "host-0")
    with pytest.raises(ElephasError, match="from 0 to 0 to join, got worker 1"):
        store.announce(1, 1, "host-0")
    store.stop()
    assert not store.announce(0, 2, "host-0")


def test_a_newcomer_waits_for_the_lease_and_then_takes_over() -> None:
    store, clock = rounds(1, lease_seconds=10.0)
    store.join(joined(0, 100))
    store.train(train_order())
    clock.now += 9.0
    assert store.join(joined(0, 200)).kind == "wait"
    assert store.beat(0, 100)  # renews the lease
    clock.now += 9.0
    assert store.join(joined(0, 200)).kind == "wait"
    clock.now += 1.0
    order = store.join(joined(0, 200))
    assert (order.kind, order.number) == ("train", 0)  # what attempt 100 has not answered
    for request in (
        lambda: store.ask(0, 100),
        lambda: store.beat(0, 100),
        lambda: store.answer(100, update()),
        lambda: store.join(joined(0, 100)),
        lambda: store.offer(0, 100, 0, 10),
        lambda: store.report(100, Failure("ValueError", "late", "", 0)),
    ):
        with pytest.raises(SupersededError, match="attempt 100 of worker 0 has lost its place to attempt 200"):
            request()


def test_a_held_newcomer_takes_over_when_the_lease_runs_out() -> None:
    store = RoundStore(1, LAYOUT.hash, waits=Waits(lease_seconds=0.05))
    store.train(train_order())
    assert store.join(joined(0, 100)).kind == "train"
    assert Background(lambda: store.join(joined(0, 200))).result() == store.ask(0, 200)


@pytest.mark.fault(
    "A copy of a living worker holds the slot that a lost one needs",
    "the copy takes over after two leases (20 s), and the slot of the first becomes free",
    "20 s",
)
def test_a_copy_takes_over_where_another_worker_may_need_its_slot() -> None:
    store, clock = rounds(2, lease_seconds=10.0)
    store.train(train_order())
    store.join(joined(0, 100))
    store.join(joined(1, 101))
    for _ in range(3):
        assert store.join(joined(0, 200)).kind == "wait"  # both live: the copy waits
        clock.now += 9.0
        store.beat(0, 100)
        store.beat(1, 101)
    for _ in range(2):  # worker 1 is lost; its new attempt may soon come
        assert store.join(joined(0, 200)).kind == "wait"
        clock.now += 9.0
        store.beat(0, 100)
    clock.now += 2.0
    assert store.join(joined(0, 200)).number == 0
    with pytest.raises(SupersededError, match="attempt 100 of worker 0"):
        store.beat(0, 100)


def test_a_copy_waits_while_the_other_worker_writes_its_rows() -> None:
    store, clock = rounds(2, lease_seconds=10.0)
    store.train(train_order())
    store.join(joined(0, 100))
    store.announce(1, 101, "host-1")
    for _ in range(5):
        clock.now += 9.0
        store.beat(0, 100)
        store.beat(1, 101)
        assert store.join(joined(0, 200)).kind == "wait"


@pytest.mark.fault("A copy of a task fails, on a full disk for example", "its error is logged", "nothing")
def test_the_error_of_a_copy_is_not_that_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = rounds(1, lease_seconds=10.0)
    store.train(train_order())
    store.join(joined(0, 100))
    full = Failure("OSError", "no space left on device", "", 0)
    with pytest.raises(SupersededError):
        store.report(200, full)
    assert "no space left" in caplog.text
    assert store.ask(0, 100).kind == "train"
    clock.now += 10.0  # attempt 100 is gone: what attempt 200 says is what there is
    store.report(200, full)
    assert store.ask(0, 100).kind == "stop"


def test_another_layout_fails_the_run() -> None:
    store, _ = rounds()
    assert store.join(joined(1, layout_hash="other")).kind == "stop"
    with pytest.raises(ElephasError, match=rf"worker 1 on host-1 built another model: .*{LAYOUT.hash}, got other"):
        store.joined()


def test_other_rows_after_a_retry_fail_the_run_and_another_order_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store, _ = rounds(1, lease_seconds=0.0)
    store.join(joined(0, 1))
    with caplog.at_level(logging.WARNING):
        store.join(joined(0, 2, checksum=6))
    assert "no longer equal" in caplog.text
    assert store.join(joined(0, 3, rows=5)).kind == "stop"
    with pytest.raises(DataError, match=r"came back with 5 rows .* expected 4"):
        store.joined()


def test_only_workers_of_the_run_may_join_and_only_after_joining_ask() -> None:
    store, _ = rounds(2)
    with pytest.raises(ElephasError, match="from 0 to 1 to join, got worker 2"):
        store.join(joined(2))
    with pytest.raises(ElephasError, match="worker 0 to join before"):
        store.ask(0, 100)


# Synchronous rounds.


def test_a_round_hands_on_answers_in_worker_order() -> None:
    store, _ = rounds()
    store.join(joined(0))
    store.join(joined(1))
    updates = store.train(train_order())
    assert store.ask(0, 100).number == 0
    assert store.answer(100, update(1, 0, 3.0, 4.0)).kind == "wait"
    assert store.answer(100, update(0, 0, 1.0, 2.0)).kind == "wait"
    assert [one.delta.tolist() for one in updates] == [[1.0, 2.0], [3.0, 4.0]]
    evaluations = store.evaluate(Order("evaluate", 1, state=state()))
    for worker in (1, 0):
        store.answer(100, Evaluation(worker, 1, 1, np.array([worker + 1.0])))
    assert [one.metrics.tolist() for one in evaluations] == [[1.0], [2.0]]


def test_an_answer_counts_once_and_its_reply_can_be_had_again() -> None:
    store, _ = rounds(1)
    store.join(joined(0))
    updates = store.train(train_order(0))
    store.answer(100, update(0, 0, 1.0, 1.0))
    store.answer(100, update(0, 0, 9.0, 9.0))
    assert [one.delta.tolist() for one in updates] == [[1.0, 1.0]]
    store.train(train_order(1))
    assert store.answer(100, update(0, 0, 9.0, 9.0)).number == 1
    assert store.dropped == 2


def test_what_frozen_layers_hold_is_sent_until_a_worker_has_answered_and_when_it_has_changed() -> None:
    store, clock = rounds(1)
    store.join(joined(0))

    def sent(order: Order) -> list[float]:
        assert order.state is not None
        return order.state.frozen.tolist()

    store.train(train_order(0))
    assert sent(store.ask(0, 100)) == sent(store.ask(0, 100)) == [1, 2, 3]  # the first reply may have been lost
    store.train(train_order(1))
    assert sent(store.ask(0, 100)) == [1, 2, 3]
    store.answer(100, update(0, 1))
    store.train(train_order(2))
    assert sent(store.ask(0, 100)) == []
    store.answer(100, update(0, 2))
    changed = train_order(3)
    assert changed.state is not None
    store.train(replace(changed, state=changed.state.but(frozen=floats(1, 2, 4))))
    assert sent(store.ask(0, 100)) == [1, 2, 4]
    store.answer(100, update(0, 3))
    store.train(replace(changed, number=4, state=changed.state.but(frozen=floats(1, 2, 4))))
    assert sent(store.ask(0, 100)) == []
    clock.now += 100.0
    assert sent(store.join(joined(0, 200))) == [1, 2, 4]  # a successor has nothing


def test_asynchronous_orders_leave_out_what_a_worker_holds_too() -> None:
    store, _ = asynchronous()
    orders = [store.ask(0, 100), store.answer(100, update(0, 0)), store.answer(100, update(0, 1))]
    assert [order.state.frozen.tolist() for order in orders if order.state] == [[1, 2, 3], [], []]


def test_an_answer_to_nothing_is_refused() -> None:
    store, _ = rounds(1)
    store.join(joined(0))
    with pytest.raises(ElephasError, match="answers order 0; expected one up to -1"):
        store.answer(100, update())
    store.train(train_order())
    with pytest.raises(ElephasError, match="answered its 'train' order 0 with an evaluation"):
        store.answer(100, Evaluation(0, 0, 1, np.zeros(1)))
    assert store.ask(0, 100).number == 0


def test_a_late_round_names_the_missing_and_their_leases() -> None:
    store, clock = rounds(3, round_timeout=30.0)
    for worker in range(3):
        store.join(joined(worker))
    updates = store.train(train_order())
    store.answer(100, update(0))
    next(updates)
    clock.now += 30.0
    store.beat(2, 100)
    with pytest.raises(WaitError) as caught:
        next(updates)
    text = str(caught.value)
    assert "worker 0" not in text
    assert "worker 1 (attempt 100 on host-1, lease expired, last heard of 30 s ago)" in text
    assert "worker 2 (attempt 100 on host-2, lease live, last heard of 0 s ago)" in text


def test_a_round_may_take_long_while_workers_move_on() -> None:
    store, clock = rounds(round_timeout=30.0)
    for worker in (0, 1):
        store.join(joined(worker))
    updates = store.train(train_order())
    store.answer(100, update(1))
    let_time_pass(store, clock, *beats(store, 0, 20, 3000, progress=True), (3000, lambda: store.answer(100, update(0))))
    assert [one.worker for one in updates] == [0, 1]


def test_a_worker_that_lives_and_does_not_move_on_ends_the_round() -> None:
    store, clock = rounds(round_timeout=30.0, lease_seconds=20.0)
    for worker in (0, 1):
        store.join(joined(worker))
    updates = store.train(train_order())
    let_time_pass(
        store,
        clock,
        *beats(store, 0, 20, 3000, progress=True),
        *beats(store, 1, 10, 300, progress=True),
        *beats(store, 1, 310, 3000),
    )
    with pytest.raises(WaitError) as caught:
        next(updates)
    assert "missing: worker 1 (attempt 100 on host-1, lease live" in str(caught.value)
    assert "worker 0" not in str(caught.value)
    assert clock.now == 1000 + 310 + 30  # the first beat with another number, and the time-out


def test_a_workers_time_begins_anew_with_another_attempt() -> None:
    store, clock = rounds(1, round_timeout=300.0, lease_seconds=10.0)
    store.join(joined(0))
    updates = store.train(train_order())
    let_time_pass(
        store,
        clock,
        (200, lambda: store.announce(0, 200, "host-9")),
        (400, lambda: store.join(joined(0, 200))),
        (690, lambda: store.answer(200, update(0))),
    )
    assert len(list(updates)) == 1


def test_who_waits_for_its_turn_to_answer_is_not_late() -> None:
    store, clock = rounds(round_timeout=30.0, read_ahead=0)
    for worker in (0, 1):
        store.join(joined(worker))
    updates = store.train(train_order())
    offers = [(second, lambda: store.offer(1, 100, 0, 1000)) for second in range(10, 300, 20)]
    let_time_pass(
        store,
        clock,
        *offers,
        *beats(store, 0, 20, 300, progress=True),
        (300, lambda: store.answer(100, update(0))),
        (310, lambda: store.answer(100, update(1))),
    )
    assert [one.worker for one in updates] == [0, 1]


def test_who_waits_for_its_turn_is_asked_again_well_within_a_short_round() -> None:
    store = RoundStore(2, LAYOUT.hash, waits=Waits(round_timeout=0.2, read_ahead=0))  # the clock of the wall
    for worker in (0, 1):
        store.announce(worker, 100, "here")
    for worker in (0, 1):
        Background(lambda worker=worker: store.join(joined(worker))).result()
    store.train(train_order())
    assert Background(lambda: store.offer(1, 100, 0, 1000)).result() == "again"


def test_numbers_of_orders_rise() -> None:
    store, _ = rounds(1)
    store.train(train_order(1))
    with pytest.raises(ValueError, match="1 is followed by 1"):
        store.train(train_order(1))


@pytest.mark.parametrize("packed", [None, 10**8])
def test_updates_beyond_the_read_ahead_are_read_two_at_a_time(packed: int | None) -> None:
    sizes = replace(SIZES, parts={**SIZES.parts, "weights": 10**8, "slots": 2 * 10**8}, packed=packed)
    nbytes = (packed or 4 * 10**8) + 8 * 10**8 + 10_000  # and metrics
    store, _ = rounds(4, read_ahead=sizes.read_ahead)
    for worker in range(4):
        store.join(joined(worker))
    store.train(train_order())
    # Worker 0 is still at work: two may come before it, and it need not wait for them.
    assert [store.offer(worker, 100, 0, nbytes) for worker in (1, 2, 3, 0)] == ["send", "send", "again", "send"]
    center, _ = asynchronous(3, rounds=(2, 2, 2), read_ahead=sizes.read_ahead)
    for worker in range(3):
        center.ask(worker, 100)
    assert [center.offer(worker, 100, 0, nbytes) for worker in range(3)] == ["send", "send", "again"]
    assert SIZES.read_ahead == Waits().read_ahead == 64 * 2**20


def test_large_answers_are_read_in_their_turn() -> None:
    store, clock = rounds(3, read_ahead=100)
    for worker in range(3):
        store.join(joined(worker))
    updates = store.train(train_order())
    assert store.offer(1, 100, 0, 60) == "send"
    assert store.offer(2, 100, 0, 60) == "again"  # 120 bytes would be in before their turn
    assert store.offer(0, 100, 0, 1000) == "send"  # it is worker 0's turn
    store.withdraw(1, 100)
    store.withdraw(0, 100)
    assert store.offer(2, 100, 0, 60) == "send"
    assert store.offer(1, 100, 0, 60) == "again"
    clock.now += 1000.0  # worker 2 was never heard of again, and its room is free
    assert store.offer(1, 100, 0, 60) == "send"
    store.answer(100, update(1))
    store.answer(100, update(0))
    assert [next(updates).worker, next(updates).worker] == [0, 1]
    assert store.offer(1, 100, 0, 60) == Order("wait")  # already there


# Failing and stopping.


@pytest.mark.parametrize("make", [rounds, asynchronous])
def test_a_workers_error_is_raised_on_the_driver_and_stops_the_others(make: object) -> None:
    store: Store = make()[0]  # type: ignore[operator]
    store.join(joined(1))
    store.report(100, Failure("ValueError", "bad row", "Traceback: here", 0))
    with pytest.raises(ValueError, match="ValueError on worker 0: bad row") as caught:
        store.joined()
    assert "Traceback: here" in str(caught.value)
    assert store.ask(1, 100).kind == "stop"
    assert not store.beat(1, 100)


def test_a_failure_wakes_whoever_waits() -> None:
    store = RoundStore(2, LAYOUT.hash)
    first = Background(lambda: store.join(joined(0)))
    driver = Background(store.joined)
    store.fail(RuntimeError("the job died"))
    assert first.result() == Order("stop")
    with pytest.raises(RuntimeError, match="the job died"):
        driver.result()


def test_after_stop_everyone_is_told() -> None:
    store = RoundStore(1, LAYOUT.hash)
    waiting = Background(lambda: store.join(joined(0)))
    store.stop()
    store.stop()
    assert waiting.result() == Order("stop")
    assert store.join(joined(0, 200)) == Order("stop")
    with pytest.raises(StoppedError):
        store.joined()


# Asynchronous.


def test_each_update_moves_the_center_at_once() -> None:
    store, _ = asynchronous()
    first, second = store.ask(0, 100), store.ask(1, 100)
    assert (first.number, second.number, first.version) == (0, 0, 0)
    order = store.answer(100, update(0, 0, 1.0, 2.0))
    assert (order.number, order.version) == (1, 1)
    assert order.state is not None
    assert order.state.weights.tolist() == [1.0, 2.0]
    order = store.answer(100, update(1, 0, 10.0, 20.0, version=0))
    assert order.state is not None
    assert order.state.weights.tolist() == [11.0, 22.0]
    epoch = store.next_epoch()
    assert epoch is not None
    assert epoch.state.weights.tolist() == [11.0, 22.0]
    assert epoch.samples == 8
    assert epoch.metrics.tolist() == [4.0, 8.0]
    assert [record.workers[0].staleness for record in epoch.rounds] == [0, 1]


def test_an_asynchronous_answer_counts_once() -> None:
    store, _ = asynchronous()
    store.ask(0, 100)
    store.answer(100, update(0, 0, 1.0, 2.0))
    again = store.answer(100, update(0, 0, 1.0, 2.0))
    assert again.state is not None
    assert (again.number, again.state.weights.tolist(), store.dropped) == (1, [1.0, 2.0], 1)


def test_a_successor_gets_the_order_that_was_not_answered() -> None:
    store, clock = asynchronous()
    store.ask(0, 100)
    lost = store.answer(100, update(0, 0, 1.0, 2.0))
    clock.now += 100.0
    again = store.join(joined(0, 200))
    assert lost.state is not None
    assert again.state is not None
    assert (again.number, again.version, again.span) == (lost.number, lost.version, lost.span)
    assert again.state.weights is lost.state.weights
    assert (lost.state.frozen.tolist(), again.state.frozen.tolist()) == ([], [1, 2, 3])


def test_epochs_are_evaluated_in_between_and_the_run_ends_on_its_budget() -> None:
    store, _ = asynchronous(epochs=1, validates=True)
    store.ask(0, 100)
    store.ask(1, 100)
    store.answer(100, update(0, 0, 1.0, 1.0, samples=4))
    order = store.answer(100, update(0, 1, 1.0, 1.0, samples=4))
    assert (order.kind, order.number) == ("evaluate", 2)
    assert order.state is not None
    assert order.state.weights.tolist() == [2.0, 2.0]
    assert order.state.slots.size == 0
    # the straggler comes too late to change the model, and evaluates
    other = store.answer(100, update(1, 0, 100.0, 100.0))
    assert (other.kind, other.number, store.late) == ("evaluate", 1, 1)
    assert other.state is not None
    assert other.state.weights.tolist() == [2.0, 2.0]
    waiting = Background(store.next_epoch)
    assert store.answer(100, Evaluation(0, 2, 1, np.array([1.0, 3.0]))).kind == "wait"
    assert store.answer(100, Evaluation(1, 1, 1, np.array([2.0, 4.0]))).kind == "wait"
    epoch = waiting.result()
    assert epoch.validation.tolist() == [3.0, 7.0]  # type: ignore[attr-defined]
    assert store.next_epoch() is None
    store.stop()
    assert store.ask(0, 100).kind == "stop"


def test_what_callbacks_change_reaches_the_next_exchange() -> None:
    store, _ = asynchronous()
    store.ask(0, 100)
    store.replace({"learning_rate": floats(0.5)})
    order = store.answer(100, update(0, 0, 1.0, 2.0))
    assert order.state is not None
    assert order.state.learning_rate.tolist() == [0.5]
    assert order.state.weights.tolist() == [1.0, 2.0]


def test_silence_of_all_workers_is_an_error() -> None:
    store, _ = asynchronous(round_timeout=0.0)
    store.ask(1, 100)
    with pytest.raises(WaitError, match=r"missing: worker 1 .*lease live"):
        store.next_epoch()


def test_workers_wait_while_the_driver_is_behind_with_its_callbacks() -> None:
    store, clock = asynchronous(1, epochs=9, rows=4, round_timeout=30.0)
    number = 0
    while (order := store.ask(0, 100)).kind == "train":
        store.answer(100, update(0, order.number))
        number += 1
    assert number == 3  # two finished epochs may wait, and a third has just come
    clock.now += 1e6  # callbacks take their time
    epochs = [store.next_epoch()]
    assert store.ask(0, 100).kind == "train"
    clock.now += 29.0
    store.answer(100, update(0, 3))
    assert store.ask(0, 100).kind == "wait"
    epochs += [store.next_epoch() for _ in range(3)]
    assert [epoch.epoch for epoch in epochs if epoch is not None] == [0, 1, 2, 3]


def test_waiting_workers_still_evaluate_and_go_on_when_the_driver_has_caught_up() -> None:
    store, _ = asynchronous(1, epochs=6, rows=4, validates=True)
    order = store.ask(0, 100)
    waiting = Background(lambda: [epoch.epoch for epoch in iter(store.next_epoch, None)])
    kinds = []
    while not (order.kind == "wait" and len(kinds) == 12):
        if order.kind != "wait":
            kinds.append(order.kind)
        order = {
            "train": lambda order: store.answer(100, update(0, order.number)),
            "evaluate": lambda order: store.answer(100, Evaluation(0, order.number, 1, np.ones(1))),
            "wait": lambda order: store.ask(0, 100),
        }[order.kind](order)
    assert waiting.result() == list(range(6))
    assert sorted(kinds) == ["evaluate"] * 6 + ["train"] * 6


def test_an_epoch_does_not_wait_for_ever_for_an_evaluation_while_others_train() -> None:
    store, clock = asynchronous(3, epochs=9, rows=4, validates=True, round_timeout=30.0)
    for worker in range(3):
        store.ask(worker, 100)
    assert store.answer(100, update(2)).kind == "evaluate"
    store.answer(100, Evaluation(2, 1, 1, np.ones(1)))
    let_time_pass(store, clock, *beats(store, 0, 10, 3000), *beats(store, 1, 10, 3000, progress=True))
    with pytest.raises(WaitError, match=r"missing: worker 0 \(attempt 100 on host-0, lease live[^;]*\)\."):
        store.next_epoch()
    assert clock.now == 1030


def test_a_worker_that_had_nothing_to_do_is_not_late_when_it_is_to_evaluate() -> None:
    store, clock = asynchronous(2, rows=4, rounds=(1, 0), validates=True, round_timeout=30.0)
    store.ask(0, 100)
    assert store.ask(1, 100).kind == "wait"

    def evaluate() -> None:
        assert store.ask(1, 100).kind == "evaluate"
        for worker, number in ((0, 1), (1, 0)):
            store.answer(100, Evaluation(worker, number, 1, np.ones(1)))

    let_time_pass(
        store,
        clock,
        *beats(store, 0, 10, 500, progress=True),
        (500, lambda: store.answer(100, update(0))),
        (505, evaluate),
    )
    epoch = store.next_epoch()
    assert epoch is not None
    assert epoch.validation is not None


def test_a_worker_that_waits_for_the_driver_is_woken() -> None:
    waits = threading.Event()

    class Watched(CenterStore):
        def _wait_until(self, end: float) -> bool:
            waits.set()  # under the lock, which the wait then lets go
            return self._changed.wait(60)

    store = Watched(1, LAYOUT.hash)
    progress = AsyncProgress(4, 9, AsyncSchedule((1,)))
    store.begin(LockedCenter(state(), LAYOUT, DownPour(), 1), progress, lambda epoch: False)
    order = store.join(joined())
    while order.number < 2:
        order = store.answer(100, update(0, order.number))
    waiting = Background(lambda: store.answer(100, update(0, 2)))
    assert waits.wait(20)
    store.next_epoch()
    order = waiting.result()  # type: ignore[assignment]
    assert (order.kind, order.number) == ("train", 3)


def test_what_the_center_raises_reaches_the_driver() -> None:
    store, _ = asynchronous()
    store.ask(0, 100)
    assert store.answer(100, update(0, 0, np.nan, 1.0)).kind == "stop"
    with pytest.raises(NonFiniteError, match="worker 0 brought NaN"):
        store.next_epoch()


def test_there_are_no_epochs_before_the_beginning() -> None:
    with pytest.raises(ElephasError, match="begin"):
        CenterStore(1, LAYOUT.hash).next_epoch()


class MeetingCenter(HogwildCenter):
    """Every addition waits for another one to be under way at the same time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(state(), LAYOUT, DownPour(), 2)
        self.meeting = threading.Barrier(2, timeout=seconds)
        self.met: list[bool] = []

    def add(self, shared: np.ndarray, term: np.ndarray) -> None:
        try:
            self.meeting.wait()
            self.met.append(True)
        except threading.BrokenBarrierError:
            self.met.append(False)
        super().add(shared, term)


@pytest.mark.parametrize(("lock_free", "seconds"), [(True, 10.0), (False, 0.2)])
def test_hogwild_adds_two_updates_at_once_and_a_lock_does_not(lock_free: bool, seconds: float) -> None:
    center = MeetingCenter(seconds)
    store, _ = asynchronous(lock_free=lock_free, center=center)
    store.ask(0, 100)
    store.ask(1, 100)

    def commit(one: Update) -> Background:
        return Background(lambda: store.answer(100, one))

    answers = [commit(update(0, 0, 1.0, 2.0, slots=False)), commit(update(1, 0, 10.0, 20.0, slots=False))]
    for answer in answers:
        assert answer.result().number == 1  # type: ignore[attr-defined]
    assert center.met == [lock_free, lock_free]
    epoch = store.next_epoch()
    assert epoch is not None
    assert epoch.samples == 8


def test_no_order_goes_out_while_the_workers_own_update_is_being_added() -> None:
    """A reply was lost and is asked for again while hogwild still adds: the same span would be trained twice."""
    entered = threading.Event()

    class Watched(MeetingCenter):
        def add(self, shared: np.ndarray, term: np.ndarray) -> None:
            entered.set()
            super().add(shared, term)

    center = Watched(10.0)
    store, _ = asynchronous(lock_free=True, center=center)
    store.ask(0, 100)
    adding = Background(lambda: store.answer(100, update(0, 0, 1.0, 2.0, slots=False)))
    assert entered.wait(20)
    assert store.answer(100, update(0, 0, 1.0, 2.0, slots=False)) == Order("wait")
    center.meeting.wait()  # lets it finish
    order = adding.result()
    assert isinstance(order, Order)
    assert order.span == Span(0, 1, 2, 2)


def test_the_driver_holds_no_state_for_each_worker() -> None:
    store, _ = asynchronous(3, rows=80)
    orders = [store.ask(worker, 100) for worker in range(3)]
    for worker in range(3):  # each commit makes another state
        orders[worker] = store.answer(100, update(worker, orders[worker].number, version=orders[worker].version))
    sent = [weakref.ref(order.state.weights) for order in orders]
    assert len({id(reference()) for reference in sent}) == 3
    del orders
    assert [reference() is not None for reference in sent] == [
        False,
        False,
        True,
    ]  # the last is the shared state itself


def test_an_order_that_was_lost_comes_again_from_the_state_of_now() -> None:
    store, _ = asynchronous(2)
    first = store.ask(0, 100)
    store.answer(100, update(1, store.ask(1, 100).number, 1.0, 2.0))
    again = store.ask(0, 100)
    assert (again.number, again.span) == (first.number, first.span)
    assert (first.version, again.version) == (0, 1)
    assert again.state.weights.tolist() == [1.0, 2.0]


class SlowCenter(LockedCenter):
    """A shared state to which nothing can be added until it is told so."""

    def __init__(self) -> None:
        super().__init__(state(), LAYOUT, DownPour(), 2)
        self.busy, self.go_on = threading.Event(), threading.Event()

    def commit(self, given: Update) -> Commit:
        self.busy.set()
        assert self.go_on.wait(60)
        return super().commit(given)


def test_heartbeats_do_not_wait_for_a_commit() -> None:
    center = SlowCenter()
    store, _ = asynchronous(2, center=center)
    number = store.ask(0, 100).number
    answering = Background(lambda: store.answer(100, update(0, number)))
    assert center.busy.wait(60)
    assert Background(lambda: store.beat(1, 100, 1)).result()
    center.go_on.set()
    assert answering.result().kind == "train"
