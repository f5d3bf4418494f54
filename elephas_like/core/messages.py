"""The worker's side of a strategy: what it goes on from, and what it sends, with all that it remembers in between."""

from __future__ import annotations

import numpy as np

from elephas_like.core.merging import finite
from elephas_like.core.strategies.algebra import Context, Memory, Strategy
from elephas_like.core.strategies.codecs import Codec
from elephas_like.core.types import Vector


class Sender:
    """One worker's: `start` a round, train, and send the `message`.

    memory: what the strategy remembers, plain arrays by name. residual: what a codec's messages have lost so far.
    A worker that takes another's place begins without either.
    """

    def __init__(self, strategy: Strategy, codec: Codec | None = None) -> None:
        self._strategy = strategy
        self._codec = codec
        self.memory: Memory = {}
        self.residual: Vector | None = None

    def start(self, served: Vector, context: Context) -> Vector:
        """The weights to train from."""
        return self._strategy.merge(served, self.memory, context).astype(np.float32, copy=False)

    def message(self, served: Vector, end: Vector, steps: int, context: Context) -> Vector:
        """What to send of a round, packed where there is a codec. Nothing that is not finite is remembered.

        Args:
            served: the weights that came with the order, which need not be those that training started from.
        """
        sent, memory = self._strategy.encode(served, end, steps, self.memory, context)
        sent = sent.astype(np.float32, copy=False)
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

    def nothing(self, size: int) -> Vector:
        """The message of a round in which nothing was trained."""
        return np.zeros(size, np.float32) if self._codec is None else np.zeros(0, np.uint8)
