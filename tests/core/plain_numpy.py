"""A model of two weights and one of every other role; workers of it that are plain NumPy; a driver that takes notes.

`pair` makes two workers that learn y = x . w from rows of their own, learning rate 1/2, one row a step. Worker 0 knows rows
(1, 0) -> 1, worker 1 rows (0, 1) -> 2: a step halves the distance of w0 to 1, or of w1 to 2. Errors squared are the metric, so that the
loss is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from elephas_like.core import rounds
from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center
from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.loop import FitPlan
from elephas_like.core.progress import FitProgress
from elephas_like.core.strategies import Average
from elephas_like.core.types import (
    EpochRecord,
    Evaluation,
    Joined,
    Memories,
    Mode,
    Order,
    Recollection,
    Role,
    RoundRecord,
    Span,
    TrainState,
    Update,
)

LAYOUT = Layout(
    (
        LayoutEntry("kernel", Role.WEIGHT, (2,), "float32"),
        LayoutEntry("mean", Role.STATISTIC, (1,), "float32"),
        LayoutEntry("variance", Role.STATISTIC, (1,), "float32", variance_of=0),
        LayoutEntry("frozen mean", Role.FROZEN, (1,), "float32"),
        LayoutEntry("frozen variance", Role.FROZEN, (1,), "float32", variance_of=0),
        LayoutEntry("momentum", Role.SLOT, (2,), "float32"),
        LayoutEntry("iteration", Role.COUNTER, (), "int64"),
        LayoutEntry("learning_rate", Role.LEARNING_RATE, (), "float32"),
        LayoutEntry("step_counter", Role.LOSS_SCALE, (), "int64"),
        LayoutEntry("scale", Role.LOSS_SCALE, (), "float32"),
        LayoutEntry("seed", Role.SEED, (2,), "int64"),
    )
)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def state(*weights: float, learning_rate: float = 0.5) -> TrainState:
    return TrainState(
        weights=floats(*(weights or (0.0, 0.0))),
        statistics=floats(0.0, 1.0),
        slots=floats(0.0, 0.0),
        counters=integers(0),
        learning_rate=floats(learning_rate),
        loss_scale=floats(0, 8),
        seeds=integers(7, 8),
        frozen=floats(3.0, 1.0),
    )


def update(worker: int = 0, *delta: float, samples: int = 1, **other: object) -> Update:
    plain = Update(
        worker=worker,
        number=0,
        version=0,
        samples=samples,
        steps=1,
        delta=floats(*(delta or (0.0, 0.0))),
        statistics=floats(0.0, 1.0),
        slots=floats(0.0, 0.0),
        counters=integers(0),
        loss_scale=floats(0, 8),
        seeds=integers(7, 8),
        metrics=np.array([1.0, float(samples)]),
    )
    return replace(plain, **other)


def nothing(worker: int, number: int = 0) -> Update:
    """What a worker without rows brings."""
    return Update(worker, number, 0, 0, 0, floats(), floats(), floats(), integers(), floats(), integers(), np.zeros(0))


Row = tuple[float, float, float]


class Regression:
    """A worker on rows (x0, x1, y): w <- w - learning_rate (x . w - y) x, one row a step, in the order of the rows.

    Metric sums are (squared errors, rows); evaluation sums the squared errors of `validation`.
    """

    def __init__(self, worker: int, rows: Sequence[Row], validation: Sequence[Row] = ()) -> None:
        self.worker = worker
        self.rows = rows
        self.validation = validation
        self.orders: list[Order] = []
        self.evaluated: list[Order] = []
        self.trained: list[tuple[int, int]] = []
        """(epoch, row) of every step."""

    def joined(self, attempt: int, host: str) -> Joined:
        return Joined(self.worker, attempt, host, len(self.rows), len(self.validation), LAYOUT.hash)

    def steps_of(self, span: Span) -> int:
        first, last = rounds.steps_of(span, len(self.rows))
        return (last - first) * span.epochs

    def train(self, order: Order) -> Update:
        self.orders.append(order)
        start, span = order.state, order.span
        steps = self.steps_of(span)
        if steps == 0:
            return replace(nothing(self.worker, order.number), version=order.version)
        weights, squares = start.weights.copy(), 0.0
        for epoch in range(span.epoch, span.epoch + span.epochs):
            for row in range(*rounds.steps_of(span, len(self.rows))):
                x, y = floats(*self.rows[row][:2]), self.rows[row][2]
                error = x @ weights - y
                weights -= start.learning_rate * error * x
                squares += float(error) ** 2
                self.trained.append((epoch, row))
        return update(
            self.worker,
            *(weights - start.weights),
            samples=steps,
            number=order.number,
            version=order.version,
            steps=steps,
            statistics=start.statistics,
            slots=start.slots,
            counters=start.counters + steps,
            loss_scale=start.loss_scale,
            seeds=start.seeds,
            metrics=np.array([squares, steps]),
        )

    def evaluate(self, order: Order) -> Evaluation:
        self.evaluated.append(order)
        errors = [x0 * order.state.weights[0] + x1 * order.state.weights[1] - y for x0, x1, y in self.validation]
        sums = np.array([sum(float(error) ** 2 for error in errors), len(errors)])
        return Evaluation(self.worker, order.number, len(errors), sums if errors else np.zeros(0))

    def recall(self, order: Order) -> Recollection:
        return Recollection(self.worker, order.number)

    def remind(self, order: Order) -> Recollection:
        return Recollection(self.worker, order.number)

    def progress(self) -> int:
        return 0

    def save(self, path: str) -> None:
        """Nothing is kept from round to round."""

    def restore(self, path: str) -> None:
        """Nothing was saved."""

    def close(self) -> None: ...


class Failing(Regression):
    """A worker that raises at its second order."""

    def train(self, order: Order) -> Update:
        if len(self.orders) == 1:
            raise RuntimeError("out of luck")
        return super().train(order)


class Elastic(Regression):
    """A worker that keeps half of its way to itself: it trains from weights of its own, which it remembers."""

    def __init__(self, worker: int, rows: Sequence[Row]) -> None:
        super().__init__(worker, rows)
        self.memory: Mapping[str, np.ndarray] = {}

    def train(self, order: Order) -> Update:
        own = self.memory.get("own", order.state.weights)
        brought = super().train(replace(order, state=order.state.but(weights=own)))
        half = (own + brought.delta - order.state.weights) / np.float32(2)
        self.memory = {"own": own + brought.delta - half}
        return replace(brought, delta=half)

    def recall(self, order: Order) -> Recollection:
        return Recollection(self.worker, order.number, self.memory)

    def remind(self, order: Order) -> Recollection:
        self.memory = order.memory
        return Recollection(self.worker, order.number)


class Saves:
    """Calls a function with the progress whenever that may be saved (core.progress.Saving).

    skips: how many times it is not due first.
    """

    def __init__(self, save: Callable[[FitProgress], object], skips: int = 0) -> None:
        self._save, self._skips = save, skips

    def due(self, amid_epoch: bool) -> bool:
        self._skips -= 1
        return self._skips < 0

    def save(self, progress: FitProgress, due: bool) -> None:
        if due:
            self._save(progress)


class Notes:
    """Hooks of a driver that writes everything down and does what it was told to.

    stop_after: number of calls of `round_end` or `epoch_end` (two lists), after which training is to stop.
    at_end, at_begin: what callbacks make of the state at an epoch's end or beginning.
    """

    def __init__(
        self,
        *,
        stop_after_rounds: int | None = None,
        stop_after_epochs: int | None = None,
        at_end: Callable[[int, TrainState], TrainState] = lambda epoch, state: state,
        at_begin: Callable[[int, TrainState], TrainState] = lambda epoch, state: state,
    ) -> None:
        self.begun: list[int] = []
        self.rounds: list[RoundRecord] = []
        self.sums: list[list[float]] = []
        self.epochs: list[EpochRecord] = []
        self._stop_after = (stop_after_rounds, stop_after_epochs)
        self._at_end, self._at_begin = at_end, at_begin

    def stopped(self) -> bool:
        return len(self.rounds) == self._stop_after[0] or len(self.epochs) == self._stop_after[1]

    def order_given(self) -> None: ...

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        self.begun.append(epoch)
        return self._at_begin(epoch, state)

    def evaluated(self, state: TrainState) -> TrainState:
        return state

    def round_end(self, record: RoundRecord, metrics: np.ndarray) -> None:
        self.rounds.append(record)
        self.sums.append(metrics.tolist())

    def epoch_end(self, record: EpochRecord) -> TrainState:
        self.epochs.append(record)
        return self._at_end(record.epoch, record.state)


class Arrivals:
    """Asynchronous workers that arrive in an order written down beforehand (core.workers.AsyncWorkers).

    ahead: whether they have all come before the driver asks for the first epoch.
    """

    def __init__(self, workers: Sequence[Regression], order: Sequence[int], *, ahead: bool = False) -> None:
        self._workers, self._order, self._ahead = workers, list(order), ahead
        self.replaced: list[dict[str, list[float]]] = []

    def joined(self) -> list[Joined]:
        return [worker.joined(0, "here") for worker in self._workers]

    def begin(
        self,
        center: Center,
        progress: AsyncProgress,
        validates: Callable[[int], bool],
        recalls: Callable[[int], bool],
        memories: Memories,
    ) -> None:
        self._center, self._progress = center, progress
        self._orders = [progress.next_order(index, center) for index in range(len(self._workers))]
        while self._ahead and self._order:
            self._arrive()

    def next_epoch(self) -> EpochRecord | None:
        while not self._progress.finished:
            if self._progress.over or not self._order:
                return None
            self._arrive()
        return self._progress.finished.popleft()

    def replace(self, before: TrainState, after: TrainState) -> None:
        changed = {name: part for name, part in after.parts().items() if part is not before.parts()[name]}
        if "weights" in changed:
            changed["moved"] = changed.pop("weights") - before.weights
        self.replaced.append({name: part.tolist() for name, part in changed.items()})
        self._center.replace(before, after)

    def _arrive(self) -> None:
        index = self._order.pop(0)
        brought = self._workers[index].train(self._orders[index])
        self._progress.record(brought, self._center.commit(brought), self._center)
        self._orders[index] = self._progress.next_order(index, self._center)


ONE: Row = (1, 0, 1)
TWO: Row = (0, 1, 2)


def pair(rows: int = 2, validation: Sequence[Row] = ()) -> list[Regression]:
    return [Regression(0, [ONE] * rows, validation), Regression(1, [TWO] * rows, validation)]


def plan_of(workers: Sequence[Regression], **other: object) -> FitPlan:
    values: dict[str, object] = {
        "layout": LAYOUT,
        "mode": Mode.SYNCHRONOUS,
        "strategy": Average(),
        "frequency": 1,
        "rounds_per_epoch": max(len(worker.rows) for worker in workers),
        "worker_rounds": tuple(1 if worker.rows else 0 for worker in workers),
        "num_workers": len(workers),
        "rows": sum(len(worker.rows) for worker in workers),
        "initial_epoch": 0,
        "epochs": 1,
        "validates": any(worker.validation for worker in workers),
    }
    return FitPlan(**(values | other))


def loss_of(metrics: np.ndarray) -> float | None:
    return float(metrics[0] / metrics[1]) if metrics.size else None
