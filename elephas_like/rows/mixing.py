"""Rows mixed across workers, all of them or a share of each worker's, by one shuffle through Spark; and whether that is needed.

A worker's rows that leave are dealt like cards, in a random order of the workers each time, so shards keep their sizes but for a
row or two of each other worker. Rows travel in batches: a key, a sort and a pickle for each row cost several times as much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pyspark import RDD

from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array
from elephas_like.rows.column_files import BATCH_BYTES
from elephas_like.rows.data import Data
from elephas_like.rows.shards import own_rows, partitioned
from elephas_like.rows.spool import Block
from elephas_like.spark.waits import readable_errors

WINDOW_ROWS = 2048
"""Rows that are put into a random order together, where they come to less than 4 MiB. Their batches come from everywhere."""
DRAWN_ROWS = 64
"""Rows whose workers are drawn at a time. In the last draw of a partition fewer may leave than the share says, or more."""
SAMPLE = 1000
"""Labels of a partition by which partitions are compared: at least so many where there are as many, and at most twice as many."""
CLASSES = 100
"""Different labels above which numbers count as quantities: they are compared by tenths."""

_Key = tuple[int, int, int, int]
_Batch = list[object] | Block


@dataclass(frozen=True)
class Mixing:
    """How rows are mixed. share: of each worker's rows that are dealt to all workers; 1 mixes them all."""

    seed: int
    share: float = 1.0

    def of(self, rdd: RDD, num_workers: int) -> RDD:
        """Return rows, or Blocks of them, in `num_workers` partitions, each row in one of them, recomputable by lineage.

        A row's place depends on its partition and number only. Where there are fewer partitions than workers, each is dealt to all
        workers in any case.
        """
        if self.share < 1:
            sparse = rdd.getNumPartitions() < num_workers
            rdd = partitioned(rdd, num_workers)
            if sparse:
                return rdd
        sent = own_rows(rdd).mapPartitionsWithIndex(partial(_sent, self, num_workers))
        dealt = sent.repartitionAndSortWithinPartitions(num_workers, _target)
        return dealt.mapPartitionsWithIndex(partial(_received, self.seed))


def _target(key: _Key) -> int:
    return key[0]


