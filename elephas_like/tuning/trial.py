"""One trial of a search: a model is built from its parameters and trained, epoch by epoch, under the driver's eyes.

Rows are opened once per Python process and stay for the trials to come; epochs run in the compiled loop of steps.py.
"""

from __future__ import annotations

import gc
import math
import platform
import re
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle
import keras
import numpy as np

from elephas_like.core import rounds
from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.merging import finite
from elephas_like.core.objective import Objective
from elephas_like.core.row_checks import check_shard_labels
from elephas_like.core.trials import Report, TrialOrder, TrialResult, TrialStatus
from elephas_like.core.types import FitConfig, Integers, ShardRef, TrainState
from elephas_like.spark.settings import check_result_size
from elephas_like.trainer.archive import archive_of
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.batches import ShardData, sample_of
from elephas_like.trainer.building import build, build_optimizer
from elephas_like.trainer.compile_arguments import check_rows_are_kept
from elephas_like.trainer.copies import give_own_optimizer
from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.kept import DROPPED
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.label_rules import label_rules
from elephas_like.trainer.metric_names import freshly_named
from elephas_like.trainer.metric_results import evaluated_metrics, metrics_of
from elephas_like.trainer.own_optimizers import own_optimizers
from elephas_like.trainer.programs import check_rows_fit
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.state import Variables
from elephas_like.trainer.steps import StepLoop
from elephas_like.trainer.tensors import Tensor, array_of, limit_threads, many_graphs, row_numbers, tensors
from elephas_like.trainer.worker import run_in_chunks
from elephas_like.tuning.prepared_rows import prepared_sample, rows_for

TIDY_SECONDS = 5.0
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


@dataclass(frozen=True)
class KerasTrial:
    """Trains what the user's `build(params)` returns (core.trials.Evaluate).

    build, callbacks: cloudpickles of the function and of a list of Keras callbacks, of which each trial gets its own.
    config: seed, validation split and sizes; the batch size comes with the order.
    cores: TensorFlow's threads in a worker process; None leaves them as they are.
    largest_result: bytes that Spark takes back from a trial; 0 for any number.
    settings: Keras', under which models are built; those of the thread that makes this.
    """

    build: bytes
    objective: Objective
    epochs: int
    config: FitConfig
    callbacks: bytes = b""
    cores: int | None = None
    largest_result: int = 0
    settings: KerasSettings = field(default_factory=KerasSettings.current)

    def __call__(self, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        """Trains the model of one point; its state is that of the epoch with the lowest loss."""
        if self.cores is not None:
            limit_threads(self.cores)
        started = time.perf_counter()
        function = cloudpickle.loads(self.build)[0]  # our driver's own bytes, handed over by Spark
        DROPPED.free()  # of the trial before
        with self.settings.applied(), seeded(self.config.seed, order.number), many_graphs(), ExitStack() as over:
            model = checked(function(order.params))
            taken = rows_for(model, shards, self.config.seed)
            rows = _Rows(taken, replace(self.config, batch_size=order.batch_size))
            check_rows_fit(model, rows.sample)
            build(model, rows.sample)
            check_labels(model, taken)
            nbytes = _nbytes(model)
            over.callback(DROPPED.add, nbytes)
            check_result_size("the trial's model with its optimizer's state", nbytes, self.largest_result)
            if self.config.fused_optimizer:
                BACKEND.fuse(own_optimizers(model))
            BACKEND.for_one_process(own_optimizers(model))
            callbacks = cloudpickle.loads(self.callbacks) if self.callbacks else []  # our driver's own bytes
            reporter = TrialCallback(self.objective, report, callbacks)  # last, to see what they add to the logs
            _Training(model, rows, order.batch_size).run(self.epochs, [*callbacks, reporter])
        result = reporter.result(order, model, started, platform.node())
        del model, reporter, callbacks
        tidy()
        return result


def _nbytes(model: keras.Model) -> int:
    """Bytes of a model's file, about."""
    held = [*model.variables, *(variable for each in own_optimizers(model) for variable in each.variables)]
    return sum(math.prod(variable.shape) * _itemsize(variable.dtype) for variable in held)


def _itemsize(dtype: str) -> int:
    """Bytes of a number of a type of Keras', some of which NumPy does not know."""
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)


