"""Runs over Spark Connect: trials of a search and members of an ensemble, one job of one task each, cancelled by a tag.

No executor can reach the driver there, so a run says nothing before its result. Rows travel in the jobs: a task that finds them on its
host reads them there; where there are none it says so, and the run is made again by a job that brings them.
"""

from __future__ import annotations

import logging
import math
import pickle
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import ElephasError, Failure, WorkerError
from elephas_like.core.types import ShardRef
from elephas_like.engine.gang_rounds import remove_everywhere
from elephas_like.engine.map_frames import map_batches
from elephas_like.engine.runs import RunFunction, is_here, written_as
from elephas_like.rows.gang_rows import slices
from elephas_like.rows.replicas import blocks_of, written_once
from elephas_like.rows.shard_files import find_shard
from elephas_like.rows.shards import SpoolOptions
from elephas_like.spark.encryption import check_disks
from elephas_like.spark.failures import RefusedError
from elephas_like.spark.gang import keyed_notes, pieces_of
from elephas_like.spark.parallel import CancelledError, Runs, tries
from elephas_like.spark.remote import new_tag
from elephas_like.spark.session import conf_of
from elephas_like.spark.versions import check_versions, versions
from elephas_like.spark.waits import UNSEEN_KILL_SECONDS

log = logging.getLogger(__name__)

_CANCELLED = "OPERATION_CANCELED"
"""Part of what Spark Connect says of a job that somebody cancelled."""
_ORDER = 0
"""The key of an order's pieces; the rows of shard i have the key i + 1."""


@dataclass(frozen=True)
class _NoRows:
    """A task's answer where its host has not all shards."""

    host: str


class RemoteRuns(Runs[Any]):
    """Runs of one task each, all by the same function on the same rows. Leaving it cancels what runs, and deletes the rows' copies.

    Args:
        session: of Spark Connect.
        evaluate: what a task does with its order, as for TaskRuns; nobody hears its reports.
        shards: of the rows, on the driver's disk, in the order in which `evaluate` takes them.
        at_once: jobs that `outcomes` keeps under way; Spark queues what it has no slots for.
        name: of the jobs' tag.
        allow_plain_text: whether rows may be written on executors where Spark encrypts its own files.
        patience: seconds that `cancel` waits for running jobs.

    Raises:
        PlainTextError: rows must not be written on the executors.
    """

    def __init__(
        self,
        session: SparkSession,
        evaluate: RunFunction,
        shards: Sequence[ShardRef],
        *,
        at_once: int,
        name: str,
        allow_plain_text: bool = False,
        patience: float = math.inf,
    ) -> None:
        self._tag = new_tag(name)
        super().__init__(
            None, at_once=at_once, name=self._tag, stop=lambda: session.interruptTag(self._tag), patience=patience
        )
        conf = conf_of(session)
        if shards:
            check_disks(conf, allow_plain_text=allow_plain_text)
        self._session, self._shards = session, tuple(shards)
        written = tuple((ref, written_as(ref)) for ref in shards)
        self._task = _RunTask(cloudpickle.dumps(evaluate), written, versions())
        self._tries = tries(conf.get("spark.master", "") or "")
        self._lock, self._sent = threading.Lock(), list[DataFrame]()

    def start(self, number: int, call: Callable[[], Any]) -> None:
        """Starts a run with the tags of this thread, by which its user may interrupt it; returns at once."""
        tags = self._session.getTags()

        def tagged() -> Any:
            for tag in tags:
                self._session.addTag(tag)
            return call()

        super().start(number, tagged)

    def result(self, number: int, order: object, title: str) -> Any:
        """Return what `evaluate` returns for an order, by a job in this thread; again if its Python worker was lost.

        Raises:
            WorkerError: what `evaluate` raised. CancelledError: the job, or these runs, were cancelled. ElephasError: the job failed.
        """
        pieces = enumerate(pieces_of(cloudpickle.dumps((number, order))))
        told = keyed_notes(self._session, [(_ORDER, place, piece) for place, piece in pieces])
        left = self._tries
        while not self.cancelled:
            left -= 1
            try:
                (found,) = self._answers(told, title)
                if isinstance(found, _NoRows):
                    (found,) = self._answers(told.union(self.rows()), title)
                if isinstance(found, _NoRows):
                    raise ElephasError(f"{title}: rows that were sent to {found.host} are not on its disks.")
            except ElephasError as error:
                if self.cancelled or _CANCELLED in str(error):
                    raise CancelledError(str(error)) from None
                if not left or isinstance(error, WorkerError | RefusedError):
                    raise
                log.warning("%s was lost and is run again: %s", title, str(error).splitlines()[0])
            else:
                return found
        raise CancelledError("the run was cancelled before it began.")

    def rows(self) -> DataFrame:
        """Return the rows of all shards as jobs bring them. They are read from the driver's disk once."""
        with self._lock:
            if not self._sent:
                pieces = [
                    (index + 1, number, piece)
                    for index, ref in enumerate(self._shards)
                    for number, piece in enumerate(_pieces(ref))
                ]
                self._sent.append(keyed_notes(self._session, pieces))
            return self._sent[0]

    def _answers(self, told: DataFrame, title: str) -> list[Any]:
        self._session.addTag(self._tag)  # of this thread alone
        try:
            df = told.repartition(1).sortWithinPartitions("key", "number")
            return map_batches(df, self._task, title=title, timeout=math.inf)
        finally:
            self._session.removeTag(self._tag)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all jobs, and delete what tasks have written."""
        super().__exit__(kind, error, trace)
        if not self._sent:
            return
        if self.cut_short:  # tasks that were cancelled write until they are killed, and nobody here sees that
            threading.Event().wait(UNSEEN_KILL_SECONDS)
        remove_everywhere(self._session, self._tag, [ref.dataset for ref in self._shards], self.at_once)


@dataclass(frozen=True)
class _RunTask:
    """What runs on a slot for one run. Picklable.

    evaluate: a cloudpickle of the function. shards: those of the driver, and how they are written on another host.
    driver: its versions.
    """

    evaluate: bytes
    shards: Sequence[tuple[ShardRef, SpoolOptions]]
    driver: Mapping[str, str]

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[object]:
        check_versions(self.driver)
        groups = groupby(_keyed(batches), lambda piece: piece[0])
        number, order = cloudpickle.loads(b"".join(note for _, note in next(groups)[1]))  # our driver's own bytes
        for key, pieces in groups:
            blocks = (pickle.loads(note) for _, note in pieces if note)  # noqa: S301  Spark handed over what the driver wrote
            written_once(blocks, self.shards[key - 1][1])
        found = (ref if is_here(ref) else find_shard(ref.dataset, 0) for ref, _ in self.shards)
        refs = [ref for ref in found if ref is not None]
        if len(refs) < len(self.shards):
            yield _NoRows(platform.node())
            return
        function: RunFunction = cloudpickle.loads(self.evaluate)  # likewise
        try:
            yield function(order, refs, lambda epoch, logs: True)
        except Exception as error:  # reported as a value: the driver raises it
            yield Failure.of(number, error)


def _pieces(ref: ShardRef) -> Iterator[bytes]:
    """Yield the rows of a shard in pieces of a few MiB, after an empty one: a shard may have no rows."""
    yield b""
    for block in blocks_of(ref):
        for part in slices(block):
            yield pickle.dumps(part, 5)


def _keyed(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        yield from zip(batch.column("key").to_pylist(), batch.column("note").to_pylist(), strict=True)
