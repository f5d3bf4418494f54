"""The source lines of a function's code, as they were when it was imported: what is read anew from its file may have been edited since."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType


def source_lines(code: CodeType) -> tuple[list[str], bool]:
    """Return the lines of a code's file, and whether it was compiled from them; no lines where there is no file.

    Lines that cannot be compiled, such as a notebook's with magics, are taken for its own.
    """
    name = code.co_filename
    lines = linecache.getlines(name)
    if lines and not _compiles_to(code, lines):  # what was read before may be older than the code, or newer
        linecache.checkcache(name)
        lines = linecache.getlines(name)
    return lines, not lines or _compiles_to(code, lines)


def _compiles_to(code: CodeType, lines: list[str]) -> bool:
    try:
        return code in _codes("".join(lines), code.co_filename)
    except (SyntaxError, ValueError):
        return True


@lru_cache(16)
def _codes(text: str, name: str) -> frozenset[CodeType]:
    return frozenset(_within(compile(text, name, "exec", dont_inherit=True)))


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)
