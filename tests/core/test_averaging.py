from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest
from exchanges import after, exchange
from plain_numpy import LAYOUT, floats, integers, nothing, state, update

from elephas_like.core.averaging import Round, admit, record
from elephas_like.core.drift import DriftMonitor
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.layout import Layout
from elephas_like.core.merging import Replaced
from elephas_like.core.strategies import Average, Context, Nesterov, Strategy
from elephas_like.core.types import OnNaN, Role, RoundRecord, Update, WorkerRecord

NAN, INF = float("nan"), float("inf")


def test_weights_are_weighted_by_samples() -> None:
    # 1 + (1 x 4 + 3 x 0)/4 = 2 and 2 + (1 x 0 + 3 x 8)/4 = 8
    assert after(update(0, 4, 0, samples=1), update(1, 0, 8, samples=3)).weights.tolist() == [2, 8]


@pytest.mark.parametrize("strategy", [Average(), Nesterov()])
def test_without_weights_statistics_move_on(strategy: Strategy) -> None:
    """All layers are frozen but a BatchNormalization's averages, which learn other rows."""
    layout = Layout(tuple(entry for entry in LAYOUT.entries if entry.role is not Role.WEIGHT))
    updates = [
        replace(update(worker, samples=samples, statistics=floats(mean, 1)), delta=floats())
        for worker, samples, mean in ((0, 1, 4), (1, 3, 0))
    ]
    start = state().but(weights=floats())
    merged = Round(start, strategy.init(start.weights), layout, strategy, Context(0, 2, layout))
    for each in updates:
        merged.add(each)
    after_it, _ = merged.finish()
    assert after_it.statistics[0] == 1  # (1 x 4 + 3 x 0) / 4
    assert after_it.counters is updates[0].counters


def test_the_learning_rate_is_the_drivers() -> None:
    start = state(learning_rate=0.125)
    assert after(update(0), update(1), start=start).learning_rate is start.learning_rate


@pytest.mark.parametrize(
    "empty",
    [
        nothing(1),
        update(
            1,
            1e3,
            -1e3,
            samples=0,
            statistics=floats(9, 9),
            slots=floats(9, 9),
            counters=integers(99),
            loss_scale=floats(0, 0.5),
        ),
    ],
)
@pytest.mark.parametrize("strategy", [Average(), Nesterov()])
def test_a_worker_without_samples_changes_nothing(empty: Update, strategy: Strategy) -> None:
    full = update(0, 0.1, 0.7, samples=3, statistics=floats(0.3, 0.2), slots=floats(0.9, 1.1), counters=integers(5))
    alone = after(full, strategy=strategy)
    for both in (after(full, empty, strategy=strategy), after(empty, full, strategy=strategy)):
        assert {k: v.tobytes() for k, v in both.parts().items()} == {k: v.tobytes() for k, v in alone.parts().items()}


@pytest.mark.parametrize("asked", [False, True])
def test_the_mean_step_is_that_of_the_updates_whatever_the_strategy_makes_of_them(asked: bool) -> None:
    # (1 x 4 + 3 x 0)/4 = 1 and (1 x 0 + 3 x 8)/4 = 6, in (1 x 2 + 3 x 6)/4 = 5 steps
    strategy, start = Nesterov(), state()
    context = Context(0, 2, LAYOUT, learning_rate=0.5)
    exchange = Round(start, strategy.init(start.weights), LAYOUT, strategy, context, control_variates=asked)
    exchange.add(update(0, 4, 0, samples=1, steps=2))
    exchange.add(update(1, 0, 8, samples=3, steps=6))
    exchange.finish()
    assert (exchange.mean_step is not None) is asked
    if asked:
        assert exchange.mean_step.tolist() == pytest.approx([1 / 5 / 0.5, 6 / 5 / 0.5])


