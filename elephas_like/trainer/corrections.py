"""What a worker adds to its weights after every step, as variables that the compiled loop reads (core/variates.py)."""

from __future__ import annotations

import keras
import numpy as np

from elephas_like.core.types import Role, Vector
from elephas_like.trainer.learning_rate import LearningRates
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import assign, backend_variable


class Corrections:
    """One variable for each trainable variable of a model, zero at first.

    variables: in the order of `model.trainable_variables`.
    left_out: the places of weights that have a constraint. They are not corrected: of what is added a constraint may leave nothing.
    rate: the learning rate of a state and so many further steps.
    """

    def __init__(self, model: keras.Model, variables: Variables) -> None:
        self._layout = variables.layout
        self.variables = [
            keras.Variable(np.zeros(weight.shape), dtype=weight.dtype, trainable=False, name="correction")
            for weight in model.trainable_variables
        ]
        by_weight = {
            id(backend_variable(weight)): correction
            for weight, correction in zip(model.trainable_variables, self.variables, strict=True)
        }
        weights = [
            variable
            for entry, variable in zip(self._layout.entries, variables, strict=True)
            if entry.role is Role.WEIGHT
        ]
        self._by_entry = [by_weight[id(backend_variable(weight))] for weight in weights]
        places = zip(self._layout.slices(Role.WEIGHT), weights, strict=True)
        self.left_out = [place for place, weight in places if getattr(weight, "constraint", None) is not None]
        self.rate = LearningRates(model)
        self._are_zero = True

    def write(self, vector: Vector | None) -> None:
        """Set all of them from a flat vector of the weights' order; None is zero."""
        if vector is None and self._are_zero:
            return
        self._are_zero = vector is None
        values = np.zeros(self._layout.size(Role.WEIGHT), self._layout.dtype(Role.WEIGHT)) if vector is None else vector
        for variable, value in zip(self._by_entry, self._layout.views(values, Role.WEIGHT), strict=True):
            assign(variable, value)