class _Rows:
    """A search's rows as one trial sees them. Those that fit in memory are tensors, kept for the trials to come."""

    def __init__(self, shards: Sequence[ShardRef], config: FitConfig) -> None:
        self.training = ShardData(shards[0], config)
        whole = replace(config, validation_split=0.0, shuffle=False)
        self.validation = ShardData(shards[1], whole) if len(shards) > 1 else None
        sample = sample_of(shards[0], config.batch_size)
        if sample is None or not len(self.training.rows):
            raise ValueError("there are no rows to train on: the data is empty, or all of it is held out.")
        self.sample = sample
        self.resident = _resident(self.training) if self.training.nbytes <= config.resident_bytes else None


_tensors: dict[tuple[str, str], list[Tensor]] = {}
_tensors_lock = threading.Lock()


def _resident(data: ShardData) -> list[Tensor]:
    """A shard's columns as tensors, made by the first trial of this process; one search at a time."""
    key = (data.ref.dataset, data.ref.directory)
    with _tensors_lock:
        if key not in _tensors:
            _tensors.clear()
            _tensors[key] = tensors(data.take(np.arange(data.ref.rows)))
        return _tensors[key]


def forget_rows() -> None:
    """Release the rows of the last search of this process."""
    with _tensors_lock:
        _tensors.clear()