def test_records_of_a_long_history_are_small_and_travel() -> None:
    def records(count: int) -> list[WorkerRecord]:
        return [
            record(
                update(number % 50, samples=int(f"{1000 + number % 3}"), steps=int("500"), seconds=float(number)),
                0,
                False,
            )
            for number in range(count)
        ]

    records(10)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = records(5000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(kept) < 140  # eight words of an object, a float, a pointer to it
    assert (kept[4].samples, kept[4].steps, kept[4].seconds) == (1001, 500, 4.0)
    finished = RoundRecord(0, 0, tuple(kept[:3]))
    assert pickle.loads(pickle.dumps(finished)) == finished  # noqa: S301
    assert asdict(finished)["workers"][1]["samples"] == 1001


def test_a_worker_without_samples_is_on_record() -> None:
    taken = exchange(update(0, 1, 1, samples=3), nothing(1))
    assert [(record.worker, record.samples, record.dropped) for record in taken.records] == [(0, 3, 0), (1, 0, 0)]
    assert len(taken.metrics) == 1


@pytest.mark.parametrize("updates", [[], [nothing(0), nothing(1)], [update(0, 5, 5, samples=0)]])
def test_a_round_of_nothing_is_the_start(updates: list[Update]) -> None:
    start, outer = state(1, 2), {"momentum": floats(3, 4)}
    taken = Round(start, outer, LAYOUT, Nesterov(), Context(0, 2))
    for brought in updates:
        taken.add(brought)
    same, remembered = taken.finish()
    assert same is start
    assert remembered is outer


def test_nothing_that_was_given_is_changed() -> None:
    start = state(1, 2)
    updates = update(0, 4, 0, samples=1), update(1, 0, 8, samples=3)
    arrays = [*start.parts().values(), *updates[0].arrays().values(), *updates[1].arrays().values()]
    before = [array.tobytes() for array in arrays]
    after(*updates, start=start, strategy=Nesterov())
    assert [array.tobytes() for array in arrays] == before


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_bad_number_names_worker_round_and_variable(bad: float) -> None:
    brought = replace(update(3, 0, bad), number=17)
    with pytest.raises(NonFiniteError, match=r"worker 3 brought NaN or infinity in round 17 \(in kernel\)") as caught:
        after(brought)
    assert isinstance(caught.value, ElephasError)
    brought = replace(update(3, statistics=floats(0, bad)), number=17)
    with pytest.raises(NonFiniteError, match=r"round 17 \(in variance\)\. Expected finite numbers"):
        after(brought)


def test_dropped_updates_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    taken = exchange(
        update(0, 4, 0, samples=1),
        update(1, NAN, 0, samples=3),
        update(2, 0, 8, samples=1),
        on_nan=OnNaN.DROP,
        num_workers=3,
    )
    # 1 + (4 + 0)/2, 2 + (0 + 8)/2: of workers 0 and 2 alone
    assert taken.finish()[0].weights.tolist() == [3, 6]
    assert [record.dropped for record in taken.records] == [0, 1, 0]
    assert [record.samples for record in taken.records] == [1, 3, 1]  # it was trained on, all the same
    assert len(taken.metrics) == 2
    assert "worker 1 brought NaN or infinity in round 0 (in kernel); the update is dropped" in caplog.text


def test_a_round_of_dropped_updates_is_the_start() -> None:
    start = state(1, 2)
    assert after(update(0, NAN, 0), update(1, 0, INF), start=start, on_nan=OnNaN.DROP) is start


def test_admit() -> None:
    held = state().but(statistics=floats(0, 1))
    assert admit(update(0, 1, 1), OnNaN.RAISE, LAYOUT, held)
    assert not admit(update(0, NAN, 1), OnNaN.DROP, LAYOUT, held)


def test_infinity_that_was_there_before_is_no_mistake() -> None:
    """The mask of an attention layer, or the bounds of an observer that has seen nothing yet."""
    masked = update(0, statistics=floats(-np.inf, 1))
    assert admit(masked, OnNaN.RAISE, LAYOUT, state().but(statistics=floats(-np.inf, 1)))
    assert not admit(masked, OnNaN.DROP, LAYOUT, state().but(statistics=floats(0, 1)))
    assert admit(update(0, statistics=floats(3, 1)), OnNaN.RAISE, LAYOUT, state().but(statistics=floats(np.inf, 1)))
    assert admit(update(0, frozen=floats(INF, 1)), OnNaN.RAISE, LAYOUT, state().but(frozen=floats(INF, 1)))
    assert not admit(update(0, frozen=floats(INF, 1)), OnNaN.DROP, LAYOUT, state().but(frozen=floats(0, 1)))


def pulling_apart() -> DriftMonitor:
    """A monitor that has seen two workers keep to directions of their own: a drift of 1."""
    monitor = DriftMonitor()
    for _ in range(2):
        monitor.add(0, floats(1, 0))
        monitor.add(1, floats(0, 1))
        monitor.measure()
    return monitor


@pytest.mark.parametrize(
    ("monitor", "expected"),
    [
        (DriftMonitor(), 6),  # rows of one kind: weights 1 and 1, (4 + 8) / 2
        (pulling_apart(), 7),  # worker 1 has taken three rounds: weights 1 and 3, (1 * 4 + 3 * 8) / 4
    ],
)
def test_a_late_update_counts_for_the_rounds_that_it_took_where_rows_differ(
    monitor: DriftMonitor, expected: float
) -> None:
    exchange = Round(state(0, 0), {}, LAYOUT, Average(), Context(5, 2, LAYOUT), monitor=monitor)
    exchange.add(
        update(1, 8.0, 0.0, version=3, counters=integers(9), slots=floats(9, 9), statistics=floats(4, 1), steps=7)
    )
    exchange.add(update(0, 4.0, 0.0, version=5, counters=integers(6), slots=floats(1, 2), statistics=floats(0, 1)))
    after, _ = exchange.finish()
    assert after.weights.tolist() == [expected, 0]
    # its slots and integers are out of date; statistics count by samples
    assert (after.counters.tolist(), after.slots.tolist(), after.statistics[0]) == ([6], [1, 2], 2)
    assert [(record.worker, record.staleness) for record in exchange.records] == [(1, 2), (0, 0)]


def test_a_late_update_does_not_bring_back_what_a_callback_has_replaced_since() -> None:
    before, replaced = state(0, 0), Replaced()
    now = before.but(statistics=floats(5, 1))
    replaced.note(before, now, version=4)
    exchange = Round(now, {}, LAYOUT, Average(), Context(5, 2, LAYOUT), replaced=replaced)
    exchange.add(update(1, 8.0, 0.0, version=3, statistics=floats(0, 3)))
    exchange.add(update(0, 4.0, 0.0, version=5, statistics=floats(5, 1)))
    after, _ = exchange.finish()
    assert after.statistics.tolist() == [5, 2]  # the variance, which nobody set, is the mean of both
