"""LocalTrainer: one worker's shard and a compiled model; a state goes in, an update comes out.

The compiled model is used by one worker at a time (or, in the in_process engine, by all workers in turn) and outlives
them (trainer/programs.py), so that nothing is rebuilt, recompiled or traced again between rounds, or between fits of
the same model.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

import keras
import numpy as np

from elephas_like.core import rounds, scores
from elephas_like.core.center import Projection, mean_rate, unconstrained
from elephas_like.core.columns import signature
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.merging import finite
from elephas_like.core.messages import Sender
from elephas_like.core.row_checks import not_finite_in_shard, not_finite_text
from elephas_like.core.strategies.algebra import Context, Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import (
    ASIDE,
    SLOTS_SINCE,
    Array,
    Evaluation,
    FitConfig,
    Integers,
    Joined,
    Order,
    Recollection,
    Role,
    Span,
    TrainState,
    Update,
    Vector,
    last_average,
    nothing,
    same,
    seldom_changed,
)
from elephas_like.core.variates import ControlVariate
from elephas_like.trainer.batches import ShardData
from elephas_like.trainer.compile_arguments import compiled_anew, compiled_with
from elephas_like.trainer.constraints import WeightConstraints
from elephas_like.trainer.learning_rate import step_counters
from elephas_like.trainer.metric_results import metrics_of
from elephas_like.trainer.programs import PROGRAMS, Program
from elephas_like.trainer.state import read_metrics, write_metrics
from elephas_like.trainer.steps import StepLoop
from elephas_like.trainer.tensors import Tensor, row_numbers, tensors

log = logging.getLogger(__name__)

_MEMORY = "memory."
_WITHOUT_SEED, _IN_EVALUATIONS, _IN_EPOCH = 1, 2, 3
"""Tell the seeds of draws that have none from those of layers, in training and in evaluations; and mark an epoch that seeds are drawn from."""
_ALL_BUT_SLOTS = frozenset(Role) - {Role.SLOT}


class LocalTrainer:
    """One worker: trains spans of its shard from the states it is handed (core.workers.Worker)."""

    def __init__(
        self,
        worker: int,
        shard: ShardData | None,
        validation: ShardData | None,
        program: Program | None,
        config: FitConfig,
        strategy: Strategy,
        worker_callbacks: Sequence[keras.callbacks.Callback] = (),
        layout_hash: str = "",
        *,
        owns_program: bool = True,
        codec: Codec | None = None,
        state_codec: Codec | None = None,
    ) -> None:
        self._worker = worker
        self._owns_program = owns_program
        self._shard = shard
        self._validation = validation
        self._program = program
        self._config = config
        self._sender = Sender(strategy, codec)
        corrections = None if program is None else program.corrections
        self._variate = ControlVariate(() if corrections is None else corrections.left_out)
        # Elastic methods start from weights of their own, which they have moved since the last step of the optimizer; and a packed step
        # leads near the weights that the driver has constrained.
        self._constrain: Projection = unconstrained
        if program is not None and (strategy.remembers or state_codec is not None):
            self._constrain = WeightConstraints(program.model, program.variables)
        self._anew: list[slice] = []
        if program is not None and config.optimizer_state == "reset":
            self._anew = step_counters(program.variables)
        self._layout_hash = layout_hash
        self._slots: Vector | None = None
        self._slots_since = 0  # the version of the state whose slots its own have come from
        self._seldom = seldom_changed(config.optimizer_state, config.optimizer_state_every)
        self._held: dict[Role, Array] = {}
        self._state_codec = state_codec
        self._began_with: tuple[int, Vector] | None = None
        self._before: Mapping[str, Array] = {}
        self._trained = self._answered = -1
        self._restored = False
        self._resident: list[Tensor] | None = None
        self._order: tuple[Integers, Tensor] | None = None
        self._rows = 0 if shard is None else len(shard.rows)
        self._steps = rounds.steps(self._rows, config.batch_size)
        self._sized = self._alone_with_whole_batches(self._rows)
        self._callbacks: keras.callbacks.CallbackList | None = None
        if worker_callbacks and program is not None:
            self._callbacks = keras.callbacks.CallbackList(
                list(worker_callbacks), model=program.model, epochs=config.epochs, steps=self._steps, verbose=0
            )
            program.model.stop_training = False
            self._compiled_with = compiled_with(program.model)
            self._callbacks.on_train_begin()
            self._check_left_alone(program)
        self._epoch: int | None = None  # that callbacks have seen begin and not end
        self._epoch_metrics = np.zeros(0)
        self._steps_set_rate = False

    def joined(self, attempt: int, host: str) -> Joined:
        """Return the worker's first message to the driver."""
        held_out = 0 if self._shard is None else len(self._shard.validation_rows)
        if self._validation is not None:
            held_out = len(self._validation.rows)
        program = self._program
        return Joined(
            worker=self._worker,
            attempt=attempt,
            host=host,
            rows=self._rows,
            validation_rows=held_out,
            layout_hash=program.variables.layout.hash if program is not None else self._layout_hash,
            checksum=0 if self._shard is None else self._shard.ref.checksum,
            accumulation=1 if program is None else program.accumulation,
            signature="" if self._shard is None else signature(self._shard.ref),
        )

    def steps_of(self, span: Span) -> int:
        """Return the number of this worker's batches in a span."""
        accumulation = 1 if self._program is None else self._program.accumulation
        begin, end = rounds.steps_of(span, self._steps, accumulation)
        return (end - begin) * span.epochs

    def train(self, order: Order) -> Update:
        """Train one span from the order's state and return the update."""
        self._begin_order(order)
        self._before = self._memory() if self._config.keeps_before else {}
        self._trained = order.number
        if self._program is not None and self._callbacks is None:
            self._program.model.stop_training = False
        order = self._with_weights(order)
        assert order.state is not None
        assert order.span is not None
        state, span, program = self._whole(order.state, self._seldom), order.span, self._program
        started = time.perf_counter()
        steps = self.steps_of(span)
        if program is None or steps == 0:
            return self._empty_update(order)
        # The state to start from: the worker's own slots, its own seeds, and the weights that the strategy chooses.
        since = last_average(order.version, self._config.slots_every)
        if self._slots is not None and self._slots_since == since:
            state = state.but(slots=self._slots)
        if self._config.num_workers > 1:
            state = state.but(seeds=self._layer_seeds(program, state.seeds, self._drawn_by(order)))
        context = Context(order.version, self._config.num_workers, program.variables.layout)
        begun = self._constrain(self._sender.start(state.weights, context))
        program.variables.write(state.but(weights=begun))
        if order.mean_step is not None and program.corrections is not None:
            correction = self._variate.correction(order.mean_step, mean_rate(program.corrections.rate, state, steps))
            program.corrections.write(correction)
        # Train, one epoch after the other.
        samples, sums = 0, []
        with self._draws_seeded(program, order):
            for epoch in range(span.epoch, span.epoch + span.epochs):
                program.model.reset_metrics()  # worker callbacks see the logs of each epoch by itself
                samples += self._train_epoch(program, Span(epoch, span.begin, span.end, span.of))
                sums.append(read_metrics(program.model))
        self._check_left_alone(program)
        # The state afterwards: which slots stay here, and which go into the update.
        after = program.variables.read()
        if self._config.names_nan and not finite(after.weights):
            self._name_nan(order.number)
        end = after.weights
        if order.mean_step is not None:
            end = self._variate.own_end(begun, end, steps)
        slots = nothing()
        if self._sends_slots(order):
            self._slots, slots = None, after.slots
        elif self._config.keeps_slots and finite(after.slots) and finite(after.weights):
            self._slots, self._slots_since = after.slots, since
            if not self._config.slots_every:
                self._held.pop(Role.SLOT, None)  # never needed again
        return Update(
            worker=self._worker,
            number=order.number,
            version=order.version,
            samples=samples,
            steps=steps,
            delta=self._sender.message(order.state.weights, end, steps, context),
            statistics=after.statistics,
            slots=slots,
            counters=self._counted(state.counters, after.counters),
            loss_scale=after.loss_scale,
            seeds=after.seeds,
            metrics=scores.add(sums),
            seconds=time.perf_counter() - started,
            frozen=nothing() if same(after.frozen, state.frozen) else after.frozen,
            learning_rate=nothing() if self._keeps_rate(state, after) else after.learning_rate,
        )

    def _sends_slots(self, order: Order) -> bool:
        """Return whether the slots are averaged when the round of an order ends."""
        ended = order.version + 1
        averaged = self._config.optimizer_state == "average"
        return averaged and last_average(ended, self._config.slots_every) == ended

    def _keeps_rate(self, before: TrainState, after: TrainState) -> bool:
        """Return whether the steps have left the learning rate alone. What worker callbacks make of it is the worker's own affair."""
        left_alone = self._callbacks is not None and not self._steps_set_rate
        return left_alone or same(after.learning_rate, before.learning_rate)

    def _counted(self, before: Integers, after: Integers) -> Integers:
        """Return the counters after a span. With `optimizer_state="reset"` steps are counted anew from the round's slots on."""
        if not self._anew:
            return after
        counted = after.copy()
        for place in self._anew:
            counted[place] = before[place]
        return counted

    def _name_nan(self, number: int) -> None:
        """Do nothing if the shard's numbers are finite: NaN has another cause, which the driver's error lists.

        Raises:
            NonFiniteError: naming the first row that holds NaN or infinity.
        """
        assert self._shard is not None
        found = not_finite_in_shard(self._shard.ref)
        if found is not None:
            row, column = found
            raise NonFiniteError(not_finite_text(self._worker, number, f"partition {self._worker}, row {row}", column))

    def evaluate(self, order: Order) -> Evaluation:
        """Return metric sums of the order's state over this worker's validation rows."""
        assert order.state is not None
        self._begin_order(order)
        started = time.perf_counter()
        state = self._whole(order.state, (Role.FROZEN,))
        held = self._validation or self._shard
        rows = np.zeros(0, np.int64)
        if self._validation is not None:
            rows = self._validation.rows
        elif self._shard is not None:
            rows = self._shard.validation_rows
        metrics = np.zeros(0)
        if self._program is not None and held is not None and len(rows):
            program = self._program
            program.variables.write(state, _ALL_BUT_SLOTS)
            program.model.reset_metrics()
            with self._draws_seeded(program, order):
                sized = self._alone_with_whole_batches(len(rows))
                run_in_chunks(program.testing, held, rows, self._config.batch_size, sized=sized)
            metrics = read_metrics(program.model)
        return Evaluation(self._worker, order.number, len(rows), metrics, time.perf_counter() - started)

    def progress(self) -> int:
        """Return the steps that this worker's model has run, in training and evaluation."""
        program = self._program
        return 0 if program is None else program.training.done + program.testing.done

    def recall(self, order: Order) -> Recollection:
        """Return own optimizer slots and mean step, and what strategy and codec remember, as it was after the order that is named.

        What was remembered before the last order is known if the configuration says so; nothing otherwise.
        """
        self._begin_order(order)
        known = self._memory() if order.version >= self._trained else self._before
        return Recollection(self._worker, order.number, known)

    def remind(self, order: Order) -> Recollection:
        """Remember what a checkpoint says that this worker did."""
        self._begin_order(order)
        if order.number >= ASIDE:  # the next order is the one after the checkpoint's last
            self._answered = order.version
        self._remember(order.memory)
        return Recollection(self._worker, order.number)

    def save(self, path: str) -> None:
        """Save own optimizer slots, and what strategy and codec remember, for the worker that carries on."""
        kept = self._memory()
        if not kept:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        unfinished = f"{path}.{os.getpid()}"
        orders = np.array([self._answered, self._trained])
        with open(unfinished, "wb") as file:
            np.savez(file, orders=orders, **kept)  # type: ignore[arg-type]  # the stubs expect a bool
        os.replace(unfinished, path)

    def restore(self, path: str) -> None:
        """Take over what `save` left, and delete it."""
        if not os.path.exists(path):
            return
        with np.load(path, allow_pickle=False) as file:
            kept = dict(file)  # all of it, or an error and none
        self._answered, self._trained = kept.pop("orders").tolist()
        self._restored = True
        self._remember(kept)
        os.remove(path)
        with suppress(OSError):  # others have files there
            os.rmdir(os.path.dirname(path))

    def _memory(self) -> dict[str, Array]:
        """Return what this worker remembers from round to round as arrays by name, which are never changed in place."""
        arrays = {"slots": self._slots, "residual": self._sender.residual, "variate": self._variate.own}
        kept: dict[str, Array] = {name: array for name, array in arrays.items() if array is not None}
        if self._slots is not None and self._slots_since:
            kept[SLOTS_SINCE] = np.array([self._slots_since])
        return kept | {f"{_MEMORY}{name}": array for name, array in self._sender.memory.items()}

    def _remember(self, memory: Mapping[str, Array]) -> None:
        """Take over what `_memory` returned."""
        kept: Mapping[str, Vector] = memory  # type: ignore[assignment]  # as it was
        self._slots, self._sender.residual = kept.get("slots"), kept.get("residual")
        self._variate.own = kept.get("variate")
        self._slots_since = int(memory[SLOTS_SINCE][0]) if SLOTS_SINCE in memory else 0
        self._sender.memory = {
            name.removeprefix(_MEMORY): array for name, array in kept.items() if name.startswith(_MEMORY)
        }

    def _begin_order(self, order: Order) -> None:
        """Note the order that is answered now.

        What was restored counts only for the next order: an older file may lie where this worker was suspended before.
        """
        aside = order.number >= ASIDE  # numbered apart from the others: it says which of them it follows
        fits = order.version <= self._answered if aside else order.number == self._answered + 1
        if self._restored and not fits:
            log.warning(
                "worker %d goes on without what it remembered of earlier rounds: it is out of date", self._worker
            )
            self._remember({})
            self._trained = -1
        self._restored = False
        if not aside:
            self._answered = order.number

    def close(self) -> None:
        """Call `on_train_end`; always release model and rows.

        A model that worker callbacks have seen is not kept: its key does not tell what they changed in it.
        """
        seen = self._callbacks is not None
        try:
            if self._callbacks is not None:
                self._callbacks.on_train_end()
        finally:
            if self._program is not None and self._owns_program and not seen:
                PROGRAMS.give_back(self._program)
            self._program = self._shard = self._validation = self._resident = self._order = self._callbacks = None

    def _train_epoch(self, program: Program, span: Span) -> int:
        """Train one span and return its number of rows."""
        assert self._shard is not None
        begin, end = rounds.steps_of(span, self._steps, program.accumulation)
        order = self._shard.order(span.epoch)
        batch = self._config.batch_size
        if self._callbacks is not None:
            self._train_with_callbacks(program, span, order, begin, end)
        elif self._shard.nbytes <= self._config.resident_bytes:
            if self._resident is None:
                self._resident = tensors(self._shard.whole())
            if self._order is None or self._order[0] is not order:  # all rounds of an epoch share one
                self._order = (order, row_numbers(order))
            program.training.run(
                self._resident, self._shard.structure, self._order[1], batch, begin, end, sized=self._sized
            )
        else:
            for columns, steps in self._shard.chunks(order, begin, end):
                self._run_in_order(program, columns, steps)
        return min(end * batch, self._rows) - begin * batch

    def _run_in_order(self, program: Program, columns: Sequence[Array], steps: int) -> None:
        """Train some steps on rows as they come."""
        assert self._shard is not None
        in_order, batch = row_numbers(len(columns[0])), self._config.batch_size  # as tensors they may be more
        program.training.run(tensors(columns), self._shard.structure, in_order, batch, 0, steps, sized=self._sized)

    def _alone_with_whole_batches(self, rows: int) -> bool:
        """Return whether steps see the size of their batches, as in Keras' `fit`. Of several workers some may have a smaller one."""
        return self._config.num_workers == 1 and rows % self._config.batch_size == 0

    def _train_with_callbacks(self, program: Program, span: Span, order: Integers, begin: int, end: int) -> None:
        """Train step by step, with the hooks that Keras calls around each step."""
        assert self._shard is not None
        assert self._callbacks is not None
        batch = self._config.batch_size
        if self._epoch not in (None, span.epoch):  # a straggler of a quorum was at its work when the other epoch ended
            self._end_epoch(program)
            program.model.reset_metrics()
        if self._epoch is None:
            self._epoch = span.epoch
            self._callbacks.on_epoch_begin(span.epoch)
        for step in range(begin, end):
            self._callbacks.on_train_batch_begin(step)
            self._check_left_alone(program)
            before = program.variables.rates()
            self._run_in_order(program, self._shard.take(order[step * batch : (step + 1) * batch]), 1)
            self._steps_set_rate |= program.variables.rates() != before
            self._callbacks.on_train_batch_end(step, metrics_of(program.model))
            self._check_left_alone(program)
        sums = read_metrics(program.model)
        self._epoch_metrics = scores.add([self._epoch_metrics, sums])
        if end == self._steps:
            self._end_epoch(program)
            write_metrics(program.model, sums)  # the update carries this span's sums only

    def _end_epoch(self, program: Program) -> None:
        """Call `on_epoch_end` with the metrics of what was trained of the epoch."""
        assert self._callbacks is not None
        write_metrics(program.model, self._epoch_metrics)
        self._callbacks.on_epoch_end(self._epoch, metrics_of(program.model))
        self._epoch, self._epoch_metrics = None, np.zeros(0)
        self._check_left_alone(program)

    def _check_left_alone(self, program: Program) -> None:
        if self._callbacks is not None and compiled_anew(program.model, self._compiled_with):
            raise ElephasError(
                "a worker callback has compiled the model anew: its steps, its metrics and the optimizer's state are those of the model as "
                "it was compiled when the fit began. Compile it before, or between two fits."
            )
        if program.model.stop_training:
            raise ElephasError(
                "a worker callback, or the model's own train step, set model.stop_training, but no worker can end a training that all "
                "share. Stop from callbacks=[...], which see the global metrics on the driver."
            )

    def _with_weights(self, order: Order) -> Order:
        """Return an order to train with its weights, also where it has only the step to them from those of the last one.

        Raises:
            ElephasError: the step is from other weights than this worker's.
        """
        state, step = order.state, order.step
        if state is None or step is None or self._state_codec is None:
            return order
        if step.packed.size and not state.weights.size:
            number, base = self._began_with or (-1, nothing())
            if number != step.after:
                raise ElephasError(
                    f"worker {self._worker} has the weights of order {number}, and got the step from those of order {step.after}. This "
                    "is a defect of elephas_like: please report it. Without state_codec= it cannot happen."
                )
            state = state.but(weights=self._state_codec.applied(step.packed, base))
        self._began_with = order.number, state.weights
        return replace(order, state=state)

    def _whole(self, state: TrainState, seldom: Sequence[Role]) -> TrainState:
        """Return a state including parts that seldom change, also where an order leaves them out because this worker has them."""
        for role in seldom:
            if state.part(role).size or role not in self._held:
                self._held[role] = state.part(role)
        return state.but(**{role.value: self._held[role] for role in seldom})

    def _draws_seeded(self, program: Program, order: Order) -> AbstractContextManager[None]:
        """Draw from seeds of the order, where a layer or loss gives none."""
        number, *more = self._drawn_by(order)
        use = _WITHOUT_SEED if order.kind == "train" else _IN_EVALUATIONS
        # an asynchronous order that is not counted has -1
        return program.draws.seeded(self._round_seeds(2, number + 1, use, *more))

    def _drawn_by(self, order: Order) -> tuple[int, ...]:
        """Return the number of an order's round, from which seeds are drawn; without rounds that of the order, and its epoch.

        Evaluations are orders, too: by their numbers a fit with validation rows would be trained by other draws than one without. The epoch
        tells the orders of a fit that goes on from a checkpoint from those before it: asynchronous ones are numbered from 0 again.
        """
        if self._config.in_rounds:
            return (order.version,)
        return (order.number,) if order.span is None else (order.number, _IN_EPOCH, order.span.epoch)

    def _round_seeds(self, size: int, number: int, *more: int) -> Integers:
        """Return seeds of the random layers for one round, or, with more numbers, of something else.

        They are derived from (seed, worker, round), and so equal on every attempt.
        """
        fold = np.random.SeedSequence([self._config.seed, self._worker, number, *more])
        return fold.generate_state(size, np.uint32).astype(np.int64)

    def _layer_seeds(self, program: Program, held: Integers, drawn_by: tuple[int, ...]) -> Integers:
        """Return seeds of the random layers for one round. Generators with equal states, as of layers with one seed, draw equally as in Keras."""
        fresh = self._round_seeds(held.size, *drawn_by)
        first: dict[bytes, slice] = {}
        for place in program.variables.layout.slices(Role.SEED):
            fresh[place] = fresh[first.setdefault(held[place].tobytes(), place)]
        return fresh

    def _empty_update(self, order: Order) -> Update:
        """Return the update of a worker without rows in this span; its weight is 0."""
        assert order.state is not None
        state = order.state
        return Update(
            worker=self._worker,
            number=order.number,
            version=order.version,
            samples=0,
            steps=0,
            delta=self._sender.nothing(state.weights),
            statistics=state.statistics,
            slots=state.slots if self._sends_slots(order) else nothing(),
            counters=state.counters,
            loss_scale=state.loss_scale,
            seeds=state.seeds,
            metrics=np.zeros(0),
        )


def run_in_chunks(loop: StepLoop, data: ShardData, rows: Integers, batch_size: int, *, sized: bool = False) -> None:
    """Run a test step over some rows of a shard, in order, reading them chunk by chunk. `sized`: as of StepLoop.run."""
    structure, chunks = data.unweighted(rows)
    for columns, steps in chunks:
        loop.run(tensors(columns), structure, row_numbers(len(columns[0])), batch_size, 0, steps, sized=sized)
