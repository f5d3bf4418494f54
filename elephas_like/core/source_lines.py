"""The source lines of a function's code, as they were when it was imported: what is read anew from its file may have been edited since."""

from __future__ import annotations
import __future__

import linecache
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from types import CodeType

_BEGUN = time.time()
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def source_lines(code: CodeType) -> tuple[list[str], bool]:
    """Return the lines of a code's file, and whether it was compiled from them; no lines where there is no file.

    They are taken for its own where that cannot be told: lines that are no Python (a notebook's magics), and a file that nobody has
    written to since this process began, whose code an import hook has changed (pytest's assertions).
    """
    name = code.co_filename
    lines = linecache.getlines(name)
    if not lines or _compiles_to(code, lines):
        return lines, True
    if os.path.exists(name):  # what was read before may be older than the code, or newer
        linecache.cache.pop(name, None)
        lines = linecache.getlines(name)
    return lines, _compiles_to(code, lines) or not _written_since(name)


def _written_since(name: str) -> bool:
    with suppress(OSError):
        return os.path.getmtime(name) > _BEGUN
    return False


def _compiles_to(code: CodeType, lines: list[str]) -> bool:
    try:
        return code in _codes("".join(lines), code.co_filename, code.co_flags & _FUTURE)
    except (SyntaxError, ValueError):
        return True


@lru_cache(16)
def _codes(text: str, name: str, flags: int) -> frozenset[CodeType]:
    return frozenset(_within(compile(text, name, "exec", flags, dont_inherit=True)))


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)
