"""Factories of workers: what the driver sends to executors, and what the in_process engine shares among its workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace

import cloudpickle

from elephas_like.core.columns import difference, signature
from elephas_like.core.row_checks import check_shard_labels
from elephas_like.core.strategies.algebra import Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import FitConfig, ShardRef
from elephas_like.core.workers import Worker
from elephas_like.trainer.batches import ShardData, sample_of
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.programs import PROGRAMS, Program, check_validation
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.tensors import limit_threads
from elephas_like.trainer.worker import LocalTrainer

log = logging.getLogger(__name__)

_CHECKED: set[tuple[object, ...]] = set()
"""What this process has found right in shards, by what they were compared with: a round of jobs opens them anew."""


def _note(seen: tuple[object, ...]) -> None:
    if len(_CHECKED) > 1000:
        _CHECKED.clear()
    _CHECKED.add(seen)


@dataclass(frozen=True)
class TrainerFactory:
    """Makes LocalTrainers on executors; the driver sends it (core.workers.WorkerFactory).

    callbacks: a cloudpickle of the worker callbacks, or b"" for none.
    cores: threads of Keras' backend in a worker process; None leaves them as they are.
    labels: what the rows' labels may be (trainer/label_rules.py).
    """

    spec: ModelSpec
    config: FitConfig
    strategy: Strategy
    layout_hash: str
    callbacks: bytes = b""
    cores: int | None = None
    codec: Codec | None = None
    state_codec: Codec | None = None
    labels: object = None

    def __getstate__(self) -> dict[str, object]:
        """Return the fields, with strategy and codecs pickled by value: workers may not have their modules."""
        own = [self.strategy, self.codec, self.state_codec, *parts_of(self.strategy)]
        return {**vars(self), "strategy": pickle_by_value(own), "codec": None, "state_codec": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the fields."""
        strategy, codec, state_codec, *_ = cloudpickle.loads(state["strategy"])  # written by our own driver
        vars(self).update({**state, "strategy": strategy, "codec": codec, "state_codec": state_codec})

    def __call__(self, worker: int, shard: ShardRef, validation: ShardRef | None) -> Worker:
        """Return a worker with its shard open and a compiled model of its own. A worker without rows gets no model."""
        self.limit_threads()
        self.check_labels(shard, validation)
        sample = _sample(shard, validation, self.config.batch_size)
        program = None if sample is None else self.program(sample)
        return self.trainer(worker, shard, validation, program, owns_program=True)

    def program(self, sample: tuple[object, ...]) -> Program:
        """Return a compiled model for such rows: a kept one, or a new one where worker callbacks may change it."""
        make = Program if self.callbacks else PROGRAMS.borrow
        config = self.config
        return make(self.spec, sample, config.seed, fused=config.fused_optimizer, corrected=config.control_variates)

    def check_labels(self, shard: ShardRef, validation: ShardRef | None) -> None:
        """Do nothing if the model takes the labels of a worker's rows. Those of a shard are read once in each process.

        Raises:
            DataError: naming a row whose label the model does not take.
        """
        for ref, what in ((shard, "partition"), (validation, "validation rows, partition")):
            if ref is None or self.labels is None:
                continue
            seen = (ref.dataset, ref.worker, ref.checksum, repr(self.labels))
            if seen not in _CHECKED:
                check_shard_labels(self.labels, ref, f"{what} {ref.worker}")
                _note(seen)

    def _check_validation(
        self, shard: ShardRef, validation: ShardRef | None, program: Program | None, batch_size: int
    ) -> None:
        """Do nothing if validation rows have the shapes of those to train on, or the model can evaluate them as they are.

        Raises:
            DataError: it cannot, which would be found after a whole epoch.
        """
        if program is None or validation is None or not validation.rows or not shard.rows:
            return
        differ = difference(signature(shard), signature(validation))
        seen = (self.spec.key, differ, str(signature(validation)))
        if differ is None or seen in _CHECKED:
            return
        sample = sample_of(validation, batch_size)
        if sample is not None:
            check_validation(program.model, sample, differ)
            _note(seen)

    def limit_threads(self) -> None:
        """Limit this process to `cores` threads, if Keras' backend has not started yet."""
        if self.cores is not None and not limit_threads(self.cores):
            log.debug("Keras' backend had started in this Python worker: its threads stay as they are")

    def trainer(
        self, worker: int, shard: ShardRef, validation: ShardRef | None, program: Program | None, *, owns_program: bool
    ) -> Worker:
        """Return a worker on a given program."""
        config = replace(self.config, batch_size=self.config.batch_size_of(worker), larger_batches=0)
        self._check_validation(shard, validation, program, config.batch_size)
        # Validation rows are read whole and as they came: no split, no shuffle.
        whole = replace(config, validation_split=0.0, shuffle=False, bootstrap=None)
        return LocalTrainer(
            worker,
            ShardData(shard, config, config.class_weight),
            None if validation is None else ShardData(validation, whole),
            program,
            config,
            self.strategy,
            cloudpickle.loads(self.callbacks) if self.callbacks else (),  # written by our own driver
            self.layout_hash,
            owns_program=owns_program,
            codec=self.codec,
            state_codec=self.state_codec,
        )


def parts_of(thing: object) -> Iterator[object]:
    """Yield the dataclasses in a dataclass's fields, recursively."""
    for field in fields(thing) if is_dataclass(thing) else ():
        value = getattr(thing, field.name)
        if is_dataclass(value):
            yield value
            yield from parts_of(value)


class SharingFactory:
    """Makes LocalTrainers in this process that share one compiled model, swapping their states in and out.

    K workers cost one trace. A context manager: leaving it gives the model back, or drops it.
    """

    def __init__(self, inner: TrainerFactory) -> None:
        self._inner = inner
        self._program: Program | None = None

    def __call__(self, worker: int, shard: ShardRef, validation: ShardRef | None) -> Worker:
        """Return a worker with its own rows and the shared model."""
        self._inner.limit_threads()
        self._inner.check_labels(shard, validation)
        sample = _sample(shard, validation, self._inner.config.batch_size)
        if sample is not None and self._program is None:
            self._program = self._inner.program(sample)
        program = None if sample is None else self._program
        return self._inner.trainer(worker, shard, validation, program, owns_program=False)

    def __enter__(self) -> SharingFactory:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Give the shared model back, unless worker callbacks have seen it (LocalTrainer.close)."""
        if self._program is not None and not self._inner.callbacks:
            PROGRAMS.give_back(self._program)
        self._program = None


def _sample(shard: ShardRef, validation: ShardRef | None, rows: int) -> tuple[object, ...] | None:
    """Return a batch to build the model with; None if the worker has no row at all."""
    sample = sample_of(shard, rows)
    return sample_of(validation, rows) if sample is None and validation is not None else sample
