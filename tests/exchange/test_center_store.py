"""Asynchronous workers: each answer moves the shared state at once, epochs end by samples, and are evaluated in between."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from small_world import AT_ONCE, LAYOUT, Background, HandClock, floats, joined, state, update
from stores import asynchronous, beats, let_time_pass

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import Commit, HogwildCenter, LockedCenter
from elephas_like.core.errors import ElephasError, NonFiniteError, SupersededError, WaitError
from elephas_like.core.merging import RunningMerge
from elephas_like.core.strategies.asynchronous import DownPour
from elephas_like.core.types import Evaluation, Order, Recollection, Span, Update
from elephas_like.exchange.center_store import CenterStore


def test_asynchronous_orders_leave_out_what_a_worker_holds_too() -> None:
    store, _ = asynchronous()
    orders = [store.ask(0, 100), store.answer(100, update(0, 0)), store.answer(100, update(0, 1))]
    assert [order.state.frozen.tolist() for order in orders if order.state] == [[1, 2, 3], [], []]


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


def test_the_center_is_told_who_begins_with_what_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def begins(merge: RunningMerge, worker: int, version: int, statistics: np.ndarray) -> None:
        told.append((worker, version))

    monkeypatch.setattr(RunningMerge, "begins", begins)
    store, _ = asynchronous()
    store.ask(0, 100)
    store.ask(1, 100)
    store.answer(100, update(0, 0, 1.0, 2.0))
    assert told == [(0, 0), (1, 0), (0, 1)]


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
    store.replace(state(), state().but(learning_rate=floats(0.5)))
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


def test_what_workers_remembered_when_an_epoch_ended_belongs_to_its_state() -> None:
    """Worker 0 ends the epoch by its order 1. Workers 1 and 2 are amid theirs, and are asked what was before these."""
    store, _ = asynchronous(3, rows=12)
    store.begin(
        LockedCenter(state(), LAYOUT, DownPour(), 3),
        AsyncProgress(12, 2, AsyncSchedule((2, 2, 2))),
        lambda epoch: True,
        lambda epoch: epoch == 0,
        {1: {"own": floats(5)}},
    )
    order = store.ask(1, 100)
    assert (order.kind, order.number, order.memory["own"].tolist()) == ("remind", 0, [5])
    assert store.answer(100, Recollection(1, 0)).number == 1
    for worker in (0, 2):
        assert store.ask(worker, 100).number == 0
    store.answer(100, update(1, 1))
    store.answer(100, update(0, 0))
    taken = Background(store.next_epoch)
    first = store.answer(100, update(0, 1))
    orders = [first, store.answer(100, update(1, 2)), store.answer(100, update(2, 0))]
    assert [order.kind for order in orders] == ["evaluate"] * 3
    for worker, order in enumerate(orders):
        order = store.answer(100, Evaluation(worker, order.number, 1, np.array([1.0])))
        assert (order.kind, order.version) == ("recall", (1, 1, -1)[worker])
        store.answer(100, Recollection(worker, order.number, {"own": floats(worker)}))
    record = taken.result()
    assert {worker: memory["own"].tolist() for worker, memory in record.memories.items()} == {0: [0], 1: [1], 2: [2]}
    assert record.validation.tolist() == [3.0]
    # of the second epoch nothing is asked
    assert store.answer(100, update(0, store.ask(0, 100).number)).kind == "evaluate"
    for worker in range(3):
        order = store.ask(worker, 100)
        if order.kind == "train":
            order = store.answer(100, update(worker, order.number))
        store.answer(100, Evaluation(worker, order.number, 1, np.array([1.0])))
    assert store.next_epoch().memories is None


def test_what_workers_remember_is_asked_for_when_training_ends_before_its_last_epoch() -> None:
    """Worker 1 is amid its order: it is asked what was before that, unless its answer comes first."""
    store, _ = asynchronous()
    store.ask(1, 100)
    store.ask(0, 100)
    store.answer(100, update(0, 0))
    last = None
    for number in (1, 2):
        store.answer(100, update(0, number))
        last = last or store.next_epoch()
    memories = Background(lambda: store.memories(last))
    for _ in range(20_000):  # until it has asked
        if store._asides[1]:
            break
        time.sleep(0.001)
    order = store.ask(0, 100)
    assert order.kind == "train"  # which it had before
    order = store.answer(100, update(0, 3))
    assert (order.kind, order.version) == ("recall", 2)
    store.answer(100, Recollection(0, order.number, {"slots": floats(1)}))
    order = store.answer(100, update(1, 0))
    assert (order.kind, order.version) == ("recall", -1)
    store.answer(100, Recollection(1, order.number, {"slots": floats(2)}))
    assert {worker: memory["slots"].tolist() for worker, memory in memories.result().items()} == {0: [1], 1: [2]}


WORKER = st.integers(0, 2)


class Updates(RuleBasedStateMachine):
    """Three workers do anything in any order; every update that is answered for the first time is in the weights once.

    At the end of each epoch they are asked what they remembered after their last update that is in its weights.
    """

    WORKERS = 3

    def __init__(self) -> None:
        super().__init__()
        self.store, self.clock = asynchronous(self.WORKERS, epochs=3, rows=24, validates=True, recalls=True)
        self.holders = dict.fromkeys(range(self.WORKERS), 100)
        self.orders: dict[int, Order] = {}
        self.attempts, self.applied, self.epochs = 100, 0, 0
        self.in_weights = dict.fromkeys(range(self.WORKERS), -1)
        self.at_ends: list[dict[int, int]] = []

    @property
    def progress(self) -> AsyncProgress:
        return self.store._begun()[1]

    def told(self, worker: int, order: Order, answered: bool = False) -> None:
        """Orders rise: the next one has the next number, and one that is not answered comes again."""
        assert order.kind in ("train", "evaluate", "recall", "wait")
        former = self.orders.get(worker)
        if order.kind == "wait":
            if answered:
                self.orders[worker] = order
            return
        if former is not None and former.kind != "wait" and not answered:
            assert (order.number, order.kind) == (former.number, former.kind)
        self.orders[worker] = order
        assert order.number == self.store._numbers[worker]

    def is_in_the_weights(self) -> None:
        center, progress = self.store._begun()
        assert center.snapshot().weights[0] == self.applied == sum(progress.exchanges.values()) == len(progress.history)

    @rule(worker=WORKER)
    def it_asks(self, worker: int) -> None:
        self.told(worker, self.store.ask(worker, self.holders[worker]))

    @rule(worker=WORKER)
    def it_answers(self, worker: int) -> None:
        order = self.orders.get(worker)
        if order is None or order.kind == "wait":
            return
        late, over = self.store.late, self.progress.over
        number = order.number
        if order.kind == "train":
            reply = self.store.answer(self.holders[worker], update(worker, number, 1.0, 0.0))
            self.applied += not over
            assert self.store.late == late + over
            if not over:
                self.in_weights[worker] = number
            if self.progress.epoch > len(self.at_ends):
                self.at_ends.append(dict(self.in_weights))
        elif order.kind == "recall":
            kept = {"after": np.array([order.version])}
            reply = self.store.answer(self.holders[worker], Recollection(worker, number, kept))
        else:
            reply = self.store.answer(self.holders[worker], Evaluation(worker, number, 1, np.array([1.0, 1.0])))
        assert reply.number > number or reply.kind == "wait"
        self.told(worker, reply, answered=True)
        self.is_in_the_weights()

    @rule(worker=WORKER)
    def it_answers_again(self, worker: int) -> None:
        order = self.orders.get(worker)
        latest = self.store._numbers[worker]
        pending = self.store._pending(worker)
        number = latest - 1 if pending is not None else latest
        if order is not None and number >= 0:
            dropped = self.store.dropped
            self.told(worker, self.store.answer(self.holders[worker], update(worker, number, 5.0, 5.0)))
            assert self.store.dropped == dropped + 1
            self.is_in_the_weights()

    @rule(worker=WORKER)
    def a_new_attempt_joins(self, worker: int) -> None:
        self.attempts += 1
        order = self.store.join(joined(worker, self.attempts))
        if self.store._membership.members[worker].joined.attempt == self.attempts:
            former, self.holders[worker] = self.holders[worker], self.attempts
            self.told(worker, order)
            with pytest.raises(SupersededError):
                self.store.answer(former, update(worker, 0, 7.0, 7.0))
        else:
            assert order.kind == "wait"
        self.is_in_the_weights()

    @rule(worker=WORKER, progress=st.integers(0, 3))
    def it_beats(self, worker: int, progress: int) -> None:
        assert self.store.beat(worker, self.holders[worker], progress)

    @rule(seconds=st.sampled_from([0.5, 5.0, 11.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.store._epochs and self.store._complete(self.store._epochs[0]))
    @rule()
    def the_driver_takes_an_epoch(self) -> None:
        record = self.store.next_epoch()
        assert record is not None
        assert record.epoch == self.epochs
        assert record.validation is not None
        assert record.validation.tolist() == [self.WORKERS, self.WORKERS]
        assert record.memories is not None
        after = {worker: int(memory["after"][0]) for worker, memory in record.memories.items()}
        assert after == self.at_ends[record.epoch]
        self.epochs += 1

    def teardown(self) -> None:
        """Whatever came before, the fit can be finished, and three epochs come of it."""
        for _ in range(100):
            for worker in range(self.WORKERS):
                self.it_asks(worker)
                self.it_answers(worker)
            while self.store._epochs and self.store._complete(self.store._epochs[0]):
                self.the_driver_takes_an_epoch()
        assert self.progress.over
        assert self.epochs == 3
        assert self.store.next_epoch() is None


TestUpdates = Updates.TestCase
TestUpdates.settings = settings(max_examples=20, stateful_step_count=40)
