"""Rows for a model of keras-hub, which its preprocessor prepares where they are written (trainer/preparing.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import keras
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import ElephasError
from elephas_like.model.given_rows import Given
from elephas_like.model.parquet_rows import as_frame
from elephas_like.model.source import Source
from elephas_like.model.sources import Arrays, Rows, Shards
from elephas_like.rows.data import Data
from elephas_like.rows.gang_rows import GangRows
from elephas_like.rows.mixing import Mixing
from elephas_like.rows.parquet_files import parquet_table
from elephas_like.rows.parquet_listing import NoArrowFilesystem, ParquetFiles
from elephas_like.rows.shards import ShardedDataset, SpoolOptions
from elephas_like.rows.spool import Block
from elephas_like.spark.session import settings_of, started_context
from elephas_like.spark.slots import task_cpus
from elephas_like.trainer.preparing import Preparation, preparer_of
from elephas_like.trainer.tensors import is_text


@dataclass(frozen=True)
class Prepared(Source):
    """Rows as they were given, of any kind, and how they are prepared."""

    given: Source
    preparation: Preparation
    _samples: dict[tuple[str, int], tuple[object, ...]] = field(default_factory=dict, compare=False)

    @property
    def has_target(self) -> None:
        """Each row says it: a tuple of two or three has one, and the preprocessor may make one of features alone."""
        return None

    @property
    def prepare(self) -> Preparation:
        """The preparation."""
        return self.preparation

    @property
    def context(self) -> SparkContext | None:
        """That of the given rows."""
        return self.given.context

    @property
    def session(self) -> SparkSession | None:
        """That of the given rows."""
        return self.given.session

    @property
    def num_workers(self) -> int | None:
        """That of the given rows."""
        return self.given.num_workers

    @property
    def partitions(self) -> int | None:
        """Those of the given rows."""
        return self.given.partitions

    def partitions_to_write(self, options: SpoolOptions) -> int | None:
        """Return those of the given rows."""
        return self.given.partitions_to_write(options)

    def data(
        self, workers: int | None = None, options: SpoolOptions | None = None, mixing: Mixing | None = None
    ) -> Data:
        """Return the given rows divided among workers. They are prepared where they are written."""
        return self.given.data(workers, options, mixing)

    def as_arguments(self, num_workers: int) -> tuple[Any, ...]:
        """Return the given rows."""
        return self.given.as_arguments(num_workers)

    def gang_rows(self, session: SparkSession, workers: int) -> GangRows:
        """Return the given rows, as a gang's members read them."""
        return self.given.gang_rows(session, workers)

    def spool_options(self, *, allow_plain_text: bool = False) -> SpoolOptions:
        """Return how the given rows are written."""
        options = self.given.spool_options(allow_plain_text=allow_plain_text)
        return replace(options, expect_target=None, prepare=self.preparation)

    def sample(self, floatx: str, rows: int = 1, timeout: float = math.inf) -> tuple[object, ...]:
        """Return a prepared batch, made once for all models that it builds: some tokenizers take seconds for one row."""
        if (floatx, rows) not in self._samples:
            self._samples[floatx, rows] = super().sample(floatx, rows, timeout)
        return self._samples[floatx, rows]

    def _first(self, timeout: float) -> list[object]:
        return self.given._first(timeout)


def given_for(
    model: keras.Model, data: Any, y: Any = None, sample_weight: Any = None, *, target: bool = True, **columns: Any
) -> Given:
    """Return data taken apart for a model (`Given.of`).

    A DataFrame, or files, whose rows are prepared may have no labels: the preprocessor of a language model makes them of the text.

    Raises:
        ValueError: several columns for rows that are prepared; and as `Given.of`.
    """
    read_as = reader(model)
    if read_as is None:
        _check_columns(model, columns.get("features_col"))
    given = Given.of(data, y, sample_weight, read_as, target=target, **columns)
    return given if read_as is not None else _as_a_preprocessor_takes(given, target=target)


