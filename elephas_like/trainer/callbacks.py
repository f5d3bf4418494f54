"""The driver's side of a fit: Keras callbacks on the user's model, with the averaged state and global metrics.

State is read and written in the order of Keras' own fit: `on_train_begin` may load state, `on_epoch_begin` and
`on_epoch_end` may change weights, learning rate and `stop_training`. Nothing is written after `on_train_end`, or
`restore_best_weights` would be undone.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import keras
import numpy as np

from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.fit_monitor import FitMonitor
from elephas_like.core.html import history_table
from elephas_like.core.loop import is_due
from elephas_like.core.monitoring import Snapshot
from elephas_like.core.pieces import same_bits
from elephas_like.core.report import write_report
from elephas_like.core.types import Array, EpochRecord, Floats, Role, RoundRecord, TrainState
from elephas_like.trainer.bars import Bar, EpochBar, epoch_line, number_text
from elephas_like.trainer.callback_checks import is_of_the_user
from elephas_like.trainer.compile_arguments import compiled_anew, compiled_with
from elephas_like.trainer.graph import plain_attributes
from elephas_like.trainer.learning_rate import ScaledVariables, given_rates, scaled_schedules, step_counters
from elephas_like.trainer.metric_results import build_loss, build_metrics, metric_results
from elephas_like.trainer.metric_sums import not_summable, own_metrics
from elephas_like.trainer.own_optimizers import check_knows_weights
from elephas_like.trainer.state import Variables

_TEST_HOOKS = ("on_test_begin", "on_test_end")


class History(keras.callbacks.History):
    """Keras' History, which notebooks show as a table.

    report: all that is known of the fit, as the training page shows it; None until the fit has ended.
    """

    report: Snapshot | None = None
    metrics: frozenset[str] = frozenset()
    """What the fit itself has logged; all else is logged by callbacks, whenever they like."""
    validation_freq: int | tuple[int, ...] = 1
    _earlier: frozenset[str] | None = None
    """The metrics of a checkpoint's fit; None for a fit that began here."""

    def go_on(
        self,
        logs: dict[str, list[Any]],
        epoch: Sequence[int],
        epoch_seconds: Sequence[float],
        metrics: Iterable[str] | None = None,
    ) -> None:
        """Begin with what a checkpoint's fit has logged. `metrics` are the names that were not its callbacks'; None, of an old file: all."""
        self.history, self.epoch, self.epoch_seconds = logs, list(epoch), list(epoch_seconds)
        self._earlier = frozenset(logs if metrics is None else metrics).intersection(logs)
        self.metrics = self._earlier

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add an epoch. Metrics that only the checkpoint's fit had, or only this one has, are NaN in the epochs of the other."""
        new = {name: self._epochs_without(name) for name in self.metrics.difference(self.history)}
        super().on_epoch_end(epoch, logs)
        if self._earlier is None:
            return
        for name in new:
            self.history[name][:0] = [math.nan] * new[name]
        for name in self._earlier.difference(logs or {}):
            if self._is_due(name, epoch):
                self.history[name].append(math.nan)

    def _epochs_without(self, name: str) -> int:
        """Return how many epochs of the checkpoint's fit would have had a metric: as many as had one of its kind, if any had."""
        alike = [
            len(self.history[each]) for each in self._earlier or () if _is_validation(each) is _is_validation(name)
        ]
        return max(alike) if alike else sum(self._is_due(name, epoch) for epoch in self.epoch)

    def _is_due(self, name: str, epoch: int) -> bool:
        return not _is_validation(name) or is_due(self.validation_freq, epoch)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the training page of the fit to a file: HTML that needs no server and no network.

        Raises:
            ElephasError: the fit has not ended.
        """
        if self.report is None:
            raise ElephasError(
                "there is no report: expected the History of a fit that has ended, as SparkModel.fit returns it."
            )
        write_report(path, self.report)

    def __repr__(self) -> str:
        """The number of epochs, and what the last one had."""
        last = ", ".join(
            f"{name}: {number_text(each[-1])}" for name, each in self.history.items() if isinstance(each[-1], float)
        )
        return f"History({len(getattr(self, 'epoch', ()))} epochs{'; ' if last else ''}{last})"

    def _repr_html_(self) -> str:
        """Loss and metrics by epoch."""
        return history_table(repr(self), self.history)


def _is_validation(name: str) -> bool:
    return name.startswith("val_")


@dataclass
class DriverHooks:
    """Calls callbacks on the driver around rounds and epochs (core.loop.Hooks).

    model: the user's model, compiled and built; it receives the state at the end of each epoch.
    verbose: 0 silent, 1 a bar while an epoch lasts and a line at its end, 2 the line alone.
    rows, steps: of an epoch; known once all workers have joined.
    sample: a batch of one row, of which only structure, dtypes and shapes matter; metrics are built from it.
    monitor: what people are told of the fit.
    sizes: bytes of what an exchange moves, which callbacks get with Keras' own `params`.
    rate_factor: what the model's learning rate is multiplied by for the workers. States have that rate, the model has its own.
    keeps_slots: whether workers keep optimizer slots of their own from round to round.
    validation_freq: epochs between validations, or those that end with one, as in Keras.

    A callback with a method `on_round_end(record)` is told of every round.
    """

    model: keras.Model
    callbacks: Sequence[keras.callbacks.Callback]
    epochs: int
    verbose: int
    rows: int = 0
    steps: int | None = None
    sample: tuple[object, ...] | None = None
    history: History = field(default_factory=History)
    monitor: FitMonitor = field(default_factory=lambda: FitMonitor(time.perf_counter, time.time))
    sizes: Mapping[str, int] = field(default_factory=dict)
    rate_factor: float = 1.0
    keeps_slots: bool = False
    validation_freq: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        self.variables = self._variables()
        self._user_callbacks = [
            callback for callback in self.callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)
        ]
        self._list = keras.callbacks.CallbackList(
            [*self._user_callbacks, self.history],
            add_history=False,
            add_progbar=False,
            model=self.model,
            verbose=0,
            epochs=self.epochs,
            steps=self.steps,
        )
        self._terminates_on_nan = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in self._user_callbacks)
        tested = [callback for callback in self._user_callbacks if _has_test_hooks(callback)]
        self._has_tests = bool(tested)
        self._reads_tests_only = all(isinstance(callback, keras.callbacks.TensorBoard) for callback in tested)
        self._tested: TrainState | None = None
        self._met_nan = False
        self._told_of_rounds = [
            callback.on_round_end for callback in self._user_callbacks if hasattr(callback, "on_round_end")
        ]
        self._step_counters = step_counters(self.variables)
        self._compiled_with, self._trained = compiled_with(self.model), self._trainable()
        self._weights = list(self.model.trainable_variables)
        self._given_rates = given_rates(self.variables)
        self._noted_attributes = self._noted_slots = self._noted_late_test = self._noted_schedules = False
        self._awaits_metrics = True
        self._bar: EpochBar | None = None
        self.check_interrupt: Callable[[], None] = lambda: None
        self._epoch_started = 0.0
        self.history.epoch_seconds, self.history.validation_freq = [], self.validation_freq

    def planned(self, rows: int, steps: int, sample: tuple[object, ...] | None) -> None:
        """Set rows and steps per epoch and a sample row, once all workers have joined."""
        self.rows, self.steps, self.sample = rows, steps, sample
        self._list.set_params({"verbose": self.verbose, "epochs": self.epochs, "steps": steps, **self.sizes})

    @property
    def terminates_on_nan(self) -> bool:
        """Whether a NaN ends the training in an orderly way instead of raising."""
        return self._terminates_on_nan

    def train_begin(self, initial_epoch: int) -> tuple[TrainState, int]:
        """Call `on_train_begin`, which may load state. Return the state after it and the first epoch."""
        self.model.stop_training = False
        self.model.reset_metrics()
        restored = _restored_epoch(self.model, self._list.on_train_begin)
        self._check_not_recompiled(begun=False)
        if any(map(is_of_the_user, self._user_callbacks)):
            self._look_again()
        return self.variables.read(), restored or initial_epoch

    def _look_again(self) -> None:
        """Take in what `on_train_begin` has made of the model, which is sent as it is now: frozen and added layers, and schedules."""
        if self._trainable() != self._trained:
            check_knows_weights(self.model)
        found = self._variables()
        if found.layout != self.variables.layout or self._trainable() != self._trained or self._sets_schedules():
            self.variables, self._trained = found, self._trainable()
            self._weights = list(self.model.trainable_variables)
            self._step_counters, self._given_rates = step_counters(found), given_rates(found)

    def train_end(self, state: TrainState) -> None:
        """Load the final state, finalize it (EMA weights) and call `on_train_end`. Nothing is written afterwards."""
        self.close()
        self.variables.write(state)
        if self.model.optimizer is not None:
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)
        self._list.on_train_end(self.history.history and {k: v[-1] for k, v in self.history.history.items()})
        self.monitor.ended("finished")
        self.history.report = self.monitor.snapshot()

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def stopped(self) -> bool:
        """Return whether a callback has set `model.stop_training`. Raise KeyboardInterrupt if Python has dropped one."""
        self.check_interrupt()
        return bool(self.model.stop_training)

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        """Call `on_epoch_begin` and return the state with the callbacks' changes."""
        self._epoch_started = time.perf_counter()
        self.monitor.epoch_begin(epoch)
        self.model.reset_metrics()
        if self.verbose == 1:
            self._bar = EpochBar(f"Epoch {epoch + 1}/{self.epochs}", self.rows)
        return self._call_with_state(state, lambda: self._list.on_epoch_begin(epoch))

    def order_given(self) -> None:
        """Get loss and metrics ready while the workers train: at the end of the first epoch, where metrics are needed, all would wait for it."""
        self._ready_metrics()

    def _ready_metrics(self) -> None:
        """Build loss and metrics and warn of those that cannot be summed, once. Those that `compile` was given are not seen before."""
        if self._awaits_metrics and self.sample is not None:
            self._awaits_metrics = False
            with scaled_schedules(self.model, self.rate_factor):  # the workers' model
                build_metrics(self.model, self.sample)
                build_loss(self.model, self.sample)
            warn_of_metrics(self.model, self.sample)

    def round_end(self, record: RoundRecord, metrics: Floats) -> None:
        """Advance the bar; stop the training on NaN if TerminateOnNaN is among the callbacks; call `on_round_end`."""
        self.monitor.round_end(record)
        if self._terminates_on_nan and (
            any(worker.dropped and not worker.stale for worker in record.workers)
            or (record.loss is not None and not math.isfinite(record.loss))
        ):
            warnings.warn(
                f"round {record.round}: invalid loss, terminating training (TerminateOnNaN).", UserWarning, stacklevel=2
            )
            self.model.stop_training = self._met_nan = True
        if self._bar is not None:
            self._bar.update(record.samples, record.loss)
        for told in self._told_of_rounds:
            told(record)

    def loss_of(self, metrics: Floats) -> float | None:
        """Return the mean loss in metric sums, or None. Keras' loss tracker comes first, as (total, count)."""
        if metrics.size < 2 or not self._tracks_loss():
            return None
        return float(metrics[0] / metrics[1]) if metrics[1] else None

    def _tracks_loss(self) -> bool:
        return bool(self.model.metrics) and self.model.metrics[0].name == "loss"

    def evaluated(self, state: TrainState) -> TrainState:
        """Call `on_test_begin`. Return the state that it leaves for the evaluation, as of SwapEMAWeights with averages for weights."""
        if not self._has_tests:
            return state
        self._tested = self._test_begun(state)
        if self._tested is not state:
            self.variables.write(state)  # should the evaluation fail
        return self._tested

    def _test_begun(self, state: TrainState) -> TrainState:
        if self._reads_tests_only:
            self._list.on_test_begin()
            return state
        self.variables.write(state)
        before = self.variables.read()
        self._list.on_test_begin()
        changed = self._changed_since(before)
        return state.but(**changed) if changed else state

    def _test_end(self, state: TrainState, logs: Mapping[str, object]) -> TrainState:
        """Call `on_test_end` with the evaluated state in the model. Return what it leaves, which is trained on."""
        tested, self._tested = self._tested, None
        if tested is None:  # workers have evaluated without a word from the driver
            tested = self._test_begun(state)
            if tested is not state and not self._noted_late_test:
                self._noted_late_test = True
                warnings.warn(
                    "a callback has changed the model in on_test_begin, and the workers had evaluated it by then: with mode='asynchronous', "
                    "mode='hogwild' and engine='gang' no evaluation waits for the driver.",
                    ElephasWarning,
                    stacklevel=2,
                )
        elif tested is not state:
            self.variables.write(tested)
        if self._reads_tests_only:
            self._list.on_test_end(logs)
            return state
        after = self._call_with_state(tested, lambda: self._list.on_test_end(logs), loaded=True)
        left = {}
        for role in Role:
            was, now = state.part(role), after.part(role)
            # SwapEMAWeights swaps by sums and differences, to and fro: what it brings back is rounded.
            swapped = tested.part(role) is not was and np.allclose(now, was, rtol=1e-5, atol=1e-7, equal_nan=True)
            if now is not was and not swapped:
                left[role.value] = now
        found = state.but(**left) if left else state
        if found is not after:
            self.variables.write(found)
        return found

    def epoch_end(self, record: EpochRecord) -> TrainState:
        """Load the epoch's state into the model, call `on_epoch_end` with the logs, and return the state after it."""
        self._ready_metrics()
        state = record.state
        self.variables.write(state)  # before any result, which may read the model, such as its learning rate
        logs = metric_results(self.model, record.metrics, self.sample)
        met_nan, self._met_nan = self._met_nan, False
        if met_nan and self._tracks_loss():  # as in Keras' logs; the sums are those of the other rounds
            logs = {"loss": math.nan} | {name: value for name, value in logs.items() if name != "loss"}
        if record.validation is not None:
            found = metric_results(self.model, record.validation, self.sample, evaluated=True)
            logs |= {f"val_{name}": value for name, value in found.items()}
            if self._has_tests:
                state = self._test_end(state, found)
        self.history.metrics |= logs.keys()
        seconds = time.perf_counter() - self._epoch_started
        self.history.epoch_seconds.append(seconds)
        self.monitor.epoch_end(record.epoch, logs)
        self.close()
        if self.verbose:
            Bar.write(epoch_line(f"Epoch {record.epoch + 1}/{self.epochs}", seconds, record.samples, logs))
        self._epoch_started = time.perf_counter()
        return self._call_with_state(state, lambda: self._list.on_epoch_end(record.epoch, logs), loaded=True)

    def _call_with_state(self, state: TrainState, call: Callable[[], None], loaded: bool = False) -> TrainState:
        """Call hooks with `state` in the model, if the user has callbacks; return it with their changes.

        Parts that no callback changed are returned as they were: a variable of fewer bits would round them.

        Args:
            loaded: whether the model has the state already.
        """
        if self._user_callbacks and not loaded:
            self.variables.write(state)
        if not self._user_callbacks:
            call()
            return state
        before, plain = self.variables.read(), plain_attributes(self.model)
        call()
        self._check_not_recompiled()
        self._check_attributes(plain)
        changed = self._changed_since(before)
        counters = changed.get(Role.COUNTER.value, state.counters)
        if Role.SLOT.value in changed or any((counters[at] != state.counters[at]).any() for at in self._step_counters):
            self._note_slots()  # of slots that are zeros here a callback that clears them changes the step counter alone
        return state.but(**changed) if changed else state

    def _changed_since(self, before: TrainState) -> dict[str, Array]:
        """Return the parts of the model's state that are not what they were."""
        after = self.variables.read()
        return {role.value: after.part(role) for role in Role if not same_bits(before.part(role), after.part(role))}

    def _note_slots(self) -> None:
        """Warn, once, of slots that a callback has set amid a fit, where workers go on with their own."""
        if self.keeps_slots and 0 < self._done() < self.epochs and not self._noted_slots:
            self._noted_slots = True
            warnings.warn(
                "a callback has set variables of the optimizer (its slots), and workers that keep their own go on with those: until the next "
                "average (optimizer_state_every=), or to the end of the fit (optimizer_state='per_worker'). Leave these arguments out, and "
                "workers begin each round with what is set.",
                ElephasWarning,
                stacklevel=2,
            )

    def _done(self) -> int:
        return self.history.epoch[-1] + 1 if self.history.epoch else 0

    def _variables(self) -> Variables:
        return Variables(self.model) if self.rate_factor == 1.0 else ScaledVariables(self.model, self.rate_factor)

    def _trainable(self) -> list[int]:
        return [id(variable) for variable in self.model.trainable_variables]

    def _sets_schedules(self) -> bool:
        """Return whether a learning rate is of another schedule, or function, than it was."""
        now = given_rates(self.variables)
        return any(one is not other for one, other in zip(now, self._given_rates, strict=True))

    def _check_not_recompiled(self, *, begun: bool = True) -> None:
        """Do nothing if the model is compiled as it was when the fit began, as the workers' copies are; warn of frozen layers and new schedules.

        Args:
            begun: whether workers have copies already.

        Raises:
            ElephasError: a callback has compiled it anew, or taken weights out of it.
        """
        if compiled_anew(self.model, self._compiled_with):
            raise ElephasError(
                "a callback has compiled the model anew, and workers train on as it was compiled when the fit began. End the fit "
                "(model.stop_training = True), compile, and fit again: it goes on from the weights."
            )
        if begun and not self._noted_schedules and self._sets_schedules():
            self._noted_schedules = True
            warnings.warn(
                "a callback has given the optimizer a learning rate schedule, and workers train on with the rate, or the schedule, that it "
                "had when the fit began. Plain Keras, too, takes such a change in only in models that run eagerly. Set a number, set the schedule in "
                "on_train_begin, or compile with it.",
                ElephasWarning,
                stacklevel=2,
            )
        if begun and self._trainable() != self._trained:
            gone = {id(variable) for variable in self._weights}.difference(map(id, self.model.variables))
            if gone and self._done() < self.epochs and not self.model.stop_training:
                name = next(variable.path for variable in self._weights if id(variable) in gone)
                raise ElephasError(
                    f"a callback has taken {name!r} out of the model, as quantize and pop do, and workers train on with it: the model would not "
                    "get what they train. End the fit (model.stop_training = True), and change the model then."
                )
            self._trained = self._trainable()
            warnings.warn(
                "a callback has changed which layers are trainable, and workers train on those that were when the fit began. Plain "
                "Keras, too, takes such a change in when the model is compiled anew: end the fit, compile, and fit again.",
                ElephasWarning,
                stacklevel=2,
            )

    def _check_attributes(self, before: Mapping[str, object]) -> None:
        """Warn, once, of an attribute that a callback has set to another number or text: workers do not see it."""
        after = plain_attributes(self.model)
        changed = [name for name, value in before.items() if after.get(name) != value]
        if changed and not self._noted_attributes:
            self._noted_attributes = True
            warnings.warn(
                f"a callback has set {changed[0]} to {after.get(changed[0])!r}, and workers train on with {before[changed[0]]!r}: the "
                "model was sent to them when the fit began. Plain Keras, too, sees such a change only in models that run eagerly. Keep "
                "what changes from epoch to epoch in a variable, self.add_weight(..., trainable=False).",
                ElephasWarning,
                stacklevel=2,
            )


