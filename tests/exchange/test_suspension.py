"""While callbacks run, workers can be told to end their tasks; new tasks carry on where they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_world import AT_ONCE, LAYOUT, Background, HandClock, joined, state, train_order, update

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import LockedCenter
from elephas_like.core.errors import ElephasError
from elephas_like.core.strategies.asynchronous import DownPour
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.store import Store


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


def test_what_a_strategy_raises_as_it_serves_is_raised_on_the_driver() -> None:
    class Broken(DownPour):
        def serve(self, weights, outer, context):
            raise ZeroDivisionError("in serve")

    store = CenterStore(1, LAYOUT.hash, waits=AT_ONCE, clock=HandClock())
    store.join(joined())
    store.begin(
        LockedCenter(state(), LAYOUT, Broken(), 1), AsyncProgress(8, 2, AsyncSchedule((1,))), lambda epoch: False
    )
    assert store.ask(0, 100).kind == "stop"
    with pytest.raises(ZeroDivisionError, match="in serve"):
        store.next_epoch()


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


def test_an_update_that_comes_while_workers_are_suspended_counts_once() -> None:
    store = CenterStore(2, LAYOUT.hash, waits=replace(AT_ONCE, lease_seconds=10.0), clock=HandClock())
    for worker in (0, 1):
        store.join(joined(worker))
    store.joined()
    center = LockedCenter(state(0.0, 0.0), LAYOUT, DownPour(), 2)
    store.begin(center, AsyncProgress(8, 2, AsyncSchedule((1, 1))), lambda epoch: False)
    assert store.ask(0, 100).kind == "train"
    store.suspend()
    assert store.answer(100, update(0, 0, 1.0, 2.0)).kind == "suspend"
    assert center.snapshot().weights.tolist() == [1.0, 2.0]
    assert store.ask(1, 100).kind == "suspend"
    recalled = Background(store.recalled)
    waiting = Background(store.next_epoch)
    assert recalled.result()
    order = store.join(joined(0, 200))
    assert (order.kind, order.number, order.version) == ("train", 1, 1)
    assert store.join(joined(1, 200)).kind == "train"
    assert store.answer(200, update(1, 0)).kind == "train"
    assert waiting.result().samples == 8
