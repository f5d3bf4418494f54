"""The learning rate of a state, its own number or the value of the optimizer's schedule at the state's step, and how it is scaled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import keras

from elephas_like.core.types import Role, TrainState
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.own_optimizers import own_optimizers
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import array_of, value_of


@keras.saving.register_keras_serializable("elephas_like")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose rates are multiplied by a factor.

    Registered: files that worker callbacks write have it, and load where SparkModel was imported.
    """

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


class ScaledVariables(Variables):
    """A model's variables, whose states have its learning rate, or those of a MultiOptimizer, times a factor.

    The model keeps its own rate, which callbacks see, set and save; states have the rate that workers train with.

    Raises:
        TypeError: the rate is a function of the user's own.
    """

    def __init__(self, model: keras.Model, factor: float) -> None:
        super().__init__(model)
        self._factor = factor
        self._rates = [(rate, self.place(rate)) for rate in _rates(own_optimizers(model))]
        _scheduled(model)  # which raises

    def read(self) -> TrainState:
        """Return a copy of the values of all variables, rates scaled."""
        state = super().read()
        for variable, place in self._rates:
            state.learning_rate[place] = self._scaled(variable)
        return state

    def write(self, state: TrainState, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Assign a state, or some of its roles. A rate that is the model's own, scaled, leaves it as it is, to the bit."""
        if Role.LEARNING_RATE in roles:
            own = state.learning_rate.copy()
            for variable, place in self._rates:
                kept = own[place] == own.dtype.type(self._scaled(variable))
                own[place] = value_of(variable) if kept else own[place] / self._factor
            state = state.but(learning_rate=own)
        super().write(state, roles)

    def _scaled(self, variable: keras.Variable) -> float:
        return float(value_of(variable)) * self._factor


@contextmanager
def scaled_schedules(model: keras.Model, factor: float) -> Iterator[None]:
    """Multiply the schedules of a model's learning rates for a while. A rate that is a number stays as it is: states hold it.

    Raises:
        TypeError: the rate is a function of the user's own.
    """
    scheduled = [] if factor == 1.0 else _scheduled(model)
    try:
        for optimizer, schedule in scheduled:
            optimizer.learning_rate = ScaledSchedule(schedule, factor)
        yield
    finally:
        for optimizer, schedule in scheduled:
            optimizer.learning_rate = schedule


def _scheduled(model: keras.Model) -> list[tuple[Any, keras.optimizers.schedules.LearningRateSchedule]]:
    """Return a model's optimizers that have schedules, and these."""
    given = [(optimizer, _given_rate(optimizer)) for optimizer in own_optimizers(model)]
    given = [(optimizer, rate) for optimizer, rate in given if rate is not None]
    if all(isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) for _, rate in given):
        return given
    raise TypeError(
        "scale_learning_rate takes a learning rate that is a number or a schedule; the optimizer's is a function. Scale it there."
    )


def _rates(optimizers: Sequence[keras.optimizers.Optimizer]) -> list[keras.Variable]:
    """Return the variables of learning rates that are numbers."""
    return [held for optimizer in optimizers for held in optimizer.variables if held.name == "learning_rate"]


def _given_rate(optimizer: Any) -> Any:
    """The schedule or function that an optimizer takes its rate from; None if it has a number.

    Keras has no public name for it: the property gives its current value.
    """
    given = getattr(optimizer, "_learning_rate", None)
    return given if callable(given) and not isinstance(given, keras.Variable) else None


def given_rates(variables: Variables) -> list[object]:
    """Return the schedule or function from which each optimizer takes its rate; None for one that has a number."""
    return [_given_rate(optimizer) for optimizer in variables.optimizers]


def step_counters(variables: Variables) -> list[slice]:
    """Return where the optimizers' step counters lie among a state's counters; nowhere if a schedule reads one."""
    if any(given is not None for given in given_rates(variables)):
        return []
    counters = [each for optimizer in variables.optimizers for each in optimizer.variables if each.name == "iteration"]
    return [variables.place(counter) for counter in counters]


class LearningRates:
    """A function of (state, further steps): the optimizer's learning rate there; 1 without an optimizer. Picklable.

    Of several optimizers (a MultiOptimizer's), it is the largest rate: that of the weights that move fastest.

    Args:
        model: compiled and built; not changed.
        factor: what the model's schedules are multiplied by. A rate that is a number is the state's, which is scaled already.
        variables: the model's, where they are known, as to find them takes a walk through it.
    """

    def __init__(self, model: keras.Model, factor: float = 1.0, variables: Variables | None = None) -> None:
        variables = variables or Variables(model)
        self._rates = [_Rate(optimizer, variables, factor) for optimizer in own_optimizers(model)]

    def __call__(self, state: TrainState, steps: int) -> float:
        """Return the learning rate of a state, so many steps later."""
        return max((rate(state, steps) for rate in self._rates), default=1.0)


class _Rate:
    """The same of one optimizer."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Variables, factor: float) -> None:
        def place(name: str) -> int | None:
            held = next((variable for variable in optimizer.variables if variable.name == name), None)
            return None if held is None else variables.place(held).start

        self._given: Any = _given_rate(optimizer)
        self._factor = factor
        self._held, self._counter = place("learning_rate"), place("iteration")

    def __call__(self, state: TrainState, steps: int) -> float:
        """Return the learning rate of a state, so many steps later."""
        if self._given is None:
            return 1.0 if self._held is None else float(state.learning_rate[self._held])
        if not isinstance(self._given, keras.optimizers.schedules.LearningRateSchedule):
            return float(array_of(self._given()))
        begun = 0 if self._counter is None else int(state.counters[self._counter])
        return float(array_of(self._given(begun + steps))) * self._factor

    def __getstate__(self) -> dict[str, object]:
        """Return what it knows, with a schedule of the user's own by value."""
        return {**vars(self), "_given": None if self._given is None else pickle_by_value(self._given)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it."""
        given = state["_given"]
        vars(self).update({**state, "_given": None if given is None else cloudpickle.loads(given)})  # our own driver's