class _Training:
    """The epochs of one trial."""

    def __init__(self, model: keras.Model, rows: _Rows, batch_size: int) -> None:
        self._model, self._rows, self._batch = model, rows, batch_size
        self._training = StepLoop(model, model.train_step)
        self._testing = StepLoop(model, model.test_step)
        self._steps = rounds.steps(len(rows.training.rows), batch_size)
        self._sized = len(rows.training.rows) % batch_size == 0  # as Keras' `fit` tells its steps

    def run(self, epochs: int, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Trains until the last epoch, or until a callback stops the training."""
        hooks = keras.callbacks.CallbackList(
            list(callbacks), model=self._model, epochs=epochs, steps=self._steps, verbose=0
        )
        hooked = {
            hook for callback in callbacks for hook in (*_BATCH_HOOKS, *_TEST_BATCH_HOOKS) if _own_hook(callback, hook)
        }
        logs: dict[str, Any] = {}
        self._model.stop_training = False
        hooks.on_train_begin()
        for epoch in range(epochs):
            hooks.on_epoch_begin(epoch)
            logs = self._epoch(epoch, hooks, hooked)
            hooks.on_epoch_end(epoch, logs)
            if self._model.stop_training:
                break
        hooks.on_train_end(logs)

    def _epoch(self, epoch: int, hooks: keras.callbacks.CallbackList, hooked: set[str]) -> dict[str, Any]:
        model, rows = self._model, self._rows
        model.reset_metrics()
        order = rows.training.order(epoch)
        if hooked.intersection(_BATCH_HOOKS):
            self._train_by_batch(order, hooks)
        elif rows.resident is not None:
            structure = rows.training.structure
            self._training.run(
                rows.resident, structure, row_numbers(order), self._batch, 0, self._steps, sized=self._sized
            )
        else:
            for columns, steps in rows.training.chunks(order, 0, self._steps):
                self._steps_of(columns, steps)
        logs = metrics_of(model)
        held, held_rows = (rows.training, rows.training.validation_rows)
        if rows.validation is not None:
            held, held_rows = rows.validation, rows.validation.rows
        if len(held_rows):
            model.reset_metrics()
            hooks.on_test_begin()
            if hooked.intersection(_TEST_BATCH_HOOKS):
                self._test_by_batch(held, held_rows, hooks)
            else:
                run_in_chunks(self._testing, held, held_rows, self._batch, sized=len(held_rows) % self._batch == 0)
            results = evaluated_metrics(model)
            hooks.on_test_end(results)
            logs |= {f"val_{name}": value for name, value in results.items()}
        return freshly_named(model, logs)

    def _train_by_batch(self, order: Any, hooks: keras.callbacks.CallbackList) -> None:
        for step in range(self._steps):
            hooks.on_train_batch_begin(step)
            self._steps_of(self._rows.training.take(order[step * self._batch : (step + 1) * self._batch]), 1)
            hooks.on_train_batch_end(step, freshly_named(self._model, metrics_of(self._model)))
            if self._model.stop_training:
                break

    def _test_by_batch(self, held: ShardData, rows: Integers, hooks: keras.callbacks.CallbackList) -> None:
        for step in range(rounds.steps(len(rows), self._batch)):
            hooks.on_test_batch_begin(step)
            batch, sized = rows[step * self._batch : (step + 1) * self._batch], len(rows) % self._batch == 0
            run_in_chunks(self._testing, held, batch, self._batch, sized=sized)
            hooks.on_test_batch_end(step, freshly_named(self._model, evaluated_metrics(self._model)))

    def _steps_of(self, columns: Sequence[Any], steps: int) -> None:
        in_order = row_numbers(len(columns[0]))
        self._training.run(
            tensors(columns), self._rows.training.structure, in_order, self._batch, 0, steps, sized=self._sized
        )


def _own_hook(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a callback has a hook of its own: its class's, or one that was set on it, as LambdaCallback does."""
    inherited = getattr(type(callback), hook, None) is getattr(keras.callbacks.Callback, hook, None)
    return hook in vars(callback) or not inherited


def _seen(history: Sequence[Mapping[str, float]], name: str) -> str:
    if not history or name not in history[-1]:
        names = ", ".join(sorted(history[-1])) if history else "nothing"
        return f"not among the logs ({names})"
    return f"{[logs.get(name) for logs in history]}"


def _is_number(value: object) -> bool:
    """Whether a logged value is one number: callbacks may log text and arrays, too."""
    try:
        return np.ndim(value) == 0 and not isinstance(value, str) and float(value) is not None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def checked(model: object) -> keras.Model:
    """The model that a user's `build` returned, with an optimizer that was built for no other model.

    Raises:
        TypeError: it is none. ValueError: it is not compiled. ElephasError: it prepares rows in a `fit` of its own.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"build(params) must return a compiled keras.Model; got {type(model).__name__}.")
    if not model.compiled:
        raise ValueError(f"build(params) must return a compiled model; {model.name!r} is not. Call model.compile(...).")
    check_rows_are_kept(model, prepared=True)
    give_own_optimizer(model)
    return model


def check_labels(model: keras.Model, shards: Sequence[ShardRef]) -> None:
    """Nothing, if the labels in all shards are what a built model takes.

    Raises:
        DataError: they are not, with the place of the first.
    """
    rules = label_rules(model)
    for shard in shards:
        check_shard_labels(rules, shard, "the data")


_tidied = time.monotonic()


def tidy() -> None:
    """Frees the models of trials that are over: traced graphs are cycles. Now and then, since it takes tenths of a second."""
    global _tidied
    if time.monotonic() > _tidied + TIDY_SECONDS:
        gc.collect()
        _tidied = time.monotonic()


def file_of(model: keras.Model) -> tuple[bytes, str]:
    """A model as a file of Keras', and that file's suffix: weights alone where Keras cannot save the architecture."""
    try:
        return archive_of(model), ".keras"
    except ElephasError:
        with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            path = Path(folder) / "model.weights.h5"
            model.save_weights(path)
            return path.read_bytes(), ".weights.h5"


def restore(model: keras.Model, path: Path, sample: tuple[object, ...] | None) -> keras.Model:
    """A freshly built model with the trained state of a file that `file_of` gave. Nothing in the file is executed.

    Args:
        sample: a batch of one row, as it was given; None for models that know their inputs.

    Raises:
        ValueError: there is no sample, and the model does not know its inputs.
    """
    if sample is not None:
        build(model, prepared_sample(model, sample))
    elif not build_optimizer(model):
        raise ValueError(f"the model {model.name!r} does not know its inputs: begin it with keras.Input(shape).")
    begun = [(variable, array_of(variable)) for variable in _adapters(model)]
    model.load_weights(path)
    for variable, value in begun:
        variable.assign(value)
    return model


def _adapters(model: keras.Model) -> list[keras.Variable]:
    """The first factors of LoRA's updates. Keras adds an update to the layer's kernel when it saves, and loads zeros for both
    factors, neither of which a step moves then; the second one alone is zero where an update begins.
    """
    return [
        variable
        for layer in layers_of(model)
        if getattr(layer, "lora_enabled", False)
        for variable in layer.variables
        if variable.name.startswith("lora_") and variable.name.endswith("_a")
    ]


class TrialCallback(keras.callbacks.Callback):
    """Reports a trial's epochs, stops it when told to, and keeps the state of the epoch with the lowest loss.

    Args:
        callbacks: the others of the trial.
    """

    def __init__(
        self, objective: Objective, report: Report, callbacks: Sequence[keras.callbacks.Callback] = ()
    ) -> None:
        super().__init__()
        # It puts the averages in place of the weights while these are validated, and nobody has seen them since.
        self._averages = any(
            isinstance(each, keras.callbacks.SwapEMAWeights) and not each.swap_on_epoch for each in callbacks
        )
        self.history: list[dict[str, float]] = []
        self._loss, self._epoch, self._stopped = math.inf, -1, False
        self._broken: int | None = None
        self._objective, self._report = objective, report
        self._variables: Variables | None = None
        self._state: TrainState | None = None

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports the epoch. The objective of a model whose weights are NaN counts as NaN: its accuracy may be any number."""
        self.history.append({name: float(value) for name, value in (logs or {}).items() if _is_number(value)})
        reported, loss = self.history[-1], self._objective.loss(self.history[-1])
        if loss < self._loss:
            self._variables = self._variables or Variables(self.model)
            state = self._variables.read()
            if finite(state.weights):
                self._loss, self._epoch, self._state = loss, epoch, state
            else:
                self._broken = epoch if self._broken is None else self._broken
                reported = reported | {self._objective.name: math.nan}
        if not self._report(epoch, reported):
            self._stopped = self.model.stop_training = True

    def result(self, order: TrialOrder, model: keras.Model, started: float, host: str) -> TrialResult:
        """The trial's result, whose model has the best epoch's state.

        Args:
            started: the time of `perf_counter` when the trial began.

        Raises:
            ElephasError: no epoch had a finite loss, or finite weights.
        """
        if self._state is None and self._broken is not None:
            raise NonFiniteError(
                f"the model's weights are NaN or infinity after epoch {self._broken + 1}. Look for a learning rate that is too high, a loss "
                "that takes log(0), or NaN among the rows."
            )
        if self._state is None:
            name = self._objective.name
            raise ElephasError(f"{name!r} was never a finite number; it was {_seen(self.history, name)}.")
        variables = self._variables if model is self.model else None
        (variables or Variables(model)).write(self._state)
        # Without validation rows nobody has put the averages in place of the weights.
        validated = any(name.startswith("val_") for name in self.history[self._epoch])
        if self._averages and validated and model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        kept, suffix = file_of(model) if order.wants_model(self._loss) else (b"", "")
        return TrialResult(
            order.number,
            TrialStatus.PRUNED if self._stopped else TrialStatus.OK,
            history=tuple(self.history),
            best_epoch=self._epoch,
            loss=self._loss,
            seconds=time.perf_counter() - started,
            host=host,
            model=kept,
            suffix=suffix,
        )