def _has_test_hooks(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback does something at the begin or the end of an evaluation."""
    return any(
        hook in vars(callback) or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in _TEST_HOOKS
    )


def warn_of_metrics(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Warn of the user's metrics whose values cannot be combined from those of several workers or rounds."""
    outside = [metric.name for metric in own_metrics(model) if not metric.variables]
    if outside:
        warnings.warn(
            f"the metrics {', '.join(map(repr, outside))} have no variables: what they keep in lists and other Python objects stays on the "
            "workers, and the fit's history has what they return before the first batch. Keep sums and counts in variables (add_variable), "
            "or compute them from predictions.",
            ElephasWarning,
            stacklevel=2,
        )
    names = not_summable(model, sample)
    if names:
        warnings.warn(
            f"the metrics {', '.join(map(repr, names))} do not add up over batches, as a maximum or a moving mean does not: "
            "their states are summed over rounds and workers, so that their values are not those of Keras' fit. Keep sums "
            "and counts, as keras.metrics.Mean does, or compute them from predictions.",
            ElephasWarning,
            stacklevel=2,
        )


def _restored_epoch(model: keras.Model, train_begin: Callable[[], None]) -> int | None:
    """Return the epoch that BackupAndRestore sets in `on_train_begin`, if it found a backup.

    BackupAndRestore stores it in a private attribute of the model, which Keras' fit reads too. It is used nowhere else
    here.
    """
    model._initial_epoch = None
    train_begin()
    return cast("int | None", model._initial_epoch)
