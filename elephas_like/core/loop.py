"""A fit, epoch by epoch, over any engine. One loop a mode, so that all engines give the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from elephas_like.core import scores
from elephas_like.core.async_progress import AsyncProgress, AsyncSchedule
from elephas_like.core.averaging import Round
from elephas_like.core.center import Center, HogwildCenter, LearningRate, LockedCenter, context_of, plain_rate
from elephas_like.core.drift import DriftMonitor
from elephas_like.core.errors import ElephasError
from elephas_like.core.layout import Layout
from elephas_like.core.rounds import RoundLength
from elephas_like.core.schedules import Schedule, paced
from elephas_like.core.strategies.algebra import Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import (
    Array,
    EpochRecord,
    Floats,
    Frequency,
    Joined,
    Mode,
    OnNaN,
    Order,
    Role,
    RoundRecord,
    Rounds,
    Span,
    TrainState,
    Vector,
)


class Hooks(Protocol):
    """What the driver does between epochs: Keras callbacks, progress, history (trainer/callbacks.py)."""

    def stopped(self) -> bool:
        """Whether a callback asked for the end of training."""
        ...

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        """Before an epoch: returns the state, changed where a callback changed it."""
        ...

    def round_end(self, record: RoundRecord, metrics: Floats) -> None:
        """After a round, with the metric sums of the epoch so far."""
        ...

    def epoch_end(self, record: EpochRecord) -> TrainState:
        """After an epoch, with its metrics and validation: returns the state, changed where a callback changed it."""
        ...


@dataclass(frozen=True)
class Plan:
    """What a fit is to do, once all workers have said how many rows they have.

    rounds_per_epoch: synchronous exchanges; where `finest_rounds` is greater, as many as that while updates drift apart.
    worker_rounds: each worker's own, where it goes on alone; up to `worker_finest` while updates drift apart.
    rows: rows of all shards. validates: whether any worker has validation rows.
    codec: what the updates' deltas are packed with.
    epoch_steps: batches that the largest shard has in an epoch; with `accumulation`, what a schedule is asked with.
    learning_rate: the optimizers' in a state, after so many further steps.
    """

    layout: Layout
    mode: Mode
    strategy: Strategy
    frequency: Frequency | int | Schedule
    rounds_per_epoch: int
    worker_rounds: tuple[int, ...]
    num_workers: int
    rows: int
    initial_epoch: int
    epochs: int
    validates: bool
    validation_freq: int | tuple[int, ...] = 1
    on_nan: OnNaN = OnNaN.RAISE
    finest_rounds: int = 0
    worker_finest: tuple[int, ...] = ()
    max_staleness: int | None = None
    codec: Codec | None = None
    epoch_steps: int = 0
    accumulation: int = 1
    learning_rate: LearningRate = plain_rate

    @property
    def budget(self) -> int:
        """Rows that the fit trains altogether."""
        return self.rows * (self.epochs - self.initial_epoch)

    def paced(self, epoch: int, parts: Iterator[Span], state: TrainState, first_rate: float) -> Iterator[Span]:
        """The spans of an epoch that is about to begin: a schedule's, or else `parts`."""
        if not isinstance(self.frequency, Schedule):
            return parts
        rate, steps = self.learning_rate, self.epoch_steps
        return iter(paced(self.frequency, epoch, steps, lambda done: rate(state, done), first_rate, self.accumulation))

    def validates_after(self, epoch: int) -> bool:
        """Whether an epoch ends with an evaluation, as Keras reads `validation_freq`."""
        if not self.validates:
            return False
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq


@dataclass
class Progress:
    """The last finished round's state: what is left in the model after Ctrl-C or a failure."""

    state: TrainState
    rounds: list[RoundRecord] = field(default_factory=list)


def epochs_of(plan: Plan, round_length: RoundLength) -> Iterator[tuple[int, int, Iterator[Span]]]:
    """(first epoch, last epoch, spans): one entry for the whole fit where `frequency` is "fit".

    Spans are cut when they are asked for: the round length may have changed since the last one.
    """
    if plan.frequency is Frequency.FIT:
        if plan.epochs > plan.initial_epoch:
            whole = Span(plan.initial_epoch, epochs=plan.epochs - plan.initial_epoch)
            yield plan.initial_epoch, plan.epochs - 1, iter([whole])
        return
    for epoch in range(plan.initial_epoch, plan.epochs):
        yield epoch, epoch, round_length.spans(epoch)


