"""Errors at run time: as few types as a caller can act on. Bad arguments raise ValueError and TypeError."""

from __future__ import annotations

import builtins
import logging
import traceback
from dataclasses import dataclass

from elephas_like.core.tracebacks import cause, own_lines

log = logging.getLogger(__name__)


class ElephasError(Exception):
    """Base class of all errors during a fit, a prediction or an evaluation."""


class ElephasWarning(UserWarning):
    """Something a user should know but need not act on."""


class MissingExtraError(ElephasError, ModuleNotFoundError):
    """An optional package is missing or too old; the message names the extra of pip that brings it."""


class DataError(ElephasError, ValueError):
    """Rows that cannot be trained on: the message names partition, row, what was expected and what was found."""


class CapacityError(ElephasError):
    """The cluster cannot hold all workers at once; the message says how many slots there are."""


class WaitError(ElephasError, TimeoutError):
    """A wait reached its time-out; the message says who is missing."""


class ConnectionLostError(ElephasError, ConnectionError):
    """A worker could not reach the parameter server within its retries."""


class PlainTextError(ElephasError, ValueError):
    """What Spark encrypts would travel or lie in plain text; the message says how to encrypt it, and how to allow it."""


class SupersededError(ElephasError):
    """Another attempt of the same worker has taken over. This attempt must raise, so that Spark ignores its result."""


class InputCutError(ElephasError):
    """Spark ended the input of a task before its last row. Raising this lets Spark report why."""


class StoppedError(ElephasError):
    """The run ended while this worker was still training."""


class ShardMissing(ElephasError):
    """The files of a shard are not where its reference says: the task was placed elsewhere, or they were deleted."""


class ShipmentGone(ShardMissing):
    """Rows that were shipped to this process are on its disk no more, nor in its memory. A new process gets them anew: raise this."""


class NonFiniteError(ElephasError, FloatingPointError):
    """A worker's update holds NaN or infinity."""


class WorkerError(ElephasError):
    """An exception on a worker, with its type name, message and traceback.

    As text it is its cause, and the lines of the user's own code that it went through. `message` and `traceback_text` have all
    of it, and so has the log at level DEBUG.

    The error that is raised on the driver also inherits the original type when that is a builtin, so that `except
    ValueError` catches a worker's ValueError.
    """

    type_name: str = ""
    message: str = ""
    worker: int = -1
    traceback_text: str = ""

    def __str__(self) -> str:
        """Return the message unquoted. KeyError's own `__str__` would show the traceback as one quoted line."""
        return str(self.args[0]) if self.args else ""

    @staticmethod
    def of(type_name: str, message: str, traceback_text: str, worker: int) -> WorkerError:
        """Return the error to raise on the driver for an exception of `type_name` on `worker`."""
        original = getattr(builtins, type_name, None)
        kind: type[WorkerError] = WorkerError
        plain = (Exception, StopIteration)  # a generator would turn a StopIteration into a RuntimeError
        if isinstance(original, type) and issubclass(original, Exception) and original not in plain:
            try:
                kind = type(f"Worker{type_name}", (WorkerError, original), {})
                kind("probe")
            except TypeError:  # a builtin whose layout or constructor does not combine (UnicodeDecodeError)
                kind = WorkerError
        known = globals().get(type_name)
        if isinstance(known, type) and issubclass(known, ElephasError) and not issubclass(known, WorkerError):
            kind = type(f"Worker{type_name}", (WorkerError, known), {})
        error = kind(_text(type_name, message, traceback_text, worker, rows=known in (DataError, NonFiniteError)))
        log.debug("%s on worker %d: %s\n%s", type_name, worker, message, traceback_text)
        error.type_name, error.worker, error.traceback_text = type_name, worker, traceback_text
        error.message = message
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what it was made of: its class may be one that exists for this error only."""
        return WorkerError.of, (self.type_name, self.message, self.traceback_text, self.worker)


def _text(type_name: str, message: str, traceback_text: str, worker: int, *, rows: bool) -> str:
    """Return what a user reads. Errors about rows name the rows' place themselves."""
    place = f"worker {worker}" if worker >= 0 else "a worker"
    text = cause(message) if rows else f"{type_name} on {place}: {cause(message)}"
    own = "" if rows else own_lines(f"{message}\n{traceback_text}")
    return f"{text}\n\n--- your code on the worker ---\n{own}" if own else text


@dataclass(frozen=True)
class Failure:
    """An exception on a worker, as a value.

    Raising it on the worker would end its Python process, and Spark would only retry the task.
    """

    type_name: str
    message: str
    traceback_text: str
    worker: int

    @classmethod
    def of(cls, worker: int, error: BaseException) -> Failure:
        """Return the failure that describes an exception on `worker`."""
        text = "".join(traceback.format_exception(error))
        try:
            message = str(error)
        except Exception as other:  # the user's own class
            message = f"(its __str__ raised {type(other).__name__})"
        return cls(type(error).__name__, message, text, worker)

    def error(self) -> WorkerError:
        """Return the error to raise on the driver."""
        return WorkerError.of(self.type_name, self.message, self.traceback_text, self.worker)
