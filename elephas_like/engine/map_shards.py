"""Predictions and evaluations over an RDD: batches streamed, order kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from pyspark import RDD

from elephas_like.core.columns import signature
from elephas_like.core.errors import Failure
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Array, Evaluation, Order, ShardRef, Structure, WorkerFactory
from elephas_like.rows.shard_files import remove
from elephas_like.rows.shards import SpoolOptions, new_dataset, references
from elephas_like.rows.spool import Block, spool
from elephas_like.spark.versions import check_versions
from elephas_like.spark.waits import readably

BATCHES_AT_ONCE = 16
"""Batches of rows that are made into columns together."""

Chunk = tuple[list[Array], Structure]
Result = TypeVar("Result")
Predict = Callable[[ShardRef], Iterator[Chunk]]


def prediction_chunks(
    rdd: RDD, predictor: Callable[[], Predict], batch_size: int, floatx: str, driver: Mapping[str, str]
) -> RDD:
    """(output arrays, their structure) of successive batches of rows, partition by partition in the order of the rows.

    driver: the driver's versions, with which executors must agree.
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
    """Yield lists of so many rows. A Block counts as the rows it holds."""
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
    """Predictions one by one: an array a row, or a list or dict of arrays for several outputs."""

    def one_by_one(parts: Iterable[Chunk]) -> Iterator[object]:
        for outputs, structure in parts:
            for row in range(len(outputs[0])):
                tree = unflatten(structure, [output[row] for output in outputs])
                yield list(tree) if isinstance(tree, tuple) else tree

    return chunks.mapPartitions(one_by_one)


def collected(chunks: RDD) -> object:
    """All predictions: an array with a leading axis of rows, or a list or dict of them for several outputs.

    No rows give an empty array.
    """
    with readably(chunks.context):
        parts: list[Chunk] = chunks.collect()
    if not parts:
        return np.zeros((0,), np.float32)
    outputs = [np.concatenate(arrays) for arrays in zip(*(part[0] for part in parts), strict=True)]
    tree = unflatten(parts[0][1], outputs)
    return list(tree) if isinstance(tree, tuple) else tree


def evaluations(
    rdd: RDD, factory: Callable[[], WorkerFactory], order: Callable[[], Order], options: SpoolOptions
) -> list[tuple[str, Evaluation]]:
    """The signature of each partition that has rows, and the metric sums of a state over them.

    factory: a function that makes the factory of workers on the executor. order: makes the order whose state is evaluated.
    """

    def evaluate(index: int, ref: ShardRef) -> tuple[str, Evaluation]:
        worker = factory()(index, ref, ref)
        evaluation = worker.evaluate(order())
        worker.close()
        return signature(ref), evaluation

    return [found for found in of_shards(references(rdd, options), evaluate) if found[0]]


def of_shards(refs: RDD, act: Callable[[int, ShardRef], Result], keep: bool = False) -> list[Result]:
    """What `act(partition, shard)` returns for each shard of an RDD of references; their files are deleted unless kept.

    Raises:
        WorkerError: what `act`, or the writing of rows, raised on an executor.
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

    with readably(refs.context):
        results = refs.mapPartitionsWithIndex(each).collect()
    for result in results:
        if isinstance(result, Failure):
            raise result.error()
    return results
