"""What the training loop asks of an engine, workers that exchange in step or each on its own; and what an engine asks of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from elephas_like.core.async_progress import AsyncProgress
from elephas_like.core.center import Center
from elephas_like.core.errors import Failure
from elephas_like.core.summing import Summed, Weighing
from elephas_like.core.types import (
    EpochRecord,
    Evaluation,
    Joined,
    Memories,
    Order,
    Recollection,
    Result,
    ShardRef,
    Span,
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
class SummingWorkers(Protocol):
    """An engine in synchronous mode that can add updates up before the driver has them."""

    def train_summed(self, order: Order, weighing: Weighing) -> Summed | None:
        """Return the updates of all workers, their vectors added up; None where `train` is to be called, as there is little to add."""
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

    def memories(self, last: EpochRecord) -> Memories:
        """Ask all workers, after the epoch that training ends with, what they remember, and wait for it."""
        ...

    def replace(self, before: TrainState, after: TrainState) -> None:
        """Pass to the shared state what callbacks have made of one that was taken before: `before` became `after`."""
        ...


class Worker(Protocol):
    """What an engine drives: one shard with a compiled model (trainer/worker.py), or plain NumPy in tests."""

    def joined(self, attempt: int, host: str) -> Joined:
        """What to tell the driver before the first order."""
        ...

    def steps_of(self, span: Span) -> int:
        """Batches that this worker has in a span."""
        ...

    def train(self, order: Order) -> Update:
        """The update of one train order."""
        ...

    def evaluate(self, order: Order) -> Evaluation:
        """The metric sums of an order's state on this worker's validation rows."""
        ...

    def recall(self, order: Order) -> Recollection:
        """What this worker remembers from round to round, as it was after the order that a recall names."""
        ...

    def remind(self, order: Order) -> Recollection:
        """Remember what a reminder holds, in place of all that was remembered."""
        ...

    def progress(self) -> int:
        """Steps done so far. Rises while `train` and `evaluate` are at work, and is asked for by another thread."""
        ...

    def save(self, path: str) -> None:
        """Save what this worker remembers from round to round in a file, for the worker that carries on. No file if nothing."""
        ...

    def restore(self, path: str) -> None:
        """Take over what `save` left, if there is such a file."""
        ...

    def close(self) -> None:
        """Releases the shard's memory."""
        ...


class WorkerFactory(Protocol):
    """A picklable that makes a Worker from its shard (and the shard of validation rows), on the executor."""

    def __call__(self, worker: int, shard: ShardRef, validation: ShardRef | None) -> Worker:
        """The worker of one shard, ready to train."""
        ...


class Exchange(Protocol):
    """A worker's line to the driver (exchange/client.py): every call ends within its time-outs."""

    def announce(self, host: str) -> None:
        """The first contact, before any work: the worker lives, and from now on says so by heartbeats."""
        ...

    def join(self, joined: Joined, progress: Callable[[], int]) -> Order:
        """Takes the worker's place and returns its first order; blocks while another attempt holds the place.

        progress: what rises while the worker is at work; heartbeats carry it.
        """
        ...

    def answer(self, result: Result) -> Order:
        """Brings the result of the last order and returns the next one."""
        ...

    def fail(self, failure: Failure) -> bool:
        """Reports an error as a value; the driver raises it. Whether it does not: raise it here, for another attempt of the task."""
        ...

    def close(self) -> None:
        """Ends the heartbeat and the connection."""
        ...
