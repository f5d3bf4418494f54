"""A worker's client of the parameter server. Every call ends within its time-outs, and lost replies are requested again."""

from __future__ import annotations

import logging
import math
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from elephas_like.core.errors import ConnectionLostError, ElephasError, Failure, SupersededError
from elephas_like.core.types import Joined, Order, Result
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.connections import LINES, Line, TokenError

log = logging.getLogger(__name__)

OFFER_BYTES = 8 * 2**20
"""Larger answers are offered before they are sent, so that no worker blocks on a connection that is not read yet."""

_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF = 5.0
_PATIENCE_SECONDS, _FEWEST_RETRIES = 60.0, 7
_BEAT_TIMEOUT = 10.0
_FIRST_RETRIES = 2
_STOP = Order("stop")


@dataclass(frozen=True)
class ClientSettings:
    """How to reach the parameter server: plain data, made on the driver and pickled to the workers.

    kind: which of the two servers it is. Times are seconds.
    request_timeout: longest time in which no byte moves, in either direction; more than the 20 that the server may hold a
        request. A body may take longer while it flows.
    retries: further tries of a request after the first, with pauses of 0.1, 0.2, 0.4, ... at most 5: by default a minute of them, so
        that a network that comes back costs no fit. Where tries themselves take long, it ends with the minute, and 8 of them.
    advice: what a user can do if the server cannot be reached.
    fingerprint: of the server's certificate, which is no secret; None connects in plain text.
    """

    kind: Literal["http", "socket"]
    host: str
    port: int
    token: str = field(repr=False)
    sizes: protocol.Sizes = field(repr=False)
    connect_timeout: float = 5.0
    request_timeout: float = 60.0
    retries: int = 17
    beat_seconds: float = 2.0
    advice: str = (
        "Give SparkModel host=<the driver's address as executors see it> and port=<one that a firewall lets through>, or "
        "engine='jobs', which needs none."
    )
    fingerprint: str | None = None

    def connect(self, worker: int, attempt: int) -> Client:
        """Return the client of one attempt of a worker. Connections are opened when they are needed."""
        return Client(self, worker, attempt)


