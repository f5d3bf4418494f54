"""What a task's Python process is sent of its rows: when, and whether it is all of them or only those before an error."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from elephas_like.core.errors import ElephasError, Failure, InputCutError

Row = TypeVar("Row")


def at_once(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that a task gets from Spark, without the 40 ms for which TCP may hold them back.

    Spark sends a task and its rows apart, with Nagle's algorithm on: the rows wait until the task is acknowledged, and Linux delays that
    where the process has just answered another task (delayed ACK: RFC 1122, section 4.2.3.2). TCP_QUICKACK acknowledges it now: tcp(7).
    Where Spark uses Unix sockets (spark.python.unix.domain.socket.enabled), and on other systems, nothing is changed.
    """
    source = _input()
    if source is not None and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError), socket.socket(fileno=os.dup(source.fileno())) as from_spark:
            from_spark.setblocking(True)  # after socket.setdefaulttimeout Spark's own would no longer be
            from_spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    yield from rows


def whole(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield all rows that a task gets from Spark, `at_once`.

    Where rows cannot be computed (a division by zero in ANSI mode, a function of the user's that raises in another process), Spark closes
    the input of the process that waits for them. PySpark takes this for the end of the rows, and Spark fails the task when that is
    over: what a task did with too few rows would have been done.

    Raises:
        InputCutError: Spark has closed the input before the end. The task has to raise it: Spark then tells its own error.
    """
    yield from at_once(rows)
    source = _input()
    if source is not None and not source.peek(1):  # after the last row comes what Spark writes to end the task
        raise InputCutError("Spark could not compute all rows of this task.")


def only(rows: Iterable[Row]) -> Row:
    """Return the one row that a task gets from Spark.

    Raises:
        InputCutError: Spark could not compute it, as `whole` says; or it ends this task, as it does when another one has failed: then a
            DataFrame's rows end before the first one as if there were no more.
    """
    found = list(whole(rows))  # read to the end: Spark does not reuse a process that leaves input behind
    if not found:
        raise InputCutError("Spark has ended this task.")
    (row,) = found
    return row


def said_as_utf8(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows, `at_once`. An error whose text is no UTF-8, such as one of a file with such a name, is raised with one that is.

    PySpark fails to write such a text to Spark, which then waits for it without end. It writes causes and notes, too.
    """
    try:
        yield from at_once(rows)
    except Exception as error:
        try:
            "".join(traceback.format_exception(error)).encode()
        except UnicodeEncodeError:
            shown = Failure.of(0, error).message.encode("utf-8", "backslashreplace").decode()
        else:
            raise
        same = isinstance(error, ElephasError)
        alike = (
            type(error) if same else type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
        )
        raise alike(shown).with_traceback(error.__traceback__) from None


def _input() -> Any:
    """Return the stream from which PySpark reads a task's rows, which has no public name; None in other processes."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _module(frame) in ("pyspark.worker", "pyspark.daemon") and "infile" in frame.f_locals:
            found = frame.f_locals["infile"]
            return found if hasattr(found, "peek") else None
        frame = frame.f_back
    return None


def _module(frame: FrameType) -> str | None:
    """Return the name of the module that a frame runs.

    It is also known where Python was started with that module, as Spark does without its daemon (on Windows).
    """
    name, spec = frame.f_globals.get("__name__"), frame.f_globals.get("__spec__")
    return spec.name if name == "__main__" and spec is not None else name
