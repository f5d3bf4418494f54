"""Rows dealt to workers: each row in one shard, whatever the numbers of partitions and workers."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest
from pyspark.sql import Row
from spooling import columns

from elephas_like.rows.gang_rows import collected, rows_of_rdd
from elephas_like.rows.mixing import Mixing
from elephas_like.rows.shard_files import find_shard, remove_dataset
from elephas_like.rows.shards import (
    ShardedDataset,
    SpoolOptions,
    dealt,
    is_unpickled,
    new_dataset,
    partitioned,
    references,
    rows_of_partitions,
    sweep,
)
from elephas_like.spark.versions import versions


def test_arrays_are_dealt_like_cards() -> None:
    x, y = np.arange(7), np.arange(7) * 10
    blocks = dealt((x, {"a": y}), 3)
    assert [block.rows for block in blocks] == [3, 2, 2]
    assert [block.columns[0].tolist() for block in blocks] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [block.columns[1]["a"].tolist() for block in blocks] == [[0, 30, 60], [10, 40], [20, 50]]


def test_arrays_that_are_shuffled_are_dealt_in_an_order_that_only_the_seed_decides() -> None:
    x, y = np.arange(99), np.arange(99) * 10

    def rows(seed: int) -> list[list[int]]:
        blocks = dealt((x, {"a": y}), 4, seed=seed)
        for block in blocks:
            assert (block.columns[1]["a"] == block.columns[0] * 10).all()
        return [block.columns[0].tolist() for block in blocks]

    assert rows(1) == rows(1) != rows(2)
    assert sorted(row for part in rows(1) for row in part) == list(range(99))
    assert [len(part) for part in rows(1)] == [25, 25, 25, 24]
    # A period of 4 gives every worker one class when it is dealt, and some of each when it is mixed.
    assert all(len({row % 4 for row in part}) == 4 for part in rows(1))


def test_more_workers_than_rows_leave_some_without() -> None:
    assert [block.rows for block in dealt((np.zeros((2, 3)),), 4)] == [1, 1, 0, 0]


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same number of rows; got shapes \[\(3,\), \(4,\)\]"):
        dealt((np.zeros(3), np.zeros(4)), 2)


@pytest.mark.spark
def test_threads_share_the_references_of_a_dataset(sc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would write the rows, and only the last one's files would be deleted. Here a second one has time to come."""
    dataset, second = ShardedDataset(sc.parallelize([1, 2], 2), 2, "shared"), Barrier(2)

    def waited_for(*given: object) -> object:
        with suppress(BrokenBarrierError):
            second.wait(1.0)
        return references(*given)

    monkeypatch.setattr("elephas_like.rows.shards.references", waited_for)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(dataset.references, SpoolOptions("shared", "float32", False, {})) for _ in range(2)]
        assert asked[0].result() is asked[1].result()
    dataset.release()


@pytest.mark.parametrize(("partitions", "workers"), [(1, 4), (3, 4), (5, 2), (3, 3)])
def test_every_row_is_in_one_partition_and_sizes_are_even(sc, partitions: int, workers: int) -> None:
    rdd = partitioned(sc.parallelize(range(60), partitions), workers)
    found = list(rows_of_partitions(rdd))
    assert len(found) == workers
    assert sorted(row for rows in found for row in rows) == list(range(60))
    if workers > partitions:
        assert max(map(len, found)) - min(map(len, found)) <= 60 // partitions // 2


@pytest.mark.parametrize(("refused", "jobs"), [(False, 2), (True, 2 + 5)], ids=["together", "too much for the driver"])
def test_many_partitions_come_by_few_jobs(sc, monkeypatch, refused: bool, jobs: int) -> None:
    monkeypatch.setattr("elephas_like.rows.shards.MOST_JOBS", 2)
    asked, run = [], sc.runJob

    def counted(rdd, function, partitions):
        asked.append(partitions)
        if refused and len(partitions) > 1:
            raise RuntimeError(
                "serialized results of 3 tasks (2.0 GiB) is bigger than spark.driver.maxResultSize (1.0 GiB)"
            )
        return run(rdd, function, partitions)

    monkeypatch.setattr(sc, "runJob", counted)
    assert list(rows_of_partitions(sc.parallelize([1, 2, 3], 5))) == [[], [1], [], [2], [3]]
    assert len(asked) == jobs


