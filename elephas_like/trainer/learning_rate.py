"""The learning rate of a state: its own number, or the value of the optimizer's schedule at the state's step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import keras

from elephas_like.core.types import TrainState
from elephas_like.trainer.building import own_optimizer
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.state import Variables


class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose rates are multiplied by a factor."""

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float) -> None:
        super().__init__()
        self.schedule, self.factor = schedule, factor

    def __call__(self, step: Any) -> Any:
        """Return the rate at a step."""
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        """Return what makes the same again."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "factor": self.factor}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledSchedule:
        """Return the schedule of a config."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["factor"])


@contextmanager
def scaled_learning_rate(model: keras.Model, factor: float) -> Iterator[None]:
    """Multiply a model's learning rate, a number or a schedule, for a while.

    What becomes of a number meanwhile, by callbacks, is divided by the factor afterwards.

    Raises:
        TypeError: the rate is a function of the user's own.
    """
    optimizer: Any = own_optimizer(model)
    if optimizer is None or factor == 1.0:
        yield
        return
    given = _given_rate(optimizer)
    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        optimizer.learning_rate = ScaledSchedule(given, factor)
        try:
            yield
        finally:
            optimizer.learning_rate = given
        return
    if given is not None:
        raise TypeError(
            "scale_learning_rate takes a learning rate that is a number or a schedule; the optimizer's is a function. Scale it there."
        )
    before = float(optimizer.learning_rate)
    optimizer.learning_rate = before * factor
    meant = float(optimizer.learning_rate)
    try:
        yield
    finally:
        after = float(optimizer.learning_rate)
        optimizer.learning_rate = before if after == meant else after / factor


def _given_rate(optimizer: Any) -> Any:
    """The schedule or function that an optimizer takes its rate from; None if it has a number.

    Keras has no public name for it: the property gives its current value.
    """
    given = getattr(optimizer, "_learning_rate", None)
    return given if callable(given) and not isinstance(given, keras.Variable) else None


def step_counters(variables: Variables) -> list[slice]:
    """Return where the optimizers' step counters lie among a state's counters; nowhere if a schedule reads one."""
    if any(_given_rate(optimizer) is not None for optimizer in variables.optimizers):
        return []
    counters = [each for optimizer in variables.optimizers for each in optimizer.variables if each.name == "iteration"]
    return [variables.place(counter) for counter in counters]


class LearningRates:
    """A function of (state, further steps): the optimizer's learning rate there; 1 without an optimizer. Picklable.

    Args:
        model: compiled and built; not changed.
    """

    def __init__(self, model: keras.Model) -> None:
        optimizer, variables = own_optimizer(model), Variables(model)

        def place(name: str) -> int | None:
            held = next((variable for variable in getattr(optimizer, "variables", []) if variable.name == name), None)
            return None if held is None else variables.place(held).start

        self._given: Any = _given_rate(optimizer)
        self._held, self._counter = place("learning_rate"), place("iteration")

    def __call__(self, state: TrainState, steps: int) -> float:
        """Return the learning rate of a state, so many steps later."""
        if self._given is None:
            return 1.0 if self._held is None else float(state.learning_rate[self._held])
        if not isinstance(self._given, keras.optimizers.schedules.LearningRateSchedule):
            return float(keras.ops.convert_to_numpy(self._given()))
        begun = 0 if self._counter is None else int(state.counters[self._counter])
        return float(keras.ops.convert_to_numpy(self._given(begun + steps)))

    def __getstate__(self) -> dict[str, object]:
        """Return what it knows, with a schedule of the user's own by value."""
        return {**vars(self), "_given": None if self._given is None else pickle_by_value(self._given)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it."""
        given = state["_given"]
        vars(self).update({**state, "_given": None if given is None else cloudpickle.loads(given)})  # our own driver's
