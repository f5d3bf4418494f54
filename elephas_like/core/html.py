"""Tables of what notebooks show of models and results."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

MOST_ROWS = 20
"""Rows that a table shows; the others are counted."""


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a title and a table as HTML. Of many rows the last ones are shown; numbers have four digits."""
    shown = rows[-MOST_ROWS:]
    parts = [f"<p><code>{html.escape(title)}</code></p>"]
    if rows:
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in shown)
        parts.append(f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>")
    if len(shown) < len(rows):
        parts.append(f"<p>{len(rows) - len(shown)} rows before these are not shown.</p>")
    return "".join(parts)


def history_table(title: str, history: Mapping[str, Sequence[object]]) -> str:
    """Return loss and metrics by epoch as HTML. Metrics of several numbers are left out."""
    names = [name for name, values in history.items() if all(isinstance(value, int | float) for value in values)]
    epochs = max((len(history[name]) for name in names), default=0)
    # A validation that is not after every epoch has fewer values, the last of which belongs to no certain epoch.
    whole = [name for name in names if len(history[name]) == epochs]
    rows = [[epoch + 1, *(history[name][epoch] for name in whole)] for epoch in range(epochs)]
    return html_table(title, ["epoch", *whole], rows)


def _cell(value: object) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
