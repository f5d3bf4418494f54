"""Checks of arguments. Each returns the accepted value or raises an error that says what was expected and what came."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import os
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal, TypeVar

import numpy as np

from elephas_like.core.types import Frequency

Choice = TypeVar("Choice", bound=StrEnum)
_LAST_PORT = 2**16 - 1


def choice(name: str, value: object, kind: type[Choice]) -> Choice:
    """Return the member of the enumeration `kind` that `value` names.

    Raises:
        ValueError: listing the valid names.
    """
    try:
        return kind(value)  # type: ignore[arg-type]  # an unknown name raises
    except ValueError:
        valid = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{name} must be one of {valid}; got {value!r}.{did_you_mean(str(value), kind)}") from None


def did_you_mean(value: str, names: Iterable[str]) -> str:
    """Return " Did you mean 'name'?" for the nearest known name, or "" where none is. Capitals are looked past where none is near with them."""
    known = [str(name) for name in names]
    found = difflib.get_close_matches(value, known, n=1)
    if not found:
        spelled = {name.casefold(): name for name in known}
        found = [spelled[name] for name in difflib.get_close_matches(value.casefold(), spelled, n=1)]
    return f" Did you mean {found[0]!r}?" if found else ""


def shortly(value: object) -> str:
    """Return a value as Python writes it, cut where it is long: a row may be megabytes."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def one_of(**given: Any) -> Any:
    """Return the one argument that was given, out of several names for the same thing.

    Raises:
        TypeError: none was, or more than one.
    """
    present = {name: value for name, value in given.items() if value is not None}
    if len(present) != 1:
        names = ", ".join(given)
        raise TypeError(f"give the data once, as one of {names}; got {', '.join(present) or 'none'}.")
    return next(iter(present.values()))


def positive_int(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int if it is a whole number of at least `least`.

    Raises:
        ValueError: anything else.
    """
    try:
        whole = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # TypeError where it is none
    except TypeError:  # arrays of several numbers, and the class `int`, have an `__index__`, too
        whole = None
    if whole is None or whole < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {shortly(value)}.")
    return whole


def positive_seconds(name: str, value: object) -> float:
    """Return `value` as a float if it is a time in seconds above 0.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} must be a time in seconds above 0; got {value!r}.")
    return float(value)


def positive(name: str, value: object, *, zero: bool = False) -> float:
    """Return `value` as a float if it is a finite number above 0; with `zero`, 0 is accepted too.

    Raises:
        ValueError: anything else.
    """
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not (value >= 0 if zero else value > 0) or not value < math.inf:  # type: ignore[operator]  # a number
        raise ValueError(f"{name} must be a number {'from' if zero else 'above'} 0; got {value!r}.")
    return float(value)  # type: ignore[arg-type]  # a number


def flag(name: str, value: object) -> bool:
    """Return True or False.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, int | float | np.bool_ | np.number) or value not in (True, False):
        raise TypeError(f"{name} must be True or False; got {shortly(value)}.")
    return bool(value)


def share(name: str, value: object) -> float:
    """Return `value` as a float if it is a number from 0 to below 1.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a share from 0 to below 1; got {value!r}.")
    return float(value)


