"""Trials of any Python function, on executors that need neither Keras nor TensorFlow for it."""

from __future__ import annotations

import inspect
import math
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from elephas_like.core.errors import ElephasError, Failure, SupersededError
from elephas_like.core.objective import Objective
from elephas_like.core.trials import Evaluate, Report, TrialOrder, TrialResult, TrialStatus, notes_of, number_of
from elephas_like.core.types import ShardRef
from elephas_like.engine.function_settings import FunctionSettings


def failed(number: int, error: BaseException, host: str = "") -> TrialResult:
    """Return the result of a trial that ended with an error."""
    return TrialResult(number, TrialStatus.FAILED, host=host, failure=Failure.of(number, error))


def tried(evaluate: Evaluate, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
    """Return the result of a trial; what it raises is a result too, and says on which host."""
    try:
        return evaluate(order, shards, report)
    except SupersededError:
        raise  # an attempt that returned would become the task's result
    except Exception as error:
        return failed(order.number, error, platform.node())


class Trial:
    """A running trial, as a function that has a parameter `trial` gets it.

    number: of the trial, from 0. params: what the function gets as its first argument.
    seed: a number that depends on the search's seed and the trial's number. NumPy's and Python's generators are seeded already.
    """

    def __init__(self, order: TrialOrder, seed: int, objective: Objective, report: Report) -> None:
        self.number, self.params, self.seed = order.number, order.params, seed
        self.history: list[dict[str, float]] = []
        self._objective, self._report, self._stopped = objective, report, False

    def report(self, value: float, **more: float) -> bool:
        """Report an intermediate value of the objective. Return whether to go on.

        Once this is False the trial counts as pruned, whatever the function returns or raises: return at once.

        Args:
            more: further numbers to keep beside it, for `history` in the table of trials.
        """
        given = {self._objective.name: value, **more}
        logs = {name: number_of(f"trial.report()'s {name!r}", number) for name, number in given.items()}
        self.history.append(logs)
        if not self._stopped:
            self._stopped = not self._report(len(self.history) - 1, logs)
        return not self._stopped

    def should_prune(self) -> bool:
        """Return whether the last report was answered with "stop"."""
        return self._stopped


def takes_trial(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter called `trial`."""
    try:
        return "trial" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled, without a signature
        return False


@dataclass(frozen=True)
class ObjectiveTrial:
    """Calls `function(params)`, or `function(params, trial=trial)` (core.trials.Evaluate).

    function: a cloudpickle of a list of one; or the function itself, where all trials are in this process.
    settings: of Keras', to call it under; None for those of the process.
    """

    function: bytes | Callable[..., object] = field(repr=False)
    objective: Objective
    seed: int
    with_trial: bool
    settings: FunctionSettings | None = None

    def __call__(self, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        """Return the result of one point."""
        started = time.perf_counter()
        seed = int(np.random.SeedSequence([self.seed, order.number]).generate_state(1)[0])
        trial = Trial(order, seed, self.objective, report)
        # Bytes are our driver's own, handed over by Spark.
        function = self.function if callable(self.function) else cloudpickle.loads(self.function)[0]
        found: object = None
        before = np.random.get_state(), random.getstate()
        np.random.seed(seed)
        random.seed(seed)
        try:
            with nullcontext() if self.settings is None else self.settings.applied():
                found = function(order.params, trial=trial) if self.with_trial else function(order.params)
        except SupersededError:
            raise
        except Exception:
            if not trial.should_prune():  # else that is how the function ended, having been told to
                raise
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])
        return _result(order.number, found, trial, self.objective, time.perf_counter() - started)


def _result(number: int, found: object, trial: Trial, objective: Objective, seconds: float) -> TrialResult:
    losses = objective.losses(trial.history)
    best = min(range(len(losses)), key=losses.__getitem__, default=None)
    status, failure = TrialStatus.OK, None
    notes: dict[str, object] = {}
    loss: float | None
    if trial.should_prune():
        loss, status = None if best is None else losses[best], TrialStatus.PRUNED
    elif found is None and best is not None:
        loss = losses[best]
    else:
        value, text, notes = read_value(found, objective.name, maximized=objective.maximize)
        loss = math.inf if value is None else objective.loss({objective.name: value})
        if text is not None:
            failure = Failure("TrialFailed", text, "", number)
    if loss is not None and not math.isfinite(loss):
        loss = None
        if status is TrialStatus.OK and failure is None:
            failure = Failure("TrialFailed", f"{objective.name!r} was never a finite number.", "", number)
    history = list(trial.history)
    if loss is not None and (not history or (objective.more and isinstance(found, Mapping))):
        given = found if isinstance(found, Mapping) else {}
        also = [one.name for one in objective.more if given.get(one.name) is not None]
        numbers = {name: number_of(f"the function's {name!r}", given[name]) for name in also}
        history.append({objective.name: objective.value(loss), **numbers})
        best = len(history) - 1  # what was returned counts
    if loss is not None and status is TrialStatus.OK:
        missing = [one.name for one in objective.more if one.name not in history[best or 0]]
        if missing:
            text = f"the function gave no {missing[0]!r}, which is one of the objectives: return a dict that has it."
            failure, loss = Failure("TrialFailed", text, "", number), None
    return TrialResult(
        number,
        status if failure is None else TrialStatus.FAILED,
        history=tuple(history),
        best_epoch=None if loss is None else best or 0,
        loss=loss,
        seconds=seconds,
        host=platform.node(),
        failure=failure,
        notes=notes,
    )


def read_value(
    found: object, name: str, *, maximized: bool = False
) -> tuple[float | None, str | None, dict[str, object]]:
    """Return (value, why it failed, the rest that is plain data) of what a function returned.

    A number, or a dict as hyperopt's functions return it: the objective under its name, or as `loss` if it is minimized, and perhaps
    `status`.

    Raises:
        TypeError: it is neither. ElephasError: a dict without the objective.
    """
    if isinstance(found, int | float | np.number) and not isinstance(found, bool):
        return float(found), None, {}
    if not isinstance(found, Mapping):
        raise TypeError(
            f"the function must return a number, or a dict with {name!r}; got {type(found).__name__}. A function that "
            "returns a Keras model needs data to train it on: search(build, space, data, max_evals=...)."
        )
    notes = notes_of(found, (name, "loss", "status"))
    status = found.get("status", "ok")
    if status != "ok":
        why = found.get("error", found.get("message", "no reason given"))
        return None, f"the function returned status {status!r}: {why}", notes
    key = name if name in found else "loss"
    if key != name and maximized and key in found:
        raise ElephasError(
            f"the function's dict must have {name!r}, which is maximized; it has 'loss', which is minimized. Return it under its name, or "
            "leave objective= out."
        )
    if key not in found:
        raise ElephasError(f"the function's dict must have {name!r}; got {sorted(map(str, found))}.")
    return number_of(f"the function's {key!r}", found[key]), None, notes
