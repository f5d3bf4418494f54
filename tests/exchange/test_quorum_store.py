"""Rounds that end at a quorum: who is waited for, for how long, and what becomes of the others' updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_world import AT_ONCE, LAYOUT, Background, HandClock, floats, joined, state, train_order, update
from stores import let_time_pass

from elephas_like.core.errors import WaitError
from elephas_like.core.quorum import Quorum
from elephas_like.core.types import Evaluation, Order, PackedStep, Recollection, Update
from elephas_like.exchange.quorum_store import QuorumStore


def store_of(workers: int, quorum: int, grace: float = 0.5) -> tuple[QuorumStore, HandClock]:
    clock = HandClock()
    store = QuorumStore(workers, LAYOUT.hash, waits=AT_ONCE, clock=clock).begin(Quorum(quorum, grace))
    for worker in range(workers):
        store.join(joined(worker))
    return store, clock


def told(updates: list[Update]) -> list[tuple[int, int]]:
    """(worker, number of the order) of each update."""
    return [(one.worker, one.number) for one in updates]


def test_all_that_answer_in_time_are_taken_in_the_order_in_which_they_come() -> None:
    store, _ = store_of(3, 1)
    updates = store.train(train_order(0))
    for worker in (2, 0, 1):
        store.answer(100, update(worker, 0))
    assert told(list(updates)) == [(2, 0), (0, 0), (1, 0)]


def test_the_others_have_a_share_of_the_time_that_the_quorum_took() -> None:
    # two of three come after 2 and 4 s; half as long again ends the round at 6 s
    store, clock = store_of(3, 2)
    updates = store.train(train_order(0))
    began = clock.now
    let_time_pass(
        store,
        clock,
        (2, lambda: store.answer(100, update(0, 0))),
        (4, lambda: store.answer(100, update(1, 0))),
        (6.5, lambda: store.answer(100, update(2, 0))),
    )
    assert told(list(updates)) == [(0, 0), (1, 0)]
    assert clock.now == began + 6


def stepping(store: QuorumStore, number: int, after: int) -> Background:
    """The round of an order with a packed step, and slots and frozen layers that were never sent."""
    order = train_order(number)
    parts = {"weights": floats(number, number), "frozen": floats(number, 0, 0)}
    step = PackedStep(after, np.zeros(6 if after >= 0 else 0, np.uint8))
    return Background(lambda: list(store.train(replace(order, state=order.state.but(**parts), step=step))))


def asked(store: QuorumStore, worker: int) -> Order:
    order = store.ask(worker, 100)
    while order.kind == "wait":
        order = store.ask(worker, 100)
    return order


def sizes(order: Order) -> tuple[int, int]:
    """(numbers of weights, bytes of the step)."""
    return order.state.weights.size, order.step.packed.size


def test_a_straggler_gets_weights_whole_where_it_has_missed_a_step() -> None:
    store, _ = store_of(2, 1, grace=0.0)
    for number in range(3):
        under_way = stepping(store, number, number - 1)
        assert sizes(asked(store, 0)) == ((2, 0) if number == 0 else (0, 6))
        if number == 0:
            assert sizes(asked(store, 1)) == (2, 0)  # and trains until the fourth round
        store.answer(100, update(0, number))
        under_way.result()
    under_way = stepping(store, 3, 2)
    store.answer(100, update(1, 0))
    order = asked(store, 1)
    assert (order.number, sizes(order)) == (3, (2, 0))
    store.answer(100, update(1, 3))
    store.answer(100, update(0, 3))
    under_way.result()


def test_what_was_in_a_reply_that_was_lost_is_sent_again_though_another_order_was_answered_since() -> None:
    store, _ = store_of(2, 1, grace=0.0)
    under_way = stepping(store, 0, -1)
    for worker in (0, 1):
        asked(store, worker)
        store.answer(100, update(worker, 0))
    under_way.result()
    under_way = stepping(store, 1, 0)
    asked(store, 0)
    asked(store, 1)  # the reply is lost, and the round ends without this worker
    store.answer(100, update(0, 1))
    under_way.result()
    evaluations = Background(lambda: list(store.evaluate(Order.to_evaluate(state().but(frozen=floats(1, 0, 0)), 2))))
    for worker in (0, 1):
        assert asked(store, worker).state.frozen.tolist() == ([] if worker == 0 else [1, 0, 0])
        store.answer(100, Evaluation(worker, 2, 1, np.array([1.0])))
    evaluations.result()
    under_way = stepping(store, 3, 1)
    assert sizes(asked(store, 0)) == (0, 6)
    assert sizes(asked(store, 1)) == (2, 0)
    for worker in (0, 1):
        store.answer(100, update(worker, 3))
    under_way.result()


def test_a_recall_that_is_answered_says_nothing_of_an_order_that_was_lost() -> None:
    """Of frozen layers, which are sent once: round 1 changed them, and its order did not reach worker 1."""
    store, _ = store_of(2, 1, grace=0.0)
    under_way = stepping(store, 0, -1)
    for worker in (0, 1):
        asked(store, worker)
        store.answer(100, update(worker, 0))
    under_way.result()
    under_way = stepping(store, 1, 0)
    for worker in (0, 1):  # the second reply is lost, and the round ends without this worker
        assert asked(store, worker).state.frozen.tolist() == [1, 0, 0]
    store.answer(100, update(0, 1))
    under_way.result()
    recalled = Background(lambda: list(store.recall(1)))
    for worker in (0, 1):
        store.answer(100, Recollection(worker, asked(store, worker).number))
    recalled.result()
    order = train_order(2)
    same = order.state.but(frozen=floats(1, 0, 0))
    under_way = Background(lambda: list(store.train(replace(order, state=same))))
    assert [asked(store, worker).state.frozen.tolist() for worker in (0, 1)] == [[], [1, 0, 0]]
    for worker in (0, 1):
        store.answer(100, update(worker, 2))
    under_way.result()


def test_workers_without_rows_make_no_quorum() -> None:
    # two of four have no rows and answer at once; of the others both are waited for, 3 and 5 s
    store, clock = store_of(4, 2, grace=0.0)
    updates, began = store.train(train_order(0)), clock.now
    for worker in (1, 3):
        store.answer(100, update(worker, 0, samples=0))
    let_time_pass(
        store,
        clock,
        (3, lambda: store.answer(100, update(0, 0))),
        (5, lambda: store.answer(100, update(2, 0))),
    )
    assert told(list(updates)) == [(1, 0), (3, 0), (0, 0), (2, 0)]
    assert clock.now == began + 5


def test_a_quorum_is_at_most_as_many_as_have_rows() -> None:
    # of four, three have no rows: the one that has ends the round, and the next one begins to count anew
    store, clock = store_of(4, 2, grace=0.0)
    for number, last in enumerate((3, 0)):
        updates, began = store.train(train_order(number)), clock.now
        empty = [worker for worker in range(4) if worker != last]
        for worker in empty:
            store.answer(100, update(worker, number, samples=0))
        let_time_pass(store, clock, (4, lambda last=last, number=number: store.answer(100, update(last, number))))
        assert told(list(updates)) == [(worker, number) for worker in (*empty, last)]
        assert clock.now == began + 4


def test_a_late_update_counts_once_in_the_round_in_which_it_comes() -> None:
    store, _ = store_of(2, 1, grace=0.0)
    first = store.train(train_order(0))
    store.answer(100, update(0, 0))
    assert told(list(first)) == [(0, 0)]
    second = store.train(train_order(1))
    order = store.answer(100, update(1, 0, 1.0, 1.0))  # of the first round
    assert (order.kind, order.number) == ("train", 1)  # it trains what is trained now
    store.answer(100, update(1, 0, 9.0, 9.0))  # its reply was lost
    store.answer(100, update(0, 1))
    taken = list(second)
    assert told(taken) == [(1, 0), (0, 1)]
    assert taken[0].delta.tolist() == [1.0, 1.0]
    assert store.dropped == 1
    third = store.train(train_order(2))
    store.answer(100, update(1, 1))
    store.answer(100, update(1, 2))
    assert told(list(third)) == [(1, 1), (1, 2)]


def test_a_late_update_between_two_rounds_waits_for_the_next() -> None:
    store, _ = store_of(2, 1, grace=0.0)
    first = store.train(train_order(0))
    store.answer(100, update(0, 0))
    list(first)
    store.answer(100, update(1, 0))  # the order is still the first, but its round is over
    second = store.train(train_order(1))
    store.answer(100, update(0, 1))
    assert sorted(told(list(second))) == [(0, 1), (1, 0)]


def test_what_workers_remember_is_asked_for_as_the_state_knows_them() -> None:
    store, _ = store_of(3, 1, grace=0.0)
    first = store.train(train_order(3))
    store.answer(100, update(0, 3))
    store.answer(100, update(1, 3))
    assert told(list(first)) == [(0, 3), (1, 3)]
    second = store.train(train_order(4))
    store.answer(100, update(0, 4))
    assert told(list(second)) == [(0, 4)]
    recalled = store.recall(after=4)
    late = [store.ask(0, 100), store.answer(100, update(1, 4)), store.answer(100, update(2, 3))]
    assert [(order.kind, order.version) for order in late] == [("recall", 4), ("recall", 3), ("recall", -1)]
    for worker, order in enumerate(late):
        store.answer(100, Recollection(worker, order.number))
    assert [one.worker for one in recalled] == [0, 1, 2]
    store.answer(100, Recollection(1, late[1].number))  # its reply was lost
    # updates that were late count in the next round, and those of the orders after a recall do
    third = store.train(train_order(5))
    store.answer(100, update(1, 5))
    assert told(list(third)) == [(1, 4), (2, 3), (1, 5)]
    fourth = store.train(train_order(6))
    store.answer(100, update(0, 5))
    store.answer(100, update(0, 6))
    assert told(list(fourth)) == [(0, 5), (0, 6)]
    again, dropped = store.recall(after=6), store.dropped
    order = store.answer(100, Recollection(0, late[0].number, {"own": floats(7)}))  # once more, of the first recall
    assert (order.kind, order.version, store.dropped) == ("recall", 6, dropped + 1)
    for worker in range(3):
        if worker:
            store.answer(100, update(worker, 6))
        store.answer(100, Recollection(worker, order.number))
    assert [one.memory for one in again] == [{}] * 3


def test_an_evaluation_waits_for_everyone() -> None:
    store, clock = store_of(2, 1, grace=0.0)
    first = store.train(train_order(0))
    store.answer(100, update(0, 0))
    list(first)
    evaluations = store.evaluate(Order("evaluate", 1, state=state()))
    store.answer(100, Evaluation(0, 1, 1, np.array([1.0])))
    let_time_pass(
        store,
        clock,
        (5, lambda: store.answer(100, update(1, 0))),
        (6, lambda: store.answer(100, Evaluation(1, 1, 1, np.array([2.0])))),
    )
    assert [one.metrics.tolist() for one in evaluations] == [[1.0], [2.0]]
    second = store.train(train_order(2))
    store.answer(100, update(0, 2))
    assert told(list(second)) == [(1, 0), (0, 2)]


def test_a_worker_that_hangs_ends_nothing_as_long_as_there_is_a_quorum() -> None:
    store, clock = store_of(3, 2, grace=0.0)
    limit = AT_ONCE.round_timeout
    updates = store.train(train_order(0))
    let_time_pass(
        store,
        clock,
        (limit - 1, lambda: store.answer(100, update(0, 0))),
        (limit - 1, lambda: store.beat(1, 100, 5)),
        (limit + 5, lambda: store.answer(100, update(1, 0))),
    )
    assert told(list(updates)) == [(0, 0), (1, 0)]


def test_without_a_quorum_the_late_ones_are_named() -> None:
    store, clock = store_of(3, 2, grace=0.0)
    updates = store.train(train_order(0))
    let_time_pass(store, clock, (1, lambda: store.answer(100, update(1, 0))))
    with pytest.raises(WaitError, match=r"worker 0 .*worker 2 "):
        list(updates)
