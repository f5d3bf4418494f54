"""Any Keras optimizer as the outer step. It runs on the driver; workers only receive its configuration."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np

from elephas_like.core.strategies.algebra import Context, OuterState, Strategy
from elephas_like.core.types import Vector

_cache: dict[tuple[str, int, str], tuple[keras.optimizers.Optimizer, keras.Variable]] = {}
"""The optimizers of this process by configuration and size. Each step sets all their variables, so they may be shared."""
_OPTIMIZERS_CACHED = 2
_lock = threading.Lock()


@dataclass(frozen=True, init=False)
class KerasOuter(Strategy):
    """A Keras optimizer steps the weights, with minus the direction as their gradient: x <- optimizer(x, -d).

    `KerasOuter(keras.optimizers.SGD(1.0, momentum=0.7, nesterov=True))` is `Nesterov()`, and
    `KerasOuter(keras.optimizers.Adam(0.01))` an outer Adam with Keras' bias correction. Learning rates are those of the
    outer step: for SGD near 1. FedOpt of Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295.

    All weights are one variable to it, so what works by layers (Muon, LAMB) does not. What it remembers is its own
    variables, in their order.

    Args:
        optimizer: not changed; its settings are taken. reduce: as for every strategy.

    Raises:
        TypeError: no Keras optimizer.
    """

    name: ClassVar[str] = "keras"
    config: str = ""

    def __init__(self, optimizer: keras.optimizers.Optimizer, *, reduce: object = None) -> None:
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(f"KerasOuter takes a Keras optimizer; got {optimizer!r}.")
        settings = keras.optimizers.serialize(optimizer)
        settings["config"].pop("name", None)  # numbered anew for each object
        object.__setattr__(self, "config", json.dumps(settings, sort_keys=True))
        object.__setattr__(self, "reduce", reduce)
        self.__post_init__()

    def init(self, weights: Vector) -> OuterState:
        """Return the variables of a new optimizer, counters included."""
        fresh = keras.optimizers.deserialize(json.loads(self.config))
        fresh.build([keras.Variable(np.zeros_like(weights), dtype=weights.dtype.name)])
        return _read(fresh)

    def step(
        self, weights: Vector, direction: Vector, outer: OuterState, context: Context
    ) -> tuple[Vector, OuterState]:
        """Apply one step of the optimizer, whose variables are set from `outer`."""
        with _lock:  # several fits may run at the same time
            optimizer, variable = self._optimizer(weights.size, weights.dtype.name)
            for place, mine in enumerate(optimizer.variables):
                mine.assign(outer[_key(place)].reshape(mine.shape))
            variable.assign(weights)
            optimizer.apply([keras.ops.convert_to_tensor(-direction)], [variable])
            return np.array(keras.ops.convert_to_numpy(variable.value)), _read(optimizer)

    def _optimizer(self, size: int, dtype: str) -> tuple[keras.optimizers.Optimizer, keras.Variable]:
        key = (self.config, size, dtype)
        if key not in _cache:
            while len(_cache) >= _OPTIMIZERS_CACHED:
                _cache.pop(next(iter(_cache)))
            optimizer = keras.optimizers.deserialize(json.loads(self.config))
            variable = keras.Variable(np.zeros(size), dtype=dtype)
            optimizer.build([variable])
            _cache[key] = (optimizer, variable)
        return _cache[key]


def _read(optimizer: keras.optimizers.Optimizer) -> OuterState:
    """Return the optimizer's variables as flat arrays, by position: their names are numbered anew in each process."""
    return {
        _key(place): np.array(keras.ops.convert_to_numpy(variable.value)).ravel()
        for place, variable in enumerate(optimizer.variables)
    }


def _key(place: int) -> str:
    return f"variable{place}"
