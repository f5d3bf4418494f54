"""The rows that a fit is given, wherever they came from: a partition, or a block, for each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import RDD, SparkContext

from elephas_like.rows.shards import rows_of_partitions
from elephas_like.rows.spool import Block


@dataclass(frozen=True)
class Data:
    """A fit's rows: one partition of `rdd`, or one block, per worker.

    sharded: references that outlive the fit. written: called once their rows are on disk. invalidate: drops what Spark keeps of
    `sharded`, so that missing files are written again.
    """

    num_workers: int
    rdd: RDD | None = None
    blocks: Sequence[Block] | None = None
    sharded: RDD | None = None
    written: Callable[[], None] = lambda: None
    invalidate: Callable[[], None] = lambda: None

    def partitions(self) -> Iterator[list[object]]:
        """Yield the rows of each worker, on the driver."""
        if self.rdd is not None:
            yield from rows_of_partitions(self.rdd)
        else:
            assert self.blocks is not None
            for block in self.blocks:
                yield [block]

    def distributed(self, context: SparkContext) -> RDD:
        """Return the rows as an RDD."""
        if self.rdd is not None:
            return self.rdd
        assert self.blocks is not None
        return context.parallelize(list(self.blocks), self.num_workers)
