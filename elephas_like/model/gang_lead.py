"""The leader of a gang: the parameter server and the loop of some epochs, in the task of one member.

The client sends the fit's plan and progress, and gets back the progress after those epochs, with a record of each. Callbacks stay
with the client.
"""

from __future__ import annotations

import json
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import cloudpickle
import numpy as np

from elephas_like.core.async_loop import fit_asynchronously
from elephas_like.core.errors import Failure, WaitError
from elephas_like.core.loop import FitPlan, fit_synchronously
from elephas_like.core.progress import FitProgress, NotSaved
from elephas_like.core.types import EpochRecord, Floats, Memories, RoundRecord, TrainState
from elephas_like.core.workers import AsyncWorkers
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.client import Client, ClientSettings
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.tls import identity
from elephas_like.model.options import Options
from elephas_like.model.serving import server_kind, store_of
from elephas_like.spark.gang import Member, pieces_of

_NOTHING = TrainState(*[np.zeros(0)] * len(fields(TrainState)))  # type: ignore[arg-type]  # of no layout
GOODBYE_SECONDS = 30.0
"""How long the leader waits for members to hear that the epochs are over; `round_timeout`, if that is less."""


@dataclass(frozen=True)
class Epochs:
    """What a gang has trained: the progress after it, a record of each finished epoch, and the error that ended it, if any.

    The records hold the state after all of them; their rounds are the progress's.
    """

    progress: FitProgress
    records: list[EpochRecord]
    error: BaseException | None

    def pieces(self) -> Iterator[bytes]:
        """Yield it in pieces of bytes, for Spark to move."""
        told = [(each.epoch, each.samples, each.metrics, each.validation) for each in self.records]
        error = None if self.error is None else _pickled(self.error)
        yield from pieces_of(pickle.dumps((self.progress.arrays(), told, error), 5))

    @classmethod
    def of(cls, found: bytes) -> Epochs:
        """Return what `pieces` was made of."""
        arrays, told, error = pickle.loads(found)  # noqa: S301  Spark handed over what a member wrote
        progress = FitProgress.from_arrays(arrays)
        records = [
            EpochRecord(epoch, progress.state, metrics, samples, validation)
            for epoch, samples, metrics, validation in told
        ]
        return cls(progress, records, None if error is None else pickle.loads(error))  # noqa: S301  likewise


@dataclass(frozen=True)
class LeadingEpochs:
    """What makes a leader (engine.gang_rounds.Lead): picklable, the same for all epochs of a job.

    plan: by value, with the strategy's code. with_loss: whether the metric sums begin with those of the loss.
    recalls: whether the progress comes back with what workers remember, for a checkpoint.
    token: that workers show. tls: whether the server speaks TLS, with a certificate made for it.
    """

    plan: bytes
    options: Options
    layout_hash: str
    sizes: Sizes
    with_loss: bool
    recalls: bool
    tls: bool
    token: str = field(repr=False)

    @contextmanager
    def begin(self, note: bytes, member: Member) -> Iterator[Leader]:
        """Start server and loop, from the progress in `note`."""
        plan: FitPlan = cloudpickle.loads(self.plan)
        progress = FitProgress.from_arrays(pickle.loads(note))  # noqa: S301  Spark handed over what the client wrote
        store = store_of(self.options, member.size, self.layout_hash, self.sizes)
        own = identity() if self.tls else None
        serving = server_kind(self.options)(store, self.token, self.sizes, member.host, self.options.port, identity=own)
        with serving as server:
            host, port = server.address
            told = {"host": host, "port": port, "fingerprint": None if own is None else own.fingerprint}
            memories = _Memories(self.recalls and plan.workers_remember)
            patience = min(GOODBYE_SECONDS, self.options.round_timeout)
            leader = Leader(
                plan, progress, store, json.dumps(told), loss_of if self.with_loss else no_loss, memories, patience
            )
            try:
                with leader.interrupting():
                    yield leader
                if not server.left(patience):
                    leader.raise_if_late()
            finally:
                leader.stop()

    def connect(self, address: str, worker: int, attempt: int) -> Client:
        """Return the connection of a worker to the leader."""
        told = json.loads(address)
        advice = (
            "Executors must reach each other: a network policy or a firewall may need port=<one that it lets through>."
        )
        kind = self.options.parameter_server_mode
        return ClientSettings(kind=kind, token=self.token, sizes=self.sizes, advice=advice, **told).connect(
            worker, attempt
        )


