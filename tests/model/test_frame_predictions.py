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


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float64", "double"), ("int64", "double"), ("float16", "float"), ("bool", "float")]
)
def test_numbers_that_float32_does_not_hold_are_doubles(dtype: str, kind: str) -> None:
    """2**24 + 1 as a whole number was 2**24."""
    x = keras.Input((3,), dtype=dtype)
    model = keras.Model(x, keras.layers.Identity(dtype=dtype)(x))
    assert fields(model, Task.VALUES, ("p", None, None)) == [Field("p", 0, rank=1, dtype=kind)]


def test_outputs_of_one_name_are_numbered() -> None:
    """One layer called three times, beside one whose name looks like the second of them."""
    x, layer = keras.Input((2,)), keras.layers.Dense(1, name="d")
    model = keras.Model(x, [layer(x), layer(x * 2), keras.layers.Dense(1, name="d_1")(x), layer(x * 3)])
    assert model.output_names == ["d", "d", "d_1", "d"]
    found = fields(model, Task.VALUES, ("p", None, None))
    assert [(one.name, one.source) for one in found] == [("p_d", 0), ("p_d_2", 1), ("p_d_1", 2), ("p_d_3", 3)]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="are of models that classify"):
        fields(dense(1), Task.VALUE, ("p", "q", None))
    with pytest.raises(ValueError, match="does not say what it puts out"):
        fields(keras.Sequential([keras.layers.Dense(1)]), Task.VALUES, ("p", None, None))
    text = keras.Input((1,), dtype="string")
    with pytest.raises(ValueError, match=r"puts out text.*Collect its predictions"):
        fields(keras.Model(text, keras.layers.Identity()(text)), Task.VALUES, ("p", None, None))
