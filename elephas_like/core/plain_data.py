"""Numbers, texts, arrays and their containers as JSON with a table of arrays beside it: what files keep without pickle."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from elephas_like.core.types import Array

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (set, frozenset, deque, OrderedDict, Counter)}
_DEFAULTS: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)}
"""What a defaultdict may make of a key that it has not."""


def encode(value: object, arrays: dict[str, Array], name: str) -> Any:
    """Return a value as JSON can hold it. Its arrays are put into `arrays` under names that begin with `name`.

    Raises:
        TypeError: it is neither None, a bool, a number, a text or an array, nor one of Python's containers of such values.
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
    if type(value) is defaultdict:
        made = next((name for name, kind in _DEFAULTS.items() if kind is value.default_factory), None)
        if made is None and value.default_factory is not None:
            raise TypeError(f"a defaultdict of {value.default_factory!r} is no plain data")
        return {"defaultdict": made, "of": encode(dict(value), arrays, name)}
    kind = type(value).__name__
    if _KINDS.get(kind) is type(value):
        parts = dict(value) if isinstance(value, dict) else list(value)  # type: ignore[call-overload]  # all are iterable
        said = {"kind": kind, "of": encode(parts, arrays, name)}
        return said | ({"maxlen": value.maxlen} if isinstance(value, deque) else {})
    if isinstance(value, np.ndarray | np.generic) and (value.dtype.kind in "biufc" or _is_short_float(value.dtype)):
        array = np.asarray(value)
        said = {"array": name, "scalar": isinstance(value, np.generic)}
        if _is_short_float(array.dtype):  # which no file of arrays has
            said["dtype"] = array.dtype.name
            array = array.view(f"u{array.dtype.itemsize}")
        arrays[name] = array
        return said
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
    if "defaultdict" in value:
        made = value["defaultdict"]
        return defaultdict(None if made is None else _DEFAULTS[made], decode(value["of"], arrays))
    if "kind" in value:
        made = _KINDS[value["kind"]]
        return made(decode(value["of"], arrays), **({"maxlen": value["maxlen"]} if made is deque else {}))
    array = arrays[value["array"]]
    if "dtype" in value:
        array = array.view(value["dtype"])
    return array[()] if value["scalar"] else array


def _is_short_float(dtype: np.dtype) -> bool:
    """Whether a dtype is one of Keras' floats that NumPy has not: bfloat16, float8_e4m3fn ..."""
    return dtype.kind == "V" and "float" in dtype.name
