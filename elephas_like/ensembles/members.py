"""One member of an ensemble: a model trained alone, on a shard that other members of its process read as well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import cloudpickle

from elephas_like.core import rounds
from elephas_like.core.loop import FitPlan, fit_synchronously
from elephas_like.core.progress import FitProgress
from elephas_like.core.row_checks import NO_VALIDATION_ROWS
from elephas_like.core.strategies.synchronous import OneWorker
from elephas_like.core.types import (
    ASIDE,
    Evaluation,
    FitConfig,
    Frequency,
    Joined,
    Memories,
    Mode,
    OnNaN,
    Order,
    Recollection,
    ShardRef,
    TrainState,
    Update,
)
from elephas_like.core.workers import Worker
from elephas_like.trainer.batches import sample_of
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.programs import PROGRAMS, Program
from elephas_like.trainer.spec import ModelSpec


@dataclass(frozen=True)
class MemberFit:
    """How one member is trained: plain data. The members of an architecture share `spec`, which `state` completes.

    state: weights, statistics, optimizer and seeds to begin with.
    callbacks: a cloudpickle of Keras callbacks, or nothing.
    cores: TensorFlow's threads; None leaves them as they are.
    labels: what the rows' labels may be (trainer/label_rules.py).
    """

    member: int
    state: TrainState
    config: FitConfig
    callbacks: bytes = b""
    cores: int | None = None
    labels: object = None


@dataclass(frozen=True)
class MemberResult:
    """A trained member: its state, and its loss and metrics by epoch, as Keras' History has them."""

    member: int
    state: TrainState
    history: dict[str, list[float]]
    seconds: float


def fit_member(task: MemberFit, spec: ModelSpec, shard: ShardRef, validation: ShardRef | None = None) -> MemberResult:
    """Trains a member on the rows of a shard, with the compiled model that this process keeps for its architecture.

    Raises:
        ValueError: the shard has no rows, or the one for validation has none.
    """
    started = time.perf_counter()
    config = task.config
    factory = TrainerFactory(spec, config, OneWorker(), "", cores=task.cores, labels=task.labels)
    factory.limit_threads()
    factory.check_labels(shard, validation)
    if validation is not None and not validation.rows:
        raise ValueError(NO_VALIDATION_ROWS)
    sample = sample_of(shard, config.batch_size)
    if sample is None:
        raise ValueError(f"member {task.member} has no rows to train on.")
    # What callbacks change in a model must not reach another fit: theirs is not kept.
    make = Program if task.callbacks else PROGRAMS.borrow
    program = make(spec, sample, config.seed, fused=config.fused_optimizer)
    try:
        whole = program.variables
        whole.write(task.state)
        callbacks = cloudpickle.loads(task.callbacks) if task.callbacks else ()  # our driver's own bytes
        hooks = DriverHooks(program.model, callbacks, epochs=config.epochs, verbose=0)
        state, begin = hooks.train_begin(config.initial_epoch)
        program.variables = hooks.variables  # callbacks may have frozen layers
        worker = factory.trainer(shard.worker, shard, validation, program, owns_program=False)
        joined = worker.joined(0, "")
        steps = rounds.steps(joined.rows, config.batch_size)
        hooks.planned(joined.rows, steps, sample)
        plan = FitPlan(
            layout=program.variables.layout,
            mode=Mode.SYNCHRONOUS,
            strategy=OneWorker(),
            frequency=Frequency.EPOCH,
            rounds_per_epoch=1,
            worker_rounds=(1,),
            num_workers=1,
            rows=joined.rows,
            initial_epoch=begin,
            epochs=config.epochs,
            validates=joined.validation_rows > 0,
            on_nan=OnNaN.DROP if hooks.terminates_on_nan else OnNaN.RAISE,
            may_drop_all=hooks.terminates_on_nan,
        )
        hooks.train_end(fit_synchronously(_Alone(worker), plan, hooks, FitProgress(state), hooks.loss_of))
        final = whole.read()
        worker.close()
    finally:
        if not task.callbacks:
            PROGRAMS.give_back(program)
    return MemberResult(task.member, final, hooks.history.history, time.perf_counter() - started)


class _Alone:
    """A worker that meets nobody at its rounds (core.workers.SyncWorkers)."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def joined(self) -> list[Joined]:
        return [self._worker.joined(0, "")]

    def train(self, order: Order) -> Iterator[Update]:
        return iter([self._worker.train(order)])

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        return iter([self._worker.evaluate(order)])

    def recall(self, after: int) -> Iterator[Recollection]:
        return iter([self._worker.recall(Order("recall", ASIDE, after))])

    def remind(self, memories: Memories, after: int) -> None:
        self._worker.remind(Order("remind", ASIDE, after, memory=memories[0]))
