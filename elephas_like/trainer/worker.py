"""LocalTrainer: one worker's shard and a compiled model; a state goes in, an update comes out.

The compiled model is kept per process and lent to one worker at a time (or, in the in_process engine, to all workers
in turn), so that nothing is rebuilt, recompiled or traced again between rounds, or between fits of the same model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import cloudpickle
import keras
import numpy as np

from elephas_like.core import rounds, scores
from elephas_like.core.columns import signature
from elephas_like.core.errors import DataError, ElephasError
from elephas_like.core.merging import finite
from elephas_like.core.messages import Sender
from elephas_like.core.strategies.algebra import Context, Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.structure import flatten
from elephas_like.core.types import (
    Evaluation,
    FitConfig,
    Integers,
    Joined,
    Order,
    Role,
    ShardRef,
    Span,
    TrainState,
    Update,
    Vector,
    nothing,
    same,
)
from elephas_like.trainer.batches import ShardData, sample_of
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables, build, metrics_of, own_optimizer, read_metrics, write_metrics
from elephas_like.trainer.steps import StepLoop
from elephas_like.trainer.tensors import Tensor, limit_threads, row_numbers, tensors

log = logging.getLogger(__name__)

PROGRAMS_KEPT = 4
"""Compiled models that a process keeps for fits to come, at most."""
PROGRAM_BYTES_KEPT = 2**30
"""Bytes of the variables of those that are kept, at most; the last one stays whatever its size."""
_ALL_BUT_SLOTS = frozenset(Role) - {Role.SLOT}


class Program:
    """A compiled, built model of this process with its traced loops."""

    def __init__(self, spec: ModelSpec, sample: tuple[object, ...], seed: int) -> None:
        with seeded(seed, 0xE1E):
            self.model = spec.build()
            check_width(self.model, sample)
            build(self.model, sample)
        self.key = _program_key(spec, sample)
        self.variables = Variables(self.model)
        self.training = StepLoop(self.model, self.model.train_step)
        self.testing = StepLoop(self.model, self.model.test_step)

    @property
    def nbytes(self) -> int:
        """Bytes of its variables, counted as float32."""
        return 4 * sum(entry.size for entry in self.variables.layout.entries)

    @property
    def accumulation(self) -> int:
        """Keras' `gradient_accumulation_steps`, 1 without."""
        return int(getattr(own_optimizer(self.model), "gradient_accumulation_steps", None) or 1)


def _program_key(spec: ModelSpec, sample: tuple[object, ...]) -> str:
    """What one program serves: a model, and rows of one look. Losses and metrics are built for the look of their labels."""
    leaves, structure = flatten(sample)
    arrays = [np.asarray(leaf) for leaf in leaves]
    look = [(array.dtype.str, array.shape[1:]) for array in arrays]
    return f"{spec.key} {structure!r} {look!r}"


class Programs:
    """The compiled models of this process by their spec and rows; each is lent to one borrower at a time.

    Args:
        count, nbytes: of the models that are kept while nobody uses them, and of their variables. The longest unused go
            first; the last one that was given back always stays, so that a second fit traces nothing.
    """

    def __init__(self, count: int = PROGRAMS_KEPT, nbytes: int = PROGRAM_BYTES_KEPT) -> None:
        self._count, self._nbytes = count, nbytes
        self._free: OrderedDict[str, Program] = OrderedDict()
        self._lock = threading.Lock()

    def borrow(self, spec: ModelSpec, sample: tuple[object, ...], seed: int) -> Program:
        """A program for a spec: a kept one, or a new one."""
        key = _program_key(spec, sample)
        with self._lock:
            kept = self._free.pop(key, None)
        return kept or Program(spec, sample, seed)

    def give_back(self, program: Program) -> None:
        """Keeps a program for the next borrower; the longest unused go where there are too many."""
        with self._lock:
            self._free[program.key] = program
            self._free.move_to_end(program.key)
            while len(self._free) > 1 and (len(self._free) > self._count or self._size() > self._nbytes):
                self._free.popitem(last=False)

    def _size(self) -> int:
        return sum(program.nbytes for program in self._free.values())


PROGRAMS = Programs()
"""Spark reuses Python processes across tasks; a module's global is what they keep."""


