"""The engine of gangs: shards are written, and epochs trained, by barrier stages whose leader holds server and loop.

No connection leaves the executors: it is for drivers that executors cannot reach, and for Spark Connect. Each job is a gang of its
own. Its members find the shards that an earlier one has written where they run, and take them by agreement.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from elephas_like.core.errors import ElephasError, Failure, ShardMissing
from elephas_like.core.types import ShardRef
from elephas_like.core.workers import Exchange, Worker, WorkerFactory
from elephas_like.engine.server_rounds import serve, without_memory
from elephas_like.rows.gang_rows import Read
from elephas_like.rows.shard_files import dataset_directory, find_shard, local_directories, remove_dataset
from elephas_like.rows.shards import SpoolOptions, written
from elephas_like.spark.gang import Member, default_parallelism, noted
from elephas_like.spark.gpus import take_gpu
from elephas_like.spark.remote import run_job
from elephas_like.spark.waits import TIDY_SECONDS, Overdue, outside_groups

log = logging.getLogger(__name__)


class Leading(Protocol):
    """The server and the loop of some epochs, running in one member's task."""

    @property
    def address(self) -> str:
        """What other members need to connect, as text."""
        ...

    def result(self) -> Iterable[bytes]:
        """Wait for the end of the loop, and return its progress and outcome in pieces."""
        ...


class Lead(Protocol):
    """What the leader starts, made by the client that asks for the epochs. Picklable."""

    def begin(self, note: bytes, member: Member) -> AbstractContextManager[Leading]:
        """Start server and loop, from the progress in `note`."""
        ...

    def connect(self, address: str, worker: int, attempt: int) -> Exchange:
        """Return the connection of a worker to the leader."""
        ...


@dataclass(frozen=True)
class Datasets:
    """The shards of a fit, which may lie under several names: those of each time that the rows were written.

    names: ids of the times. training, validation: what each worker's shard must hold, as (rows, checksum); validation is None if
    there are no rows for it. in_one_place: all were written into one directory of one host.
    """

    names: tuple[str, ...]
    training: tuple[tuple[int, int], ...]
    validation: tuple[tuple[int, int], ...] | None
    in_one_place: bool = False

    @classmethod
    def of(cls, names: Sequence[str], training: Sequence[ShardRef], validation: Sequence[ShardRef] | None) -> Datasets:
        """Return the datasets whose newest time wrote these shards."""
        places = {
            (ref.host, os.path.dirname(os.path.dirname(ref.directory))) for ref in (*training, *(validation or ()))
        }
        return cls(
            tuple(names),
            tuple((ref.rows, ref.checksum) for ref in training),
            None if validation is None else tuple((ref.rows, ref.checksum) for ref in validation),
            len(places) == 1,
        )

    @property
    def memory(self) -> str:
        """The id of what workers save between jobs."""
        return f"{self.names[0]}-memory"


@dataclass(frozen=True)
class WriteShards:
    """A gang's task: each member writes its rows as the shard of its rank, and answers with the reference or a Failure."""

    read: Read
    options: SpoolOptions

    def __call__(self, member: Member, batches: Iterator[pa.RecordBatch]) -> Iterable[bytes]:
        """Write the rows."""
        return [pickle.dumps(written(member.rank, self.read(batches), self.options))]


@dataclass(frozen=True)
class Join:
    """A gang's task: each member opens its shard and compiles the model, and answers with what it joins with, or a Failure."""

    factory: WorkerFactory
    datasets: Datasets

    def __call__(self, member: Member, batches: Iterator[pa.RecordBatch]) -> Iterable[bytes]:
        """Open, compile, and close."""
        take_gpu()
        shares = own(member, self.datasets) if self.datasets.in_one_place else agreed(member, self.datasets, "")
        if shares is None:
            return [pickle.dumps(_missing(member))]
        worker: Worker | None = None
        try:
            worker = self.factory(shares.worker, *shares.shards)
            return [pickle.dumps(worker.joined(member.attempt, platform.node()))]
        except Exception as error:  # reported as a value: the client raises it
            return [pickle.dumps(Failure.of(shares.worker, error))]
        finally:
            if worker is not None:
                worker.close()


@dataclass(frozen=True)
class TrainEpochs:
    """A gang's task: the member that was given the fit's progress leads, and all train until the leader says stop.

    The leader answers with what `Leading.result` returns, or a pickled Failure that says that shards are missing.
    """

    lead: Lead
    factory: WorkerFactory
    datasets: Datasets

    def __call__(self, member: Member, batches: Iterator[pa.RecordBatch]) -> Iterable[bytes]:
        """Train."""
        take_gpu()
        note = b"".join(noted(batches))
        with ExitStack() as stack:
            leading = stack.enter_context(self.lead.begin(note, member)) if note else None
            shares = agreed(member, self.datasets, "" if leading is None else leading.address)
            if shares is None:
                if leading is not None:
                    yield pickle.dumps(_missing(member))
                return
            self._work(member, shares)
            if leading is not None:
                yield from leading.result()

    def _work(self, member: Member, shares: Shares) -> None:
        """Train as one worker, until the leader says stop. Errors are reported to it."""
        index = shares.worker
        exchange = self.lead.connect(shares.leader, index, member.attempt)
        worker: Worker | None = None
        try:
            exchange.announce(platform.node())
            worker = self.factory(index, *shares.shards)
            remembered = os.path.join(
                dataset_directory(local_directories()[0], self.datasets.memory), f"worker-{index}.npz"
            )
            with without_memory(index):
                worker.restore(remembered)
            serve(exchange, worker, member.attempt)
            with without_memory(index):
                worker.save(remembered)
        except Exception as error:
            exchange.fail(Failure.of(index, error))
        finally:
            exchange.close()
            if worker is not None:
                worker.close()


