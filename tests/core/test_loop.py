"""Synchronous fits of two workers (`plain_numpy.pair`), worked out by hand."""

from __future__ import annotations

import io
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from plain_numpy import (
    LAYOUT,
    ONE,
    TWO,
    Failing,
    Notes,
    Regression,
    Saves,
    floats,
    integers,
    loss_of,
    pair,
    plan_of,
    state,
    update,
)

from elephas_like.core.averaging import Round
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.loop import epochs_of, fit_synchronously
from elephas_like.core.merging import with_mean_slots
from elephas_like.core.progress import FitProgress
from elephas_like.core.rounds import RoundLength
from elephas_like.core.schedules import FixedSteps, PostLocal, QuadraticSynchronization
from elephas_like.core.strategies import (
    STRATEGIES,
    Average,
    Codec,
    Context,
    Float16,
    Nesterov,
    OneShot,
    OuterState,
    Strategy,
)
from elephas_like.core.types import (
    SLOTS_SINCE,
    EpochRecord,
    Frequency,
    Mode,
    OnNaN,
    Order,
    Role,
    Span,
    TrainState,
    Update,
)
from elephas_like.core.workers import SyncWorkers
from elephas_like.engine.in_process import InProcessSyncWorkers


def fit(
    workers: list[Regression], notes: Notes | None = None, start: TrainState | None = None, **plan: object
) -> tuple[TrainState, Notes, FitProgress]:
    notes, progress = notes or Notes(), FitProgress(start or state(0, 0))
    end = fit_synchronously(InProcessSyncWorkers(workers), plan_of(workers, **plan), notes, progress, loss_of)
    return end, notes, progress


# --- synchronous


class Watching(InProcessSyncWorkers):
    """Workers of which every call, and every answer that is asked for, is noted."""

    def __init__(self, workers: Sequence[Regression], seen: list[str]) -> None:
        super().__init__(workers)
        self.seen = seen

    def train(self, order: Order) -> Iterator[Update]:
        self.seen.append("order")
        return self._answers(order)

    def _answers(self, order: Order) -> Iterator[Update]:
        for answer in super().train(order):
            self.seen.append("answer")
            yield answer