class Leader:
    """A loop that runs in a thread beside the member's own work (engine.gang_rounds.Leading).

    A job of Spark's waits for all tasks. So if the loop has ended with a WaitError, and some member does not end, the leader raises it
    in its task: Spark then ends the others.

    Args:
        patience: seconds for which the member's own work may go on after a WaitError.
    """

    def __init__(
        self,
        plan: FitPlan,
        progress: FitProgress,
        store: RoundStore | CenterStore,
        address: str,
        loss_of: Callable[[Floats], float | None],
        memories: _Memories,
        patience: float = GOODBYE_SECONDS,
    ) -> None:
        self.address, self._memories, self._patience = address, memories, patience
        self._plan, self._progress, self._store, self._loss_of = plan, progress, store, loss_of
        self._hooks = _Recorder()
        self._error: BaseException | None = None
        self._ended, self._worked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="elephas_like-leader", daemon=True)
        self._thread.start()

    def result(self) -> Iterator[bytes]:
        """Wait for the end of the loop, and yield what it leaves."""
        self._worked.set()
        self._ended.wait()
        yield from Epochs(self._progress, self._hooks.records, self._error).pieces()

    def stop(self) -> None:
        """End the loop, whatever it is doing."""
        self._worked.set()
        self._store.stop()
        self._thread.join()

    def raise_if_late(self) -> None:
        """Raise the loop's error if it is that somebody did not answer in time."""
        if isinstance(self._error, WaitError):
            raise self._error

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Have a WaitError of the loop end what this task waits for, if it still does after `patience`: its own step, or the members.

        By a signal that does nothing otherwise. What waits outside of Python, as in a kernel, goes on.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGURG"):
            yield
            return

        def interrupt(*_: object) -> None:
            if not self._worked.is_set():
                self.raise_if_late()

        before = signal.signal(signal.SIGURG, interrupt)
        try:
            yield
        finally:
            self._worked.set()
            signal.signal(signal.SIGURG, before)

    def _run(self) -> None:
        self._train()
        self._ended.set()
        late = isinstance(self._error, WaitError) and not self._worked.wait(self._patience)
        if late and hasattr(signal, "SIGURG"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    def _train(self) -> None:
        try:
            store, plan, hooks, progress = self._store, self._plan, self._hooks, self._progress
            store.joined()
            if isinstance(store, AsyncWorkers):
                fit_asynchronously(
                    store, plan, hooks, progress, self._loss_of, NotSaved()
                )  # which has the shared state recorded at each epoch's end
            else:
                fit_synchronously(store, plan, hooks, progress, self._loss_of, self._memories)
                progress.memories = self._memories.found
        except BaseException as error:  # the client raises it
            self._error = error
        finally:
            self._store.stop()


class _Recorder:
    """Hooks that record epochs for the client, whose callbacks see them later."""

    def __init__(self) -> None:
        self.records: list[EpochRecord] = []

    def stopped(self) -> bool:
        """Whether a callback asked for the end of training: none is here."""
        return False

    def epoch_begin(self, epoch: int, state: TrainState) -> TrainState:
        """Begin an epoch."""
        return state

    def order_given(self) -> None:
        """Do nothing."""

    def round_end(self, record: RoundRecord, metrics: Floats) -> None:
        """End a round."""

    def evaluated(self, state: TrainState) -> TrainState:
        """Return the state itself."""
        return state

    def epoch_end(self, record: EpochRecord) -> TrainState:
        """Record an epoch, without its state, which may be large."""
        self.records.append(replace(record, state=_NOTHING, center={}))
        return record.state


def _pickled(error: BaseException) -> bytes:
    """Return an error as bytes; one that does not come back from them as a WorkerError with its type, message and traceback."""
    try:
        found = cloudpickle.dumps(error)
        cloudpickle.loads(found)
    except Exception:  # whatever a class of the user's own raises
        return cloudpickle.dumps(Failure.of(-1, error).error())
    return found


class _Memories(NotSaved):
    """Has workers asked at each epoch's end for what they remember, if the client will save it."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.found: Memories | None = None

    def due(self, amid_epoch: bool) -> bool:
        """Whether workers are asked now."""
        return self._wanted and not amid_epoch

    def save(self, progress: FitProgress, due: bool) -> None:
        """Keep what they have answered."""
        self.found = progress.memories if due else None


def loss_of(metrics: Floats) -> float | None:
    """Return the mean loss in metric sums, which begin with the loss tracker's (total, count)."""
    return float(metrics[0] / metrics[1]) if metrics.size > 1 and metrics[1] else None


def no_loss(metrics: Floats) -> None:
    """Return None: the model keeps no loss among its metrics."""