@pytest.mark.spark
def test_rows_that_python_makes_in_the_same_task_are_read_one_by_one(sc) -> None:
    """What makes them may use an array again: their values are those that each had when its turn came."""

    def same_array(numbers):
        buffer = np.zeros(2, "float32")
        for number in numbers:
            buffer[:] = number
            yield buffer, number

    made = sc.parallelize(range(2000), 2).mapPartitions(same_array)
    options = SpoolOptions("used-again", "float32", True, versions())
    try:
        refs = references(made, options).collect()
        x = np.concatenate([columns(ref)[0] for ref in refs])
        assert x[:, 0].tolist() == list(range(2000))
    finally:
        sc.parallelize(range(2), 2).foreach(lambda _: remove_dataset("used-again"))
    assert not is_unpickled(made)
    assert is_unpickled(sc.parallelize([(1, 2)], 1))
    assert is_unpickled(made.coalesce(1))


def made_in_place(rdd):
    """Rows with every kind of container, each in the containers of the one before."""

    def make(numbers):
        array, held, named = np.zeros(2, "float32"), [0.0, 0.0], {"a": np.zeros(1)}
        for number in numbers:
            array[:] = number
            held[:] = [number, -number]
            named["a"][:] = number
            yield (array, (array, held)), [array, array], named, held, number, Row(array=array), OrderedDict(named)

    return rdd.mapPartitions(make)


def numbers_in(row) -> set[float]:
    (array, (inner, held)), arrays, named, also_held, number, (of_row,), ordered = row
    found = [*array, *inner, held[0], -held[1], *arrays[0], *arrays[1], *named["a"], also_held[0], number]
    found += [*of_row, *ordered["a"]]
    return set(map(float, found))


@pytest.mark.parametrize(("partitions", "workers"), [(1, 3), (4, 2), (2, 2)])
def test_rows_that_are_held_beside_others_are_copies(sc, partitions: int, workers: int) -> None:
    made = made_in_place(sc.parallelize(range(200), partitions))
    mixed = Mixing(1) if partitions < workers else Mixing(1, 0.5)  # else as `partitioned`, which is there already
    for spread in (partitioned(made, workers), mixed.of(made, workers)):
        rows = [numbers_in(row) for rows in rows_of_partitions(spread) for row in rows]
        assert all(len(found) == 1 for found in rows)
        assert sorted(found.pop() for found in rows) == list(range(200))


def test_rows_of_a_gang_that_are_made_in_place_are_copies(spark) -> None:
    made = made_in_place(spark.sparkContext.parallelize(range(200), 2))
    rows = [numbers_in(row) for rows in collected(rows_of_rdd(spark, made)) for row in rows]
    assert sorted(found.pop() for found in rows if len(found) == 1) == list(range(200))


def test_no_partitions_are_as_many_empty_ones(sc) -> None:
    assert list(rows_of_partitions(partitioned(sc.emptyRDD(), 2))) == [[], []]


@pytest.mark.spark
def test_rows_that_are_split_are_computed_once_each(sc) -> None:
    """A parent may give its rows in another order each time that it is computed, as shuffles do on a cluster."""
    import random

    def in_any_order(rows):
        found = list(rows)
        random.SystemRandom().shuffle(found)
        return iter(found)

    split = partitioned(sc.parallelize(range(400), 2).mapPartitions(in_any_order), 4)
    # One computation: the rows of a shuffle are written once, and read by all four.
    found = split.glom().collect()
    assert sorted(row for rows in found for row in rows) == list(range(400))
    assert [len(rows) for rows in found] == [100] * 4


@pytest.mark.classic
@pytest.mark.fault(
    "Spark cannot compute a row (as a division by zero in ANSI mode)",
    "Spark's own error, before any training: the rows before it become no shard",
    "the fit",
)
def test_rows_before_one_that_spark_cannot_compute_become_no_shard(spark, sc) -> None:
    options = SpoolOptions(new_dataset(), "float32", False, versions())
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        rows = spark.range(0, 1000, 1, 1).selectExpr("1 / (id - 997) AS x").rdd.map(lambda row: row.x)
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            references(rows, options).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    dataset = options.dataset
    assert sc.range(0, 1, 1, 1).map(lambda _: find_shard(dataset, 0)).collect() == [None]
    sweep(sc, "cut", 1, [dataset])


@pytest.mark.parametrize(("tasks", "sweeps"), [(1, 2), (3, 3), (3000, 8)])
def test_a_sweep_has_a_few_tasks_for_each_slot_however_many_partitions_there_are(
    sc, monkeypatch, tasks, sweeps
) -> None:
    monkeypatch.setattr(type(sc), "defaultParallelism", 500)  # as spark.default.parallelism says
    sweep(sc, f"partitions-{tasks}", tasks, ["nothing"])
    jobs = list(sc._jsc.sc().statusTracker().getJobIdsForTag(f"partitions-{tasks}-sweep"))
    (stage,) = sc.statusTracker().getJobInfo(jobs[0]).stageIds
    assert (len(jobs), sc.statusTracker().getStageInfo(stage).numTasks) == (1, sweeps)
