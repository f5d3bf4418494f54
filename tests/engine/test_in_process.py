"""The virtual clock: who comes first is decided by seeded speeds, and no one else's wall clock."""

from __future__ import annotations

import numpy as np

from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.center import LockedCenter
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.quorum import Quorum
from elephas_like.core.strategies import DownPour
from elephas_like.core.types import Evaluation, Joined, Order, Role, Span, Update
from elephas_like.engine.in_process import InProcessAsyncWorkers, InProcessQuorumWorkers

LAYOUT = Layout((LayoutEntry("w", Role.WEIGHT, (2,), "float32"),))
START = LAYOUT.flatten([np.zeros(2)])


class Adds:
    """A worker that adds its number, plus one, to every weight."""

    def __init__(self, number: int, rows: int) -> None:
        self.number, self.rows = number, rows
        self.spans: list[Span] = []

    def joined(self, attempt: int, host: str) -> Joined:
        return Joined(self.number, attempt, host, self.rows, self.rows, LAYOUT.hash)

    def steps_of(self, span: Span) -> int:
        return self.rows * (span.end - span.begin) // span.of

    def train(self, order: Order) -> Update:
        assert order.span is not None
        self.spans.append(order.span)
        nothing = np.zeros(0, np.float32)
        return Update(
            worker=self.number,
            number=order.number,
            version=order.version,
            samples=self.steps_of(order.span),
            steps=self.steps_of(order.span),
            delta=np.full(2, self.number + 1, np.float32),
            statistics=nothing,
            slots=nothing,
            counters=np.zeros(0, np.int64),
            loss_scale=nothing,
            seeds=np.zeros(0, np.int64),
            metrics=np.ones(2),
        )

    def evaluate(self, order: Order) -> Evaluation:
        assert order.state is not None
        return Evaluation(self.number, order.number, self.rows, np.array([order.state.weights[0], 1.0]))

    def progress(self) -> int:
        return len(self.spans)

    def save(self, path: str) -> None:
        """Nothing is kept from round to round."""

    def restore(self, path: str) -> None:
        """Nothing was saved."""

    def close(self) -> None:
        """Nothing is open."""


def run(seed: int, rows: tuple[int, ...]) -> tuple[list[Adds], list[tuple[int, ...]], list[float]]:
    workers = [Adds(number, count) for number, count in enumerate(rows)]
    engine = InProcessAsyncWorkers(workers, seed)
    center = LockedCenter(START, LAYOUT, DownPour(), len(rows))
    progress = AsyncProgress(sum(rows), 3, AsyncSchedule(tuple(2 if count else 0 for count in rows)))
    engine.begin(center, progress, lambda epoch: epoch == 2)
    epochs = []
    while (record := engine.next_epoch()) is not None:
        epochs.append(record)
    came = [tuple(w.worker for r in record.rounds for w in r.workers) for record in epochs]
    assert [record.epoch for record in epochs] == [0, 1, 2]
    assert [record.validation is not None for record in epochs] == [False, False, True]
    return workers, came, [float(record.state.weights[0]) for record in epochs]


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    _, first, weights = run(1, (8, 8, 8))
    _, again, same = run(1, (8, 8, 8))
    assert (first, weights) == (again, same)
    assert any(run(seed, (8, 8, 8))[1] != first for seed in range(2, 6))


def test_weights_are_the_sum_of_what_arrived() -> None:
    _, came, weights = run(3, (8, 8))
    totals = np.cumsum([sum(number + 1 for number in epoch) for epoch in came])
    assert weights == totals.tolist()


def test_an_epoch_ends_when_all_rows_were_seen_by_whomever() -> None:
    workers, came, _ = run(5, (8, 8))
    # 16 rows an epoch, 4 a span: four arrivals an epoch, and twelve in three epochs.
    assert [len(epoch) for epoch in came] == [4, 4, 4]
    assert sum(len(worker.spans) for worker in workers) == 12
    for worker in workers:
        begun = [(span.epoch, span.begin) for span in worker.spans]
        assert begun == [divmod(index, 2) for index in range(len(begun))]


def test_a_worker_without_rows_is_asked_nothing() -> None:
    workers, _, _ = run(7, (8, 0))
    assert workers[1].spans == []


def test_rounds_that_end_at_a_quorum_by_hand() -> None:
    # speeds 4, 2, 1/2 with 4 rows each: a span takes 1, 2 and 8. Two make a quorum, and the grace is half of that time:
    # rounds end at 3, 6 and 9. Worker 2 comes at 8, in the third round, with the first one's update
    workers = [Adds(number, 4) for number in range(3)]
    engine = InProcessQuorumWorkers(workers, Quorum(2, 0.5), [4.0, 2.0, 0.5])
    rounds, ends = [], []
    for number in range(3):
        order = Order("train", number, number, Span(number), START)
        rounds.append([(update.worker, update.number) for update in engine.train(order)])
        ends.append(engine.now)
    assert rounds == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 2), (1, 2), (2, 0)]]
    assert ends == [3.0, 6.0, 9.0]
    # an evaluation waits for it: it is busy until 16
    assert [one.worker for one in engine.evaluate(Order.to_evaluate(START))] == [0, 1, 2]
    assert engine.now == 16.0


def test_a_quorum_of_all_is_every_round_of_all() -> None:
    engine = InProcessQuorumWorkers([Adds(number, 4) for number in range(2)], Quorum(2, 0.0), [1.0, 4.0])
    for number in range(3):
        updates = engine.train(Order("train", number, number, Span(number), START))
        assert [(update.worker, update.number) for update in updates] == [(1, number), (0, number)]


def test_workers_without_rows_make_no_quorum() -> None:
    # speeds 1: workers 1 and 3 have no rows and answer after 1; of the others, 4 and 6 steps, both are waited for
    workers = [Adds(number, rows) for number, rows in enumerate((4, 0, 6, 0))]
    engine = InProcessQuorumWorkers(workers, Quorum(2, 0.0), [1.0] * 4)
    rounds, ends = [], []
    for number in range(2):
        order = Order("train", number, number, Span(number), START)
        rounds.append([update.worker for update in engine.train(order)])
        ends.append(engine.now)
    assert rounds == [[1, 3, 0, 2]] * 2
    assert ends == [6.0, 12.0]


def test_a_quorum_is_at_most_as_many_as_have_rows() -> None:
    engine = InProcessQuorumWorkers([Adds(number, rows) for number, rows in enumerate((0, 5, 0))], Quorum(2), [1.0] * 3)
    updates = engine.train(Order("train", 0, 0, Span(0), START))
    assert [(update.worker, update.samples) for update in updates] == [(0, 0), (2, 0), (1, 5)]
    assert engine.now == 5.0
