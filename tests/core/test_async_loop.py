"""Asynchronous fits of two workers (`plain_numpy.pair`), worked out by hand: they arrive in an order that is written down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from exchanges import center_of
from plain_numpy import (
    ONE,
    TWO,
    Arrivals,
    Failing,
    Notes,
    Regression,
    floats,
    integers,
    loss_of,
    pair,
    plan_of,
    state,
    update,
)

from elephas_like.core.async_loop import fit_asynchronously
from elephas_like.core.center import LockedCenter
from elephas_like.core.loop import FitPlan
from elephas_like.core.progress import FitProgress
from elephas_like.core.strategies import DownPour
from elephas_like.core.types import Mode, Role, TrainState
from elephas_like.engine.in_process import InProcessAsyncWorkers


def async_plan(workers: Sequence[Regression], **other: object) -> FitPlan:
    return plan_of(workers, **({"mode": Mode.ASYNCHRONOUS, "strategy": DownPour()} | other))


def go(
    engine: Arrivals | InProcessAsyncWorkers,
    workers: Sequence[Regression],
    notes: Notes | None = None,
    start: TrainState | None = None,
    **plan: object,
) -> tuple[TrainState, Notes, FitProgress]:
    notes, progress = notes or Notes(), FitProgress(start or state(0, 0))
    end = fit_asynchronously(engine, async_plan(workers, **plan), notes, progress, loss_of)
    return end, notes, progress


@pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, Mode.HOGWILD])
def test_a_fast_and_a_slow_worker_by_hand(mode: Mode) -> None:
    # One row each, two epochs: 4 rows in all. Worker 0 comes three times: w0 = 1/2, 3/4, 7/8. The first epoch ends
    # with its second update. Then worker 1, that started from (0, 0) before the other three: w1 = 1.
    workers = pair(1)
    end, notes, progress = go(Arrivals(workers, [0, 0, 0, 1]), workers, mode=mode, epochs=2)
    assert end.weights.tolist() == [0.875, 1]
    first, second = notes.epochs
    assert first.state.weights.tolist() == [0.75, 0]
    assert second.state.weights.tolist() == [0.875, 1]
    assert [first.samples, second.samples] == [2, 2]
    assert first.metrics.tolist() == [1.25, 2]  # 1 + 1/4
    assert second.metrics.tolist() == [4.0625, 2]  # 1/16 + 4
    records = [record.workers[0] for record in progress.rounds]
    assert [(record.worker, record.staleness) for record in records] == [(0, 0), (0, 0), (0, 0), (1, 3)]
    assert [record.loss for record in notes.rounds] == [None, 0.625, None, 2.03125]  # an epoch's last has its loss
    assert notes.sums == [[1.25, 2], [1.25, 2], [4.0625, 2], [4.0625, 2]]
    assert workers[0].trained == [(0, 0), (1, 0), (2, 0)]
    assert notes.begun == [0, 1]
    assert progress.state.weights.tolist() == [0.875, 1]


def test_a_fit_that_goes_on_without_the_worker_of_the_most_steps_counts_on() -> None:
    workers, begun = pair(1), FitProgress(state(0, 0).but(counters=integers(9)))
    before = center_of(LockedCenter, begun.state)
    for worker, steps in ((0, 1), (2, 9)):
        before.commit(update(worker, counters=integers(9), steps=steps))
    begun.center = before.checkpoint()
    fit_asynchronously(Arrivals(workers, [0, 1]), async_plan(workers), Notes(), begun, loss_of)
    assert begun.state.counters.tolist() == [10]


def test_what_comes_after_the_last_epoch_does_not_count() -> None:
    workers = pair(1)
    end, notes, _ = go(Arrivals(workers, [0, 0, 1, 1, 1], ahead=True), workers)
    assert end.weights.tolist() == [0.75, 0]
    assert len(notes.epochs) == 1


def test_one_worker_alone_is_plain_gradient_descent() -> None:
    workers = [Regression(0, [ONE, TWO])]
    end, notes, _ = go(InProcessAsyncWorkers(workers, seed=1), workers, worker_rounds=(2,), epochs=3)
    assert end.weights.tolist() == [0.875, 1.75]  # three times half the way
    assert [epoch.state.weights.tolist() for epoch in notes.epochs] == [[0.5, 1], [0.75, 1.5], [0.875, 1.75]]
    assert workers[0].trained == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_learning_rate_set_by_a_callback_is_in_the_next_order() -> None:
    workers = [Regression(0, [ONE])]
    notes = Notes(at_end=lambda epoch, now: now.but(learning_rate=now.learning_rate / 2))
    end, _, _ = go(Arrivals(workers, [0, 0, 0]), workers, notes, epochs=3)
    # The order after an update goes out before the callbacks run: the change comes one exchange later.
    assert [order.state.learning_rate.tolist() for order in workers[0].orders] == [[0.5], [0.5], [0.25]]
    assert end.weights.tolist() == [0.8125, 0]  # 1/2, 3/4, + 1/4 of 1/4
    assert end.learning_rate.tolist() == [0.0625]


def test_a_schedule_at_an_epochs_beginning() -> None:
    workers = [Regression(0, [ONE])]
    engine = Arrivals(workers, [0, 0, 0])
    notes = Notes(at_begin=lambda epoch, now: now.but(learning_rate=floats(2.0**-epoch)))
    go(engine, workers, notes, epochs=3)
    assert [order.state.learning_rate.tolist() for order in workers[0].orders] == [[1], [1], [0.5]]
    assert engine.replaced == [{"learning_rate": [0.5]}, {"learning_rate": [0.25]}]


def test_callbacks_see_the_learning_rate_they_set_where_workers_were_faster() -> None:
    # All three epochs are over before the driver looks: their snapshots hold the old rate, 1/2. It is halved each time.
    workers = [Regression(0, [ONE])]
    engine = Arrivals(workers, [0, 0, 0], ahead=True)
    notes = Notes(at_end=lambda epoch, now: now.but(learning_rate=now.learning_rate / 2))
    end, _, _ = go(engine, workers, notes, epochs=3)
    assert [epoch.state.learning_rate.tolist() for epoch in notes.epochs] == [[0.5], [0.25], [0.125]]
    assert engine.replaced == [{"learning_rate": [0.25]}, {"learning_rate": [0.125]}]
    assert end.learning_rate.tolist() == [0.0625]


def test_what_no_callback_touched_is_not_written_back() -> None:
    workers = [Regression(0, [ONE])]
    engine = Arrivals(workers, [0, 0, 0])
    go(engine, workers, epochs=3)
    assert engine.replaced == []


def test_weights_of_a_callback_go_to_the_center() -> None:
    workers = [Regression(0, [ONE])]
    engine = Arrivals(workers, [0, 0])
    notes = Notes(at_end=lambda epoch, now: now.but(weights=floats(0, 5)) if epoch == 0 else now)
    end, _, _ = go(engine, workers, notes, epochs=2)
    assert engine.replaced == [{"moved": [-0.5, 5]}]
    assert end.weights.tolist() == [0.25, 5]  # the update under way was half of 1/2


def test_an_asynchronous_early_stop() -> None:
    workers = pair(1)
    end, notes, progress = go(Arrivals(workers, [0, 1] * 10), workers, Notes(stop_after_epochs=2), epochs=10)
    assert notes.begun == [0, 1]
    assert end.weights.tolist() == [0.75, 1.5]
    assert progress.state is end


def test_an_asynchronous_stop_before_the_first_epoch() -> None:
    workers = pair(1)
    end, _, progress = go(Arrivals(workers, []), workers, Notes(stop_after_rounds=0), state(3, 4))
    assert end.weights.tolist() == [3, 4]
    assert progress.state is end
    assert workers[0].orders == []


def test_no_asynchronous_epochs() -> None:
    workers = pair(1)
    end, notes, _ = go(Arrivals(workers, []), workers, None, state(3, 4), initial_epoch=2, epochs=2)
    assert end.weights.tolist() == [3, 4]
    assert notes.epochs == []


def test_an_asynchronous_failure_leaves_the_last_epoch() -> None:
    workers, progress = [Failing(0, [ONE])], FitProgress(state(0, 0))
    with pytest.raises(RuntimeError, match="out of luck"):
        fit_asynchronously(Arrivals(workers, [0, 0]), async_plan(workers, epochs=2), Notes(), progress, loss_of)
    assert progress.state.weights.tolist() == [0.5, 0]
    assert len(progress.rounds) == 1


def test_a_crowd_on_a_virtual_clock_trains_the_budget_and_is_repeatable() -> None:
    def run(seed: int) -> tuple[list[float], list[tuple[int, int]]]:
        workers = [Regression(0, [ONE] * 3), Regression(1, [TWO] * 5), Regression(2, [])]
        end, notes, progress = go(
            InProcessAsyncWorkers(workers, seed), workers, worker_rounds=(1, 2, 0), initial_epoch=1, epochs=4
        )
        assert [epoch.epoch for epoch in notes.epochs] == [1, 2, 3]
        total = sum(epoch.samples for epoch in notes.epochs)
        assert 24 <= total < 24 + 3  # 3 epochs of 8 rows; the last update may go beyond by less than its 3 rows
        assert workers[2].orders == []
        assert len(workers[0].trained) + len(workers[1].trained) == total
        assert all(epoch >= 1 for worker in workers for epoch, _ in worker.trained)
        arrivals = [(record.workers[0].worker, record.workers[0].staleness) for record in progress.rounds]
        return end.weights.tolist(), arrivals

    assert run(3) == run(3)
    assert run(3)[1] != run(4)[1]


def test_an_asynchronous_epoch_is_evaluated() -> None:
    workers = [Regression(0, [ONE], [(1, 1, 3)]), Regression(1, [ONE], [(1, 0, 1)])]
    _, notes, _ = go(InProcessAsyncWorkers(workers, seed=0), workers, epochs=4, validation_freq=2)
    assert [epoch.validation is None for epoch in notes.epochs] == [True, False, True, False]
    weight = float(notes.epochs[3].state.weights[0])
    assert notes.epochs[3].validation.tolist() == [(weight - 3) ** 2 + (weight - 1) ** 2, 2.0]


def test_an_asynchronous_order_to_evaluate_has_everything_but_slots() -> None:
    workers = [Regression(0, [ONE], [(1, 1, 3)])]
    _, notes, _ = go(InProcessAsyncWorkers(workers, seed=0), workers)
    (order,) = workers[0].evaluated
    for name, part in notes.epochs[0].state.parts().items():
        assert order.state.part(Role(name)).tolist() == ([] if name == Role.SLOT else part.tolist()), name
