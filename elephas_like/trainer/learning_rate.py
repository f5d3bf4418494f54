"""The learning rate of a state: its own number, or what the optimizer's schedule gives at the state's step."""

from __future__ import annotations

from collections.abc import Callable

import keras

from elephas_like.core.types import TrainState
from elephas_like.trainer.state import Variables, own_optimizer


def learning_rates(model: keras.Model) -> Callable[[TrainState, int], float]:
    """A function of (a state, further steps) that gives the optimizer's learning rate there; 1 where it has none.

    Args:
        model: compiled and built. Nothing of it is changed.
    """
    optimizer, variables = own_optimizer(model), Variables(model)

    def place(name: str) -> int | None:
        held = next((variable for variable in getattr(optimizer, "variables", []) if variable.name == name), None)
        return None if held is None else variables.place(held).start

    config = optimizer.get_config().get("learning_rate") if optimizer is not None else None
    if not isinstance(config, dict):
        held = place("learning_rate")
        return lambda state, steps: 1.0 if held is None else float(state.learning_rate[held])
    schedule = keras.optimizers.schedules.deserialize(config)
    counter = place("iteration")

    def rate(state: TrainState, steps: int) -> float:
        begun = 0 if counter is None else int(state.counters[counter])
        return float(keras.ops.convert_to_numpy(schedule(begun + steps)))

    return rate