def given_to_prepare(given: Given, model: keras.Model) -> Given:
    """Return data that was taken apart for no model as `given_for` gives it for this one, which trains on it.

    Raises:
        ValueError: as `given_for`.
    """
    if reader(model) is not None:
        return given.for_model(model)
    named = (given.named or {}).get("features_col")  # of pandas
    _check_columns(model, named if given.columns is None else given.columns.features)
    return _as_a_preprocessor_takes(given, target=True)


def _check_columns(model: keras.Model, chosen: object) -> None:
    """Raise ValueError if several columns would be put together before a model prepares them."""
    if isinstance(chosen, list | tuple) and len(chosen) > 1:
        raise ValueError(
            f"features_col={chosen!r}: the model {model.name!r} prepares its rows, and a list of columns would be put together first. Name "
            "one column, or those of a dict, as {'prompts': 'asked', 'responses': 'answered'}, if its preprocessor takes one; for a tuple "
            "give rows of an RDD, ((first, second), label)."
        )


def _as_a_preprocessor_takes(given: Given, *, target: bool) -> Given:
    """Return data without the axis of single texts, and without labels where a DataFrame has none."""
    choice = given.columns
    if choice is None:
        return replace(given, x=single_texts(given.x))
    if not target or choice.label_named or choice.label in _names(given.x):
        return given
    return replace(given, columns=replace(choice, label=None))


def single_texts(x: Any) -> Any:
    """Return features with columns of one text a row as preprocessors take them, without an axis for it."""
    if isinstance(x, RDD | ShardedDataset | Block):
        return x

    def single(leaf: Any) -> Any:
        return leaf[:, 0] if getattr(leaf, "shape", ())[1:] == (1,) and is_text(leaf) else leaf

    return keras.tree.map_structure(single, x)


def _names(data: Any) -> list[str]:
    if isinstance(data, DataFrame):
        return data.columns
    try:
        return parquet_table(data if isinstance(data, ParquetFiles) else ParquetFiles(data)).schema.names
    except NoArrowFilesystem:  # Spark reads these files, and says so
        return as_frame(data).columns


def reader(model: keras.Model) -> keras.Model | None:
    """Return the model as whose inputs and outputs rows are read: None where they are prepared first, and so are what they are."""
    return None if preparer_of(model) is not None else model


def prepared(source: Source, model: keras.Model, seed: int | None = None, fits: int = 0) -> Source:
    """Return rows, read as `reader` says, as a model takes them.

    Args:
        seed, fits: of what a preprocessor draws: it draws anew in each fit.

    Raises:
        ElephasError: a ShardedDataset, whose rows are written already; or a preprocessor that cannot be pickled.
    """
    preparer = preparer_of(model)
    if preparer is None:
        return source
    if isinstance(source, Shards):
        raise ElephasError(
            f"the model {model.name!r} prepares its rows, and those of a ShardedDataset are written already: give the rows that it was "
            "made from."
        )
    context = source.context or started_context()
    cores = source.task_cpus if context is None else task_cpus(settings_of(context))
    return Prepared(to_prepare(source), Preparation.of(preparer, (seed or 0) + fits, cores))


def as_read(source: Source, model: keras.Model) -> Source:
    """Return rows, read as `reader` says, as they are written for who prepares them later: cut for the model, or as its preprocessor takes them.

    Raises:
        ValueError, DataError: as `Source.for_model`.
    """
    return to_prepare(source) if reader(model) is None else source.for_model(model)


def to_prepare(source: Source) -> Source:
    """Return rows as they are written for a preprocessor: each says whether it has a target, and single texts have no axis of their own."""
    if isinstance(source, Rows | Shards):
        return replace(source, has_target=None)
    if isinstance(source, Arrays):
        return Arrays((single_texts(source.columns[0]), *source.columns[1:]))
    return source