def tls(name: str, value: object) -> bool | tuple[str, str]:
    """Return True or False, or the paths of a certificate and its key.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, bool):
        return value
    if (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(path, str | os.PathLike) for path in value)
    ):
        return str(value[0]), str(value[1])
    raise TypeError(
        f"{name} must be True, False, None, or the paths of a certificate and its key, both PEM: "
        f"{name}=('server.crt', 'server.key'); got {value!r}."
    )


def port(name: str, value: object) -> int | str:
    """Return a port as an int (0: any free one), or a range of ports as text: "40000:40100", both ends included.

    Raises:
        ValueError: anything else.
    """
    given: Any = value.strip() if isinstance(value, str) else value
    if hasattr(given, "__index__") and not isinstance(given, bool) and 0 <= int(given) <= _LAST_PORT:
        return int(given)
    found = re.fullmatch(r"(\d{1,5})(?:\s*:\s*(\d{1,5}))?", given, re.ASCII) if isinstance(given, str) else None
    if found is not None:
        first, last = int(found[1]), int(found[2] or found[1])
        if found[2] is None and first <= _LAST_PORT:
            return first
        if 0 < first <= last <= _LAST_PORT:
            return f"{first}:{last}"
    raise ValueError(
        f"{name} must be a port from 0 (any free one) to {_LAST_PORT}, or a range of ports such as '40000:40100', whose "
        f"first free one is taken; got {value!r}."
    )


def monitor(name: str, value: object) -> int | str | None:
    """Return the port of a training page, or a range of ports as `port` has them; 0 for True, None for False and None.

    Raises:
        ValueError: anything else.
    """
    if value is None or value is False:
        return None
    return 0 if value is True else port(name, value)


def ports(value: int | str) -> range:
    """Return the ports that a value of `port` stands for, in the order in which they are tried."""
    first, _, last = str(value).partition(":")
    return range(int(first), int(last or first) + 1)


def verbosity(value: object) -> int:
    """Return 0 for silence, 1 for a progress bar (also for "auto" and True), 2 for lines.

    Raises:
        ValueError: anything else.
    """
    plain = value is None or isinstance(value, str | numbers.Real | np.generic)  # arrays are compared number by number
    if plain and value in ("auto", True):
        return 1
    if not plain or value not in (None, False, 0, 2):
        raise ValueError(f"verbose must be 0, 1, 2 or 'auto'; got {value!r}.")
    return int(value or 0)


def bagging(name: str, value: object) -> bool | Literal["partition"]:
    """Return which rows a member of an ensemble sees: True, False, or "partition".

    Raises:
        ValueError: anything else.
    """
    if value == "partition":
        return "partition"
    if isinstance(value, bool) or type(value).__name__ == "bool":  # NumPy's too
        return bool(value)
    raise ValueError(
        f"{name} must be True (rows drawn with replacement), False (all rows) or 'partition'; got {value!r}."
    )


def frequency(value: object) -> Frequency | int:
    """Return a frequency: a member of `Frequency` for its name, or a number of steps of at least 1.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, str):
        try:
            return Frequency(value)
        except ValueError:
            valid = ", ".join(repr(member.value) for member in Frequency)
            raise ValueError(
                f"frequency must be one of {valid}, or a number of steps; got {value!r}.{did_you_mean(value, Frequency)}"
            ) from None
    return positive_int("frequency", value)


def from_zero(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number of at least 0.

    Raises:
        ValueError: anything else.
    """
    return positive(name, value, zero=True)


def quorum(name: str, value: object) -> int | float:
    """Return a number of workers as an int, or a share of them as a float from above 0 to 1.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(value, float):
        return positive_int(name, value)
    if positive(name, value) > 1:
        raise ValueError(f"{name} must be a number of workers, or a share of them from 0 to 1; got {value!r}.")
    return value


def directory(name: str, value: object) -> str | None:
    """Return the path or URL of a directory as text; None stays None.

    Raises:
        ValueError: anything else.
    """
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be a path or a URL of a directory; got {value!r}.")
    return str(os.fspath(value))


def checkpoint_freq(name: str, value: object) -> str | float:
    """Return "epoch", or a number of seconds above 0.

    Raises:
        ValueError: anything else.
    """
    return "epoch" if value == "epoch" else positive_seconds(name, value)


def resume(name: str, value: object) -> bool | str:
    """Return "auto", True or False.

    Raises:
        ValueError: anything else.
    """
    if value != "auto" and not isinstance(value, bool):
        raise ValueError(f"{name} must be 'auto', True or False; got {value!r}.")
    return value if isinstance(value, bool) else "auto"
