"""Functions that the members of a gang call: in the process of their task, or in one that has computed nothing before.

TensorFlow sets up collective operations only in a process that has not computed yet, and Spark reuses processes. The member's own
process waits for the new one, and asks Spark for what it wants: barriers and what others say.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import cloudpickle
import pyarrow as pa

from elephas_like.core.errors import ElephasError
from elephas_like.engine.function_settings import FunctionSettings
from elephas_like.engine.printing import Printer, printing
from elephas_like.spark.gang import Member, pieces_of
from elephas_like.spark.gpus import take_gpu

log = logging.getLogger(__name__)

END_SECONDS = 30.0
"""That a process may take to end after its function has returned: it may have something to write down."""
_NOTE_LETTERS = 8192
Found = tuple[object, str]
"""What a function returns, and what it has printed that nobody has been shown."""


class Listener(Protocol):
    """A picklable that is sent what workers print (exchange/client.py)."""

    def connect(self, worker: int, attempt: int) -> Printer:
        """Return the way there of one attempt."""
        ...


@dataclass(frozen=True)
class Call:
    """What a member calls, and how.

    function: a pickled pair of a function and its arguments. listener: who is sent what it prints; None if nobody can be.
    settings: of Keras' to call it under; None for those of the process.
    """

    function: bytes
    listener: Listener | None
    settings: FunctionSettings | None = None

    def __call__(self, member: Member) -> Found:
        """Call it for one member."""
        function, args = cloudpickle.loads(self.function)  # written by our own driver
        printer = None if self.listener is None else self.listener.connect(member.rank, member.attempt)
        try:
            settings = contextlib.nullcontext() if self.settings is None else self.settings.applied()
            with settings, printing(printer) as printed:
                result = function(member, *args)
        except Exception as error:
            if printed.rest:
                error.add_note(f"Printed before: {printed.rest[-_NOTE_LETTERS:]}")
            raise
        return result, printed.rest


@dataclass(frozen=True)
class CallFunction:
    """A gang's task: each member makes a call, and answers with what that found.

    unasked: whether to choose a card where Spark gives the task none. environment: makes variables for new processes in which the
    calls are made; None makes them here.
    """

    call: Call
    unasked: bool
    environment: Callable[[Member], Mapping[str, str]] | None

    def __call__(self, member: Member, batches: Iterator[pa.RecordBatch]) -> Iterable[bytes]:
        """Call the function."""
        take_gpu(unasked=self.unasked)
        if self.environment is None:
            found = self.call(member)
        else:
            found = call_in_new_process(self.call, member, self.environment(member))
        return pieces_of(cloudpickle.dumps(found))


def call_in_new_process(call: Call, member: Member, environment: Mapping[str, str]) -> Found:
    """Return what a call returns in a new process with some more variables in its environment. It ends with this process.

    Raises:
        ElephasError: the process has died.
    """
    ours, theirs = multiprocessing.Pipe()
    arguments = (theirs, cloudpickle.dumps((call, member)), dict(environment))
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments)
    patience = 1.0
    try:
        process.start()
        theirs.close()
        while True:
            kind, given = _next(ours, process, member.rank)
            if kind == "returned":
                patience = END_SECONDS
                return cloudpickle.loads(given)
            if kind == "raised":
                raise cloudpickle.loads(given)
            said = member.all_gather(given)
            with contextlib.suppress(ConnectionError):  # it has died, which the next wait finds
                ours.send(said)
    finally:
        if process.pid is not None:
            process.join(patience)
            if process.is_alive():
                log.warning(
                    "worker %d's process had not ended %g s after its function, and is killed", member.rank, patience
                )
                process.kill()
                process.join()
        ours.close()


def _next(connection: Connection, process: Any, rank: int) -> tuple[str, Any]:
    """Return what the process says next."""
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise ElephasError(
            f"the process of worker {rank} died with exit code {process.exitcode}; -9 means that it was killed, mostly because "
            "memory had run out."
        ) from None


@dataclass(frozen=True)
class _MemberElsewhere(Member):
    """A member whose task is in the process that started this one."""

    connection: Connection

    def all_gather(self, text: str) -> list[str]:
        self.connection.send(("all_gather", text))
        return self.connection.recv()

    def barrier(self) -> None:
        self.all_gather("")


def _serve(connection: Connection, work: bytes, environment: Mapping[str, str]) -> None:
    """Run in the new process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    try:
        call, member = cloudpickle.loads(work)
        found = call(_MemberElsewhere(member.rank, member.size, member.attempt, member.hosts, connection))
        answer = ("returned", cloudpickle.dumps(found))
    except BaseException as error:
        error.add_note(traceback.format_exc())
        answer = ("raised", _pickled(error))
    with contextlib.suppress(BrokenPipeError):
        connection.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _pickled(error: BaseException) -> bytes:
    try:
        pickled = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)
        return pickled
    except Exception:  # some errors hold what cannot be sent, or cannot be made from what they hold
        return cloudpickle.dumps(ElephasError("\n".join(traceback.format_exception(error))))
