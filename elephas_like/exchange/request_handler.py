"""Answers requests, whatever the transport: reads one frame, asks the store, returns the chunks of the reply."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from elephas_like.core.errors import ElephasError, Failure, SupersededError
from elephas_like.core.types import Joined, Order
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.lines import PATH
from elephas_like.exchange.store import STOP, Store

log = logging.getLogger(__name__)

_SKIP_BYTES = 2**16


@dataclass(frozen=True)
class Reply:
    """What to send back. status: as HTTP says it."""

    status: int
    chunks: list[wire.Chunk]


Answerer = Callable[[wire.ByteSource, int], Reply]
"""(body, its length in bytes) -> reply. If the request is refused, part of it may be left unread."""


class Handler(Protocol):
    """What a server answers requests with. Thread-safe."""

    @property
    def most(self) -> int:
        """Bytes of the largest request."""
        ...

    @property
    def routes(self) -> Mapping[tuple[str, str], Answerer]:
        """What answers a request over HTTP, by method and path."""
        ...

    def serve(self, source: wire.ByteSource, length: int, /) -> Reply:
        """Answer a request over TCP, which has no path."""
        ...


class RequestHandler:
    """Reads a frame and answers or refuses it. Subclasses answer the requests of their kind of run. Thread-safe."""

    def __init__(self, sizes: protocol.Sizes) -> None:
        self._sizes = sizes
        self._last: tuple[weakref.ref[Order], list[wire.Chunk]] | None = None

    @property
    def most(self) -> int:
        """Most bytes that a request may have."""
        return self._sizes.most

    @property
    def routes(self) -> Mapping[tuple[str, str], Answerer]:
        """The one path that frames are posted to."""
        return {("POST", PATH): self.serve}

    def serve(self, source: wire.ByteSource, length: int, /) -> Reply:
        """Return the reply to a request of `length` bytes. Block for as long as the store makes the worker wait.

        If the request is refused, part of it may be left unread in `source`.
        """
        try:
            return self._encoded(self._reply(source, wire.read_head(source, length, self._sizes)))
        except SupersededError as error:
            return self._refuse(409, "SupersededError", error)
        except wire.FrameError as error:
            log.warning("refused a request: %s", error)
            return self._refuse(400, "FrameError", error)
        except ElephasError as error:
            log.warning("refused a request: %s", error)
            return self._refuse(409, "ElephasError", error)
        except OSError:  # the connection broke: nobody waits for a reply
            raise
        except Exception as error:  # out of memory, or a defect: the worker says so, instead of that it cannot reach us
            log.exception("a request could not be answered")
            return self._refuse(409, "ElephasError", f"the server failed with {type(error).__name__}: {error}")

    def _reply(self, source: wire.ByteSource, head: wire.Head) -> Order | protocol.Sign:
        """Answer a request of which only the header has been read."""
        raise NotImplementedError

    def _encoded(self, message: Order | protocol.Sign) -> Reply:
        if isinstance(message, protocol.Sign):
            return Reply(200, wire.encode(message))
        last = self._last
        if last is None or last[0]() is not message:  # a round's order goes to all workers and is encoded once
            last = self._last = (weakref.ref(message, self._drop_encoded), wire.encode(message))
        return Reply(200, last[1])

    def _drop_encoded(self, order: weakref.ref[Order]) -> None:
        """Drop what was encoded of an order that nobody has any more: its buffers are a whole state."""
        last = self._last
        if last is not None and last[0] is order:
            self._last = None

    def _refuse(self, status: int, type_name: str, error: ElephasError | str) -> Reply:
        return Reply(status, wire.encode(protocol.Refusal(type_name, str(error)[: protocol.MESSAGE_LETTERS])))


class FitRequestHandler(RequestHandler):
    """Answers the requests of a fit's workers from one store."""

    def __init__(self, store: Store, sizes: protocol.Sizes) -> None:
        super().__init__(sizes)
        self._store = store

    def _reply(self, source: wire.ByteSource, head: wire.Head) -> Order | protocol.Sign:
        if head.kind in ("update", "evaluation", "recollection"):
            return self._answer(source, head)
        return self._small_request(wire.read_rest(source, head))

    def _answer(self, source: wire.ByteSource, head: wire.Head) -> Order | protocol.Sign:
        worker, attempt = head.number("worker"), head.number("attempt")
        decision = self._store.offer(worker, attempt, head.number("number"), head.nbytes)
        if decision != "send":
            _skip(source, head.nbytes)
            return protocol.Sign("again") if decision == "again" else decision
        try:
            self._accept(source, head)
        except Exception:
            self._store.withdraw(worker, attempt)
            raise
        return self._store.ask(worker, attempt)

    def _accept(self, source: wire.ByteSource, head: wire.Head) -> None:
        """Read an answer and hand it to the store. A function of its own, so that none of its arrays outlive it here."""
        answer = wire.read_rest(source, head)
        assert isinstance(answer, protocol.Answer)
        self._store.accept(answer.attempt, answer.result)

    def _small_request(self, message: protocol.Message) -> Order | protocol.Sign:
        match message:
            case Joined():
                return self._store.join(message)
            case protocol.Next(worker, attempt):
                return self._store.ask(worker, attempt)
            case protocol.Offer(worker, attempt, number, nbytes):
                decision = self._store.offer(worker, attempt, number, nbytes)
                return decision if isinstance(decision, Order) else protocol.Sign(decision)
            case protocol.Announce(worker, attempt, host):
                return protocol.Sign("done") if self._store.announce(worker, attempt, host) else STOP
            case protocol.Beat(worker, attempt, progress):
                return protocol.Sign("done") if self._store.beat(worker, attempt, progress) else STOP
            case protocol.Report():
                failure = Failure(message.type_name, message.message, message.traceback_text, message.worker)
                return protocol.Sign("again" if self._store.report(message.attempt, failure) else "done")
            case _:
                raise wire.FrameError(f"expected a worker's request, got a {type(message).__name__}.")


def _skip(source: wire.ByteSource, count: int) -> None:
    """Read and drop `count` bytes, so that the connection can be used again."""
    scratch = memoryview(bytearray(min(count, _SKIP_BYTES)))
    while count > 0:
        came = source.readinto(scratch[: min(count, len(scratch))])
        if not came:
            raise wire.CutShortError("the other side went away in the middle of an answer.")
        count -= came
