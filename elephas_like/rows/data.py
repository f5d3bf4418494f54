"""The rows that a fit is given, wherever they came from: a partition, or a block, for each worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from pyspark import RDD, SparkContext

from elephas_like.core.errors import ShardMissing
from elephas_like.rows.shards import (
    ShardedDataset,
    SpoolOptions,
    Writing,
    blocks_rdd,
    new_dataset,
    references,
    rows_of_partitions,
)
from elephas_like.rows.spool import Block

log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Data:
    """A fit's rows: one partition of `rdd`, or one block, per worker; or what `collect` brings to the driver of each, which is
    preferred there.

    rows: the RDD, or what makes it when it is asked for: for a DataFrame's Spark makes a plan.
    write: writes the rows of `rdd` as shards in a faster way than by reading it, and returns their references.
    sharded: references that outlive the fit. written: called once their rows are on disk. invalidate: drops what Spark keeps of
    `sharded`, so that missing files are written again.
    """

    num_workers: int
    rows: RDD | Callable[[], RDD] | None = None
    write: Writing | None = None
    blocks: Sequence[Block] | None = None
    collect: Callable[[], Iterable[Iterable[object]]] | None = None
    sharded: RDD | None = None
    written: Callable[[], None] = lambda: None
    invalidate: Callable[[], None] = lambda: None

    @cached_property
    def rdd(self) -> RDD | None:
        """The rows of each worker, in a partition of its own; None where they are not an RDD."""
        return self.rows() if callable(self.rows) else self.rows

    @property
    def kept(self) -> bool:
        """Whether the shards outlive the fit."""
        return self.sharded is not None

    def partitions(self) -> Iterator[Iterable[object]]:
        """Yield the rows of each worker, on the driver."""
        if self.collect is not None:
            yield from self.collect()
        elif self.rdd is not None:
            yield from rows_of_partitions(self.rdd)
        else:
            assert self.blocks is not None
            for block in self.blocks:
                yield [block]

    def distributed(self, context: SparkContext, shipped: ExitStack) -> RDD:
        """Return the rows as an RDD.

        Args:
            shipped: ends what was shipped to the executors, when nobody needs the rows any more.
        """
        if self.rdd is not None:
            return self.rdd
        assert self.blocks is not None
        return blocks_rdd(context, self.blocks, shipped)

    def references(self, context: SparkContext, options: SpoolOptions, shipped: ExitStack) -> RDD:
        """Return references of the shards: those that outlive the fit, or new ones."""
        return self.sharded if self.sharded is not None else self.writing(context, shipped)(options)

    def writing(self, context: SparkContext, shipped: ExitStack, first: Callable[[RDD], RDD] | None = None) -> Writing:
        """Return how the rows are written as shards.

        Args:
            shipped: as for `distributed`.
            first: adds to the tasks that use the references what they do before they wait for any row.
        """
        write = self.write
        if write is None:
            rows = self.distributed(context, shipped)
            return partial(references, rows if first is None else first(rows))
        return write if first is None else lambda options: first(write(options))

    def to_keep(self, context: SparkContext) -> ShardedDataset:
        """Return the rows as a new ShardedDataset, which is the caller's to release."""
        shipped = ExitStack()
        rows = partial(self.distributed, context, shipped)
        return ShardedDataset(rows, self.num_workers, new_dataset(), shipped, self.write)

    def rewriting(self, job: Callable[[], Result], *, again: Callable[[], bool] = lambda: True) -> Result:
        """Return what `job` returns. If files of kept shards are missing, have Spark rewrite them, and run it once more.

        Args:
            again: whether it may run once more, asked when files are missing.

        Raises:
            ShardMissing: files are missing, and it may not; or they are missing again.
        """
        try:
            return job()
        except ShardMissing as error:
            if not (self.kept and again()):
                raise
            log.warning("%s; the shards are written again", error.args[0].splitlines()[0])
            self.invalidate()
            return job()
