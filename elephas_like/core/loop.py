"""A fit, epoch by epoch, over any engine: what is common to both modes, and the loop of synchronous workers.

There is one loop per mode (the other is in async_loop.py), so all engines give the same weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elephas_like.core import scores
from elephas_like.core.averaging import Round
from elephas_like.core.center import (
    LearningRate,
    Projection,
    context_of,
    mean_rate,
    plain_rate,
    unconstrained,
)
from elephas_like.core.drift import DriftMonitor
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.layout import Layout
from elephas_like.core.merging import Replaced, with_mean_slots
from elephas_like.core.progress import FitProgress, NotSaved, Saving
from elephas_like.core.rounds import RoundLength, steps_of
from elephas_like.core.schedules import Schedule, round_spans
from elephas_like.core.strategies.algebra import Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.summing import adds_up
from elephas_like.core.types import (
    EpochRecord,
    Floats,
    Frequency,
    Mode,
    OnNaN,
    Order,
    PackedStep,
    RoundRecord,
    Span,
    TrainState,
    Vector,
    last_average,
    nothing,
)
from elephas_like.core.workers import SummingWorkers, SyncWorkers


class Hooks(Protocol):
    """What happens on the driver between rounds and epochs: Keras callbacks, progress, history (trainer/callbacks.py)."""

    def stopped(self) -> bool:
        """Whether a callback asked for the end of training."""
        ...

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        """Begin an epoch. Return the state with what callbacks changed."""
        ...

    def order_given(self) -> None:
        """Do what need not wait for the workers, which have just been given work: a round's order, or all epochs."""
        ...

    def round_end(self, record: RoundRecord, metrics: Floats) -> None:
        """End a round. `metrics` are the sums of the epoch so far."""
        ...

    def evaluated(self, state: TrainState) -> TrainState:
        """Return what is evaluated on the validation rows: the state, or what callbacks put in its place for that time."""
        ...

    def epoch_end(self, record: EpochRecord) -> TrainState:
        """End an epoch. Return the state with what callbacks changed."""
        ...


@dataclass(frozen=True)
class FitPlan:
    """What a fit does, computed once all workers have said how many rows they have.

    rounds_per_epoch: synchronous exchanges; where `finest_rounds` is greater, as many as that while updates drift apart.
    worker_rounds: each worker's own, where it goes on alone; up to `worker_finest` while updates drift apart.
    rows: rows of all shards. validates: whether any worker has validation rows.
    codec: what the updates' deltas are packed with. state_codec: what steps from one round's weights to the next are packed with.
    epoch_steps: batches that the largest shard has in an epoch; with `accumulation`, what a schedule is asked with.
    learning_rate: the optimizers' in a state, after so many further steps.
    waits_for_all: whether every round has an update of every worker. With a quorum an epoch may lack rows of stragglers.
    until: the epoch to end before, in a fit that is trained in parts; None trains to its end.
    workers_remember: whether workers keep something of their own between rounds, which a checkpoint has too.
    constrain: what the model's constraints make of weights.
    keeps_slots: whether workers keep the optimizer's slots to themselves between rounds; the fit ends with the mean of them.
    slots_every: rounds after which workers begin with the driver's slots again; 0 for never.
    largest: the worker that has the most steps in an epoch: optimizers count its steps.
    may_drop_all: whether an epoch whose updates were all dropped is no error, since a callback ends the training then.
    control_variates: whether workers correct each step by what their own last ones lacked to those of all (core/variates.py).
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
    state_codec: Codec | None = None
    epoch_steps: int = 0
    accumulation: int = 1
    learning_rate: LearningRate = plain_rate
    waits_for_all: bool = True
    until: int | None = None
    workers_remember: bool = False
    constrain: Projection = unconstrained
    keeps_slots: bool = False
    slots_every: int = 1
    may_drop_all: bool = False
    largest: int | None = None
    control_variates: bool = False

    @property
    def end(self) -> int:
        """The epoch to end before: the fit's last, or that of a part of it."""
        return self.epochs if self.until is None else self.until

    @property
    def budget(self) -> int:
        """Rows that the whole fit trains."""
        return self.rows * (self.epochs - self.initial_epoch)

    def round_spans(self, epoch: int, parts: Iterator[Span], progress: FitProgress) -> Iterator[Span]:
        """Return the spans that are left of an epoch: those of a schedule, or else `parts`."""
        if not isinstance(self.frequency, Schedule):
            return parts
        rate, steps, state, first_rate = self.learning_rate, self.epoch_steps, progress.state, progress.first_rate
        begin = 0 if progress.span is None else progress.span.end
        return iter(
            round_spans(
                self.frequency,
                epoch,
                steps,
                lambda done: rate(state, done - begin),
                first_rate,
                self.accumulation,
                begin,
            )
        )

    def validates_after(self, epoch: int) -> bool:
        """Whether an epoch ends with an evaluation, as Keras reads `validation_freq`."""
        return self.validates and is_due(self.validation_freq, epoch)


