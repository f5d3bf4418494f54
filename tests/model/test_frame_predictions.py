"""Which columns a model's output becomes."""

from __future__ import annotations

import keras
import pytest

from elephas_like.core.decisions import Task
from elephas_like.model.frame_predictions import fields
from elephas_like.rows.prediction_columns import Field


def dense(units: int) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])


def test_columns_by_task() -> None:
    assert fields(dense(1), Task.VALUE, ("p", None, None)) == [Field("p", 0)]
    assert fields(dense(3), Task.VALUES, ("p", None, None)) == [Field("p", 0, rank=1, dtype="float")]
    assert fields(dense(3), Task.CLASSES, ("p", "q", "r")) == [
        Field("p", 0),
        Field("q", 1, rank=1, vector=True),
        Field("r", 2, rank=1, vector=True),
    ]
    x = keras.Input((4, 2))
    several = keras.Model(x, [keras.layers.Dense(3, name="a")(x), keras.layers.Flatten(name="b")(x)])
    assert fields(several, Task.VALUES, ("p", None, None)) == [
        Field("p_a", 0, rank=2, dtype="float"),
        Field("p_b", 1, rank=1, dtype="float"),
    ]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="are of models that classify"):
        fields(dense(1), Task.VALUE, ("p", "q", None))
    with pytest.raises(ValueError, match="does not say what it puts out"):
        fields(keras.Sequential([keras.layers.Dense(1)]), Task.VALUES, ("p", None, None))
