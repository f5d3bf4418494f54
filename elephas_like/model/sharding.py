"""`shard`: rows that are written to the executors' disks once, and trained on many times."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras

from elephas_like.core import checks
from elephas_like.core.types import EngineName
from elephas_like.model.data_arguments import refuse_connect
from elephas_like.model.given_rows import Given
from elephas_like.model.source import Source
from elephas_like.model.sources import source_of
from elephas_like.rows.frame_plan import Choice
from elephas_like.rows.mixing import Mixing, labels_apart
from elephas_like.rows.shards import ShardedDataset
from elephas_like.spark.session import context_for
from elephas_like.trainer.compile_arguments import check_model

log = logging.getLogger(__name__)

AUTO_SHARE, AUTO_APART = 0.1, 0.1
"""What `mix="auto"` mixes, and from which distance of the labels. Rows dealt at random are at 0, sorted ones at 0.7 to 0.9."""


def shard(
    data: Any,
    num_workers: int,
    y: Any = None,
    *,
    shuffle: bool = False,
    mix: float | Literal["auto"] | None = None,
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
        shuffle: mixes all rows across workers once, by `seed`: the cure for rows that arrive sorted by label.
            Without, partitions stay together, and arrays are dealt like cards: row i goes to worker i mod `num_workers`.
        mix: mixes a share of each worker's rows with the others', as 0.1: less is sent over the network than by `shuffle`, and
            a tenth is enough for most of the gain where exchanges are few. "auto" reads the rows once more, compares the labels of the
            partitions, and mixes a tenth if they are further apart than 0.1 (`rows.mixing.distance`: 0 is alike, 1 is nothing in
            common). Every row is still in one shard. Arrays are mixed whole: they are in this process anyway.
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
    _check_mix(mix, shuffle)
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
    mixing = Mixing(seed) if shuffle else _mixing(mix, seed, source, workers)
    return source.data(workers, mixing=mixing).to_keep(context)


def _check_mix(mix: object, shuffle: bool) -> None:
    """Raise ValueError for a `mix` that is no share of rows, or that comes with `shuffle`."""
    if mix is None:
        return
    number = isinstance(mix, int | float) and not isinstance(mix, bool)
    if mix != "auto" and not (number and 0 < mix <= 1):  # type: ignore[operator]  # it is a number
        raise ValueError(f"mix must be a share of the rows, as 0.1, or 'auto', or None; got {mix!r}.")
    if shuffle:
        raise ValueError("shuffle=True mixes all rows, and mix= a share of them; give one of the two.")


def _mixing(mix: float | str | None, seed: int, source: Source, workers: int) -> Mixing | None:
    """Return how rows are mixed, which one line of the log says; None if they stay where they are."""
    if mix is None:
        return None
    if isinstance(mix, str):
        apart = labels_apart(source.data(workers))
        if apart is None or apart <= AUTO_APART:
            told = "rows have no labels" if apart is None else f"labels are alike in all shards (distance {apart:.2f})"
            log.info("mix='auto': %s; rows stay where they are.", told)
            return None
        mix = AUTO_SHARE
        log.info("mix='auto': labels differ from shard to shard (distance %.2f).", apart)
    log.info("%g %% of the rows of each of %d shards are mixed with the others'.", 100 * mix, workers)
    return Mixing(seed, float(mix))