def is_due(validation_freq: int | tuple[int, ...], epoch: int) -> bool:
    """Return whether `validation_freq`, as Keras reads it, has a validation after an epoch, counted from 0."""
    if isinstance(validation_freq, int):
        return (epoch + 1) % validation_freq == 0
    return epoch + 1 in validation_freq


def epochs_of(
    plan: FitPlan, round_length: RoundLength, first: int | None = None, done: Span | None = None
) -> Iterator[tuple[int, int, Iterator[Span]]]:
    """Yield (first epoch, last epoch, spans), once for the whole fit if `frequency` is "fit".

    Spans are cut when they are asked for, by the round length at that moment.

    Args:
        first: the epoch to begin with, if it is not the plan's. done: the last of its rounds that is finished already.
    """
    first = plan.initial_epoch if first is None else first
    if plan.frequency is Frequency.FIT:
        if plan.end > first:
            yield first, plan.epochs - 1, iter([Span(first, epochs=plan.epochs - first)])
        return
    for epoch in range(first, plan.end):
        yield epoch, epoch, round_length.spans(epoch, done if epoch == first else None)


def fit_synchronously(
    workers: SyncWorkers,
    plan: FitPlan,
    hooks: Hooks,
    progress: FitProgress,
    loss_of: Callable[[Floats], float | None],
    saving: Saving | None = None,
) -> TrainState:
    """Train all epochs and return the final state. Every row is trained on exactly once per epoch, or this raises.

    Args:
        workers: the engine, with all workers joined.
        progress: where to begin; updated after every round.
        loss_of: the mean loss that metric sums hold, for `history.rounds`.
        saving: where the progress is saved after rounds, and after epochs' callbacks; not at the end.
    """
    fit = _SynchronousFit(workers, plan, hooks, progress, loss_of, saving or NotSaved())
    if progress.memories:
        workers.remind(progress.memories, progress.orders - 1)
    begin = plan.initial_epoch if progress.epoch < 0 else progress.epoch
    for first, epoch, parts in epochs_of(plan, fit.round_length, begin, progress.span):
        # Callbacks may change the state before an epoch; if it goes on amid its rounds, they have done so before.
        before = hooks.epoch_begin(first, progress.state)
        if progress.span is None:
            fit.callbacks_set(progress.state, before)
            progress.epoch = first
        del before  # no state of an earlier moment is kept: it may be large
        if hooks.stopped():
            if plan.keeps_slots:
                progress.state = fit.with_mean_slots()
            break
        # Train the epoch's rounds, and see that no row was left out.
        fit.train(epoch, parts)
        rounds = progress.rounds_of(epoch)
        trained = sum(finished.samples for finished in rounds)
        due = plan.rows * (epoch - first + 1)
        if trained != due and plan.waits_for_all and not hooks.stopped():
            raise ElephasError(
                f"epoch {epoch + 1} trained {trained} rows where the shards hold {due}: rows were lost or counted twice."
            )
        if due and not trained and not hooks.stopped():
            raise ElephasError(f"epoch {epoch + 1} trained no row of the {due} that the shards hold.")
        if not plan.may_drop_all and not hooks.stopped():
            check_applied(epoch, rounds)
        # Validate, and let callbacks see the epoch's results.
        validation = None
        if plan.validates_after(epoch) or (plan.validates and plan.frequency is Frequency.FIT):
            validation = fit.evaluate()
        if plan.keeps_slots and epoch + 1 >= plan.end:
            progress.state = fit.with_mean_slots()
        record = EpochRecord(epoch, progress.state, progress.metrics, trained, validation, tuple(rounds))
        fit.callbacks_set(record.state, hooks.epoch_end(record))
        del record
        progress.end_epoch(epoch)
        if hooks.stopped():
            if plan.keeps_slots and epoch + 1 < plan.end:
                progress.state = fit.with_mean_slots()
            break
        if progress.epoch < plan.epochs:
            fit.save()
    return progress.state


