"""Memory holds one large model at a time: it is freed before another one is built."""

from __future__ import annotations

import gc
import weakref

import keras
import pytest

from elephas_like.trainer import kept
from elephas_like.trainer.inference import KeptModels, Predictor
from elephas_like.trainer.programs import Programs
from elephas_like.trainer.spec import ModelSpec
from trainer.small import mlp, rows

X, Y = rows(8)
LARGE = 4 * 31
"""Bytes of the weights of `mlp`: 4 x 5 + 5 and 5 x 1 + 1 numbers."""


class Trains:
    """Borrows programs for models, and gives them back."""

    shipped = ModelSpec.from_model

    def __init__(self, nbytes: int) -> None:
        self.programs = Programs(nbytes=nbytes)

    def use(self, spec: ModelSpec) -> weakref.ref[keras.Model]:
        program = self.programs.borrow(spec, (X[:1], Y[:1]), 0)
        self.programs.give_back(program)
        return weakref.ref(program.model)


class Predicts:
    """Predicts with models."""

    @staticmethod
    def shipped(model: keras.Model) -> Predictor:
        return Predictor.of(model, 4)

    def __init__(self, nbytes: int) -> None:
        self.models = KeptModels(nbytes=nbytes)

    def use(self, predictor: Predictor) -> weakref.ref[keras.Model]:
        with self.models.used([predictor]) as (predicting,):
            assert sum(len(outputs[0]) for outputs, _ in predicting(X, 8, 4)) == 8
            return weakref.ref(predicting.model)


@pytest.mark.parametrize("kind", [Trains, Predicts])
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_large_model_is_freed_before_another_one_is_built(
    kind: type[Trains | Predicts], eagerly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_WORTH_FREEING", LARGE)
    used, build = kind(nbytes=LARGE), ModelSpec.build
    first, second = (kind.shipped(mlp(optimizer, run_eagerly=eagerly)) for optimizer in ("sgd", "adam"))
    there: list[bool] = []

    def looking(spec: ModelSpec) -> keras.Model:
        there.append(one() is not None)
        return build(spec)

    gc.collect()
    gc.disable()  # Python would free them some time
    try:
        one = used.use(first)
        monkeypatch.setattr(ModelSpec, "build", looking)
        used.use(second)
    finally:
        gc.enable()
    assert there == [False]


def test_small_models_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[bool] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
    dropped = kept.Dropped()
    for nbytes, times in ((2**25, 0), (2**25 - 1, 0), (1, 1), (2**25, 1), (2**25, 2)):
        dropped.add(nbytes)
        dropped.free()
        assert len(collected) == times
