"""A model of two weights, one statistic and two slots, a clock that is set by hand, and workers made of NumPy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import numpy as np

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.types import Evaluation, Joined, Order, Recollection, Role, Span, TrainState, Update
from elephas_like.core.workers import Exchange
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.protocol import Sizes

LAYOUT = Layout(
    (
        LayoutEntry("kernel", Role.WEIGHT, (2,), "float32"),
        LayoutEntry("mean", Role.STATISTIC, (1,), "float32"),
        LayoutEntry("frozen", Role.FROZEN, (3,), "float32"),
        LayoutEntry("momentum", Role.SLOT, (2,), "float32"),
        LayoutEntry("iteration", Role.COUNTER, (), "int64"),
        LayoutEntry("learning_rate", Role.LEARNING_RATE, (), "float32"),
        LayoutEntry("seed", Role.SEED, (2,), "int64"),
    )
)
SIZES = Sizes.of(LAYOUT, workers_remember=True)
AT_ONCE = Waits(poll_seconds=0.0)
"""Requests are never held: for tests with a clock that stands still."""


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def state(*weights: float) -> TrainState:
    return TrainState(
        weights=floats(*(weights or (0.0, 0.0))),
        statistics=floats(0.5),
        slots=floats(0.0, 0.0),
        counters=integers(0),
        learning_rate=floats(0.1),
        loss_scale=floats(),
        seeds=integers(7, 8),
        frozen=floats(1.0, 2.0, 3.0),
    )


def update(
    worker: int = 0, number: int = 0, *delta: float, samples: int = 4, version: int = 0, slots: bool = True
) -> Update:
    return Update(
        worker=worker,
        number=number,
        version=version,
        samples=samples,
        steps=1,
        delta=floats(*(delta or (1.0, 2.0))),
        statistics=floats(0.5),
        slots=floats(0.0, 0.0) if slots else floats(),
        counters=integers(1),
        loss_scale=floats(),
        seeds=integers(7, 8),
        metrics=np.array([2.0, float(samples)]),
        seconds=0.25,
    )


def joined(worker: int = 0, attempt: int = 100, **other: object) -> Joined:
    values: dict[str, object] = {
        "host": f"host-{worker}",
        "rows": 4,
        "validation_rows": 1,
        "layout_hash": LAYOUT.hash,
        "checksum": 5,
    }
    return Joined(worker, attempt, **(values | other))  # type: ignore[arg-type]


def train_order(number: int = 0, *weights: float) -> Order:
    return Order("train", number, number, Span(0), state(*weights))


class HandClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Background:
    """A call in a thread, whose result or exception is taken with `result()`."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._value: object = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> object:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._value


def work(exchange: Exchange, worker: int, attempt: int = 100, *delta: float) -> int:
    """A worker that answers each order until it is told to stop, with a delta of its own; how many it answered.

    It remembers the numbers of the orders that it has trained, after those that it is reminded of.
    """
    answers, memory = 0, integers()
    try:
        order = exchange.join(joined(worker, attempt))
        while order.kind != "stop":
            if order.kind == "recall":
                order = exchange.answer(Recollection(worker, order.number, {"trained": memory}))
            elif order.kind == "remind":
                memory = order.memory["trained"]
                order = exchange.answer(Recollection(worker, order.number))
            elif order.kind == "train":
                memory = np.append(memory, order.number)
                order = exchange.answer(update(worker, order.number, *delta, version=order.version))
            else:
                assert order.state is not None
                metrics = np.array([float(order.state.weights.sum()), 1.0])
                order = exchange.answer(Evaluation(worker, order.number, 1, metrics))
            answers += 1
    finally:
        exchange.close()
    return answers


def taken(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            break
        data += part
    return data
