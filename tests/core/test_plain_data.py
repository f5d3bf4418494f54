"""Values that come back as they were, from JSON and arrays alone."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from elephas_like.core.plain_data import decode, encode


def back(value: object) -> object:
    arrays: dict = {}
    text = json.dumps(encode(value, arrays, "here"))
    assert all(name.startswith("here") for name in arrays)
    return decode(json.loads(text), arrays)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.1,
        float("inf"),
        "text",
        [1, [2, (3, "x")], {}],
        {"a": (1, 2), 3: None, (1, 2): "tuple"},
        {"array": "a dict like those that stand for arrays", "tuple": [], "dict": 1, "kind": "set", "of": []},
        frozenset({1, (2, 3)}),
        {"a set": {3}, "none": set()},
        deque([1, 2], maxlen=3),
        deque([[1]]),
        OrderedDict(b=1, a=2),
        Counter("abba"),
        defaultdict(int, a=1),
        defaultdict(list, {(1, 2): [defaultdict(None, b=2)]}),
    ],
)
def test_plain_values_come_back_with_their_types(value: object) -> None:
    assert repr(back(value)) == repr(value)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_arrays_of_keras_short_floats_come_back_through_a_file(dtype: type, tmp_path: Path) -> None:
    array, arrays = np.arange(6).reshape(2, 3).astype(dtype), {}
    said = json.dumps(encode([array, array[0, 1]], arrays, "here"))
    np.savez(tmp_path / "arrays.npz", **arrays)
    with np.load(tmp_path / "arrays.npz", allow_pickle=False) as file:
        back, scalar = decode(json.loads(said), dict(file))
    assert back.dtype == scalar.dtype == dtype
    np.testing.assert_array_equal(back, array)
    assert scalar == array[0, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "bool", "complex64"])
def test_arrays_and_their_scalars_come_back_with_dtype_and_shape(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found, scalar, empty = back([{"best": [array]}, array[0, 1], array[:0]])
    assert found["best"][0].dtype == array.dtype
    assert found["best"][0].tolist() == array.tolist()
    assert type(scalar) is type(array[0, 1])
    assert scalar == array[0, 1]
    assert empty.shape == (0, 3)


def test_every_array_has_a_name_of_its_own() -> None:
    arrays: dict = {}
    one, two = np.zeros(1), np.ones(1)
    text = encode({"a": [one, two], "b": {"a": one, one.tobytes().hex(): two}, "c": (two, one)}, arrays, "x")
    assert len(arrays) == 6
    assert decode(json.loads(json.dumps(text)), arrays)["c"][0].tolist() == [1.0]


class Own(dict):
    """No plain dict."""


@pytest.mark.parametrize(
    "value", [len, object(), {len}, b"bytes", [open], Own(), defaultdict(Own), np.array(["text"]), np.array([None])]
)
def test_what_is_no_plain_data_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="is no plain data"):
        encode(value, {}, "")
