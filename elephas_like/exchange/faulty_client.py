"""A client of the parameter server whose connection breaks on purpose, for tests (core/fault_plan.py)."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from elephas_like.core.fault_plan import Fault, FaultPlan
from elephas_like.core.types import Order, Span, Update
from elephas_like.exchange import protocol, wire
from elephas_like.exchange.client import Client, ClientSettings
from elephas_like.exchange.connections import Line


@dataclass(frozen=True)
class AskDriver:
    """Asks the driver whether a fault happens now (core.fault_plan.Ask). Its server answers as one for a search's trials."""

    settings: ClientSettings

    def __call__(self, fault: int, worker: int, attempt: int, round: int) -> bool:
        """Return the driver's answer."""
        client = self.settings.connect(attempt, 0)
        try:
            return client.progress(round, {"fault": fault, "worker": worker})
        finally:
            client.close()


@dataclass(frozen=True)
class FaultySettings:
    """How to reach the parameter server over connections that break where a plan says so."""

    settings: ClientSettings
    plan: FaultPlan

    def connect(self, worker: int, attempt: int) -> FaultyClient:
        """Return the client of one attempt of a worker."""
        return FaultyClient(self.settings, worker, attempt, self.plan)


class FaultyClient(Client):
    """A client whose connection breaks while an update is sent, or its reply comes. It then does what any client does."""

    def __init__(self, settings: ClientSettings, worker: int, attempt: int, plan: FaultPlan) -> None:
        super().__init__(settings, worker, attempt)
        self._plan = plan
        self._span: Span | None = None
        self._asked_for = -1
        self._waiting: list[Fault] = []

    def _call(self, message: protocol.Message, tries: int | None = None) -> protocol.Message:
        if isinstance(message, protocol.Answer) and isinstance(message.result, Update):
            self._look_up(message.result)
        reply = super()._call(message, tries)
        if isinstance(reply, Order) and reply.span is not None:
            self._span = reply.span
        return reply

    def _look_up(self, update: Update) -> None:
        """Note the faults of an update, once: an update that the server asks for again is still the same."""
        if update.number == self._asked_for:
            return
        self._asked_for = update.number
        round = self._plan.round_of(update.number, update.version)
        due = self._plan.due(self._worker, self._attempt, round, self._span, "drop")
        self._waiting = [fault for _, fault in due]

    def _exchange(self, line: Line, chunks: list[wire.Chunk]) -> protocol.Message:
        if line is self._beat_line or not self._waiting:
            return super()._exchange(line, chunks)
        fault = self._waiting.pop(0)
        if not fault.reply:
            line.wrap(lambda connection: BreakingSocket(connection, wire.nbytes(chunks) // 2))
            return super()._exchange(line, chunks)
        super()._exchange(line, chunks)
        raise ConnectionResetError("injected: the reply is lost")


class BreakingSocket:
    """A connection that breaks when so many bytes of a request's body are sent."""

    sendmsg = None

    def __init__(self, connection: socket.socket, room: int) -> None:
        self._connection, self._room = connection, room

    def send(self, data: memoryview) -> int:
        """Send what is still let through."""
        part = data[: self._room]
        if not part:
            self._connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError("injected: the connection breaks")
        sent = self._connection.send(part)
        self._room -= sent
        return sent

    def __getattr__(self, name: str) -> Any:
        """Do all else as the connection does."""
        return getattr(self._connection, name)
