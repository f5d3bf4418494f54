"""The page that shows a fit, a search or an ensemble: one HTML text, with all that it needs in it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from elephas_like.core.monitoring import Snapshot

_PARTS = files("elephas_like.core") / "page"
_STYLES = ("uPlot.min.css", "page.css")
_SCRIPTS = ("uPlot.iife.min.js", "page.js")


class Page(NamedTuple):
    """A page, and the policy that a browser is to hold it to (Content-Security-Policy)."""

    html: str
    policy: str


@cache
def live_page() -> Page:
    """Return the page that asks its server for snapshots."""
    return _page(None)


def report_page(snapshot: Snapshot) -> str:
    """Return the page of a snapshot. It needs no server, and no network."""
    return _page(snapshot).html


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # two letters at least: C:/ is a Windows path


def write_report(path: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write the page of a snapshot to a file, whole or not at all. Make the directories above it.

    Raises:
        ValueError: a URL, or a directory.
    """
    if _URL.match(os.fspath(path)):
        raise ValueError(
            f"a report is written to a local file; got {os.fspath(path)!r}. Write it here, and copy it there."
        )
    place = Path(path).expanduser()
    if place.is_dir():
        raise ValueError(f"expected the path of a file to write, as 'fit.html'; {str(path)!r} is a directory.")
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.draft")
    try:
        draft.write_text(report_page(snapshot), encoding="utf-8")
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)  # gone already where it was renamed


def _page(snapshot: Snapshot | None) -> Page:
    # What stands in a script element ends at the first "</", whatever it is a part of.
    data = json.dumps(snapshot, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    styles, scripts = _text(*_STYLES), [_text(name) for name in _SCRIPTS]
    sources = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {sources}; style-src 'sha256-{_digest(styles)}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = _text("page.html")
    inserted = {
        "POLICY": policy,
        "STYLES": styles,
        "LIBRARY": scripts[0],
        "SCRIPT": scripts[1],
        "LICENSE": _text("LICENSE-uPlot.txt"),
    }
    for name, text in inserted.items():
        html = html.replace(f"{{{{{name}}}}}", text)
    return Page(html.replace("{{DATA}}", data), policy)  # the last: what users named is not looked into


@cache
def _text(*names: str) -> str:
    return "".join((_PARTS / name).read_text(encoding="utf-8") for name in names)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
