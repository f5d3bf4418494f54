"""Spark's errors made readable: the worker's own words without the Java stack around them."""

from __future__ import annotations

import re

from elephas_like.core.errors import ElephasError, WorkerError
from elephas_like.spark.versions import missing_package

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?:.*\n)*?(?P<last>^[\w.]+(?:Error|Exception)?: .*)", re.M
)


def readable(error: BaseException) -> BaseException:
    """The error to raise for one that Spark raised: a WorkerError where a Python traceback is in it."""
    if isinstance(error, ElephasError | KeyboardInterrupt):
        return error
    text = str(error)
    advice = missing_package(text)
    if advice is not None:
        return ElephasError(advice)
    found = _TRACEBACK.search(text)
    if found is None:
        return ElephasError(f"the Spark job of this fit ended: {_said(text) or type(error).__name__}")
    type_name, _, message = found.group("last").partition(": ")
    return WorkerError.of(type_name.rsplit(".", 1)[-1], message, found.group(0), -1)


def _said(text: str) -> str:
    """The first line that says something: py4j's own, before the exception's, only says that there is one."""
    first, *more = text.splitlines() or [""]
    return more[0].removeprefix(": ") if first.startswith("An error occurred while calling") and more else first
