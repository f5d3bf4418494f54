"""Parquet files as data: read by the workers themselves where they can, else by Spark as a DataFrame."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import keras
import numpy as np
import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.structure import flatten
from elephas_like.model.data_arguments import labelled, schema_plan
from elephas_like.model.source import Source
from elephas_like.rows.data import Data
from elephas_like.rows.frame_plan import ColumnChoice, FramePlan, Invalid
from elephas_like.rows.gang_rows import GangRows
from elephas_like.rows.mixing import Mixing
from elephas_like.rows.parquet_files import ParquetTable, Part, parquet_table
from elephas_like.rows.parquet_frame import parquet_frame
from elephas_like.rows.parquet_listing import NoArrowFilesystem, ParquetFiles
from elephas_like.rows.parquet_read import read_part
from elephas_like.rows.shards import SpoolOptions
from elephas_like.rows.spool import Block
from elephas_like.spark.failures import informative_line
from elephas_like.spark.gang import noted, notes
from elephas_like.spark.session import active_remote, active_session, started_context

log = logging.getLogger(__name__)

PATHS = (str, os.PathLike, ParquetFiles)
"""The types of data that say where Parquet files are."""


@dataclass(frozen=True)
class ParquetRows(Source):
    """Rows of Parquet files, which each worker reads by itself, and how they are read for a model."""

    table: ParquetTable
    plan: FramePlan

    @property
    def has_target(self) -> bool:
        """Whether the plan has label columns."""
        return self.plan.has_target

    @property
    def context(self) -> SparkContext | None:
        """The SparkContext of this process, if there is one: files belong to none."""
        return started_context()

    @property
    def rdd(self) -> RDD:
        """The rows in order, as Blocks, in a partition for each slot or so."""
        return self._read_by_tasks(self.table.in_order(self._slots()))

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the rows dealt to workers, each of which reads its own; those that are mixed go through Spark."""
        parts = self.table.in_order(self._slots()) if workers is None else self.table.dealt(workers)
        rdd = None if self.context is None else self._read_by_tasks(parts)
        if mixing is not None and rdd is not None:
            return Data(len(parts), mixing.of(rdd, len(parts)))
        return Data(len(parts), rdd, collect=lambda: (read_part(self.plan, part) for part in parts))

    def gang_rows(self, session: SparkSession, workers: int) -> GangRows:
        """Return the rows as a gang's members read them: each is told its part."""
        told = [[pickle.dumps(part, 5)] for part in self.table.dealt(workers)]
        return GangRows(notes(session, told), workers, partial(_told, self.plan))

    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return an RDD of Blocks, with a partition for each worker; arrays where there is no Spark."""
        rdd = self.data(num_workers).rdd
        return self.arrays() if rdd is None else (rdd,)

    def arrays(self) -> tuple[Any, ...]:
        """Return all rows in order as (x,), (x, y) or (x, y, sample_weight).

        Raises:
            ValueError: there are none.
        """
        blocks = [flatten(block.columns)[0] for part in self.table.in_order(1) for block in read_part(self.plan, part)]
        if not blocks:
            raise ValueError("there are no rows to train on: the data is empty.")
        return self.plan.tree([np.concatenate(leaves) for leaves in zip(*blocks, strict=True)])

    def _slots(self) -> int:
        context = self.context
        return max(1, min(self.table.rows, 1 if context is None else context.defaultParallelism))

    def _read_by_tasks(self, parts: list[Part]) -> RDD:
        assert self.context is not None
        plan = self.plan
        return self.context.parallelize(parts, len(parts)).mapPartitions(
            lambda mine: chain.from_iterable(read_part(plan, part) for part in mine)
        )

    def _first(self, timeout: float) -> list[object]:
        first = next((block for part in self.table.in_order(1) for block in read_part(self.plan, part)), None)
        if first is None:
            return []
        leaves = [leaf[:1] for leaf in flatten(first.columns)[0]]  # type: ignore[index]  # arrays
        return [Block(self.plan.tree(leaves), 1)]


def _told(plan: FramePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[object]:
    for note in noted(batches):
        if note:
            yield from read_part(plan, pickle.loads(note))  # noqa: S301  Spark handed over what this module wrote


def parquet_rows(
    data: Any, columns: ColumnChoice, model: keras.Model | None, *, target: bool = True
) -> ParquetRows | DataFrame:
    """Return Parquet files as rows for a model, or the DataFrame by which Spark reads them where workers cannot by themselves.

    Spark reads them over Spark Connect, whose paths are the server's; where PyArrow has no filesystem for the URL; and where rows
    that cannot be read are to be left out, which Spark finds.

    Raises:
        FileNotFoundError, ValueError: as `parquet_table`. TypeError, ValueError: columns that do not fit the model.
        OSError: Spark cannot read the files, either.
    """
    files = data if isinstance(data, ParquetFiles) else ParquetFiles(data)
    if active_remote() is not None and files.filesystem is None:
        return _by_spark(files, "over Spark Connect")
    if columns.invalid not in (None, Invalid.ERROR):
        return _by_spark(files, f"for handle_invalid={columns.invalid.value!r}")
    try:
        table = parquet_table(files)
    except NoArrowFilesystem as error:
        return _by_spark(files, f"as PyArrow cannot ({error})")
    return ParquetRows(table, schema_plan(table.schema, labelled(columns, model, target=target), model))


def as_frame(data: Any) -> DataFrame:
    """Return a DataFrame as it is, and Parquet files as the one that Spark reads.

    Raises:
        ValueError: no session is active.
    """
    if isinstance(data, DataFrame):
        return data
    return _by_spark(data if isinstance(data, ParquetFiles) else ParquetFiles(data), "for a DataFrame of predictions")


def _by_spark(files: ParquetFiles, why: str) -> DataFrame:
    session = active_session()
    if session is None:
        raise ValueError(f"{files.texts} would be read by Spark, {why}: start a SparkSession first.")
    if files.filesystem is not None:
        raise ValueError(f"filesystem= is for workers who read files themselves, and Spark reads these {why}.")
    log.info("Spark reads %s as a DataFrame, %s", files.texts, why)
    try:
        return parquet_frame(session, files.texts)
    except Exception as error:  # py4j and pyspark raise many kinds
        raise OSError(f"Spark cannot read {files.texts}, {why}: {informative_line(str(error))}") from None
