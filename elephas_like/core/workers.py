"""What the training loop asks of an engine: workers that exchange in step, or each on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center
from elephas_like.core.types import Array, EpochRecord, Evaluation, Joined, Order, Update, Vector


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


@runtime_checkable
class AsyncWorkers(Protocol):
    """An engine in asynchronous mode: workers that exchange on their own with a shared state."""

    def joined(self) -> list[Joined]:
        """Wait for all workers and return them in order."""
        ...

    def begin(self, center: Center, progress: AsyncProgress, validates: Callable[[int], bool]) -> None:
        """Start handing out work.

        Args:
            validates: whether workers evaluate the state after an epoch.
        """
        ...

    def next_epoch(self) -> EpochRecord | None:
        """Wait for the next finished epoch, evaluated if it is to be. Return None after the last."""
        ...

    def replace(self, parts: Mapping[str, Array], moved: Vector | None = None) -> None:
        """Pass what callbacks changed to the shared state.

        Args:
            parts: by the name of their role.
            moved: what callbacks added to the weights.
        """
        ...