def fit_synchronously(
    rounds: Rounds, plan: Plan, hooks: Hooks, progress: Progress, loss_of: Callable[[Floats], float | None]
) -> TrainState:
    """The state after all epochs. Every row is trained on exactly once per epoch, or this raises.

    Args:
        rounds: the engine, with all workers joined.
        progress: updated after every round.
        loss_of: the mean loss that metric sums hold, for `history.rounds`.
    """
    state, outer = progress.state, plan.strategy.init(progress.state.weights)
    number = version = seen = 0
    first_rate = plan.learning_rate(state, 0)
    round_length, monitor = RoundLength(plan.rounds_per_epoch, plan.finest_rounds), DriftMonitor()
    for first, epoch, parts in epochs_of(plan, round_length):
        state = progress.state = hooks.epoch_begin(first, state)
        if hooks.stopped():
            break
        metrics: Floats = scores.add([])
        epoch_rounds: list[RoundRecord] = []
        for span in plan.paced(epoch, parts, state, first_rate):
            rate = plan.learning_rate(state, 0)
            context = context_of(plan.layout, version, plan.num_workers, seen, plan.budget, rate)
            ahead = plan.strategy.serve(state.weights, outer, context)
            served = state.but(weights=ahead.astype(np.float32, copy=False))
            exchange = Round(state, outer, plan.layout, plan.strategy, context, plan.on_nan, plan.codec, monitor)
            for update in rounds.train(Order("train", number, version, span, served)):
                exchange.add(update)
            state, outer = exchange.finish()
            agreement = exchange.agreement
            round_length.adapt(agreement.drift)
            number, version = number + 1, version + 1
            metrics = scores.add([metrics, *exchange.metrics])
            finished = RoundRecord(
                round=len(progress.rounds),
                epoch=epoch,
                workers=tuple(exchange.records),
                loss=loss_of(scores.add(exchange.metrics)),
                of=span.of,
                cosine=agreement.cosine,
                drift=agreement.drift,
            )
            seen += finished.samples
            progress.state = state
            progress.rounds.append(finished)
            epoch_rounds.append(finished)
            hooks.round_end(finished, metrics)
            if hooks.stopped():
                break
        trained = sum(finished.samples for finished in epoch_rounds)
        due = plan.rows * (epoch - first + 1)
        if trained != due and not hooks.stopped():
            raise ElephasError(
                f"epoch {epoch + 1} trained {trained} rows where the shards hold {due}: rows were lost or counted twice."
            )
        validation = None
        if plan.validates_after(epoch) or (plan.validates and plan.frequency is Frequency.FIT):
            validation = scores.add(
                evaluation.metrics for evaluation in rounds.evaluate(Order("evaluate", number, version, state=state))
            )
            number += 1
        state = hooks.epoch_end(EpochRecord(epoch, state, metrics, trained, validation, tuple(epoch_rounds)))
        progress.state = state
        if hooks.stopped():
            break
    return state


@runtime_checkable
class Crowd(Protocol):
    """An engine at work in asynchronous mode: workers that go on alone around a shared state."""

    def joined(self) -> list[Joined]:
        """All workers, in order, once they have joined."""
        ...

    def begin(self, center: Center, progress: AsyncProgress, validates: Callable[[int], bool]) -> None:
        """Lets the workers go."""
        ...

    def next_epoch(self) -> EpochRecord | None:
        """The next finished epoch, evaluated where it is to be; None after the last."""
        ...

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Gives what callbacks changed to the shared state: parts by the name of their role, and how they moved the weights."""
        ...


def fit_asynchronously(
    crowd: Crowd, plan: Plan, hooks: Hooks, progress: Progress, loss_of: Callable[[Floats], float | None]
) -> TrainState:
    """The state at the moment the workers together had seen `epochs` times the rows.

    Workers train on while an epoch is evaluated and the driver's callbacks run. What callbacks change (the learning
    rate, say) reaches a worker with its next exchange.
    """
    if plan.epochs <= plan.initial_epoch:
        return progress.state
    state = hooks.epoch_begin(plan.initial_epoch, progress.state)
    progress.state = state
    if hooks.stopped():
        return state
    kind, monitor = HogwildCenter if plan.mode is Mode.HOGWILD else LockedCenter, DriftMonitor()
    center = kind(
        state,
        plan.layout,
        plan.strategy,
        plan.num_workers,
        plan.on_nan,
        codec=plan.codec,
        budget=plan.budget,
        max_staleness=plan.max_staleness,
        monitor=monitor,
        learning_rate=plan.learning_rate,
    )
    schedule = AsyncSchedule(plan.worker_rounds, plan.initial_epoch, plan.worker_finest, monitor)
    crowd.begin(center, AsyncProgress(plan.rows, plan.epochs, schedule), plan.validates_after)
    try:
        return _through_epochs(crowd, plan, hooks, progress, loss_of)
    except BaseException:  # Ctrl-C among them: the exchanges of the epoch that was under way are not lost
        progress.state = center.snapshot().but(learning_rate=progress.state.learning_rate)
        raise


def _through_epochs(
    crowd: Crowd, plan: Plan, hooks: Hooks, progress: Progress, loss_of: Callable[[Floats], float | None]
) -> TrainState:
    state = progress.state
    while (record := crowd.next_epoch()) is not None:
        # A snapshot taken before the last change arrived has the old learning rate; the driver's is the one that counts.
        record = replace(record, state=record.state.but(learning_rate=state.learning_rate))
        progress.rounds.extend(record.rounds)
        metrics = record.metrics
        for finished in record.rounds[:-1]:
            hooks.round_end(finished, metrics)
        if record.rounds:
            hooks.round_end(replace(record.rounds[-1], loss=loss_of(metrics)), metrics)
        state = hooks.epoch_end(record)
        progress.state = state
        if hooks.stopped():
            break
        if record.epoch + 1 < plan.epochs:
            state = progress.state = hooks.epoch_begin(record.epoch + 1, state)
            changed = {role.value: state.part(role) for role in Role if state.part(role) is not record.state.part(role)}
            # Workers have gone on from the epoch's weights: how a callback moved these is added, so their way is not lost.
            weights = changed.pop(Role.WEIGHT.value, None)
            moved = None if weights is None else state.weights - record.state.weights
            if changed or moved is not None:
                crowd.replace(changed, moved)
            if hooks.stopped():
                break
    return progress.state
