"""The progress of fits, searches and ensembles: a bar that fits the terminal while it lasts, and a line that stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tqdm.auto import tqdm

USUAL_WIDTH = 80
_IN_NOTEBOOK = any(kind.__name__ == "tqdm_notebook" for kind in tqdm.__mro__)
_LEAST_SECONDS = 0.05
"""An epoch that took less was over before the driver looked: workers that nobody waits for bring several at a time."""

_NOBODY_READS = (OSError, ValueError)
"""Of a terminal that is gone, or a closed file: what was trained is worth more."""


class Bar(tqdm):
    """A tqdm bar without tqdm's monitor thread: no thread of this package outlives a call."""

    monitor_interval = 0

    @classmethod
    def write(cls, s: str, *others: Any, **named: Any) -> None:
        """Print a line beside bars, as Keras does: letters that the stream cannot encode are replaced."""
        if sys.stdout is None:  # a program without a console
            return
        with suppress(*_NOBODY_READS):
            try:
                super().write(s, *others, **named)
            except UnicodeEncodeError:
                super().write(s.encode("ascii", "replace").decode(), *others, **named)

    def display(self, *given: Any, **named: Any) -> Any:
        """Show it, to whoever still reads."""
        with suppress(*_NOBODY_READS):
            return super().display(*given, **named)
        return None


def has_terminal() -> bool:
    """Whether errors go to a terminal. A program without a console has no such stream, or one that cannot say."""
    return bool(getattr(sys.stderr, "isatty", bool)())


class EpochBar:
    """The bar of an epoch that is under way. Only a terminal or a notebook has one: a file would keep each of its states."""

    def __init__(self, title: str, rows: int) -> None:
        self._bar: Bar | None = None
        if not _IN_NOTEBOOK and not has_terminal():
            return
        shown = {} if _IN_NOTEBOOK else {"ncols": terminal_width(), "ascii": " ="}
        form = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} samples{postfix}"
        self._bar = Bar(total=rows, desc=title, bar_format=form, leave=False, **shown)

    def update(self, rows: int, loss: float | None) -> None:
        """Show that so many more rows were trained on."""
        if self._bar is None:
            return
        if loss is not None:
            self._bar.set_postfix_str(f"loss: {number_text(loss)}", refresh=False)
        self._bar.update(rows)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def terminal_width() -> int:
    """Return the columns of the terminal; 80 where that is unknown, or 0 as some terminals say. COLUMNS comes first."""
    with suppress(ValueError):
        if int(os.environ.get("COLUMNS", "")) > 0:
            return int(os.environ["COLUMNS"])
    for stream in (sys.__stderr__, sys.__stdout__):
        with suppress(AttributeError, ValueError, OSError):
            columns = os.get_terminal_size(stream.fileno()).columns  # type: ignore[union-attr]  # None raises
            if columns > 0:
                return columns
    return USUAL_WIDTH


def epoch_line(title: str, seconds: float, samples: int, logs: Mapping[str, object]) -> str:
    """Return the line of a finished epoch, as Keras has it: all its metrics. Times that were not measured are left out."""
    parts = [title]
    if seconds >= _LEAST_SECONDS:
        parts += [f"{seconds:.1f}s", f"{samples / seconds:,.0f} samples/s"]
    return " - ".join(
        [*parts, *(f"{name}: {number_text(value)}" for name, value in logs.items() if isinstance(value, float))]
    )


def number_text(value: float) -> str:
    """Return a number with four decimals, or as a power of ten where these would say nothing, as Keras does."""
    return f"{value:.4f}" if value == 0 or 1e-3 < abs(value) < 1e6 or value != value else f"{value:.4e}"