class Besides(Notes):
    """Notes when it is called beside the workers."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def order_given(self) -> None:
        self.seen.append("beside")


def test_what_need_not_wait_for_workers_is_done_once_they_have_their_order() -> None:
    seen: list[str] = []
    workers = pair()
    plan = plan_of(workers, epochs=1, rounds_per_epoch=2)
    fit_synchronously(Watching(workers, seen), plan, Besides(seen), FitProgress(state(0, 0)), loss_of)
    assert seen == ["order", "beside", "answer", "answer"] * 2


class Forgetful(Notes):
    """Keeps nothing of what it sees, and looks whether the states that epochs began with are there after each round."""

    def __init__(self, workers: Sequence[Regression]) -> None:
        super().__init__()
        self.workers = workers
        self.states: list[weakref.ref] = []
        self.kept: list[int] = []

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        self.states.append(weakref.ref(state.weights))
        return state

    def round_end(self, record: object, metrics: object) -> None:
        for worker in self.workers:
            worker.orders.clear()
        self.kept.append(sum(one() is not None for one in self.states))

    def epoch_end(self, record: EpochRecord) -> TrainState:
        return record.state


def test_no_state_of_an_earlier_moment_is_kept() -> None:
    workers = pair()
    notes = Forgetful(workers)
    fit(workers, notes, epochs=2)
    assert notes.kept == [0, 0, 0, 0]


def test_the_mean_of_kept_slots_is_weighted_by_what_each_worker_trained() -> None:
    # (1 x 4 + 3 x 0)/4, (1 x 0 + 3 x 8)/4; worker 2 remembers none, and worker 3 has trained nothing
    *_, progress = fit([Regression(0, [ONE]), Regression(1, [TWO] * 3), Regression(2, [ONE])])
    memories = {0: {"slots": floats(4, 0)}, 1: {"slots": floats(0, 8)}, 2: {}, 3: {"slots": floats(99, 99)}}
    assert with_mean_slots(state(1, 2), memories.items(), progress.rounds).slots.tolist() == [1, 6]
    start = state(1, 2)
    assert with_mean_slots(start, (), progress.rounds) is start


def test_slots_that_have_gone_on_from_an_earlier_average_are_left_out_of_the_last_mean() -> None:
    *_, progress = fit([Regression(0, [ONE]), Regression(1, [TWO] * 3)])
    straggler = {"slots": floats(4, 0), SLOTS_SINCE: integers(0)}
    memories = {0: straggler, 1: {"slots": floats(0, 8), SLOTS_SINCE: integers(3)}}
    assert with_mean_slots(state(1, 2), memories.items(), progress.rounds, 3).slots.tolist() == [0, 8]


def test_constraints_hold_after_each_exchange_and_where_a_strategy_looks_ahead() -> None:
    # as below, but w1 is at most 0.6: it would be 0.5, then 0.875; look-ahead workers begin no further either
    workers = pair()
    end, _, _ = fit(workers, constrain=lambda weights: np.minimum(weights, np.float32(0.6)))
    assert end.weights.tolist() == [0.4375, np.float32(0.6)]

    class Ahead(Average):
        def serve(self, weights: np.ndarray, outer: OuterState, context: Context) -> np.ndarray:
            return weights + 1

    workers = pair()
    fit(workers, strategy=Ahead(), constrain=lambda weights: np.minimum(weights, np.float32(0.6)))
    assert {tuple(order.state.weights.tolist()) for worker in workers for order in worker.orders} == {
        (np.float32(0.6), np.float32(0.6))
    }


def test_two_rounds_by_hand() -> None:
    # round 1 from (0, 0): deltas (1/2, 0) and (0, 1), mean (1/4, 1/2); errors 1 and 2, squares 1 + 4 = 5
    # round 2 from (1/4, 1/2): deltas (3/8, 0) and (0, 3/4), mean (3/16, 3/8); squares 9/16 + 9/4 = 2.8125
    end, notes, progress = fit(pair())
    assert end.weights.tolist() == [0.4375, 0.875]
    assert progress.state is end
    assert end.counters.tolist() == [2]  # each worker's iteration went to 2; the greatest counts
    assert [record.loss for record in notes.rounds] == [2.5, 1.40625]
    assert notes.sums == [[5.0, 2.0], [7.8125, 4.0]]
    (epoch,) = notes.epochs
    assert (epoch.epoch, epoch.samples, epoch.metrics.tolist()) == (0, 4, [7.8125, 4.0])
    assert epoch.rounds == tuple(notes.rounds) == tuple(progress.rounds)


@dataclass(frozen=True)
class Eighths(Codec):
    """Whole eighths, cut off: what a step loses is seen in the next."""

    def nbytes(self, size: int) -> int:
        return size

    def pack(self, vector: np.ndarray) -> np.ndarray:
        return np.trunc(vector * 8).astype(np.int8).view(np.uint8)

    def unpack(self, packed: np.ndarray, size: int) -> np.ndarray:
        return packed.view(np.int8).astype(np.float32) / 8


@pytest.mark.parametrize("sizes", [(28, 27), (27, 28)])
def test_steps_are_counted_as_the_largest_shard_has_them(sizes: tuple[int, int]) -> None:
    """Five rounds cut 28 steps into 5, 6, 5, 6, 6 and 27 into 5, 5, 6, 5, 6: the most of each round would be 29."""
    workers = [Regression(index, [ONE] * rows) for index, rows in enumerate(sizes)]
    end, _, _ = fit(workers, epochs=3, rounds_per_epoch=5, frequency=6, largest=sizes.index(28))
    assert end.counters.tolist() == [3 * 28]


def test_workers_follow_the_driver_by_packed_steps() -> None:
    """Worked out by hand: w is the driver's, v what workers begin with, e = v + C(w - v).

    Round 1 begins at v = w = (0, 0), whole: deltas (1/2, 0), (0, 1), mean (1/4, 1/2): w = (1/4, 1/2). The step is whole eighths: v = w.
    Round 2: deltas (3/8, 0), (0, 3/4), mean (3/16, 3/8): w = (7/16, 7/8). The step (3/16, 3/8) is cut to (1/8, 3/8): v = (3/8, 7/8).
    Round 3: deltas (5/16, 0), (0, 9/16), mean (5/32, 9/32): w = (19/32, 37/32). w - v = (7/32, 9/32), cut to (1/8, 1/4): v = (1/2, 9/8).
    Round 4: deltas (1/4, 0), (0, 7/16), mean (1/8, 7/32): w = (23/32, 44/32).
    """
    workers = pair()
    end, _, progress = fit(workers, epochs=2, state_codec=Eighths())
    begun = [order.state.weights.tolist() for order in workers[0].orders]
    assert begun == [[0, 0], [1 / 4, 1 / 2], [3 / 8, 7 / 8], [1 / 2, 9 / 8]]
    assert end.weights.tolist() == [23 / 32, 44 / 32]
    assert progress.published.tolist() == [1 / 2, 9 / 8]
    steps = [order.step for order in workers[1].orders]
    assert [step.after for step in steps] == [-1, 0, 1, 2]
    assert [step.packed.view(np.int8).tolist() for step in steps] == [[], [2, 4], [1, 3], [1, 2]]


def test_what_is_evaluated_is_the_drivers_own_state() -> None:
    workers = pair(validation=[ONE])
    fit(workers, epochs=2, state_codec=Eighths())
    assert [order.state.weights.tolist() for order in workers[0].evaluated] == [[7 / 16, 7 / 8], [23 / 32, 44 / 32]]
    assert all(order.step is None for order in workers[0].evaluated)


def test_workers_begin_with_exactly_what_a_callback_sets() -> None:
    workers, third = pair(), floats(1 / 3, 1 / 3)
    fit(workers, Notes(at_end=lambda epoch, state: state.but(weights=third)), epochs=2, state_codec=Eighths())
    assert workers[0].orders[2].state.weights.tolist() == third.tolist()
    assert workers[0].orders[2].step.after == -1


def test_packed_steps_go_on_from_a_checkpoint() -> None:
    whole, _, _ = fit(pair(), epochs=2, state_codec=Eighths())
    kept: list[dict] = []
    workers, plan = pair(), {"epochs": 2, "state_codec": Eighths()}
    saves = Saves(lambda progress: kept.append({n: a.copy() for n, a in progress.arrays().items()}))
    fit_synchronously(
        InProcessSyncWorkers(workers), plan_of(workers, **plan), Notes(), FitProgress(state(0, 0)), loss_of, saves
    )
    assert len(kept) == 3
    for arrays in kept:
        workers, progress = pair(), FitProgress.from_arrays(arrays, state(0, 0))
        end = fit_synchronously(InProcessSyncWorkers(workers), plan_of(workers, **plan), Notes(), progress, loss_of)
        assert end.weights.tolist() == whole.weights.tolist()
    kept[0]["published"] = floats(1)
    with pytest.raises(
        ElephasError,
        match=r"the weights that workers had: found float32 of shape \(1,\); expected float32 of shape \(2,\)",
    ):
        FitProgress.from_arrays(kept[0], state(0, 0))


def test_each_epoch_has_the_metrics_of_its_own_rows() -> None:
    # from (7/16, 7/8): errors 9/16 and 9/8, squares 81/256 + 81/64; then three quarters of them
    _, notes, _ = fit(pair(), epochs=2)
    squares = 81 / 256 + 81 / 64
    assert [epoch.metrics.tolist() for epoch in notes.epochs] == [[7.8125, 4.0], [squares + squares * 9 / 16, 4.0]]


def test_a_round_says_who_did_what() -> None:
    _, notes, _ = fit([Regression(0, [ONE] * 3), Regression(1, [TWO])], rounds_per_epoch=2)
    # floor(3 j / 2) = 0, 1, 3 and floor(j / 2) = 0, 0, 1
    assert [[(w.worker, w.samples, w.steps) for w in record.workers] for record in notes.rounds] == [
        [(0, 1, 1), (1, 0, 0)],
        [(0, 2, 2), (1, 1, 1)],
    ]
    assert [(record.round, record.epoch) for record in notes.rounds] == [(0, 0), (1, 0)]


def test_one_worker_that_averages_is_plain_gradient_descent() -> None:
    rows = [(1, 2, 3), (-1, 0.5, 0), (2, 2, 1), (0.5, -1, 2), (1, 1, 1)]
    weights = np.zeros(2)
    for _ in range(4):
        for x0, x1, y in rows:
            weights -= 0.0625 * (weights @ [x0, x1] - y) * np.array([x0, x1])
    for rounds in (1, 2, 5):
        end, _, _ = fit(
            [Regression(0, rows)], None, state(0, 0, learning_rate=0.0625), rounds_per_epoch=rounds, epochs=4
        )
        np.testing.assert_allclose(end.weights, weights, rtol=0, atol=1e-6)


def test_workers_start_where_the_last_round_ended() -> None:
    workers = pair()
    fit(workers, epochs=2)
    for worker in workers:
        assert [(order.number, order.version) for order in worker.orders] == [(0, 0), (1, 1), (2, 2), (3, 3)]
        assert [order.span for order in worker.orders] == [
            Span(0, 0, 1, 2),
            Span(0, 1, 2, 2),
            Span(1, 0, 1, 2),
            Span(1, 1, 2, 2),
        ]
        # w0 goes a quarter of the way to 1 each round: 1 - 1, 3/4, 9/16, 27/64
        assert [order.state.weights[0] for order in worker.orders] == [0, 0.25, 0.4375, 0.578125]


def test_momentum_lasts_through_the_whole_fit() -> None:
    # lr = 1, mu = 1/2, one round an epoch, rows (1, 0) -> 1 on both workers: d = (1 - w)/2
    # d = 1/2:   b = 1/2,                x = 1/2 + 1/4        = 3/4
    # d = 1/8:   b = 1/4 + 1/8 = 3/8,    x = 3/4 + 1/8 + 3/16 = 17/16
    end, _, _ = fit(
        [Regression(0, [ONE]), Regression(1, [ONE])], strategy=Nesterov(momentum=0.5), rounds_per_epoch=1, epochs=2
    )
    assert end.weights.tolist() == [1.0625, 0]


@dataclass(frozen=True)
class Ahead(Average):
    """Average that serves a point one ahead."""

    name: ClassVar[str] = "ahead"

    def serve(self, weights: np.ndarray, outer: OuterState, context: Context) -> np.ndarray:
        return weights + 1


def test_what_is_served_is_not_what_is_kept() -> None:
    # served (1, 1): worker 0 is at its goal, worker 1 goes (0, 1/2); mean (0, 1/4), from the kept (0, 0)
    workers = pair(1)
    end, _, _ = fit(workers, strategy=Ahead())
    assert workers[0].orders[0].state.weights.tolist() == [1, 1]
    assert end.weights.tolist() == [0, 0.25]


@pytest.mark.parametrize("sizes", [(5, 3), (1, 7, 0), (4,), (0, 0, 2)])
@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_every_row_is_trained_once_an_epoch(sizes: tuple[int, ...], rounds: int) -> None:
    workers = [Regression(index, [ONE] * rows) for index, rows in enumerate(sizes)]
    _, notes, _ = fit(workers, rounds_per_epoch=rounds, initial_epoch=2, epochs=5)
    for worker, rows in zip(workers, sizes, strict=True):
        assert Counter(worker.trained) == Counter((epoch, row) for epoch in (2, 3, 4) for row in range(rows))
    assert [(epoch.epoch, epoch.samples) for epoch in notes.epochs] == [
        (2, sum(sizes)),
        (3, sum(sizes)),
        (4, sum(sizes)),
    ]
    assert notes.begun == [2, 3, 4]


class Careless(Regression):
    """A worker that counts its rows wrongly."""

    off = 0

    def train(self, order: Order) -> Update:
        brought = super().train(order)
        return replace(brought, samples=brought.samples + self.off)


@pytest.mark.parametrize(("off", "trained"), [(-1, 3), (1, 5)])
def test_lost_and_doubled_rows_are_an_error(off: int, trained: int) -> None:
    careless = Careless(0, [ONE] * 2)
    careless.off = off
    notes = Notes()
    with pytest.raises(ElephasError, match=f"epoch 1 trained {trained} rows where the shards hold 4"):
        fit([careless, Regression(1, [TWO] * 2)], notes, rounds_per_epoch=1)
    assert notes.epochs == []


def test_an_epoch_without_a_trained_row_is_an_error_also_where_rounds_end_at_a_quorum() -> None:
    idle = Careless(0, [ONE] * 2)
    idle.off = -2
    notes = Notes()
    with pytest.raises(ElephasError, match="epoch 1 trained no row of the 2 that the shards hold"):
        fit([idle], notes, rounds_per_epoch=1, waits_for_all=False)
    assert notes.epochs == []


def test_one_round_for_the_whole_fit() -> None:
    # three epochs on one's own: w0 = 7/8, w1 = 7/4; old - mean(old - new) = (7/16, 7/8)
    workers = pair(1)
    end, notes, _ = fit(workers, strategy=OneShot(), frequency=Frequency.FIT, epochs=3)
    assert end.weights.tolist() == [0.4375, 0.875]
    assert [order.span for order in workers[0].orders] == [Span(0, epochs=3)]
    assert workers[0].trained == [(0, 0), (1, 0), (2, 0)]
    assert notes.begun == [0]  # the round begins with the first epoch and ends with the last
    assert [(epoch.epoch, epoch.samples) for epoch in notes.epochs] == [(2, 6)]


def test_one_round_that_loses_rows_is_an_error_too() -> None:
    careless = Careless(0, [ONE])
    careless.off = -1
    with pytest.raises(ElephasError, match="epoch 3 trained 5 rows where the shards hold 6"):
        fit([careless, Regression(1, [TWO])], strategy=OneShot(), frequency=Frequency.FIT, epochs=3)


@pytest.mark.parametrize("frequency", [Frequency.FIT, Frequency.EPOCH])
def test_no_epochs_change_nothing(frequency: Frequency) -> None:
    start = state(3, 4)
    end, notes, _ = fit(pair(), None, start, frequency=frequency, initial_epoch=2, epochs=2)
    assert end is start
    assert notes.begun == []


def test_epochs_of() -> None:
    plan = plan_of(pair(), rounds_per_epoch=2, initial_epoch=3, epochs=5)
    round_length = RoundLength(2, 2)
    assert [(first, last, list(parts)) for first, last, parts in epochs_of(plan, round_length)] == [
        (3, 3, [Span(3, 0, 1, 2), Span(3, 1, 2, 2)]),
        (4, 4, [Span(4, 0, 1, 2), Span(4, 1, 2, 2)]),
    ]
    ((first, last, parts),) = epochs_of(replace(plan, frequency=Frequency.FIT), round_length)
    assert (first, last, list(parts)) == (3, 4, [Span(3, epochs=2)])


def test_workers_that_pull_apart_exchange_more_often() -> None:
    # every row of a worker is the same: its updates point along its own axis, round after round. Own cosine 1, that to the
    # other's last update 0: drift 1. Two rounds an epoch; after the second of them halves of rounds, then quarters
    _, notes, _ = fit(pair(8), rounds_per_epoch=2, finest_rounds=8, epochs=2)
    assert [(record.epoch, record.of) for record in notes.rounds] == [(0, 2), (0, 2), *[(1, 4)], *[(1, 8)] * 6]
    assert [record.cosine for record in notes.rounds] == [0.0] * 9
    assert [record.drift for record in notes.rounds] == [None] + [1.0] * 8
    assert [record.samples for record in notes.rounds] == [8, 8, 4, 2, 2, 2, 2, 2, 2]
    assert [epoch.samples for epoch in notes.epochs] == [16, 16]


def test_workers_that_agree_keep_their_rounds() -> None:
    workers = [Regression(0, [ONE] * 8), Regression(1, [ONE] * 8)]
    _, notes, _ = fit(workers, rounds_per_epoch=2, finest_rounds=8, epochs=3)
    assert [record.of for record in notes.rounds] == [2] * 6
    assert [record.cosine for record in notes.rounds] == [1.0] * 6
    assert [record.drift for record in notes.rounds] == [None] + [0.0] * 5


def test_one_worker_alone_has_no_drift() -> None:
    _, notes, _ = fit([Regression(0, [ONE] * 4)], rounds_per_epoch=2, finest_rounds=4, epochs=2)
    assert [(record.of, record.cosine, record.drift) for record in notes.rounds] == [(2, None, None)] * 4


def test_early_stop() -> None:
    end, notes, _ = fit(pair(), Notes(stop_after_epochs=2), epochs=10)
    assert notes.begun == [0, 1]
    # four rounds, each a quarter of the way: 1 - (3/4)^4 = 175/256, twice that
    assert end.weights.tolist() == [0.68359375, 1.3671875]


def test_a_stop_amid_an_epoch_still_ends_it() -> None:
    end, notes, _ = fit(pair(validation=[(1, 1, 3)]), Notes(stop_after_rounds=3), epochs=10)
    assert [(epoch.epoch, epoch.samples, len(epoch.rounds)) for epoch in notes.epochs] == [(0, 4, 2), (1, 2, 1)]
    assert end.weights.tolist() == [0.578125, 1.15625]  # 1 - (3/4)^3 = 37/64, and twice that
    assert notes.epochs[1].validation is not None


def test_a_stop_before_the_first_epoch() -> None:
    changed = state(5, 6)
    end, notes, progress = fit(pair(), Notes(stop_after_rounds=0, at_begin=lambda epoch, state: changed))
    assert notes.rounds == []
    assert end is progress.state is changed


def test_a_learning_rate_set_at_an_epochs_end_is_in_the_next_order() -> None:
    workers = pair()
    notes = Notes(at_end=lambda epoch, now: now.but(learning_rate=floats(0.25)) if epoch == 0 else now)
    end, _, _ = fit(workers, notes, epochs=2)
    for worker in workers:
        assert [order.state.learning_rate.tolist() for order in worker.orders] == [[0.5], [0.5], [0.25], [0.25]]
    # w0: a quarter of the way twice, then an eighth twice: 1 - (9/16)(49/64) = 583/1024
    assert end.weights.tolist() == [583 / 1024, 583 / 512]
    assert end.learning_rate.tolist() == [0.25]


def test_a_learning_rate_set_at_an_epochs_beginning_is_in_its_orders() -> None:
    workers = pair(1)
    fit(workers, Notes(at_begin=lambda epoch, now: now.but(learning_rate=floats(2.0**-epoch))), epochs=3)
    assert [order.state.learning_rate.tolist() for order in workers[1].orders] == [[1], [0.5], [0.25]]


def test_weights_set_by_a_callback_are_gone_on_from() -> None:
    workers = pair(1)
    notes = Notes(at_end=lambda epoch, now: now.but(weights=floats(8, 9)))
    end, _, progress = fit(workers, notes, epochs=2)
    assert workers[0].orders[1].state.weights.tolist() == [8, 9]
    assert end.weights.tolist() == [8, 9]
    assert progress.state is end


def test_an_order_to_evaluate_has_everything_but_slots() -> None:
    workers = pair(1, validation=[(1, 1, 3)])
    end, _, _ = fit(workers)
    (order,) = workers[0].evaluated
    assert end.slots.size > 0
    for name, part in end.parts().items():
        assert order.state.part(Role(name)).tolist() == ([] if name == Role.SLOT else part.tolist()), name


def test_validation_is_of_the_averaged_state() -> None:
    # after the epoch (1/4, 1/2): errors of (1, 1) -> 3: 9/4 each; workers' squares 81/16 + 81/16 = 10.125 over 2 rows
    workers = pair(1, validation=[(1, 1, 3)])
    _, notes, _ = fit(workers)
    assert notes.epochs[0].validation.tolist() == [10.125, 2.0]
    assert notes.epochs[0].state.weights.tolist() == [0.25, 0.5]


def test_orders_are_numbered_through_evaluations() -> None:
    workers = pair(1, validation=[(1, 1, 3)])
    fit(workers, epochs=3)
    assert [order.number for order in workers[0].orders] == [0, 2, 4]
    assert [order.version for order in workers[0].orders] == [0, 1, 2]


@pytest.mark.parametrize(("frequency", "validated"), [(1, [0, 1, 2, 3]), (2, [1, 3]), ((1, 4), [0, 3]), (9, [])])
def test_validation_freq(frequency: int | tuple[int, ...], validated: list[int]) -> None:
    _, notes, _ = fit(pair(1, validation=[(1, 1, 3)]), epochs=4, validation_freq=frequency)
    assert [epoch.epoch for epoch in notes.epochs if epoch.validation is not None] == validated


def test_without_validation_rows_nothing_is_evaluated() -> None:
    _, notes, _ = fit(pair(1))
    assert notes.epochs[0].validation is None


def test_a_failure_leaves_the_last_finished_round() -> None:
    workers, progress = [Regression(0, [ONE] * 2), Failing(1, [TWO] * 2)], FitProgress(state(0, 0))
    notes = Notes()
    with pytest.raises(RuntimeError, match="out of luck"):
        fit_synchronously(InProcessSyncWorkers(workers), plan_of(workers), notes, progress, loss_of)
    assert len(workers[0].orders) == 2  # its second update came, and was not applied
    assert progress.state.weights.tolist() == [0.25, 0.5]
    assert [record.round for record in progress.rounds] == [0]
    assert notes.epochs == []


class Diverging(Regression):
    """A worker that brings NaN at its second order."""

    def train(self, order: Order) -> Update:
        brought = super().train(order)
        return replace(brought, delta=brought.delta * np.float32("nan")) if len(self.orders) == 2 else brought


def test_bad_numbers_end_the_fit() -> None:
    progress, workers = FitProgress(state(0, 0)), [Diverging(0, [ONE] * 2), Regression(1, [TWO] * 2)]
    with pytest.raises(NonFiniteError, match="worker 0 brought NaN or infinity in round 1"):
        fit_synchronously(InProcessSyncWorkers(workers), plan_of(workers), Notes(), progress, loss_of)
    assert progress.state.weights.tolist() == [0.25, 0.5]


def test_bad_numbers_are_dropped_on_request() -> None:
    end, notes, _ = fit([Diverging(0, [ONE] * 2), Regression(1, [TWO] * 2)], on_nan=OnNaN.DROP)
    # round 2 has worker 1 alone: (1/4, 1/2) + (0, 3/4)
    assert end.weights.tolist() == [0.25, 1.25]
    assert [[worker.dropped for worker in record.workers] for record in notes.rounds] == [[0, 0], [1, 0]]
    assert notes.sums[-1] == [7.25, 3.0]  # 1 + 4 + 9/4, without the dropped worker's row
    assert notes.epochs[0].samples == 4


class Counted(InProcessSyncWorkers):
    """Rounds that are asked for one update at a time."""

    def train(self, order: Order) -> Iterator[Update]:
        yield from super().train(order)


def test_the_loop_needs_no_more_than_the_protocol() -> None:
    workers: list[Regression] = pair()
    rounds: SyncWorkers = Counted(workers)
    end = fit_synchronously(rounds, plan_of(workers), Notes(), FitProgress(state(0, 0)), loss_of)
    assert end.weights.tolist() == [0.4375, 0.875]


# --- schedules, codecs, and what strategies are told


def test_a_schedule_cuts_each_epoch_by_the_learning_rate() -> None:
    # 6 rows: rate 1/2 gives rounds of floor((0.71 / 0.5)^2) = 2 steps; the callback's 1/4 gives floor((0.71 / 0.25)^2) = 8
    workers = pair(6)
    notes = Notes(at_end=lambda epoch, state: state.but(learning_rate=floats(0.25)))
    fit(workers, notes, frequency=QuadraticSynchronization(0.71, least=1), epochs=2, epoch_steps=6)
    spans = [order.span for order in workers[0].orders]
    assert spans == [Span(0, 0, 2, 6), Span(0, 2, 4, 6), Span(0, 4, 6, 6), Span(1, 0, 6, 6)]


def test_a_smaller_shard_takes_its_share_of_a_schedules_rounds() -> None:
    workers = [Regression(0, [ONE] * 6), Regression(1, [TWO] * 3)]
    _, _, progress = fit(workers, frequency=FixedSteps(4), epoch_steps=6)
    assert [[record.samples for record in one.workers] for one in progress.rounds] == [[4, 2], [2, 1]]


def test_post_local_waits_for_the_first_decay() -> None:
    workers = pair(4)
    notes = Notes(at_begin=lambda epoch, state: state.but(learning_rate=floats(0.5 if epoch < 1 else 0.25)))
    _, _, progress = fit(workers, notes, frequency=PostLocal(3), epochs=2, epoch_steps=4)
    assert [one.epoch for one in progress.rounds] == [0, 0, 0, 0, 1, 1]


def test_a_codec_is_between_worker_and_strategy() -> None:
    class Packing(Regression):
        def train(self, order: Order) -> Update:
            brought = super().train(order)
            return replace(brought, delta=Float16().pack(brought.delta))

    packed, _, _ = fit([Packing(0, [(1, 0, 0.1)] * 2), Packing(1, [TWO] * 2)], codec=Float16(), epochs=3)
    plain, _, _ = fit([Regression(0, [(1, 0, 0.1)] * 2), Regression(1, [TWO] * 2)], epochs=3)
    np.testing.assert_allclose(packed.weights, plain.weights, atol=1e-3)
    assert packed.weights.tolist() != plain.weights.tolist()  # 0.1 is rounded


class Told(Average):
    """An average that writes down what it is told."""

    def step(self, weights: np.ndarray, direction: np.ndarray, outer: OuterState, context: Context) -> tuple:
        TOLD.append(context)
        return super().step(weights, direction, outer, context)


TOLD: list[Context] = []


def test_strategies_are_told_how_far_the_fit_is() -> None:
    TOLD.clear()
    fit(pair(2), strategy=Told(), epochs=2, rounds_per_epoch=2)
    assert [one.progress for one in TOLD] == [0.0, 0.25, 0.5, 0.75]
    assert [one.version for one in TOLD] == [0, 1, 2, 3]
    assert [one.learning_rate for one in TOLD] == [0.5] * 4
    assert [one.weight for one in TOLD] == [2.0] * 4


@pytest.mark.parametrize("strategy", [kind() for kind in STRATEGIES.values() if Mode.SYNCHRONOUS in kind.modes])
def test_a_round_restored_from_plain_arrays_goes_on_as_before(strategy: Strategy) -> None:
    # (x, state, version) is all there is: written down in mid-run and read again, the end is the same to the last bit
    rng = np.random.default_rng(8)
    rounds_brought = [
        [update(worker, *rng.normal(size=2), samples=worker + 1) for worker in range(3)] for _ in range(6)
    ]
    ends = []
    for restart in (None, 3):
        now, outer = state(1, 2), strategy.init(floats(1, 2))
        for version, brought in enumerate(rounds_brought):
            if version == restart:
                buffer = io.BytesIO()
                np.savez(buffer, **now.parts(), **{f"outer.{name}": array for name, array in outer.items()})
                saved = np.load(io.BytesIO(buffer.getvalue()), allow_pickle=False)
                outer = {name[6:]: saved[name] for name in saved.files if name.startswith("outer.")}
                now = TrainState(**{name: saved[name] for name in now.parts()})
            exchange = Round(now, outer, LAYOUT, strategy, Context(version, 3, LAYOUT))
            for one in brought:
                exchange.add(one)
            now, outer = exchange.finish()
        ends.append(now.weights.tobytes())
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("strategy", "said"), [(Nesterov(learning_rate=8.0, momentum=0.9), 1), (Nesterov(), 0), (Average(), 0)]
)
def test_a_loss_that_jumps_by_the_outer_step_is_said_once(
    strategy: Strategy, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The two updates are at right angles. A step eight times too long leads away from both ends, farther each round."""
    fit(pair(6), strategy=strategy)
    assert caplog.text.count("the outer step of strategy 'nesterov' goes too far") == said