def check_applied(epoch: int, rounds: Sequence[RoundRecord]) -> None:
    """Do nothing if some update of an epoch was applied.

    Raises:
        NonFiniteError: all of them held NaN or infinity, and were dropped.
    """
    brought = [worker for finished in rounds for worker in finished.workers if worker.samples]
    if brought and all(worker.dropped and not worker.stale for worker in brought):
        raise NonFiniteError(
            f"all updates of epoch {epoch + 1} held NaN or infinity and were dropped (on_nan='drop'): nothing was trained. Look for "
            "a learning rate that is too high, a loss that takes log(0), or NaN among the rows."
        )


log = logging.getLogger(__name__)

OVERSHOT, AT_ODDS = 5.0, 0.3
"""A loss that is so many times the largest one before, after a mean cosine between updates as low as this, is the outer step's
doing. MNIST with one label a worker, a small CNN, SGD with momentum: losses of 0.46, 0.33 and 30, cosines of 0.1 and 0.08."""


class _SynchronousFit:
    """The rounds and evaluations of a synchronous fit. What one leaves for the next is in `progress`."""

    def __init__(
        self,
        workers: SyncWorkers,
        plan: FitPlan,
        hooks: Hooks,
        progress: FitProgress,
        loss_of: Callable[[Floats], float | None],
        saving: Saving,
    ) -> None:
        self.round_length = RoundLength(plan.rounds_per_epoch, plan.finest_rounds, progress.level)
        self._workers, self._plan, self._hooks, self._progress = workers, plan, hooks, progress
        self._loss_of, self._saving = loss_of, saving
        self._monitor = DriftMonitor(progress.directions, progress.rounds[-1].drift if progress.rounds else None)
        self._replaced = Replaced()
        self._published_by = -1
        self._largest_loss, self._least_cosine, self._noted_overshoot = 0.0, 1.0, False
        if progress.outer is None:
            progress.outer = plan.strategy.init(progress.state.weights)
            progress.first_rate = plan.learning_rate(progress.state, 0)

    def train(self, epoch: int, parts: Iterator[Span]) -> None:
        """Train the rounds that are left of an epoch, until it ends or a callback stops training."""
        progress = self._progress
        for span in self._plan.round_spans(epoch, parts, progress):
            self._hooks.round_end(self._round(epoch, span), progress.metrics)
            if self._hooks.stopped():
                break
            if span.end < span.of:  # at the end of an epoch its callbacks come first
                self.save()

    def callbacks_set(self, before: TrainState, after: TrainState) -> None:
        """Go on with what callbacks have made of the state, and note which parts: stragglers of a quorum may have begun before."""
        self._replaced.note(before, after, self._progress.version)
        self._progress.go_on_from(after)

    def save(self) -> None:
        """Save the progress if that is due, with what workers remember."""
        progress = self._progress
        due = self._saving.due(progress.span is not None)
        if due and self._plan.workers_remember:
            recalled = self._workers.recall(progress.orders - 1)
            progress.memories = {one.worker: one.memory for one in recalled}
        self._saving.save(progress, due)
        progress.memories = None  # as large as a state of every worker

    def with_mean_slots(self) -> TrainState:
        """Return the state with the mean of the slots that workers have kept to themselves since the last average."""
        progress = self._progress
        kept = self._rounds_of_own_slots()
        if not kept:
            return progress.state
        recalled = self._workers.recall(progress.orders - 1)
        memories = ((one.worker, one.memory) for one in recalled)
        return with_mean_slots(progress.state, memories, progress.rounds[-kept:], progress.version - kept)

    def _rounds_of_own_slots(self) -> int:
        """Return for how many rounds workers have gone on with slots of their own; 0 where they begin with the driver's."""
        version = self._progress.version
        return version - last_average(version, self._plan.slots_every)

    def evaluate(self) -> Floats:
        """Return the metric sums of the current state over all validation rows."""
        progress = self._progress
        order = Order.to_evaluate(self._hooks.evaluated(progress.state), progress.orders, progress.version)
        progress.orders += 1
        return scores.add(evaluation.metrics for evaluation in self._workers.evaluate(order))

    def _round(self, epoch: int, span: Span) -> RoundRecord:
        """Train one round on all workers, step the state, and return the round's record."""
        plan, progress, state = self._plan, self._progress, self._progress.state
        assert progress.outer is not None
        # What the strategy serves is where workers start.
        rate = self._rate_of(span)
        context = context_of(plan.layout, progress.version, plan.num_workers, progress.samples, plan.budget, rate)
        ahead = plan.strategy.serve(state.weights, progress.outer, context)
        if ahead is not state.weights:
            ahead = plan.constrain(ahead.astype(state.weights.dtype, copy=False))
        step, ahead = (None, ahead) if plan.state_codec is None else self._packed_step(ahead, plan.state_codec)
        served = state.but(weights=ahead)
        self._monitor.tells = not (plan.slots_every and self._rounds_of_own_slots())
        # Updates are merged in worker order, as they come.
        exchange = Round(
            state,
            progress.outer,
            plan.layout,
            plan.strategy,
            context,
            plan.on_nan,
            plan.codec,
            self._monitor,
            self._replaced,
            plan.largest,
            plan.control_variates,
        )
        mean_step = None
        if plan.control_variates:
            mean_step = nothing() if progress.mean_step is None else progress.mean_step * np.float32(rate)
        order = Order("train", progress.orders, progress.version, span, served, step=step, mean_step=mean_step)
        self._train(order, exchange)
        state, outer = exchange.finish()
        state = state.but(weights=plan.constrain(state.weights))
        agreement = exchange.agreement
        if self._monitor.tells:
            self.round_length.adapt(agreement.drift)
        # Only a finished round becomes the fit's progress.
        finished = RoundRecord(
            round=len(progress.rounds),
            epoch=epoch,
            workers=tuple(exchange.records),
            loss=self._loss_of(scores.add(exchange.metrics)),
            of=span.of,
            cosine=agreement.cosine,
            drift=agreement.drift,
        )
        self._published_by = progress.orders
        progress.published = None if step is None else ahead
        progress.mean_step = progress.mean_step if exchange.mean_step is None else exchange.mean_step
        progress.state, progress.outer, progress.span = state, outer, span
        progress.orders, progress.version = progress.orders + 1, progress.version + 1
        progress.samples += finished.samples
        progress.metrics = scores.add([progress.metrics, *exchange.metrics])
        progress.level, progress.directions = self.round_length.level, self._monitor.directions
        progress.memories = None  # workers have gone on from what a checkpoint had
        self._note_overshoot(finished)
        progress.rounds.append(finished)
        return finished

    def _rate_of(self, span: Span) -> float:
        """Return the learning rate of a round: of its first step, or the mean of all where corrections or the strategy count in it."""
        plan, state = self._plan, self._progress.state
        if not (plan.control_variates or plan.strategy.in_rates):
            return plan.learning_rate(state, 0)
        begin, end = steps_of(span, plan.epoch_steps, plan.accumulation)
        return mean_rate(plan.learning_rate, state, (end - begin) * span.epochs)

    def _train(self, order: Order, exchange: Round) -> None:
        """Have all workers train an order, and add their updates to the round."""
        if isinstance(self._workers, SummingWorkers) and adds_up(exchange.strategy, exchange.context):
            summed = self._workers.train_summed(order, exchange.weighing)
            if summed is not None:
                exchange.add_summed(summed)
                return
        updates = self._workers.train(order)
        self._hooks.order_given()
        for update in updates:
            exchange.add(update)
            del update  # which may be large: the next one comes while this one would still be here

    def _packed_step(self, weights: Vector, codec: Codec) -> tuple[PackedStep, Vector]:
        """Return the step to the weights that workers are to begin with, and those to which it leads.

        Workers follow the driver's weights by packed steps, v <- v + C(w - v): what one step loses is part of the next (Gruntkowska,
        Tyurin and Richtárik, "EF21-P and Friends", ICML 2023, arXiv:2209.15218, algorithm 1). All engines give them v, so that all train
        the same; the server sends C(w - v) to those who have v.
        """
        base = self._progress.published
        if base is None:
            return PackedStep(), weights
        packed = codec.pack(weights - base)
        return PackedStep(self._published_by, packed), codec.applied(packed, base)

    def _note_overshoot(self, finished: RoundRecord) -> None:
        """Say so, once, if the loss has jumped by a strategy's momentum over updates that point in different directions."""
        largest, cosine = self._largest_loss, self._least_cosine
        self._largest_loss = max(largest, finished.loss or 0.0)
        self._least_cosine = min(cosine, 1.0 if finished.cosine is None else finished.cosine)
        jumped = largest > 0 and finished.loss is not None and finished.loss > OVERSHOT * largest
        if not jumped or cosine > AT_ODDS or not self._progress.outer or self._noted_overshoot:
            return
        self._noted_overshoot = True
        log.warning(
            "the loss has jumped from at most %.3g to %.3g in round %d: workers' updates point in different directions (cosine %.2f), as "
            "those of rows sorted by label do, and the outer step of strategy %r goes too far along them. strategy='average' has no "
            "such step; frequency='batch', or shard(..., shuffle=True), keeps updates together.",
            *(largest, finished.loss, finished.round, cosine, self._plan.strategy.name),
        )