def remove_everywhere(session: SparkSession, name: str, datasets: Sequence[str], tasks: int) -> None:
    """Delete the files of datasets on all executors, within a limited time, by a job of a session of either kind.

    Args:
        name: of the job. tasks: those that have written; there are as many here, or as many as Spark has slots if that is more.
    """

    def delete() -> None:
        everywhere = max(tasks, default_parallelism(session))  # rows that moved lie elsewhere, too
        session.range(0, everywhere, 1, everywhere).mapInArrow(RemoveShards(datasets), "nothing long").collect()

    try:
        outside_groups(lambda: run_job(session, f"{name}-tidy", "elephas_like: delete shards", TIDY_SECONDS, delete))
    except (Overdue, ElephasError) as cause:  # the outcome of the work itself must not be hidden by its cleanup
        log.warning(
            "shards were not deleted everywhere (%s): directories called %s may remain in the executors' local directories "
            "(spark.local.dir).",
            *(str(cause).splitlines()[0], " and ".join(f"elephas_like-{dataset}" for dataset in datasets)),
        )


@dataclass(frozen=True)
class RemoveShards:
    """A task that deletes the files of datasets where it runs."""

    datasets: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Delete."""
        for dataset in self.datasets:
            remove_dataset(dataset)
        for _ in batches:
            pass
        yield from ()


@dataclass(frozen=True)
class Shares:
    """What the members of a gang have agreed on, for one of them.

    worker: whose place it takes. shards: that worker's, and the validation rows that it scores. leader: how to reach the leader.
    """

    worker: int
    shards: tuple[ShardRef, ShardRef | None]
    leader: str


def own(member: Member, datasets: Datasets) -> Shares | None:
    """Return the shards of the member's rank without a word to the others, which takes them a second. None if one is not here."""
    rank = member.rank
    training = _copy(datasets.names, rank, datasets.training[rank])
    held = None
    if datasets.validation is not None:
        held = _copy([validation_name(name) for name in datasets.names], rank, datasets.validation[rank])
    if training is None or (held is None and datasets.validation is not None):
        return None
    return Shares(rank, (training, held), "")


def agreed(member: Member, datasets: Datasets, address: str) -> Shares | None:
    """Agree with all members on who takes which shards. Return None if some shard is where no free member runs.

    Args:
        address: how this member is reached, if it leads; "" if not.
    """
    training = _here(datasets.names, datasets.training)
    held_out = [validation_name(name) for name in datasets.names]
    validation = None if datasets.validation is None else _here(held_out, datasets.validation)
    mine = {"address": address, "training": sorted(training), "validation": sorted(validation or ())}
    told = [json.loads(text) for text in member.all_gather(json.dumps(mine))]
    leader = next((each["address"] for each in told if each["address"]), "")
    workers = assigned([each["training"] for each in told])
    scorers = assigned([each["validation"] for each in told]) if validation is not None else workers
    if workers is None or scorers is None:
        return None
    worker = workers[member.rank]
    held = None if validation is None else validation[scorers[member.rank]]
    return Shares(worker, (training[worker], held), leader)


def assigned(found: Sequence[Sequence[int]]) -> list[int] | None:
    """Return which shard each member takes: one that it has found, each shard once; its own number wherever that can be.

    A maximum matching by augmenting paths (H. W. Kuhn, "The Hungarian method for the assignment problem", 1955), the same for
    all who compute it.

    Args:
        found: the numbers of the shards where each member runs.

    Returns:
        The numbers by member, or None if not all can have one.
    """
    holder: dict[int, int] = {}
    for rank, shards in enumerate(found):
        if rank in shards:
            holder[rank] = rank

    def place(rank: int, tried: set[int]) -> bool:
        for shard in sorted(found[rank], key=lambda shard: shard in holder):  # a free one first
            if shard in tried:
                continue
            tried.add(shard)
            if shard not in holder or place(holder[shard], tried):
                holder[shard] = rank
                return True
        return False

    for rank in range(len(found)):
        if rank not in holder.values() and not place(rank, set()):
            return None
    of_rank = {rank: shard for shard, rank in holder.items()}
    return [of_rank[rank] for rank in range(len(found))]


def validation_name(name: str) -> str:
    """Return the id of the validation rows that were written with training rows."""
    return f"{name}-val"


def _here(names: Sequence[str], shards: Sequence[tuple[int, int]]) -> dict[int, ShardRef]:
    """Return the shards that lie where this task runs, by their workers' numbers."""
    copies = {worker: _copy(names, worker, holds) for worker, holds in enumerate(shards)}
    return {worker: ref for worker, ref in copies.items() if ref is not None}


def _copy(names: Sequence[str], worker: int, holds: tuple[int, int]) -> ShardRef | None:
    """Return a worker's shard if it lies where this task runs, or None.

    Rows that are written again lie elsewhere, under another name. Whichever copy is here will do, if it holds the same.
    """
    copies = (find_shard(name, worker) for name in names)
    return next((ref for ref in copies if ref is not None and (ref.rows, ref.checksum) == holds), None)


def _missing(member: Member) -> Failure:
    where = ", ".join(sorted(set(member.hosts)))
    return Failure.of(member.rank, ShardMissing(f"the members of the gang, on {where}, do not have all shards."))
