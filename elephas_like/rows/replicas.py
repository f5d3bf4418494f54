"""All rows on every executor: shipped there once, as columns, and written down once per host for all of its tasks.

Rows of an RDD pass through the driver, one block of some partition at a time, on their way into Spark's broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from pyspark import RDD, Broadcast, SparkContext

from elephas_like.core.columns import TEXT, open_column, row_nbytes
from elephas_like.core.errors import Failure, ShardMissing, ShipmentGone
from elephas_like.core.structure import unflatten
from elephas_like.core.types import ShardRef
from elephas_like.rows.data import Data
from elephas_like.rows.shard_files import find_shard, host_lock, remove
from elephas_like.rows.shards import SpoolOptions
from elephas_like.rows.spool import Block, spool
from elephas_like.spark import task_input
from elephas_like.spark.parallel import JobRuns
from elephas_like.spark.versions import check_versions
from elephas_like.spark.waits import destroy

BLOCK_BYTES = 32 * 2**20
"""About the size of one broadcast block."""


class Parcel:
    """A broadcast block. It is emptied once its rows are on an executor's disk, since a broadcast's value stays in memory."""

    def __init__(self, block: Block) -> None:
        self._block: Block | None = block

    def take(self) -> Block:
        """Return the block, once in each process.

        Raises:
            ShipmentGone: this process has taken it before.
        """
        block, self._block = self._block, None
        if block is None:
            raise ShipmentGone("rows that were shipped to this executor are no longer in its local directory.")
        return block


@dataclass(frozen=True)
class Replica:
    """Gives any task all rows of a dataset: plain data and broadcasts."""

    blocks: tuple[Broadcast[Parcel], ...]
    options: SpoolOptions

    def ref(self) -> ShardRef:
        """Return the shard with all rows on this host. The first task to ask writes it, also after it has vanished.

        Raises:
            ShipmentGone: it has vanished, and this process was the one that wrote it.
        """
        check_versions(self.options.versions)
        return written_once((shipped.value.take() for shipped in self.blocks), self.options)


def written_once(blocks: Iterable[Block], options: SpoolOptions) -> ShardRef:
    """Return the shard of all rows of a dataset on this host. Blocks are taken only if no other task has written it here."""
    found = find_shard(options.dataset, 0)
    if found is not None:
        return found
    with host_lock(options.dataset):
        return find_shard(options.dataset, 0) or spool(
            blocks,
            dataset=options.dataset,
            worker=0,
            floatx=options.floatx,
            expect_target=options.expect_target,
            prepare=options.prepare,
        )


@contextmanager
def replicated(context: SparkContext, blocks: Iterable[Block], options: SpoolOptions) -> Iterator[Replica]:
    """Broadcast blocks of rows for as long as the context lasts. The caller deletes the shards.

    Raises:
        PlainTextError: rows must not be written on the executors.
    """
    options.check_disks(context)
    with _Shipping(context) as ship:
        yield Replica(tuple(ship(block) for block in blocks), options)


@contextmanager
def replicated_data(
    context: SparkContext, data: Data, options: SpoolOptions, *, at_once: int, tag: str
) -> Iterator[Replica]:
    """Broadcast all rows of a fit, in order, for as long as the context lasts. Shards that are kept are read, and stay.

    Args:
        at_once: partitions that are computed at the same time; the driver holds no more of them.
        tag: Spark job tag.

    Raises:
        PlainTextError: rows must not be written on the executors.
        WorkerError: rows that cannot be written down, with their place.
    """
    options.check_disks(context)
    written = replace(options, dataset=rows_dataset(options))  # worker 0 of the dataset itself is the replica
    with _Shipping(context) as ship, ExitStack() as stack:
        if data.blocks is not None:
            shipped = [ship(block) for block in data.blocks]
        else:
            refs = data.references(context, written, stack)
            shipped = data.rewriting(lambda: _shipped(refs, ship, at_once, tag, keep=data.kept))
            options = replace(options, prepare=None)  # partitions are prepared where they are written
        yield Replica(tuple(shipped), options)


def rows_dataset(options: SpoolOptions) -> str:
    """Id of the dataset in which partitions lie on their way into a replica, for the sweep after tasks were killed."""
    return f"{options.dataset}-rows"


class _Shipping:
    """Make broadcasts, and destroy them at the end."""

    def __init__(self, context: SparkContext) -> None:
        self._context, self._stack = context, ExitStack()

    def __call__(self, block: Block) -> Broadcast[Parcel]:
        shipped = self._context.broadcast(Parcel(block))
        self._stack.callback(destroy, self._context, shipped)
        return shipped

    def __enter__(self) -> _Shipping:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _shipped(refs: RDD, ship: _Shipping, at_once: int, tag: str, *, keep: bool) -> list[Broadcast[Parcel]]:
    """The rows of all partitions in broadcasts, in order; each is made as soon as its partition is there."""
    count, blocks = refs.getNumPartitions(), refs.mapPartitionsWithIndex(_reader(keep))
    found: dict[int, list[Broadcast[Parcel]]] = {}
    runs: JobRuns[list[object]] = JobRuns(refs.context, at_once=at_once, tag=tag)
    with runs:
        title = f"elephas_like: rows of partition %d of {count}"
        calls = [partial(runs.rows, blocks, index, title % (index + 1)) for index in range(count)]
        for number, result in runs.outcomes(calls):
            if isinstance(result, BaseException):
                raise result
            for element in result:
                if isinstance(element, Failure):
                    raise element.error()
            found[number] = [ship(block) for block in result if isinstance(block, Block)]
    return [shipped for index in range(count) for shipped in found[index]]


def _reader(keep: bool) -> Callable[[int, Iterable[ShardRef | Failure]], Iterator[Block | Failure]]:
    def read(index: int, refs: Iterable[ShardRef | Failure]) -> Iterator[Block | Failure]:
        for ref in task_input.at_once(refs):
            if isinstance(ref, Failure):
                yield ref
                continue
            try:
                yield from blocks_of(ref)
            except (ShardMissing, FileNotFoundError) as error:
                yield Failure.of(index, ShardMissing(str(error)))
            finally:
                if not keep:
                    remove(ref)

    return read


def blocks_of(ref: ShardRef) -> Iterator[Block]:
    """Yield the rows of a shard in blocks of about `BLOCK_BYTES`, in order."""
    if ref.rows == 0:
        return
    readers = [open_column(column, ref.rows) for column in ref.columns]
    row = sum(
        reader.row_nbytes if column.dtype == TEXT else row_nbytes(column)
        for reader, column in zip(readers, ref.columns, strict=True)
    )
    step = max(1, BLOCK_BYTES // max(1, row))
    for start in range(0, ref.rows, step):
        rows = np.arange(start, min(start + step, ref.rows))
        tree = unflatten(ref.structure, [reader.take(rows) for reader in readers])
        assert isinstance(tree, tuple)
        yield Block(tree, len(rows))