def _sent(mixing: Mixing, workers: int, index: int, elements: Iterable[object]) -> Iterator[tuple[_Key, _Batch]]:
    """Yield the batches of a partition, keyed by (worker, a random number, partition, number)."""
    random = np.random.default_rng([mixing.seed, index])
    targets, number = _Targets(random, index, workers, mixing.share), 0
    held: list[list[object]] = [[] for _ in range(workers)]
    drawn: list[int] = []
    full = 0

    def key(target: int) -> _Key:
        nonlocal number
        number += 1
        return target, int(random.integers(2**62)), index, number

    for element in elements:
        if isinstance(element, Block):
            places = targets.take(element.rows)
            for target in np.unique(places).tolist():
                yield key(target), _rows_of(element, np.flatnonzero(places == target))
            continue
        if not drawn:
            drawn = targets.take(DRAWN_ROWS).tolist()[::-1]
            full = full or max(1, _window_rows(_nbytes(element)) // workers)
        target = drawn.pop()
        held[target].append(element)
        if len(held[target]) == full:
            yield key(target), held[target]
            held[target] = []
    for target, rows in enumerate(held):
        if rows:
            yield key(target), rows


class _Targets:
    """The workers that a partition's rows go to, one after the other."""

    def __init__(self, random: np.random.Generator, index: int, workers: int, share: float) -> None:
        self._random, self._index, self._workers, self._share = random, index, workers, share
        self._dealt = np.empty(0, np.int64)
        self._rows = 0

    def take(self, count: int) -> NDArray[np.int64]:
        """Return those of the next rows. As many of them leave as the share says, to a row, at random places."""
        targets = np.full(count, self._index)
        before, self._rows = self._rows, self._rows + count
        leaving = math.floor(self._rows * self._share) - math.floor(before * self._share)
        leave = np.sort(self._random.permutation(count)[:leaving])
        rounds = max(0, -(-(len(leave) - len(self._dealt)) // self._workers))
        more = self._random.permuted(np.tile(np.arange(self._workers), (rounds, 1)), axis=1)
        dealt = np.concatenate([self._dealt, more.ravel()])
        targets[leave], self._dealt = dealt[: len(leave)], dealt[len(leave) :]
        return targets


def _received(seed: int, index: int, batches: Iterable[tuple[_Key, _Batch]]) -> Iterator[object]:
    """Yield a worker's rows: the batches in the order of their keys, and in a random order within windows of some of them."""
    random = np.random.default_rng([seed, index, 1])
    rows, blocks, held, full = list[object](), list[Block](), 0, 0

    def in_order(count: int) -> list[int]:
        order: list[int] = random.permutation(count).tolist()
        return order

    for _, batch in batches:
        if isinstance(batch, Block):
            blocks.append(batch)
            held += batch.rows
            if held >= _window_rows(_nbytes(batch.columns) // max(1, batch.rows)):
                yield from _together(blocks, random)
                blocks, held = [], 0
            continue
        full = full or _window_rows(_nbytes(batch[0]))
        rows += batch
        if len(rows) >= full:
            yield from (rows[place] for place in in_order(len(rows)))
            rows = []
    yield from (rows[place] for place in in_order(len(rows)))
    yield from _together(blocks, random)


def _together(blocks: Sequence[Block], random: np.random.Generator) -> Iterator[Block]:
    """Yield the rows of blocks in a random order; blocks that do not go together as they are, for the shard's writer to refuse."""
    if not blocks:
        return
    trees = [flatten(block.columns) for block in blocks]
    try:
        if any(structure != trees[0][1] for _, structure in trees):
            raise ValueError("blocks of different structures")
        leaves = [np.concatenate(parts) for parts in zip(*(found for found, _ in trees), strict=True)]
    except ValueError:
        yield from blocks
        return
    rows = sum(block.rows for block in blocks)
    order = random.permutation(rows)
    yield _block(trees[0][1], [leaf[order] for leaf in leaves], rows)


def _rows_of(block: Block, places: NDArray[np.int64]) -> Block:
    leaves, structure = flatten(block.columns)
    return _block(structure, [np.asarray(leaf)[places] for leaf in leaves], len(places))


def _block(structure: object, leaves: Sequence[Array], rows: int) -> Block:
    tree = unflatten(structure, leaves)  # type: ignore[arg-type]  # what flatten gave
    assert isinstance(tree, tuple)
    return Block(tree, rows)


def _window_rows(row_nbytes: int) -> int:
    return max(1, min(WINDOW_ROWS, BATCH_BYTES // max(1, row_nbytes)))


def _nbytes(tree: object) -> int:
    """Bytes of a row's numbers, roughly; of text 8 a piece."""
    return sum(np.asarray(leaf).nbytes for leaf in flatten(tree)[0])


def labels_apart(data: Data) -> float | None:
    """Return how far the labels of the workers are apart, from 0 (alike, but for chance) to 1; None if rows have no labels.

    It reads all rows once; those on Spark by a job. `distance` says what the number is.
    """
    if data.rdd is None:
        return distance([next(_sample(index, rows)) for index, rows in enumerate(data.partitions())])
    with readable_errors(data.rdd.context):
        return distance(data.rdd.mapPartitionsWithIndex(_sample).collect())


def distance(samples: Sequence[Sequence[Hashable]]) -> float | None:
    """Return the mean total variation distance of samples from all of them together, less what chance alone would give.

    Samples count by their sizes. Labels are classes; of more than 100 different numbers, tenths of their range of ranks.
    With n independent labels of shares p, chance gives about 1/2 sum_c sqrt(2 p_c (1 - p_c) / (pi n)): the mean absolute
    deviation of a normal variable, class by class.
    """
    pooled = [label for sample in samples for label in sample]
    if not pooled:
        return None
    if len(set(pooled)) > CLASSES and all(isinstance(label, int | float) for label in pooled):
        edges = np.quantile(np.array(pooled, np.float64), np.linspace(0.1, 0.9, 9))
        samples = [np.searchsorted(edges, np.array(sample, np.float64)).tolist() for sample in samples]
        pooled = [label for sample in samples for label in sample]
    shares = {label: count / len(pooled) for label, count in Counter(pooled).items()}
    apart = 0.0
    for sample in samples:
        counts = Counter(sample)
        found = 0.5 * sum(abs(counts[label] / max(1, len(sample)) - share) for label, share in shares.items())
        chance = 0.5 * sum(
            math.sqrt(2 * share * (1 - share) / (math.pi * max(1, len(sample)))) for share in shares.values()
        )
        apart += (found - chance) * len(sample) / len(pooled)
    return max(0.0, apart)


def _sample(index: int, elements: Iterable[object]) -> Iterator[list[Hashable]]:
    """Yield one list: labels of a partition, each row's with the same probability, which is halved while they are too many."""
    random = np.random.default_rng(index)
    probability, kept = 1.0, list[tuple[float, Hashable]]()
    for element in elements:
        many = isinstance(element, Block)
        parts = element.columns if isinstance(element, Block) else element
        if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
            continue
        leaves = flatten(parts[1])[0]
        if not leaves:
            continue
        labels = np.asarray(leaves[0]) if many else np.asarray(leaves[0])[None]
        draws = random.random(len(labels))
        for place in np.flatnonzero(draws < probability).tolist():
            kept.append((float(draws[place]), _class_of(labels[place])))
        while len(kept) > 2 * SAMPLE:
            probability /= 2
            kept = [(draw, label) for draw, label in kept if draw < probability]
    yield [label for _, label in kept]


def _class_of(label: Array) -> Hashable:
    """Return a label as one number or text: the place of the 1 of a one-hot label, else its first value."""
    label = np.asarray(label)
    if label.size == 0:
        return None
    if label.ndim == 1 and len(label) > 1 and np.count_nonzero(label) == 1 and label.max() == 1:
        return int(label.argmax())
    found: Hashable = label.reshape(-1)[0].item() if label.dtype != object else str(label.reshape(-1)[0])
    return found
