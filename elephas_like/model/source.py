"""The interface of all kinds of rows that a fit, an evaluation, a search or an ensemble is given (sources.py has the kinds)."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import keras
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.rows.data import Data
from elephas_like.rows.gang_rows import GangRows, rows_of_blocks, rows_of_rdd
from elephas_like.rows.mixing import Mixing
from elephas_like.rows.shards import ShardedDataset, SpoolOptions, new_dataset
from elephas_like.rows.spool import Prepare, spool
from elephas_like.spark.session import conf_of, settings_of
from elephas_like.spark.slots import task_cpus
from elephas_like.spark.versions import versions
from elephas_like.trainer.batches import sample_of
from elephas_like.trainer.building import build, build_optimizer
from elephas_like.trainer.programs import check_rows_fit


class Source(ABC):
    """Rows given as data, of one kind."""

    @property
    @abstractmethod
    def has_target(self) -> bool | None:
        """Whether rows are pairs `(x, y)`, not features alone; None where each says it, as a tuple of two or three."""

    @property
    def prepare(self) -> Prepare | None:
        """What makes the rows that are written of those that are given; None where these are written."""
        return None

    @property
    def context(self) -> SparkContext | None:
        """The SparkContext that the rows belong to; None for rows of this process."""
        return None

    @property
    def session(self) -> SparkSession | None:
        """The session that a DataFrame belongs to, of either kind; None for other rows."""
        return None

    @property
    def task_cpus(self) -> int | None:
        """Cores of a task that reads the rows; None for rows of this process."""
        if self.context is not None:
            return task_cpus(settings_of(self.context))
        return None if self.session is None else task_cpus(conf_of(self.session))

    @property
    def num_workers(self) -> int | None:
        """The only number of workers that the rows are divided for; None if any will do."""
        return None

    @property
    def partitions(self) -> int | None:
        """Partitions of the rows; None if they have none yet."""
        return None

    def partitions_to_write(self, options: SpoolOptions) -> int | None:
        """Return `partitions`, for whoever is going to have the rows written as the options say."""
        return self.partitions

    def for_model(self, model: keras.Model) -> Source:
        """Return the rows as a model reads them: with or without targets, cut for several inputs and outputs as in Elephas.

        Only single arrays are cut; tuples and dicts stay what they are, and so do rows that are written already.
        """
        return self

    @abstractmethod
    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the rows divided among workers.

        Args:
            workers: how many; None takes one per partition, and one for arrays.
            options: how rows are written; with it, the data of a ShardedDataset has its shards.
            mixing: mixes them across workers. Arrays are mixed whole; Blocks and shards stay as they are.
        """

    @abstractmethod
    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return (data, y, sample_weight), or fewer, as `SparkModel.fit` takes them."""

    def gang_rows(self, session: SparkSession, workers: int) -> GangRows:
        """Return the rows as a gang's members read them."""
        data = self.data(workers)
        if data.rdd is not None:
            return rows_of_rdd(session, data.rdd)
        assert data.blocks is not None
        return rows_of_blocks(session, data.blocks)

    def spool_options(self, *, allow_plain_text: bool = False) -> SpoolOptions:
        """Return how the rows are written as a new dataset."""
        floatx = keras.config.floatx()
        return SpoolOptions(new_dataset(), floatx, self.has_target, versions(), allow_plain_text=allow_plain_text)

    def rows(self) -> Iterator[object]:
        """Yield all rows, or Blocks of rows, in order, on the driver."""
        return chain.from_iterable(self.data().partitions())

    def sharded(self, context: SparkContext, num_workers: int) -> AbstractContextManager[ShardedDataset]:
        """Return the rows as a ShardedDataset: the given one, which stays, or a new one, which the context releases."""
        return self.data(num_workers).to_keep(context)

    def build(self, model: keras.Model, batch_size: int = 1, timeout: float = math.inf) -> None:
        """Build model and optimizers, from a batch of the first row.

        Rows on Spark are read only if the model needs them: `take` ends a Python worker in mid-stream, and with it an
        imported TensorFlow.

        Args:
            timeout: seconds in which reading from Spark may make no progress.

        Raises:
            WaitError: `timeout` has passed. ValueError, DataError: as `sample`.
        """
        if (self.context is None and self.session is None) or not build_optimizer(model):
            sample = self.sample(keras.config.floatx(), batch_size, timeout)
            check_rows_fit(model, sample)
            build(model, sample)

    def sample(self, floatx: str, rows: int = 1, timeout: float = math.inf) -> tuple[object, ...]:
        """Return a batch of rows like the first one, in the dtypes that workers will see.

        Raises:
            ValueError: there are no rows.
            DataError: the first row is not one to train on.
        """
        return self.batch_of(self._first(timeout), floatx, rows)

    def batch_of(self, first: list[object], floatx: str, rows: int = 1) -> tuple[object, ...]:
        """Return a batch of rows like the given first one; it raises as `sample`."""
        sample = None
        if first:
            with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
                ref = spool(
                    first,
                    dataset="sample",
                    worker=0,
                    base=folder,
                    floatx=floatx,
                    expect_target=self.has_target,
                    prepare=self.prepare,
                )
                sample = sample_of(ref, rows)
        if sample is None:
            raise ValueError("there are no rows to train on: the data is empty.")
        return sample

    @abstractmethod
    def _first(self, timeout: float) -> list[object]:
        """Return the first row, or a Block that begins with it."""
