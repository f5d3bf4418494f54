"""Strategies that end their program at a step, once: what is left is what a killed driver leaves."""

from __future__ import annotations

import keras
import numpy as np

from elephas_like.strategies import EASGD, Nesterov


class Killed(BaseException):
    """What ends a program: no `except Exception` stops it."""


class Mortal(Nesterov):
    """Nesterov that raises `Killed` at the step `dies_at`."""

    dies_at: int | None = None

    def step(self, weights, direction, outer, context):
        if Mortal.dies_at == context.version:
            Mortal.dies_at = None
            raise Killed
        return super().step(weights, direction, outer, context)


class MortalElastic(EASGD):
    """Elastic averaging that raises `Killed` where `Mortal` does."""

    def step(self, weights, direction, outer, context):
        if Mortal.dies_at == context.version:
            Mortal.dies_at = None
            raise Killed
        return super().step(weights, direction, outer, context)


def bits(model: keras.Model) -> list[bytes]:
    """Every variable of a model and of its optimizer."""
    return [np.array(each.value).tobytes() for each in (*model.variables, *model.optimizer.variables)]
