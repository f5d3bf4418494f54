"""What stores of both modes do: read ahead, fail, stop, and suspend workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_world import AT_ONCE, LAYOUT, SIZES, Background, HandClock, joined, train_order, update
from stores import after_a_round, asynchronous, rounds

from elephas_like.core.errors import ElephasError, Failure, StoppedError
from elephas_like.core.types import Order
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.store import Store

# Reading ahead.


@pytest.mark.parametrize("packed", [None, 10**8])
def test_one_large_update_is_read_before_its_turn_and_one_at_a_time_is_read_by_a_center(packed: int | None) -> None:
    sizes = replace(SIZES, parts={**SIZES.parts, "weights": 10**8, "slots": 2 * 10**8}, packed=packed)
    nbytes = (packed or 4 * 10**8) + 8 * 10**8 + 10_000  # and metrics
    store, _ = rounds(4, read_ahead=sizes.read_ahead)
    for worker in range(4):
        store.join(joined(worker))
    store.train(train_order())
    # Worker 0 is still at work: one may come before it, and it need not wait for that one.
    assert [store.offer(worker, 100, 0, nbytes) for worker in (1, 2, 3, 0)] == ["send", "again", "again", "send"]
    center, _ = asynchronous(3, rounds=(2, 2, 2), read_ahead=sizes.read_ahead)
    for worker in range(3):
        center.ask(worker, 100)
    assert [center.offer(worker, 100, 0, nbytes) for worker in range(3)] == ["send", "again", "again"]
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
    assert caught.value.traceback_text == "Traceback: here"
    assert store.ask(1, 100).kind == "stop"
    assert not store.beat(1, 100)


@pytest.mark.parametrize(("begun", "kept", "fails"), [(True, True, False), (False, True, True), (True, False, True)])
def test_kept_rows_that_vanish_from_a_run_that_has_begun_are_written_again(
    begun: bool, kept: bool, fails: bool
) -> None:
    store, _ = rounds(2)
    dropped: list[bool] = []
    store.rewrite = (lambda: dropped.append(True)) if kept else None
    for worker in range(1 + begun):
        store.join(joined(worker))
    # Attempt 100 was killed, and its lease has not ended yet.
    attempt = 100 if fails else 200
    assert store.report(attempt, Failure("ShardMissing", "x.npy is not on node-1", "", 0)) is not fails
    assert (len(dropped), store.beat(1, 100)) == (not fails, not fails)


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


# Suspension: while callbacks run, workers can be told to end their tasks; new tasks carry on where they were.


def test_the_driver_is_idle_from_the_last_answer_to_its_next_order() -> None:
    clock = HandClock()
    store = RoundStore(1, LAYOUT.hash, waits=AT_ONCE, clock=clock)
    assert store.idle_seconds() == 0.0
    store.join(joined())
    store.joined()
    clock.now += 3.0
    assert store.idle_seconds() == 3.0
    updates = store.train(train_order())
    clock.now += 5.0
    assert store.idle_seconds() == 0.0
    store.answer(100, update())
    assert len(list(updates)) == 1
    clock.now += 2.0
    assert store.idle_seconds() == 2.0


def test_suspended_workers_end_their_tasks_and_new_ones_go_on_at_once() -> None:
    store, _ = after_a_round()
    store.suspend()
    assert [store.ask(worker, 100).kind for worker in (0, 1)] == ["suspend", "suspend"]
    assert store.join(joined(0, 150)).kind == "suspend"  # a task that Spark has started meanwhile ends as well
    recalled = Background(store.recalled)
    store.train(train_order(1))
    assert recalled.result() is True
    orders = [store.join(joined(worker, 200)) for worker in (0, 1)]  # no lease is waited for
    assert [(order.kind, order.number) for order in orders] == [("train", 1), ("train", 1)]


def test_a_driver_that_goes_on_first_finds_its_workers_again() -> None:
    store, _ = after_a_round()
    store.suspend()
    store.train(train_order(1))
    assert store.ask(0, 100).kind == "suspend"  # until all have left
    assert store.recalled()
    assert store.join(joined(0, 200)).number == 1


def test_a_suspension_lasts_until_all_are_recalled() -> None:
    store, _ = after_a_round()
    store.suspend()
    assert store.ask(0, 100).kind == "suspend"
    store.train(train_order(1))
    store.suspend()  # a late look at Spark's jobs: worker 0 has left
    assert store.ask(1, 100).kind == "suspend"
    assert store.recalled()
    assert [store.join(joined(worker, 200)).number for worker in (0, 1)] == [1, 1]


def test_nobody_is_suspended_while_the_driver_waits() -> None:
    store, _ = after_a_round()
    store.train(train_order(1))
    store.suspend()
    assert store.ask(0, 100).kind == "train"
    assert not store.recalled()


@pytest.mark.parametrize("end", [Store.stop, lambda store: store.fail(ElephasError("no more"))])
def test_a_run_that_ends_while_its_workers_are_suspended_recalls_nobody(end) -> None:
    store, _ = after_a_round()
    store.suspend()
    recalled = Background(store.recalled)
    end(store)
    assert recalled.result() is False
    assert store.join(joined(0, 200)).kind == "stop"


# What has moved.


def test_bytes_of_updates_and_states_are_counted() -> None:
    # A state has 8 of weights, 4 of statistics, 8 of slots, 8 of counters, 4 of the learning rate, 16 of seeds, 12 of frozen
    # layers. An update has the first four, seeds, and 16 of metrics.
    store, _ = rounds(1)
    store.join(joined(0))
    assert store.traffic() == (0, 0)
    updates = store.train(train_order())
    store.ask(0, 100)
    assert store.traffic() == (0, 60)
    store.answer(100, update())
    store.answer(100, update())  # sent again, and dropped
    next(updates)
    assert store.traffic() == (60, 60)
    store.train(train_order(1))
    store.ask(0, 100)
    assert store.traffic() == (60, 60 + 48)  # the worker has the frozen layers
