"""Sources of rows: what a fit, an evaluation, a search or an ensemble is given as data, whatever its kind.

`Source` (source.py) is the interface, and each kind of data a class: `Arrays`, `Blocks`, `Rows` (an RDD), `FrameRows` (a DataFrame) and
`Shards` (a ShardedDataset); `ParquetRows` (files) has a module of its own. `source_of`, `column_source` and `validation_source` choose
among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import keras
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import ElephasError
from elephas_like.model.data_arguments import (
    arrays,
    check_targets,
    check_weights,
    cut_features,
    cut_inputs,
    cut_pairs,
    cut_pairs_or_features,
    cut_targets,
    frame_plan,
    has_one_input,
    labelled,
    refuse_connect,
    refuse_foreign,
)
from elephas_like.model.parquet_rows import PATHS, ParquetRows, parquet_rows
from elephas_like.model.source import Source
from elephas_like.rows.data import Data
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_shards import FrameShards
from elephas_like.rows.gang_rows import GangRows, collected, rows_of_frame
from elephas_like.rows.mixing import Mixing
from elephas_like.rows.samples import first_element, first_row
from elephas_like.rows.shards import ShardedDataset, SpoolOptions, dealt, is_unpickled, partitioned, references
from elephas_like.rows.spool import Block
from elephas_like.rows.valid_rows import readable
from elephas_like.spark.failures import GONE
from elephas_like.spark.session import context_of
from elephas_like.spark.waits import partition_count, stopped
from elephas_like.trainer.model_facts import input_count, wants_target


@dataclass(frozen=True)
class Arrays(Source):
    """Arrays on the driver: (x,), (x, y) or (x, y, sample_weight), each an array or a tree of arrays."""

    columns: tuple[object, ...]

    @property
    def has_target(self) -> bool:
        """Whether there is y."""
        return len(self.columns) > 1

    def for_model(self, model: keras.Model) -> Arrays:
        """Return the arrays cut.

        Raises:
            ValueError: None for targets that a loss needs, or weights that do not go with y. DataError: an array that cannot be cut.
        """
        x, *rest = self.columns
        y = [cut_targets(part, model) for part in rest[:1]]
        if y:
            check_targets(y[0], model)
        if len(rest) > 1:
            check_weights(y[0], rest[1])
        return Arrays((cut_inputs(x, model), *y, *rest[1:]))

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the rows dealt like cards."""
        workers = workers or 1
        return Data(workers, blocks=dealt(self.columns, workers, seed=None if mixing is None else mixing.seed))

    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return the arrays."""
        return self.columns

    def _first(self, timeout: float) -> list[object]:
        return [first_row(self.columns)]


@dataclass(frozen=True)
class Blocks(Source):
    """The block of each worker, where a split is the point (benchmarks, tests of uneven shards)."""

    blocks: tuple[Block, ...]

    @property
    def has_target(self) -> bool:
        """Whether blocks have y."""
        return len(self.blocks[0].columns) > 1

    @property
    def num_workers(self) -> int:
        """One worker per block."""
        return len(self.blocks)

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the blocks."""
        return Data(workers or len(self.blocks), blocks=self.blocks)

    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return the blocks."""
        return (self.blocks,)

    def _first(self, timeout: float) -> list[object]:
        block = next((block for block in self.blocks if block.rows), self.blocks[0])
        return [first_row(block.columns)]


class _SparkSource(Source):
    """Rows on Spark, as the elements of an RDD: single rows, or Blocks of them."""

    rdd: RDD

    @property
    def context(self) -> SparkContext:
        """The RDD's SparkContext."""
        return self.rdd.context

    @property
    def partitions(self) -> int:
        """The RDD's partitions."""
        return partition_count(self.rdd)

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the rows in as many partitions."""
        workers = workers or self.partitions or 1
        return Data(workers, partitioned(self.rdd, workers) if mixing is None else mixing.of(self.rdd, workers))

    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return an RDD with a partition for each worker."""
        return (self.data(num_workers).rdd,)

    def _first(self, timeout: float) -> list[object]:
        return first_element(self.rdd, timeout)


