"""A fit that goes on from its progress as plain arrays ends as if it had never been interrupted."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, Elastic, Notes, Regression, Saves, floats, state

from elephas_like.core.async_loop import fit_asynchronously
from elephas_like.core.errors import ElephasError
from elephas_like.core.loop import FitPlan, fit_synchronously
from elephas_like.core.progress import FitProgress
from elephas_like.core.schedules import FixedSteps, Schedule
from elephas_like.core.strategies import Nesterov, resolve
from elephas_like.core.types import (
    Array,
    EpochRecord,
    Frequency,
    Mode,
    RoundRecord,
    Span,
    TrainState,
    WorkerRecord,
)
from elephas_like.engine.in_process import InProcessAsyncWorkers, InProcessSyncWorkers

EPOCHS = 3


def written_and_read(progress: FitProgress) -> FitProgress:
    """A progress that went through a file."""
    buffer = io.BytesIO()
    np.savez(buffer, **progress.arrays())
    with np.load(io.BytesIO(buffer.getvalue()), allow_pickle=False) as file:
        return FitProgress.from_arrays(dict(file), state())


def workers() -> list[Regression]:
    rng = np.random.default_rng(4)
    return [Regression(worker, [tuple(row) for row in rng.normal(size=(6 + worker, 3))]) for worker in range(3)]


def plan_of(crew: list[Regression], mode: Mode, frequency: int | Schedule, strategy: str | Nesterov) -> FitPlan:
    return FitPlan(
        layout=LAYOUT,
        mode=mode,
        strategy=resolve(strategy, mode, len(crew)),
        frequency=frequency,
        rounds_per_epoch=2,
        finest_rounds=8,  # rounds become shorter while updates drift apart
        worker_rounds=(2,) * len(crew),
        num_workers=len(crew),
        rows=sum(len(worker.rows) for worker in crew),
        initial_epoch=0,
        epochs=EPOCHS,
        validates=False,
        epoch_steps=max(len(worker.rows) for worker in crew),
    )


class Halving(Notes):
    """A callback that changes the state at the beginning and at the end of every epoch."""

    def epoch_begin(self, epoch: int, now: TrainState) -> TrainState:
        super().epoch_begin(epoch, now)
        return now.but(learning_rate=now.learning_rate / 2)

    def epoch_end(self, record: EpochRecord) -> TrainState:
        super().epoch_end(record)
        return record.state.but(weights=record.state.weights * np.float32(0.9))


@pytest.mark.parametrize("frequency", [1, FixedSteps(2)])
@pytest.mark.parametrize("strategy", ["average", "nesterov", "fedadam"])
def test_a_fit_goes_on_from_any_round_with_the_same_bits(strategy: str, frequency: int | Schedule) -> None:
    saved: list[Mapping[str, Array]] = []
    whole = FitProgress(state(learning_rate=0.25))
    plan = plan_of(workers(), Mode.SYNCHRONOUS, frequency, strategy)
    notes = Halving()
    fit_synchronously(
        InProcessSyncWorkers(workers()),
        plan,
        notes,
        whole,
        lambda metrics: float(metrics[0]),
        Saves(lambda progress: saved.append(written_and_read(progress).arrays())),
    )
    assert len(saved) == len(whole.rounds) - 1  # after every round but the last: amid the epochs, and at their ends
    for arrays in saved:
        again = FitProgress.from_arrays(arrays, state())
        later = Halving()
        fit_synchronously(InProcessSyncWorkers(workers()), plan, later, again, lambda metrics: float(metrics[0]))
        assert {name: part.tobytes() for name, part in again.arrays().items()} == {
            name: part.tobytes() for name, part in whole.arrays().items()
        }
        assert again.rounds == whole.rounds
        # callbacks see the epochs that were not over, whole
        for mine, theirs in zip(reversed(later.epochs), reversed(notes.epochs), strict=False):
            assert (mine.epoch, mine.samples, mine.rounds) == (theirs.epoch, theirs.samples, theirs.rounds)
            assert mine.metrics.tolist() == theirs.metrics.tolist()


@pytest.mark.parametrize(
    ("mode", "strategy"), [(Mode.ASYNCHRONOUS, "mla"), (Mode.ASYNCHRONOUS, "fedbuff"), (Mode.HOGWILD, "downpour")]
)
def test_an_asynchronous_fit_goes_on_at_the_end_of_an_epoch(mode: Mode, strategy: str) -> None:
    saved: list[FitProgress] = []
    crew = workers()
    plan = plan_of(crew, mode, 3, strategy)
    whole, notes = FitProgress(state(learning_rate=0.05)), Halving()
    fit_asynchronously(
        InProcessAsyncWorkers(workers(), seed=3),
        plan,
        notes,
        whole,
        lambda metrics: float(metrics[0]),
        Saves(lambda progress: saved.append(written_and_read(progress))),
    )
    assert [progress.epoch for progress in saved] == [1, 2]
    for progress in saved:
        before = len(progress.rounds)
        version, samples, _ = progress.center["counts"].tolist()
        assert samples >= plan.rows * progress.epoch
        later = Halving()
        engine = InProcessAsyncWorkers(workers(), seed=3)
        fit_asynchronously(engine, plan, later, progress, lambda metrics: 0.0, Saves(lambda now: None))
        # the shared state has counted on
        assert progress.center["counts"][0] > version
        assert progress.center["counts"][1] >= plan.rows * EPOCHS
        assert [record.epoch for record in later.epochs] == list(range(EPOCHS))[-len(later.epochs) :]
        assert sum(record.samples for record in progress.rounds[before:]) >= plan.rows * len(later.epochs)
        assert [record.round for record in progress.rounds] == list(range(len(progress.rounds)))


def test_the_shared_state_goes_on_with_what_callbacks_made_of_it() -> None:
    class Zero(Notes):
        def epoch_end(self, record: EpochRecord) -> TrainState:
            super().epoch_end(record)
            return record.state.but(weights=record.state.weights * np.float32(0))

    plan = plan_of(workers(), Mode.ASYNCHRONOUS, 3, "downpour")
    progress, saved = FitProgress(state(learning_rate=0.0)), list[FitProgress]()
    fit_asynchronously(
        InProcessAsyncWorkers(workers(), 3),
        plan,
        Zero(),
        progress,
        lambda metrics: 0.0,
        Saves(lambda now: saved.append(written_and_read(now))),
    )
    assert saved[0].state.weights.tolist() == [0, 0]


def test_arrays_and_back() -> None:
    rounds = [
        RoundRecord(0, 0, (WorkerRecord(0, 5, 1, 0.25), WorkerRecord(2, 0, 0, 0.0, 3, 1, True)), 1.5, 4, None, -0.25),
        RoundRecord(1, 1, (), float("nan"), 1, 0.5, None),
        RoundRecord(2, 1, (WorkerRecord(1, 2, 3, 0.5),), None),
    ]
    progress = FitProgress(
        state(1, 2),
        rounds,
        epoch=1,
        span=Span(1, 2, 3, 8),
        metrics=np.array([1.5, 2.0]),
        outer={"momentum": floats(1, 2)},
        orders=7,
        version=5,
        samples=99,
        first_rate=0.5,
        level=2,
        directions={0: floats(1, 0), 11: floats(0, 1)},
        center={"outer.momentum": floats(3), "counts": np.array([1, 2, 3])},
        memories={1: {"memory.own": floats(4, 5), "slots": floats(6)}, 2: {}, 11: {"slots": floats(7)}},
    )
    back = written_and_read(progress)
    assert str(back) == str(progress)
    assert back.rounds[0] == rounds[0]


def test_before_the_first_round() -> None:
    back = written_and_read(FitProgress(state(1, 2)))
    assert (back.epoch, back.span, back.outer, back.rounds, back.memories) == (-1, None, None, [], None)
    remembered = written_and_read(replace(back, outer={}))
    assert remembered.outer == {}


def elastic() -> list[Elastic]:
    return [Elastic(one.worker, one.rows) for one in workers()]


def test_workers_that_remember_go_on_from_any_round_with_the_same_bits() -> None:
    plan = replace(plan_of(elastic(), Mode.SYNCHRONOUS, 1, "average"), workers_remember=True)
    saved: list[Mapping[str, Array]] = []
    whole = FitProgress(state(learning_rate=0.25))
    saves = Saves(lambda progress: saved.append(written_and_read(progress).arrays()), skips=2)
    fit_synchronously(InProcessSyncWorkers(elastic()), plan, Notes(), whole, lambda metrics: 0.0, saves)
    assert len(saved) == len(whole.rounds) - 3
    assert whole.memories is None  # they are large, and nobody needs them any more
    for arrays in saved:
        again, crew = FitProgress.from_arrays(arrays, state()), elastic()
        assert {worker: memory["own"].tolist() for worker, memory in again.memories.items()} == {
            worker: arrays[f"memory.{worker}.own"].tolist() for worker in range(3)
        }
        fit_synchronously(InProcessSyncWorkers(crew), plan, Notes(), again, lambda metrics: 0.0)
        assert again.state.weights.tobytes() == whole.state.weights.tobytes()
    # and what they remember matters
    bare = FitProgress.from_arrays({name: part for name, part in saved[0].items() if name != "recalled"}, state())
    assert bare.memories is None
    fit_synchronously(InProcessSyncWorkers(elastic()), plan, Notes(), bare, lambda metrics: 0.0)
    assert bare.state.weights.tobytes() != whole.state.weights.tobytes()


def test_a_fit_that_ends_before_its_first_round_still_knows_what_workers_remember() -> None:
    """Shards may be missing when a fit goes on: it then begins again from the same progress."""

    class Broken(Elastic):
        def train(self, order):
            raise OSError("no shard")

    plan = replace(plan_of(elastic(), Mode.SYNCHRONOUS, 1, "average"), workers_remember=True)
    memories = {worker: {"own": floats(worker, 1)} for worker in range(3)}
    progress = FitProgress(state(), memories=memories)
    broken = [Broken(one.worker, one.rows) for one in workers()]
    with pytest.raises(OSError, match="no shard"):
        fit_synchronously(InProcessSyncWorkers(broken), plan, Notes(), progress, lambda metrics: 0.0)
    assert [worker.memory["own"].tolist() for worker in broken] == [[0, 1], [1, 1], [2, 1]]
    assert progress.memories is memories


@pytest.mark.parametrize("skips", [0, 1])
def test_asynchronous_workers_are_asked_when_a_checkpoint_is_due_at_the_end_of_an_epoch(skips: int) -> None:
    saved: list[FitProgress] = []
    crew = elastic()
    remembered: list[dict[int, list[float]]] = []

    class Looks(Notes):
        def epoch_end(self, record: EpochRecord) -> TrainState:
            remembered.append({worker.worker: list(worker.memory.get("own", ())) for worker in crew})
            return super().epoch_end(record)

    plan = replace(plan_of(crew, Mode.ASYNCHRONOUS, 3, "downpour"), workers_remember=True)
    saves = Saves(lambda progress: saved.append(written_and_read(progress)), skips)
    progress = FitProgress(state(learning_rate=0.05))
    fit_asynchronously(InProcessAsyncWorkers(crew, 3), plan, Looks(), progress, lambda metrics: 0.0, saves)
    assert [each.epoch for each in saved] == [1, 2][skips:]
    for each in saved:
        told = {worker: list(memory.get("own", ())) for worker, memory in each.memories.items()}
        assert told == remembered[each.epoch - 1]
    assert progress.memories is None
    # it goes on with workers that remember
    later = elastic()
    engine = InProcessAsyncWorkers(later, 3)
    orders = []
    engine._schedule = lambda index: orders.append(list(later[index].memory.get("own", ())))  # type: ignore[method-assign]
    with pytest.raises(IndexError):  # nobody has anything to do
        fit_asynchronously(engine, plan, Notes(), saved[0], lambda metrics: 0.0)
    assert orders == [remembered[saved[0].epoch - 1][worker] for worker in range(3)]


def test_a_state_of_another_model_is_refused() -> None:
    arrays = FitProgress(state(1, 2)).arrays()
    with pytest.raises(ElephasError, match=r"the weights have shape \(2,\); expected \(3,\)"):
        FitProgress.from_arrays(arrays, state(1, 2, 3))


def test_a_state_of_float64_is_taken_from_a_checkpoint_of_earlier_versions_which_had_float32() -> None:
    arrays = FitProgress(state(1, 2), published=floats(1, 2)).arrays()
    wide = state(0, 0).but(weights=np.zeros(2))
    found = FitProgress.from_arrays(arrays, wide)
    assert found.state.weights.tolist() == [1, 2]
    assert {found.state.weights.dtype.name, found.published.dtype.name} == {"float64"}
    with pytest.raises(ElephasError, match="the weights are float64; expected float32"):  # and not the other way round
        FitProgress.from_arrays(FitProgress(wide).arrays(), state(1, 2))


def test_one_round_for_the_whole_fit_has_nothing_to_go_on_from() -> None:
    saved: list[FitProgress] = []
    crew = workers()
    plan = replace(plan_of(crew, Mode.SYNCHRONOUS, 1, "average"), frequency=Frequency.FIT, rounds_per_epoch=1)
    fit_synchronously(
        InProcessSyncWorkers(crew), plan, Notes(), FitProgress(state()), lambda metrics: 0.0, Saves(saved.append)
    )
    assert saved == []
