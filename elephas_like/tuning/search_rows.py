"""The rows of a search: written down once, where its trials read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
from pyspark import SparkContext

from elephas_like.core.types import ShardRef
from elephas_like.model.sharding import shard
from elephas_like.model.sources import Source
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.shards import dealt, new_dataset, rows_of_partitions
from elephas_like.rows.spool import spool
from elephas_like.trainer.batches import sample_of
from elephas_like.tuning.trial import forget_rows


class SearchRows:
    """A search's rows on the driver: written down once, for the executors to be shipped from.

    spooled: False leaves them where they are, for trials of several workers.
    """

    def __init__(self, source: Source, held: Source | None, *, spooled: bool) -> None:
        self.name = new_dataset()
        self.shards: list[ShardRef] = []
        self.sample: tuple[object, ...] | None = None
        self._source, self._held, self._spooled = source, held, spooled

    def __enter__(self) -> SearchRows:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Deletes what was written."""
        forget_rows()
        for dataset in (self.name, f"{self.name}-val"):
            remove_dataset(dataset)

    def open(self) -> None:
        """Writes the rows down."""
        if not self._spooled:
            if self._source.columns is not None:
                self.sample = self._source.sample(keras.config.floatx())
            return
        sources = [(self.name, self._source)]
        if self._held is not None:
            sources.append((f"{self.name}-val", self._held))
        for dataset, source in sources:
            self.shards.append(
                spool(
                    _rows(source),
                    dataset=dataset,
                    worker=0,
                    floatx=keras.config.floatx(),
                    expect_target=source.has_target,
                    place="the data, shard",
                )
            )
        self.sample = sample_of(self.shards[0])
        if self.sample is None:
            raise ValueError("there are no rows to train on: the data is empty.")

    @contextmanager
    def sharded(self, context: SparkContext | None, workers: int) -> Iterator[Any]:
        """What SparkModels of so many workers are fitted on, written to the executors once for all trials."""
        source = self._source
        if source.dataset is not None:
            yield source.dataset
        elif context is None:
            raise ValueError("trial_workers needs Spark: start a SparkSession first.")
        else:
            with shard(source.data(workers).distributed(context), workers) as dataset:
                yield dataset


def _rows(source: Source) -> Iterator[object]:
    if source.columns is not None:
        yield from dealt(source.columns, 1)
        return
    rdd = source.rdd if source.rdd is not None else source.dataset.source  # type: ignore[union-attr]
    for rows in rows_of_partitions(rdd):
        yield from rows


def source_of(data: Any, columns: ColumnChoice | None, model: keras.Model | None) -> Source:
    """The source of `search(data=)`; `model` says how the columns of a DataFrame are read."""
    if columns is not None:
        return Source.of_frame(data, columns, model)
    if isinstance(data, tuple | list):
        if not 1 <= len(data) <= 3:
            raise ValueError(f"data must be (x, y) or (x, y, sample_weight); got {len(data)} parts.")
        x, y, weights = (*data, None, None)[:3]
        return Source.of(x, y, weights)
    source = Source.of(data, None, None)
    if source.columns is not None:
        raise TypeError(
            "data must be (x, y) arrays, an RDD of (x, y) rows, a DataFrame or a ShardedDataset; got "
            f"{type(data).__name__}."
        )
    return source


def read_by(model: keras.Model | None, source: Source) -> Source:
    """The source as a first model reads it; where none could be built, arrays say whether they have a target."""
    if model is not None:
        return source.for_model(model)
    return source if source.columns is None else replace(source, has_target=len(source.columns) > 1)