@dataclass(frozen=True)
class Rows(_SparkSource):
    """An RDD of rows: x, (x, y) or (x, y, sample_weight). The model's loss says which, and without one the row.

    ahead: whether a row may be read before the ones before it are written; None asks the RDD.
    """

    rdd: RDD
    has_target: bool | None = True
    ahead: bool | None = None

    def for_model(self, model: keras.Model) -> Rows:
        """Return the rows, cut one by one."""
        has_target = wants_target(model)
        cut = cut_pairs_or_features if has_target is None else cut_pairs if has_target else cut_features
        rdd = cut(self.rdd, model)
        return Rows(rdd, has_target, is_unpickled(self.rdd) if self.ahead is None else self.ahead)

    def spool_options(self, *, allow_plain_text: bool = False) -> SpoolOptions:
        """Return how the rows are written as a new dataset."""
        options = super().spool_options(allow_plain_text=allow_plain_text)
        return replace(options, ahead=is_unpickled(self.rdd) if self.ahead is None else self.ahead)


@dataclass(frozen=True)
class FrameRows(_SparkSource):
    """The rows of a DataFrame. The plan by which it is read says whether they have a target, and cuts them."""

    frame: Frame

    @property
    def rdd(self) -> RDD:
        """The rows, as Blocks.

        Raises:
            TypeError: Spark Connect has no RDDs.
        """
        refuse_connect(self.frame.df)
        return self.frame.blocks

    @property
    def session(self) -> SparkSession:
        """The DataFrame's session."""
        return self.frame.df.sparkSession

    @property
    def context(self) -> SparkContext | None:
        """The session's SparkContext; None over Spark Connect."""
        return context_of(self.session)

    @property
    def partitions(self) -> int | None:  # type: ignore[override]  # likewise
        """The DataFrame's partitions; None over Spark Connect, which does not tell."""
        return None if self.context is None else self.frame.partitions

    def partitions_to_write(self, options: SpoolOptions) -> int | None:
        """Return the DataFrame's partitions, counted by the plan that its rows are then written by."""
        if self.context is None or self.frame.runs_when_planned:
            return self.partitions
        return self._shards.partitions(options)

    @cached_property
    def _shards(self) -> FrameShards:
        return FrameShards(self.frame)

    def gang_rows(self, session: SparkSession, workers: int) -> GangRows:
        """Return the rows dealt to workers."""
        return rows_of_frame(self.frame.df, self.frame.plan, workers)

    def _first(self, timeout: float) -> list[object]:
        return self.frame.first(timeout) if self.context is None else super()._first(timeout)

    @property
    def has_target(self) -> bool:
        """Whether the plan has label columns."""
        return self.frame.plan.has_target

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the rows in as many partitions; Blocks are split if there are fewer."""
        if self.context is None:
            if mixing is not None:
                refuse_connect(self.frame.df)
            dealt = self.gang_rows(self.session, workers or 1)
            return Data(dealt.num_workers, collect=partial(collected, dealt))
        if workers is None:
            workers = (self.partitions if options is None else self.partitions_to_write(options)) or 1
        if mixing is not None and (mixing.share == 1 or self.frame.partitions >= workers):
            return Data(workers, mixing.of(self.rdd, workers))
        # Who only writes rows needs no other plan than the one to write them by.
        write = None if self.frame.runs_when_planned else partial(self._written, workers)
        return Data(workers, partial(self._divided, workers), write=write)

    def _divided(self, workers: int) -> RDD:
        sparse = self.frame.partitions < workers
        return partitioned(self.frame.dealt(workers) if sparse else self.rdd, workers)

    def _written(self, workers: int, options: SpoolOptions) -> RDD:
        refs = self._shards.references(workers, options)
        if refs is not None:
            return refs
        return references(partitioned(self.frame.dealt(workers), workers), options)


@dataclass(frozen=True)
class Shards(_SparkSource):
    """A ShardedDataset: rows that are written once and outlive the fit. The model's loss says whether they have a target."""

    dataset: ShardedDataset
    has_target: bool | None = True

    @property
    def rdd(self) -> RDD:
        """The rows that the shards are written from."""
        return self.dataset.source

    @property
    def num_workers(self) -> int:
        """One worker per shard."""
        return self.dataset.num_workers

    def for_model(self, model: keras.Model) -> Shards:
        """Return the dataset, told whether its rows are pairs: of tuples that may be several inputs it is not.

        For a model of one input without a loss each row says it: the shards are for other models, too, which need the labels.
        """
        has_target = wants_target(model)
        if not has_target and has_one_input(model):
            has_target = None
        elif has_target is None and input_count(model) > 1:
            has_target = False
        return replace(self, has_target=has_target)

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the rows, with their shards if it is said how they are written."""
        plain = super().data(workers)
        if options is None:
            return plain
        return replace(
            plain,
            sharded=self.dataset.references(replace(options, dataset=self.dataset.dataset)),
            written=self.dataset.written,
            invalidate=self.dataset.invalidate,
        )

    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return the dataset."""
        return (self.dataset,)

    def sharded(self, context: SparkContext, num_workers: int) -> AbstractContextManager[ShardedDataset]:
        """Return the dataset, which stays."""
        return nullcontext(self.dataset)


