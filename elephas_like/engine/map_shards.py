"""Predict and evaluate over an RDD: batches are streamed, and the order of rows is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from pyspark import RDD

from elephas_like.core.errors import Failure
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Array, ShardRef, Structure
from elephas_like.rows.shard_files import remove
from elephas_like.rows.shards import new_dataset
from elephas_like.rows.spool import Block, spool
from elephas_like.spark.versions import check_versions
from elephas_like.spark.waits import readable_errors

BATCHES_AT_ONCE = 16
"""Batches of rows that are converted to columns together."""

Chunk = tuple[list[Array], Structure]
Result = TypeVar("Result")
Predict = Callable[[ShardRef], Iterator[Chunk]]


def prediction_chunks(
    rdd: RDD, predictor: Callable[[], Predict], batch_size: int, floatx: str, driver: Mapping[str, str]
) -> RDD:
    """Return an RDD of (output arrays, their structure) for successive batches, in the order of the rows.

    Args:
        predictor: returns the function that predicts for a shard, called on the executor.
        driver: the driver's package versions, which executors must match.
    """

    def predict(index: int, rows: Iterable[object]) -> Iterator[Chunk]:
        check_versions(driver)
        for chunk in _chunks(rows, batch_size * BATCHES_AT_ONCE):
            ref = spool(chunk, dataset=f"{new_dataset()}-predict", worker=index, floatx=floatx, expect_target=False)
            try:
                yield from predictor()(ref)
            finally:
                remove(ref)

    return rdd.mapPartitionsWithIndex(predict)


def _chunks(rows: Iterable[object], at_least: int) -> Iterator[list[object]]:
    """Yield lists of at least `at_least` rows; a Block counts as the rows it holds."""
    chunk: list[object] = []
    count = 0
    for row in rows:
        chunk.append(row)
        count += row.rows if isinstance(row, Block) else 1
        if count >= at_least:
            yield chunk
            chunk, count = [], 0
    if count:
        yield chunk


def rows_of(chunks: RDD) -> RDD:
    """Return an RDD of single predictions: an array a row, or a list or dict of arrays for several outputs."""

    def one_by_one(parts: Iterable[Chunk]) -> Iterator[object]:
        for outputs, structure in parts:
            for row in range(len(outputs[0])):
                tree = unflatten(structure, [output[row] for output in outputs])
                yield list(tree) if isinstance(tree, tuple) else tree

    return chunks.mapPartitions(one_by_one)


def collected(chunks: RDD) -> object:
    """Return all predictions: an array with a leading axis of rows, or a list or dict of them for several outputs.

    No rows give an empty array.
    """
    with readable_errors(chunks.context):
        parts: list[Chunk] = chunks.collect()
    if not parts:
        return np.zeros((0,), np.float32)
    outputs = [np.concatenate(arrays) for arrays in zip(*(part[0] for part in parts), strict=True)]
    tree = unflatten(parts[0][1], outputs)
    return list(tree) if isinstance(tree, tuple) else tree


def of_shards(refs: RDD, act: Callable[[int, ShardRef], Result], keep: bool = False) -> list[Result]:
    """Apply `act(partition, shard)` to each shard of an RDD of references and return the results.

    The shards' files are deleted unless `keep`.

    Raises:
        WorkerError: `act`, or writing the rows, raised on an executor.
    """

    def each(index: int, elements: Iterable[ShardRef | Failure]) -> Iterator[object]:
        for ref in elements:
            if isinstance(ref, Failure):
                yield ref
                return
            try:
                yield act(index, ref)
            except Exception as error:  # reported as a value: the driver raises it
                yield Failure.of(index, error)
            finally:
                if not keep:
                    remove(ref)

    with readable_errors(refs.context):
        results = refs.mapPartitionsWithIndex(each).collect()
    for result in results:
        if isinstance(result, Failure):
            raise result.error()
    return results