class Client:
    """The client of one attempt of a worker (`core.workers.Exchange`). For one thread; heartbeats have their own connection."""

    def __init__(self, settings: ClientSettings, worker: int, attempt: int) -> None:
        self._settings = settings
        self._worker = worker
        self._attempt = attempt
        self._line = _line(settings, settings.request_timeout)
        self._beat_line = _line(settings, min(settings.request_timeout, _BEAT_TIMEOUT))
        self._beating: threading.Thread | None = None
        self._closed = threading.Event()
        self._stopped = False
        self._superseded: SupersededError | None = None
        self._progress: Callable[[], int] = int  # zero, until there is something to do

    def announce(self, host: str) -> None:
        """Make the first contact, before any work, and start heartbeats.

        Raises:
            ElephasError: the token is wrong, or this attempt has lost its place.
            TLSError: the server has another certificate, or speaks no TLS, or this client does not.
            ConnectionLostError: the server cannot be reached; known after few tries, since nothing is lost yet.
        """
        tries = min(self._settings.retries, _FIRST_RETRIES) + 1
        self._call(protocol.Announce(self._worker, self._attempt, host[: protocol.SHORT_LETTERS]), tries)
        self._start_beating()

    def join(self, joined: Joined, progress: Callable[[], int] = int) -> Order:
        """Join and return the first order. Block while another attempt holds the worker's place.

        Args:
            progress: what rises while the worker is at work, asked for by the heartbeat's thread.

        Raises:
            ElephasError: the token is wrong, or this worker does not fit the run.
            ConnectionLostError: the server cannot be reached.
        """
        if (joined.worker, joined.attempt) != (self._worker, self._attempt):
            raise ValueError(
                f"expected worker {self._worker}, attempt {self._attempt} to join; "
                f"got worker {joined.worker}, attempt {joined.attempt}."
            )
        self._progress = progress
        reply = self._call(joined)
        self._start_beating()
        while (order := _order(reply)).kind == "wait":
            reply = self._call(joined)
        return order

    def answer(self, result: Result) -> Order:
        """Send the result of the last order and return the next one.

        Raises:
            SupersededError: another attempt has taken this worker's place. Let it pass, so that the task fails.
            ConnectionLostError: the server cannot be reached any more.
        """
        answer = protocol.Answer(self._attempt, result)
        size = wire.nbytes(wire.encode(answer))
        offer = protocol.Offer(self._worker, self._attempt, result.number, size)
        message: protocol.Message = offer if size > OFFER_BYTES else answer
        while True:
            if self._stopped and self._superseded is None:
                return _STOP
            reply = self._call(message)
            if isinstance(reply, protocol.Sign):
                message = answer if reply.word == "send" else offer
                continue
            order = _order(reply)
            if order.kind != "wait":
                return order
            message = protocol.Next(self._worker, self._attempt)

    def fail(self, failure: Failure) -> bool:
        """Report an error, which the driver raises. Return whether it does not: another attempt will do what failed."""
        reply = self._call(
            protocol.Report(
                failure.worker,
                self._attempt,
                failure.type_name[: protocol.SHORT_LETTERS],
                failure.message[: protocol.MESSAGE_LETTERS],
                failure.traceback_text[-protocol.TRACEBACK_LETTERS :],  # the end says where it happened
            )
        )
        return isinstance(reply, protocol.Sign) and reply.word == "again"

    def progress(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Report a trial's epoch and return whether to go on. Numbers that are not finite are left out.

        Raises:
            SupersededError: another attempt has taken this trial over. Let it pass, so that the task fails.
        """
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        reply = self._call(protocol.TrialProgress(self._worker, self._attempt, epoch, finite))
        return not (isinstance(reply, Order) and reply.kind == "stop")

    def print(self, number: int, text: str) -> None:
        """Send what was printed after the first `number` letters, at most `protocol.PRINTED_LETTERS`. Tries once more, not often."""
        self._call(protocol.Printed(self._worker, self._attempt, number, text), tries=2)

    def close(self) -> None:
        """Stop heartbeats and close the connections. May be called again."""
        self._closed.set()
        self._beat_line.end()
        if self._beating is not None:
            self._beating.join(self._settings.connect_timeout + _BEAT_TIMEOUT)
            self._beating = None
        self._line.end()

    def _call(self, message: protocol.Message, tries: int | None = None) -> protocol.Message:
        """Send a message and return the reply. Retry if the connection breaks: the server applies an answer only once."""
        chunks = wire.encode(message)
        cause: Exception | None = None
        tries, began = tries or self._settings.retries + 1, time.monotonic()
        for tried in range(tries):
            if tried:
                self._closed.wait(min(_LONGEST_BACKOFF, _BACKOFF_SECONDS * 2.0 ** (tried - 1)))
            if self._superseded is not None:
                raise self._superseded
            if self._closed.is_set():
                raise ElephasError("expected an open exchange; this one has been closed.")
            try:
                reply = self._exchange(self._line, chunks)
            except (OSError, wire.CutShortError) as error:
                log.info("worker %d: %s, trying again", self._worker, error)
                self._line.close()
                cause = error
                if tried >= _FEWEST_RETRIES and time.monotonic() > began + _PATIENCE_SECONDS:
                    break
                continue
            return _unless_refused(reply)
        raise ConnectionLostError(
            f"worker {self._worker} cannot reach the parameter server at {self._settings.host}:{self._settings.port} "
            f"after {tried + 1} tries from {platform.node()} ({type(cause).__name__}: {cause}). Is the driver still running, "
            f"and can executors open connections to this address and port? {self._settings.advice}"
        ) from cause

    def _exchange(self, line: Line, chunks: list[wire.Chunk]) -> protocol.Message:
        """Send a frame and return the one that comes back."""
        place = f"the parameter server at {self._settings.host}:{self._settings.port}"
        try:
            incoming = line.call(chunks)
        except TokenError as error:
            raise ElephasError(
                f"{place} does not know this run's token. Is another run's server listening there? Each run makes its own "
                "token and hands it to its workers; give port=0."
            ) from error
        if incoming.status not in (200, 400, 409) or incoming.length is None:
            line.close()
            raise ElephasError(
                f"expected a frame from {place}, got status {incoming.status} {incoming.reason}. "
                "Is another program listening there?"
            )
        return wire.decode(incoming.source, incoming.length, self._settings.sizes)

    def _start_beating(self) -> None:
        if self._beating is None:
            self._beating = threading.Thread(target=self._beat, name="elephas-like-heartbeat", daemon=True)
            self._beating.start()

    def _beat(self) -> None:
        """Send a heartbeat every `beat_seconds`, until the run is over for this worker."""
        while not self._closed.wait(self._settings.beat_seconds):
            beat = wire.encode(protocol.Beat(self._worker, self._attempt, self._progress()))
            try:
                reply = _unless_refused(self._exchange(self._beat_line, beat))
            except SupersededError as error:
                self._superseded = error
                return
            except (OSError, ElephasError) as error:
                log.info("a heartbeat was lost: %s", error)
                self._beat_line.close()
                continue
            if isinstance(reply, Order) and reply.kind == "stop":
                self._stopped = True


def _order(reply: protocol.Message) -> Order:
    if not isinstance(reply, Order):
        raise wire.FrameError(f"expected an order from the parameter server, got a {type(reply).__name__}.")
    return reply


def _unless_refused(reply: protocol.Message) -> protocol.Message:
    if not isinstance(reply, protocol.Refusal):
        return reply
    kinds: dict[str, type[ElephasError]] = {"SupersededError": SupersededError, "FrameError": wire.FrameError}
    raise kinds.get(reply.type_name, ElephasError)(reply.message)


def _line(settings: ClientSettings, timeout: float) -> Line:
    return LINES[settings.kind](
        settings.host,
        settings.port,
        settings.token,
        connect_timeout=settings.connect_timeout,
        timeout=timeout,
        fingerprint=settings.fingerprint,
    )
