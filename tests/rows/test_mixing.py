"""Rows mixed across workers: each in one shard, as many as before, from everywhere; and whether labels say that it is needed."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby

import numpy as np
import pytest

from elephas_like.rows.data import Data
from elephas_like.rows.mixing import Mixing, _sent, distance, labels_apart
from elephas_like.rows.shards import dealt, rows_of_partitions
from elephas_like.rows.spool import Block


def mixed(rdd, workers: int, mixing: Mixing) -> list[list]:
    return list(rows_of_partitions(mixing.of(rdd, workers)))


@pytest.mark.parametrize(
    ("partitions", "workers", "share"), [(1, 4, 0.5), (2, 3, 1.0), (3, 3, 0.1), (5, 2, 0.5), (4, 1, 1.0)]
)
def test_every_row_is_in_one_shard_of_even_size(sc, partitions: int, workers: int, share: float) -> None:
    found = mixed(sc.parallelize(range(600), partitions), workers, Mixing(1, share))
    assert len(found) == workers
    assert sorted(row for rows in found for row in rows) == list(range(600))
    if workers % partitions == 0 or partitions % workers == 0:
        assert all(abs(len(rows) - 600 / workers) <= workers + 4 for rows in found)


def test_the_place_of_a_row_is_decided_by_the_seed_alone(sc) -> None:
    rdd = sc.parallelize(range(200), 4)
    first, again, other = (mixed(rdd, 3, Mixing(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(len({row // 50 for row in rows}) == 4 for rows in first)  # some of each old partition in each new one


def test_the_share_is_what_leaves_and_it_is_dealt_evenly(sc) -> None:
    """Of 4 x 1,000 rows a tenth is dealt: about 400, a quarter of them to the worker that they come from."""
    found = mixed(sc.parallelize(range(4000), 4), 4, Mixing(3, 0.1))
    came = [Counter(row // 1000 for row in rows) for rows in found]
    left = sum(count for worker, counts in enumerate(came) for origin, count in counts.items() if origin != worker)
    assert abs(left - 300) <= 4 * 4
    for origin in range(4):
        sent = [counts[origin] for worker, counts in enumerate(came) if worker != origin]
        assert max(sent) - min(sent) <= 1
    assert [abs(len(rows) - 1000) <= 4 for rows in found] == [True] * 4


def test_rows_of_one_partition_do_not_stay_together(sc) -> None:
    """Labels sorted by partition, and within each partition: runs of one label in a shard are as short as chance has them."""
    across = [label for label in range(4) for _ in range(500)]
    within = [label for _ in range(4) for label in range(5) for _ in range(100)]
    for labels, kinds in ((across, 4), (within, 5)):
        for rows in mixed(sc.parallelize(labels, 4), 4, Mixing(1)):
            assert set(rows) == set(range(kinds))
            assert max(len(list(run)) for _, run in groupby(rows)) < 25


def test_blocks_are_mixed_as_their_rows_are(sc) -> None:
    """Whole arrays, each row with its label and weight, in trees of any kind; small and large ones, and one without rows."""
    x = np.arange(1200)

    def block(rows: slice) -> Block:
        return Block(
            (
                ({"a": x[rows], "b": np.stack([x[rows]] * 3, 1) * 2},),
                np.array([f"{i}" for i in x[rows]], object),
                x[rows] / 4,
            ),
            len(x[rows]),
        )

    blocks = [block(slice(0, 100)), block(slice(100, 100)), block(slice(100, 700)), block(slice(700, 1200))]
    for share in (0.25, 1.0):
        found = mixed(sc.parallelize(blocks, 4), 4, Mixing(2, share))
        for blocks_of_worker in found:
            for one in blocks_of_worker:
                (tree,), text, weight = one.columns
                assert len(tree["a"]) == one.rows
                np.testing.assert_array_equal(tree["b"], np.stack([tree["a"]] * 3, 1) * 2)
                assert text.tolist() == [str(i) for i in tree["a"]]
                np.testing.assert_array_equal(weight, tree["a"] / 4)
        rows = [[row for one in worker for row in one.columns[2]] for worker in found]
        assert sorted(row for each in rows for row in each) == (x / 4).tolist()
        if share == 1:
            assert [abs(len(each) - 300) <= 4 for each in rows] == [True] * 4
            assert all({int(4 * row) // 300 for row in each} == {0, 1, 2, 3} for each in rows)


def test_blocks_that_do_not_go_together_are_left_for_the_writer_to_refuse(sc) -> None:
    wide, narrow = Block((np.zeros((5, 3)),), 5), Block((np.zeros((5, 2)),), 5)
    found = mixed(sc.parallelize([wide, narrow], 2), 2, Mixing(0))
    assert sum(block.rows for blocks in found for block in blocks) == 10
    assert {block.columns[0].shape[1] for blocks in found for block in blocks} == {2, 3}


def test_large_rows_are_sent_and_mixed_few_at_a_time(sc) -> None:
    """Rows of 3 MiB travel one by one, and none is lost; small ones many at a time."""
    large, small = ([np.full(size, i) for i in range(12)] for size in (3 * 2**17, 1))
    assert {len(batch) for _, batch in _sent(Mixing(0), 2, 0, large)} == {1}
    assert {len(batch) for _, batch in _sent(Mixing(0), 2, 0, small)} == {6}
    found = mixed(sc.range(0, 12, 1, 2).map(lambda i: np.full((3 * 2**17,), i)), 2, Mixing(0))
    assert sorted(int(row[0]) for rows in found for row in rows) == list(range(12))


def test_the_distance_of_two_classes_by_hand() -> None:
    """Shares 1/2: each sample is 1/2 apart; chance is 1/2 * 2 * sqrt(2 * 1/4 / (4 pi)) = sqrt(1 / (8 pi))."""
    assert distance([["a"] * 4, ["b"] * 4]) == pytest.approx(0.5 - math.sqrt(1 / (8 * math.pi)))
    assert distance([["a", "b"] * 4, ["b", "a"] * 4]) == 0
    assert distance([[], []]) is None
    assert distance([["a"] * 5, []]) == 0


def test_the_distance_is_that_of_the_rows_and_not_of_chance() -> None:
    random = np.random.default_rng(0)
    alike = [random.integers(0, 10, 60).tolist() for _ in range(32)]
    assert distance(alike) == pytest.approx(0, abs=0.03)
    # Ten classes of shares 1/10: 0.9 apart, and chance 1/2 * 10 * sqrt(2 * 0.09 / (60 pi)).
    assert distance([[label] * 60 for label in range(10)]) == pytest.approx(0.9 - 5 * math.sqrt(0.18 / (60 * math.pi)))
    quantities = random.normal(size=3200)
    assert distance([part.tolist() for part in np.split(quantities, 32)]) == pytest.approx(0, abs=0.04)
    assert distance([part.tolist() for part in np.split(np.sort(quantities), 32)]) > 0.6


@pytest.fixture(scope="module")
def places(sc):
    """The numbers of 800 rows in order, and mixed: by one shuffle for all that is read of them."""
    in_order = sc.parallelize(range(800), 4)
    return in_order, Mixing(0).of(in_order, 4)


@pytest.mark.parametrize("kind", ["numbers", "one_hot", "texts", "quantities"])
def test_labels_of_every_kind_tell_sorted_rows_from_mixed_ones(places, kind: str) -> None:
    number = np.sort(np.random.default_rng(1).integers(0, 8, 800))
    labels = {
        "numbers": number.tolist(),
        "one_hot": list(np.eye(8)[number]),
        "texts": [f"class {i}" for i in number],
        "quantities": (number + np.linspace(0, 0.5, 800)).tolist(),
    }[kind]
    sorted_rows, mixed_rows = (rdd.map(lambda place: (np.zeros(2), labels[place])) for rdd in places)
    assert labels_apart(Data(4, sorted_rows)) > 0.5
    assert labels_apart(Data(4, mixed_rows)) < 0.05


def test_labels_of_arrays_and_of_rows_without_any(sc) -> None:
    """Every second row is of class 1: dealt to two workers, each has one class; dealt to three, all have both."""
    x, y = np.arange(600.0), np.arange(600) % 2
    assert labels_apart(Data(2, blocks=dealt((x, y), 2))) > 0.4
    assert labels_apart(Data(3, blocks=dealt((x, y), 3))) < 0.01
    assert labels_apart(Data(2, blocks=dealt((x,), 2))) is None
    assert labels_apart(Data(2, sc.parallelize([np.zeros(2)] * 8, 2))) is None
    assert labels_apart(Data(2, blocks=[Block((np.zeros((4, 1)), np.zeros((4, 0))), 4)] * 2)) == 0


def test_a_sample_of_many_labels_is_of_all_of_them(sc) -> None:
    """Not of the first ones: the second half of each partition has other labels than the first."""
    rows = [(0.0, float(i % 10_000 >= 5_000)) for i in range(20_000)]
    shuffled = [(0.0, float(i % 2)) for i in range(20_000)]
    assert labels_apart(Data(4, sc.parallelize(rows, 2))) < 0.05
    assert labels_apart(Data(2, sc.parallelize(rows[:5_000] + shuffled[:5_000], 2))) > 0.2


def test_no_rows_are_as_many_empty_shards(sc) -> None:
    for rdd in (sc.emptyRDD(), sc.parallelize([], 3)):
        assert mixed(rdd, 2, Mixing(0)) == mixed(rdd, 2, Mixing(0, 0.5)) == [[], []]
