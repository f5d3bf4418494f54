"""The rows of a search: written down once, where its trials read them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import keras
from pyspark import SparkContext

from elephas_like.core.row_checks import NO_VALIDATION_ROWS
from elephas_like.core.types import ShardRef
from elephas_like.model.source import Source
from elephas_like.model.sources import Arrays, source_of
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.shards import ShardedDataset, new_dataset
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
            if isinstance(self._source, Arrays):
                self.sample = self._source.sample(keras.config.floatx())
            return
        sources = [(self.name, self._source)]
        if self._held is not None:
            sources.append((f"{self.name}-val", self._held))
        for dataset, source in sources:
            self.shards.append(
                spool(
                    source.rows(),
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
        if self._held is not None and not self.shards[1].rows:
            raise ValueError(NO_VALIDATION_ROWS)

    def sharded(self, context: SparkContext | None, workers: int) -> AbstractContextManager[ShardedDataset]:
        """What SparkModels of so many workers are fitted on, written to the executors once for all trials."""
        context = self._source.context or context
        if context is None:
            raise ValueError("trial_workers needs Spark: start a SparkSession first.")
        return self._source.sharded(context, workers)


def search_source(data: Any, columns: ColumnChoice | None, model: keras.Model | None) -> Source:
    """The source of `search(data=)`; `model` says how the columns of a DataFrame are read."""
    if columns is None and isinstance(data, tuple | list):
        if not 1 <= len(data) <= 3:
            raise ValueError(f"data must be (x, y) or (x, y, sample_weight); got {len(data)} parts.")
        return source_of(*data)
    source = source_of(data, columns=columns, model=model)
    if isinstance(source, Arrays):
        raise TypeError(
            "data must be (x, y) arrays, an RDD of (x, y) rows, a DataFrame or a ShardedDataset; got "
            f"{type(data).__name__}."
        )
    return source
