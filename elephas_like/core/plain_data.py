"""Numbers, texts, arrays and their containers as JSON with a table of arrays beside it: what files keep without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from elephas_like.core.types import Array


def encode(value: object, arrays: dict[str, Array], name: str) -> Any:
    """Return a value as JSON can hold it. Its arrays are put into `arrays` under names that begin with `name`.

    Raises:
        TypeError: it is neither None, a bool, a number, a text or an array, nor a list, a tuple or a dict of such values.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [encode(item, arrays, f"{name}.{place}") for place, item in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [encode(item, arrays, f"{name}.{place}") for place, item in enumerate(value)]}
    if type(value) is dict:
        items = enumerate(value.items())
        return {"dict": [[encode(part, arrays, f"{name}.{n}.{k}") for k, part in enumerate(pair)] for n, pair in items]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        arrays[name] = np.asarray(value)
        return {"array": name, "scalar": isinstance(value, np.generic)}
    raise TypeError(f"a {type(value).__name__} is no plain data")


def decode(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Return what `encode` was given."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item, arrays) for item in value["tuple"])
    if "dict" in value:
        return {decode(key, arrays): decode(item, arrays) for key, item in value["dict"]}
    array = arrays[value["array"]]
    return array[()] if value["scalar"] else array
