"""What the training loop asks of an engine: workers that exchange in step, or each on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center
from elephas_like.core.types import (
    EpochRecord,
    Evaluation,
    Joined,
    Memories,
    Order,
    Recollection,
    TrainState,
    Update,
)


class SyncWorkers(Protocol):
    """An engine in synchronous mode: K workers that all answer each order."""

    def joined(self) -> list[Joined]:
        """Wait for all workers and return them in order."""
        ...

    def train(self, order: Order) -> Iterator[Update]:
        """Yield the workers' updates in worker order, each as soon as it and its predecessors are there."""
        ...

    def evaluate(self, order: Order) -> Iterator[Evaluation]:
        """Yield the workers' evaluations in worker order."""
        ...

    def recall(self, after: int) -> Iterator[Recollection]:
        """Yield what the workers remember that belongs to the driver's state, in worker order.

        Args:
            after: the number of the last order. Workers whose update of it is not in the state are asked for what they
                remembered before.
        """
        ...

    def remind(self, memories: Memories, after: int) -> None:
        """Have the workers remember what they did when a checkpoint was written. Called before the first order.

        Args:
            after: the number of the last order before the checkpoint.
        """
        ...


@runtime_checkable
class AsyncWorkers(Protocol):
    """An engine in asynchronous mode: workers that exchange on their own with a shared state."""

    def joined(self) -> list[Joined]:
        """Wait for all workers and return them in order."""
        ...

    def begin(
        self,
        center: Center,
        progress: AsyncProgress,
        validates: Callable[[int], bool],
        recalls: Callable[[int], bool] = lambda epoch: False,
        memories: Memories = MappingProxyType({}),
    ) -> None:
        """Start handing out work.

        Args:
            validates: whether workers evaluate the state after an epoch.
            recalls: whether they are asked what they remembered when an epoch ended. Called once, at that moment.
            memories: what they remembered when a checkpoint was written.
        """
        ...

    def next_epoch(self) -> EpochRecord | None:
        """Wait for the next finished epoch, evaluated if it is to be. Return None after the last."""
        ...

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Pass to the shared state what callbacks have made of one that was taken before: `before` became `after`."""
        ...
