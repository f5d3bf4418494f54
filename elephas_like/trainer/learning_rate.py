"""The learning rate of a state: its own number, or the value of the optimizer's schedule at the state's step."""

from __future__ import annotations

from typing import Any

import cloudpickle
import keras

from elephas_like.core.types import TrainState
from elephas_like.trainer.building import own_optimizer
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.state import Variables


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

        # Keras has no public name for the schedule or function itself: the property gives its current value.
        given = getattr(optimizer, "_learning_rate", None)
        self._given: Any = given if callable(given) and not isinstance(given, keras.Variable) else None
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
