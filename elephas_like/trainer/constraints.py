"""Weight constraints: what the layers of a model allow their weights to be, kept by averages and outer steps too."""

from __future__ import annotations

from typing import Any

import cloudpickle
import keras

from elephas_like.core.types import Role, Vector
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.state import Variables


class WeightConstraints:
    """A function of the flat vector of a model's weights: the nearest ones that its constraints allow. Picklable.

    Keras applies a variable's constraint after each step of the optimizer. The mean of weights that obey one need not obey it
    (`UnitNorm`), and neither need weights that an outer step has moved on (`NonNeg`).

    Args:
        model: compiled and built; not changed.
        variables: the model's, where they are known, as to find them takes a walk through it.
    """

    def __init__(self, model: keras.Model, variables: Variables | None = None) -> None:
        variables = variables or Variables(model)
        self._bound: list[tuple[slice, tuple[int, ...], Any]] = [
            (variables.place(each), tuple(each.shape), each.constraint)
            for each in model.trainable_variables
            if getattr(each, "constraint", None) is not None and variables.role(each) is Role.WEIGHT
        ]

    def __call__(self, weights: Vector) -> Vector:
        """Return the constrained weights; the same vector if no variable has a constraint."""
        if not self._bound:
            return weights
        found = weights.copy()
        for place, shape, constraint in self._bound:
            allowed = constraint(keras.ops.convert_to_tensor(weights[place].reshape(shape)))
            found[place] = keras.ops.convert_to_numpy(allowed).ravel()
        return found

    def __getstate__(self) -> dict[str, object]:
        """Return what it knows, with constraints of the user's own by value."""
        places = [(place, shape) for place, shape, _ in self._bound]
        return {"places": places, "constraints": pickle_by_value([constraint for *_, constraint in self._bound])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it."""
        constraints = cloudpickle.loads(state["constraints"])  # our own driver's
        self._bound = [(*place, each) for place, each in zip(state["places"], constraints, strict=True)]
