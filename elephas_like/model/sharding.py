"""`shard`: rows that are written to the executors' disks once, and trained on many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import keras

from elephas_like.core import checks
from elephas_like.core.types import EngineName
from elephas_like.model.data_arguments import refuse_connect
from elephas_like.model.given_rows import Given
from elephas_like.model.sources import source_of
from elephas_like.rows.frame_plan import Choice
from elephas_like.rows.shards import ShardedDataset, new_dataset
from elephas_like.spark.session import context_for
from elephas_like.trainer.compile_arguments import check_model


def shard(
    data: Any,
    num_workers: int,
    y: Any = None,
    *,
    shuffle: bool = False,
    seed: int = 0,
    model: keras.Model | None = None,
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
    handle_invalid: str | None = None,
) -> ShardedDataset:
    """Rows to be written down once, on the executors, and trained on many times.

    Args:
        data: an RDD of rows, or arrays with `y`, `(x, y)` or `(x, y, sample_weight)`, or a DataFrame, or the path of Parquet
            files, as for `SparkModel.fit`. Arrays of several inputs without labels: `((x1, x2), None)`.
        num_workers: shards.
        shuffle: mixes the rows across workers once, by `seed`: the cheapest cure for rows that arrive sorted by label.
            Without, partitions stay together, and arrays are dealt like cards: row i goes to worker i mod `num_workers`.
        seed: of the order in which rows are mixed.
        model: of a DataFrame: a model with the inputs, outputs and loss of those that will be trained, as which its columns
            are read, as by `fit`. None takes the columns as they lie: several in a list are put together, a dict of them
            becomes a dict of features, and labels stay what they are, which suits models with one input and one output
            whose loss takes such labels.
        features_col, label_col, sample_weight_col, column_shapes, column_dtypes, handle_invalid: of a DataFrame, as for
            `SparkModel.fit`.

    Raises:
        ValueError, TypeError: arguments that make no sense, before any job.
    """
    workers = checks.positive_int("num_workers", num_workers)
    refuse_connect(data)
    given = Given.of(
        data,
        y,
        model=model,
        features_col=features_col,
        label_col=label_col,
        sample_weight_col=sample_weight_col,
        column_shapes=column_shapes,
        column_dtypes=column_dtypes,
        handle_invalid=handle_invalid,
    )
    if given.columns is None and model is not None:
        raise ValueError(
            f"model= says how columns of a DataFrame or of files are read; the data is of type {type(data).__name__}."
        )
    if model is not None:
        check_model(model)
    source = source_of(given.x, given.y, given.sample_weight, given.columns, model)
    if source.num_workers is not None:
        raise ValueError(f"the data is sharded for {source.num_workers} workers already; shard what it was made from.")
    context = context_for(source.context, EngineName.SERVER)
    if context is None:
        raise ValueError("shard() keeps rows on Spark's executors; start a SparkSession first.")
    rows = source.data(workers, seed=seed if shuffle else None)
    shipped = ExitStack()
    return ShardedDataset(rows.distributed(context, shipped), workers, new_dataset(), shipped)