def source_of(
    data: Any,
    y: Any = None,
    sample_weight: Any = None,
    columns: ColumnChoice | None = None,
    model: keras.Model | None = None,
) -> Source:
    """Return the source of `fit(data, y, sample_weight=)`.

    Args:
        columns: of a DataFrame, with the model that reads them, if any.

    Raises:
        ValueError, TypeError: data that is not taken, or y beside rows that carry theirs.
    """
    extra = y is not None or sample_weight is not None
    if columns is not None:
        if extra:
            raise ValueError(
                "a DataFrame, or a path, holds y and sample_weight too: name their columns, label_col= and sample_weight_col=."
            )
        return column_source(data, columns, model)
    blocks = isinstance(data, Sequence) and len(data) > 0 and all(isinstance(block, Block) for block in data)
    if (blocks or isinstance(data, RDD | ShardedDataset)) and extra:
        raise ValueError("an RDD's rows carry y and sample_weight: (x, y) or (x, y, sample_weight).")
    if blocks:
        return Blocks(tuple(data))
    if isinstance(data, RDD):
        return Rows(data)
    if isinstance(data, ShardedDataset):
        return Shards(data)
    refuse_foreign(data)
    given = [arrays(data)]
    if extra:
        given.append(arrays(y))
    if sample_weight is not None:
        given.append(arrays(sample_weight))
    return Arrays(tuple(given))


def column_source(
    data: Any, columns: ColumnChoice, model: keras.Model | None, *, target: bool = True
) -> FrameRows | ParquetRows:
    """Return the rows of a DataFrame or of Parquet files for a model, without labels if not `target`."""
    found = data if isinstance(data, DataFrame) else parquet_rows(data, columns, model, target=target)
    return found if isinstance(found, ParquetRows) else frame_source(found, columns, model, target=target)


def frame_source(df: DataFrame, columns: ColumnChoice, model: keras.Model | None, *, target: bool = True) -> FrameRows:
    """Return the rows of a DataFrame for a model, without labels if not `target`; with no model as the columns lie."""
    plan = frame_plan(df, labelled(columns, model, target=target), model)
    return FrameRows(Frame(readable(df, plan), plan))


def validation_source(data: Any, columns: ColumnChoice | None = None, model: keras.Model | None = None) -> Source:
    """Return the source of `validation_data`; columns of a DataFrame or of Parquet files are those of the training rows'.

    Raises:
        TypeError: data of a kind that is not taken. ElephasError: an RDD of a SparkContext that was stopped.
    """
    if isinstance(data, (DataFrame, *PATHS)):
        if columns is None:
            kind = "a DataFrame" if isinstance(data, DataFrame) else "a path of Parquet files"
            raise TypeError(
                f"validation_data is {kind}, which goes with data that has columns; got data of another kind."
            )
        return column_source(data, columns, model)
    if isinstance(data, tuple | list) and len(data) in (1, 2, 3):
        return source_of(*data)
    if isinstance(data, RDD):
        if stopped(data.context):
            raise ElephasError(GONE)
        return source_of(data)
    raise TypeError(
        f"validation_data must be (x,), (x, y) or (x, y, sample_weight) arrays, an RDD of such rows, a DataFrame, or a path of "
        f"Parquet files; got {type(data).__name__}."
    )
