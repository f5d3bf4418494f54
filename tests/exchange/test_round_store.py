"""Synchronous rounds: answers in worker order, each once, and who is late with one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from small_world import AT_ONCE, LAYOUT, Background, HandClock, floats, joined, state, train_order, update
from stores import beats, let_time_pass, rounds

from elephas_like.core.errors import ElephasError, SupersededError, WaitError
from elephas_like.core.types import Evaluation, OptimizerState, Order, PackedStep, Recollection, Update, seldom_changed
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.round_store import RoundStore


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


def test_slots_that_no_exchange_changes_are_sent_once() -> None:
    """With optimizer_state="per_worker" or "reset" they are two thirds of a state under Adam."""
    store = RoundStore(1, LAYOUT.hash, seldom=seldom_changed(OptimizerState.RESET), waits=AT_ONCE, clock=HandClock())
    store.join(joined(0))
    slots = floats(1, 2)

    def sent(number: int) -> list[float]:
        order = train_order(number)
        store.train(replace(order, state=order.state.but(slots=slots)))
        found = store.ask(0, 100).state.slots.tolist()
        store.answer(100, update(0, number))
        return found

    assert [sent(number) for number in range(3)] == [[1, 2], [], []]
    store.evaluate(Order.to_evaluate(state(), 3))
    assert store.ask(0, 100).state.slots.tolist() == []
    store.answer(100, Evaluation(0, 3, 1, np.array([1.0])))
    assert sent(4) == []
    slots = floats(1, 3)  # a callback has set them
    assert [sent(number) for number in (5, 6)] == [[1, 3], []]


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


def test_weights_are_left_out_where_a_worker_has_those_that_a_packed_step_begins_with() -> None:
    store, clock = rounds(1)
    store.join(joined(0))

    def train(number: int, after: int) -> None:
        step = PackedStep(after, np.full(6 if after >= 0 else 0, number, np.uint8))
        order = train_order(number)
        store.train(replace(order, state=order.state.but(weights=floats(number, number)), step=step))

    def sent(order: Order) -> tuple[list[float], int, list[int]]:
        assert order.state is not None
        assert order.step is not None
        return order.state.weights.tolist(), order.step.after, order.step.packed.tolist()

    train(0, -1)
    assert sent(store.ask(0, 100)) == sent(store.ask(0, 100)) == ([0, 0], -1, [])  # the first reply may have been lost
    store.answer(100, update(0, 0))
    train(1, 0)
    before = store.traffic()[1]
    assert sent(store.ask(0, 100)) == ([], 0, [1] * 6)
    assert store.traffic()[1] - before == 60 - 12 - 8 + 6  # without frozen layers and weights, with the step
    assert sent(store.ask(0, 100)) == ([], 0, [1] * 6)  # again: it still has the weights of order 0
    store.answer(100, update(0, 1))
    store.evaluate(Order.to_evaluate(state(), 2))
    assert store.ask(0, 100).state.weights.size  # what is evaluated is whole, and no beginning of a step
    store.answer(100, Evaluation(0, 2, 1, np.array([1.0])))
    train(3, 1)
    assert sent(store.ask(0, 100)) == ([], 1, [3] * 6)
    clock.now += 100.0
    assert sent(store.join(joined(0, 200))) == ([3, 3], -1, [])  # a successor has nothing
    store.answer(200, update(0, 3))
    train(4, 1)  # of an order before its last one
    assert sent(store.ask(0, 200)) == ([4, 4], -1, [])
    store.answer(200, update(0, 4))
    train(5, 4)
    assert sent(store.ask(0, 200)) == ([], 4, [5] * 6)


def test_the_first_order_after_a_checkpoint_has_whole_weights() -> None:
    """The driver knows what workers began with before, and no worker has it."""
    store, _ = rounds(1)
    store.join(joined(0))
    store.train(replace(train_order(7), step=PackedStep(-1, np.ones(6, np.uint8))))
    order = store.ask(0, 100)
    assert (order.state.weights.size, order.step.after, order.step.packed.size) == (2, -1, 0)


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


def test_what_workers_remember_is_asked_for_and_given_back_apart_from_all_other_orders() -> None:
    store, _ = rounds()
    for worker in (0, 1):
        store.join(joined(worker))
    reminded = Background(lambda: store.remind({1: {"own": floats(1, 2)}}, after=-1))
    for worker, memory in ((0, {}), (1, {"own": [1, 2]})):
        order = Background(lambda worker=worker: asked(store, worker)).result()
        assert (order.kind, {name: array.tolist() for name, array in order.memory.items()}) == ("remind", memory)
        store.answer(100, Recollection(worker, order.number))
    reminded.result()
    updates = store.train(train_order(0))
    for worker in (0, 1):
        order = store.answer(100, update(worker, 0))
    list(updates)
    recalled = store.recall(after=0)
    order = store.answer(100, update(0, 0, 9.0, 9.0))  # its reply was lost; it is not taken for a recollection
    assert (order.kind, order.version, store.dropped) == ("recall", 0, 1)
    with pytest.raises(ElephasError, match=r"answered its 'recall' order \d+ with an update"):
        store.answer(100, update(0, order.number))
    for worker in (1, 0):
        store.answer(100, Recollection(worker, order.number, {"own": floats(worker)}))
    assert [(one.worker, one.memory["own"].tolist()) for one in recalled] == [(0, [0]), (1, [1])]
    # the next round has the next number, and a recollection that comes again is none of it
    updates = store.train(train_order(1))
    assert store.offer(1, 100, order.number, 5).number == 1
    assert store.answer(100, Recollection(0, order.number, {"own": floats(7)})).number == 1
    with pytest.raises(ElephasError, match="expected one up to"):
        store.offer(1, 100, order.number + 1, 5)
    for worker in (0, 1):
        store.answer(100, update(worker, 1))
    assert len(list(updates)) == 2


def asked(store: RoundStore, worker: int) -> Order:
    """The next order of a worker, also if the driver has yet to give it."""
    while (order := store.ask(worker, 100)).kind == "wait":
        pass
    return order


WORKER = st.integers(0, 2)


class Rounds(RuleBasedStateMachine):
    """Three workers do anything in any order; each round takes one update of each, the first that came."""

    WORKERS = 3

    def __init__(self) -> None:
        super().__init__()
        self.store, self.clock = rounds(self.WORKERS)
        self.number, self.attempts, self.sent = -1, 0, 0
        self.updates: Iterator[Update] | None = None
        self.accepted: dict[int, float] = {}
        self.last: dict[int, int] = {}

    def holder(self, worker: int) -> int | None:
        member = self.store._membership.members.get(worker)
        return None if member is None else member.joined.attempt

    def told(self, worker: int, order: Order) -> None:
        """Orders rise, and are those of the round."""
        if order.kind == "train":
            assert order.number == self.number >= self.last.get(worker, -1)
            assert worker not in self.accepted
            self.last[worker] = order.number
        else:
            assert order.kind == "wait"

    def sends(self, worker: int, attempt: int, number: int) -> None:
        self.sent += 1
        dropped = self.store.dropped
        order = self.store.answer(attempt, update(worker, number, float(self.sent), 0.0))
        if number == self.number and worker not in self.accepted:
            self.accepted[worker] = float(self.sent)
            assert self.store.dropped == dropped
        else:
            assert self.store.dropped == dropped + 1
        self.told(worker, order)

    @precondition(lambda self: self.updates is None)
    @rule()
    def round_begins(self) -> None:
        self.number += 1
        self.updates, self.accepted = self.store.train(train_order(self.number)), {}

    @precondition(lambda self: self.updates is not None and len(self.accepted) == self.WORKERS)
    @rule()
    def round_ends(self) -> None:
        assert self.updates is not None
        assert [one.delta[0] for one in self.updates] == [self.accepted[worker] for worker in range(self.WORKERS)]
        self.updates = None

    @rule(worker=WORKER)
    def a_new_attempt_joins(self, worker: int) -> None:
        self.attempts += 1
        order = self.store.join(joined(worker, self.attempts))
        assert order.kind in ("train", "wait")
        if order.kind == "train":
            assert self.holder(worker) == self.attempts

    @rule(worker=WORKER)
    def it_joins_again(self, worker: int) -> None:
        attempt = self.holder(worker)
        if attempt is not None:
            assert self.store.join(joined(worker, attempt)).kind in ("train", "wait")

    @rule(worker=WORKER, back=st.integers(0, 2))
    def it_answers(self, worker: int, back: int) -> None:
        """Its order, or one that it has answered before."""
        attempt = self.holder(worker)
        if attempt is not None and self.number - back >= 0:
            self.sends(worker, attempt, self.number - back)

    @rule(worker=WORKER)
    def it_offers_and_withdraws(self, worker: int) -> None:
        attempt = self.holder(worker)
        if attempt is not None and self.number >= 0:
            decision = self.store.offer(worker, attempt, self.number, 100)
            assert decision == "send" or worker in self.accepted
            self.store.withdraw(worker, attempt)
            assert worker not in self.store._reserved or worker in self.accepted

    @rule(worker=WORKER)
    def one_that_lost_its_place_answers(self, worker: int) -> None:
        member = self.store._membership.members.get(worker)
        for attempt in member.superseded if member is not None else ():
            with pytest.raises(SupersededError):
                self.store.answer(attempt, update(worker, max(0, self.number)))
            with pytest.raises(SupersededError):
                self.store.beat(worker, attempt, 1)

    @rule(worker=WORKER, progress=st.integers(0, 3))
    def it_beats(self, worker: int, progress: int) -> None:
        attempt = self.holder(worker)
        if attempt is not None:
            assert self.store.beat(worker, attempt, progress)

    @rule(seconds=st.sampled_from([0.5, 5.0, 11.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    def teardown(self) -> None:
        """Whatever came before, everybody can finish the round."""
        if self.updates is None:
            self.round_begins()
        self.clock.now += 100.0
        for worker in range(self.WORKERS):
            self.a_new_attempt_joins(worker)
            if worker not in self.accepted:
                self.it_answers(worker, 0)
        self.round_ends()


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=40, stateful_step_count=40)
