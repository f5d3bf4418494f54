"""A worker's side of a strategy: the weights it trains from, the message it sends, and what it keeps in between."""

from __future__ import annotations

import numpy as np

from elephas_like.core.merging import finite
from elephas_like.core.strategies.algebra import Context, Memory, Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import Vector


class Sender:
    """The sender of one worker: call `start`, train, then send `message`.

    memory: what the strategy keeps between rounds, plain arrays by name.
    residual: what the codec's messages have lost so far (error feedback); None before the first.

    A worker that replaces another one starts without either.
    """

    def __init__(self, strategy: Strategy, codec: Codec | None = None) -> None:
        self._strategy = strategy
        self._codec = codec
        self.memory: Memory = {}
        self.residual: Vector | None = None

    def start(self, served: Vector, context: Context) -> Vector:
        """Return the weights to train from."""
        return self._strategy.merge(served, self.memory, context).astype(served.dtype, copy=False)

    def message(self, served: Vector, end: Vector, steps: int, context: Context) -> Vector:
        """Return the message of a round, packed by the codec if there is one.

        Memory and residual are only updated if all numbers are finite.

        Args:
            served: the weights that came with the order, which need not be those that training started from.
        """
        sent, memory = self._strategy.encode(served, end, steps, self.memory, context)
        sent = sent.astype(served.dtype, copy=False)
        sound = finite(end) and finite(sent)
        if sound:
            self.memory = memory
        if self._codec is None:
            return sent
        if self._codec.error_feedback and self.residual is not None:
            sent = sent + self.residual
        packed = self._codec.pack(sent)
        if self._codec.error_feedback and sound:
            self.residual = sent - self._codec.unpack(packed, sent.size)
        return packed  # type: ignore[return-value]  # bytes, in the delta's place

    def nothing(self, served: Vector) -> Vector:
        """Return the message of a round in which nothing was trained."""
        return np.zeros_like(served) if self._codec is None else np.zeros(0, np.uint8)
