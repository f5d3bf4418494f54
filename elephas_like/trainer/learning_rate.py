"""The learning rate of a state: its own number, or the value of the optimizer's schedule at the state's step."""

from __future__ import annotations

from collections.abc import Callable

import keras

from elephas_like.core.types import TrainState
from elephas_like.trainer.state import Variables, own_optimizer


def learning_rates(model: keras.Model) -> Callable[[TrainState, int], float]:
    """Return a function of (state, further steps): the optimizer's learning rate there; 1 without an optimizer.

    Args:
        model: compiled and built; not changed.
    """
    optimizer, variables = own_optimizer(model), Variables(model)

    def place(name: str) -> int | None:
        held = next((variable for variable in getattr(optimizer, "variables", []) if variable.name == name), None)
        return None if held is None else variables.place(held).start

    # Keras has no public name for the schedule or function itself: the property gives its current value.
    given = getattr(optimizer, "_learning_rate", None)
    if not callable(given) or isinstance(given, keras.Variable):
        held = place("learning_rate")
        return lambda state, steps: 1.0 if held is None else float(state.learning_rate[held])
    if not isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        return lambda state, steps: float(keras.ops.convert_to_numpy(given()))
    schedule = given
    counter = place("iteration")

    def rate(state: TrainState, steps: int) -> float:
        begun = 0 if counter is None else int(state.counters[counter])
        return float(keras.ops.convert_to_numpy(schedule(begun + steps)))

    return rate