class LocalTrainer:
    """One worker: trains spans of its shard from the states it is handed (core.types.Worker)."""

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
    ) -> None:
        self._worker = worker
        self._owns_program = owns_program
        self._shard = shard
        self._validation = validation
        self._program = program
        self._config = config
        self._sender = Sender(strategy, codec)
        self._layout_hash = layout_hash
        self._slots: Vector | None = None
        self._frozen: Vector | None = None
        self._resident: list[Tensor] | None = None
        self._order: tuple[Integers, Tensor] | None = None
        self._rows = 0 if shard is None else len(shard.rows)
        self._steps = rounds.steps(self._rows, config.batch_size)
        self._callbacks: keras.callbacks.CallbackList | None = None
        if worker_callbacks and program is not None:
            self._callbacks = keras.callbacks.CallbackList(
                list(worker_callbacks), model=program.model, epochs=config.epochs, steps=self._steps, verbose=0
            )
            program.model.stop_training = False
            self._callbacks.on_train_begin()
        self._epoch_metrics = np.zeros(0)

    def joined(self, attempt: int, host: str) -> Joined:
        """What this worker tells the driver first."""
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
        """Batches of this worker's in a span."""
        accumulation = 1 if self._program is None else self._program.accumulation
        begin, end = rounds.steps_of(span, self._steps, accumulation)
        return (end - begin) * span.epochs

    def train(self, order: Order) -> Update:
        """The update of one span, trained from the order's state."""
        assert order.state is not None
        assert order.span is not None
        state, span, program = self._whole(order.state), order.span, self._program
        started = time.perf_counter()
        steps = self.steps_of(span)
        if program is None or steps == 0:
            return self._nothing(order)
        if self._slots is not None:
            state = state.but(slots=self._slots)
        if self._config.num_workers > 1:
            state = state.but(seeds=self._seeds(state.seeds.size, order.number))
        context = Context(order.version, self._config.num_workers, program.variables.layout)
        program.variables.write(state.but(weights=self._sender.start(state.weights, context)))
        samples, sums = 0, []
        for epoch in range(span.epoch, span.epoch + span.epochs):
            program.model.reset_metrics()  # worker callbacks see the logs of each epoch by itself
            samples += self._train_epoch(program, Span(epoch, span.begin, span.end, span.of))
            sums.append(read_metrics(program.model))
        after = program.variables.read()
        slots = after.slots
        if self._config.optimizer_state == "per_worker" and finite(after.slots) and finite(after.weights):
            self._slots = after.slots
        if self._config.optimizer_state != "average":
            slots = np.zeros(0, np.float32)
        return Update(
            worker=self._worker,
            number=order.number,
            version=order.version,
            samples=samples,
            steps=steps,
            delta=self._sender.message(order.state.weights, after.weights, steps, context),
            statistics=after.statistics,
            slots=slots,
            counters=after.counters,
            loss_scale=after.loss_scale,
            seeds=after.seeds,
            metrics=scores.add(sums),
            seconds=time.perf_counter() - started,
            frozen=nothing() if same(after.frozen, state.frozen) else after.frozen,
        )

    def evaluate(self, order: Order) -> Evaluation:
        """Metric sums of the order's state over this worker's validation rows."""
        assert order.state is not None
        started = time.perf_counter()
        state = self._whole(order.state)
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
            run_in_chunks(program.testing, held, rows, self._config.batch_size)
            metrics = read_metrics(program.model)
        return Evaluation(self._worker, order.number, len(rows), metrics, time.perf_counter() - started)

    def progress(self) -> int:
        """Steps that this worker's model has done, in training and evaluation."""
        program = self._program
        return 0 if program is None else program.training.done + program.testing.done

    def close(self) -> None:
        """Calls `on_train_end`, and gives the compiled model back and lets go of the rows whatever comes of that."""
        try:
            if self._callbacks is not None:
                self._callbacks.on_train_end()
        finally:
            if self._program is not None and self._owns_program:
                PROGRAMS.give_back(self._program)
            self._program = self._shard = self._validation = self._resident = self._order = self._callbacks = None

    def _train_epoch(self, program: Program, span: Span) -> int:
        """Trains one span and returns its rows."""
        assert self._shard is not None
        begin, end = rounds.steps_of(span, self._steps, program.accumulation)
        order = self._shard.order(span.epoch)
        batch = self._config.batch_size
        if self._callbacks is not None:
            self._train_with_callbacks(program, span, order, begin, end)
        elif self._shard.nbytes <= self._config.resident_bytes:
            if self._resident is None:
                self._resident = tensors(self._shard.whole())
            if self._order is None or self._order[0] is not order:  # one epoch's is used in all of its rounds
                self._order = (order, row_numbers(order))
            program.training.run(self._resident, self._shard.structure, self._order[1], batch, begin, end)
        else:
            for columns, steps in self._shard.chunks(order, begin, end):
                in_order = row_numbers(len(columns[0]))
                program.training.run(tensors(columns), self._shard.structure, in_order, batch, 0, steps)
        return min(end * batch, self._rows) - begin * batch

    def _train_with_callbacks(self, program: Program, span: Span, order: Integers, begin: int, end: int) -> None:
        """One step at a time, with the hooks that Keras calls around it."""
        assert self._shard is not None
        assert self._callbacks is not None
        batch = self._config.batch_size
        if begin == 0:
            self._callbacks.on_epoch_begin(span.epoch)
        for step in range(begin, end):
            self._callbacks.on_train_batch_begin(step)
            columns = tensors(self._shard.take(order[step * batch : (step + 1) * batch]))
            in_order = row_numbers(len(columns[0]))
            program.training.run(columns, self._shard.structure, in_order, batch, 0, 1)
            self._callbacks.on_train_batch_end(step, metrics_of(program.model))
            self._check_going_on(program)
        sums = read_metrics(program.model)
        self._epoch_metrics = scores.add([self._epoch_metrics, sums])
        if end == self._steps:
            write_metrics(program.model, self._epoch_metrics)
            self._callbacks.on_epoch_end(span.epoch, metrics_of(program.model))
            write_metrics(program.model, sums)  # what this span's update brings
            self._epoch_metrics = np.zeros(0)
            self._check_going_on(program)

    def _check_going_on(self, program: Program) -> None:
        if program.model.stop_training:
            raise ElephasError(
                "a worker callback set model.stop_training, but no worker can end a training that all share. Stop from "
                "callbacks=[...], which see the global metrics on the driver."
            )

    def _whole(self, state: TrainState) -> TrainState:
        """A state with what frozen layers hold, also where an order leaves it out because this worker has it."""
        if state.frozen.size or self._frozen is None:
            self._frozen = state.frozen
        return state.but(frozen=self._frozen)

    def _seeds(self, size: int, number: int) -> Integers:
        """Seeds of the model's random layers for one round: a fold of (seed, worker, round), the same on every attempt."""
        fold = np.random.SeedSequence([self._config.seed, self._worker, number])
        return fold.generate_state(size, np.uint32).astype(np.int64)

    def _nothing(self, order: Order) -> Update:
        """The update of a worker that has no rows in this span: of no weight."""
        assert order.state is not None
        state = order.state
        averaged = self._config.optimizer_state == "average"
        return Update(
            worker=self._worker,
            number=order.number,
            version=order.version,
            samples=0,
            steps=0,
            delta=self._sender.nothing(state.weights.size),
            statistics=state.statistics,
            slots=state.slots if averaged else np.zeros(0, np.float32),
            counters=state.counters,
            loss_scale=state.loss_scale,
            seeds=state.seeds,
            metrics=np.zeros(0),
        )


def run_in_chunks(loop: StepLoop, data: ShardData, rows: Integers, batch_size: int) -> None:
    """Runs a test step over some rows of a shard, in order, reading them chunk by chunk."""
    structure, chunks = data.unweighted(rows)
    for columns, steps in chunks:
        loop.run(tensors(columns), structure, row_numbers(len(columns[0])), batch_size, 0, steps)


@dataclass(frozen=True)
class TrainerFactory:
    """Makes LocalTrainers on executors: what the driver sends them (core.types.WorkerFactory).

    callbacks: a cloudpickle of the worker callbacks, or nothing.
    cores: TensorFlow's threads in a worker process; None leaves them as they are.
    """

    spec: ModelSpec
    config: FitConfig
    strategy: Strategy
    layout_hash: str
    callbacks: bytes = b""
    cores: int | None = None
    codec: Codec | None = None

    def __getstate__(self) -> dict[str, object]:
        """The fields, what is the user's own by value, parts of the strategy too: workers may not have its module."""
        own = [self.strategy, self.codec, *parts_of(self.strategy)]
        return {**vars(self), "strategy": pickle_by_value(own), "codec": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        """The fields again."""
        strategy, codec, *_ = cloudpickle.loads(state["strategy"])  # our driver's own bytes
        vars(self).update({**state, "strategy": strategy, "codec": codec})

    def __call__(self, worker: int, shard: ShardRef, validation: ShardRef | None) -> LocalTrainer:
        """A worker with its shard open and a compiled model of its own. A worker without rows gets no model."""
        self.limit_threads()
        sample = _sample(shard, validation, self.config.batch_size)
        program = None if sample is None else PROGRAMS.borrow(self.spec, sample, self.config.seed)
        return self.trainer(worker, shard, validation, program, owns_program=True)

    def limit_threads(self) -> None:
        """Gives this process `cores` threads, before TensorFlow starts in it."""
        if self.cores is not None and not limit_threads(self.cores):
            log.debug("TensorFlow had started in this Python worker: its threads stay as they are")

    def trainer(
        self, worker: int, shard: ShardRef, validation: ShardRef | None, program: Program | None, *, owns_program: bool
    ) -> LocalTrainer:
        """A worker on a given program."""
        config = replace(self.config, batch_size=self.config.batch_size_of(worker), larger_batches=0)
        # Validation rows are read whole and as they came: no split, no shuffle.
        whole = replace(config, validation_split=0.0, shuffle=False, bootstrap=None)
        return LocalTrainer(
            worker,
            ShardData(shard, config, config.class_weight),
            None if validation is None else ShardData(validation, whole),
            program,
            config,
            self.strategy,
            cloudpickle.loads(self.callbacks) if self.callbacks else (),  # our driver's own bytes
            self.layout_hash,
            owns_program=owns_program,
            codec=self.codec,
        )


def parts_of(thing: object) -> Iterator[object]:
    """The dataclasses that a dataclass is put together from, and theirs."""
    for field in fields(thing) if is_dataclass(thing) else ():
        value = getattr(thing, field.name)
        if is_dataclass(value):
            yield value
            yield from parts_of(value)


class SharingFactory:
    """Makes LocalTrainers of this process that share one compiled model, swapping their states in and out.

    K workers cost one trace. A context manager: leaving it gives the model back.
    """

    def __init__(self, inner: TrainerFactory) -> None:
        self._inner = inner
        self._program: Program | None = None

    def __call__(self, worker: int, shard: ShardRef, validation: ShardRef | None) -> LocalTrainer:
        """A worker with its own rows and the shared model."""
        self._inner.limit_threads()
        sample = _sample(shard, validation, self._inner.config.batch_size)
        if sample is not None and self._program is None:
            self._program = PROGRAMS.borrow(self._inner.spec, sample, self._inner.config.seed)
        program = None if sample is None else self._program
        return self._inner.trainer(worker, shard, validation, program, owns_program=False)

    def __enter__(self) -> SharingFactory:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Gives the shared model back."""
        if self._program is not None:
            PROGRAMS.give_back(self._program)
            self._program = None


def check_width(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Nothing, if a model of one input could take the rows.

    Raises:
        DataError: they are longer or shorter than the model expects, along any axis.
    """
    inputs = getattr(model, "inputs", None) or []
    if len(inputs) != 1 or not isinstance(sample[0], np.ndarray):
        return
    expected, found = tuple(inputs[0].shape)[1:], sample[0].shape[1:]
    apart = any(wanted not in (None, size) for wanted, size in zip(expected, found, strict=False))
    if len(expected) == len(found) and apart:
        raise DataError(f"the model {model.name!r} takes features of shape {expected}, and the rows' are {found}.")


def _sample(shard: ShardRef, validation: ShardRef | None, rows: int) -> tuple[object, ...] | None:
    """A batch to build the model with; None where the worker has no row at all."""
    sample = sample_of(shard, rows)
    return sample_of(validation, rows) if sample is None and validation is not None else sample
