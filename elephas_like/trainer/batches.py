"""A shard's columns as batches: which rows come in which step, held in memory or read chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from elephas_like.core import rounds
from elephas_like.core.columns import ColumnReader, open_column, sample_rows, verify
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Array, FitConfig, Integers, ShardRef, Structure


class ShardData:
    """The rows of one worker: training rows and, with `validation_split`, the rows held out.

    The held-out rows are a seeded random share of the shard, the same in every epoch and on every attempt. With
    `bootstrap`, training rows are drawn with replacement from the others, just as reproducibly.

    Args:
        ref: the shard's files.
        config: batch size, seeds, split and shuffling.
        class_weight: weight of a row by its label; None for none.

    Raises:
        ShardMissing: the shard's files are not here.
        ValueError: `class_weight` with sample weights, or with rows without a single label.
    """

    def __init__(self, ref: ShardRef, config: FitConfig, class_weight: Mapping[int, float] | None = None) -> None:
        verify(ref)
        self.worker = ref.worker
        self.ref = ref
        self._config = config
        self._readers: list[ColumnReader] = [open_column(column, ref.rows) for column in ref.columns]
        self.structure: Structure = ref.structure
        self._weights: Array | None = None
        self._order: tuple[int, Integers] | None = None
        if class_weight and ref.rows:
            self.structure, self._weights = self._with_class_weights(class_weight)
        split_seed = config.seed if config.split_seed is None else config.split_seed
        held_out = int(ref.rows * config.validation_split + 1e-9)  # 0.29 of 100 is 29, not 28.999999
        order = np.random.default_rng([split_seed, ref.worker, 0x5917]).permutation(ref.rows) if held_out else None
        rows = np.arange(ref.rows)
        self.validation_rows: Integers = rows[:0] if order is None else np.sort(order[:held_out])
        self.rows: Integers = rows if order is None else np.sort(order[held_out:])
        if config.bootstrap is not None and len(self.rows):
            random = np.random.default_rng([config.bootstrap, ref.worker, 0xB007])
            self.rows = np.sort(self.rows[random.integers(len(self.rows), size=len(self.rows))])

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row over all columns."""
        return max(1, sum(reader.row_nbytes for reader in self._readers))

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(reader.nbytes for reader in self._readers)

    def order(self, epoch: int) -> Integers:
        """Return the training rows in the order of an epoch: shuffled by (seed, worker, epoch), or as they came.

        An epoch has many rounds: the same read-only array is returned until another epoch is asked for.
        """
        if not self._config.shuffle:
            return self.rows
        if self._order is None or self._order[0] != epoch:
            random = np.random.default_rng([self._config.seed, self.worker, epoch])
            self._order = (epoch, random.permutation(self.rows))
            self._order[1].setflags(write=False)
        return self._order[1]

    def take(self, rows: Integers, *, weighted: bool = True) -> list[Array]:
        """Return the columns of some rows, in that order; the weights of their classes come last."""
        taken = [reader.take(rows) for reader in self._readers]
        if self._weights is not None and weighted:
            taken.append(self._weights[rows])
        return taken

    def whole(self) -> list[Array]:
        """Return all rows of the shard in file order, the weights of their classes last.

        Numeric columns are views of the files.
        """
        columns = [reader.whole() for reader in self._readers]
        return columns if self._weights is None else [*columns, self._weights]

    def chunks(
        self, order: Integers, first_step: int, last_step: int, *, weighted: bool = True
    ) -> Iterator[tuple[list[Array], int]]:
        """Yield (columns, steps) of at most `chunk_bytes`, which together hold the batches `first_step` to `last_step`."""
        batch = self._config.batch_size
        at_once = max(1, self._config.chunk_bytes // (batch * self.row_nbytes))
        for step in range(first_step, last_step, at_once):
            until = min(step + at_once, last_step)
            yield self.take(order[step * batch : until * batch], weighted=weighted), until - step

    def unweighted(self, rows: Integers) -> tuple[Structure, Iterator[tuple[list[Array], int]]]:
        """Return the structure and the chunks of rows to evaluate, in order.

        Class weights are left out, as in Keras' evaluation.
        """
        steps = rounds.steps(len(rows), self._config.batch_size)
        return self.ref.structure, self.chunks(rows, 0, steps, weighted=False)

    def _with_class_weights(self, class_weight: Mapping[int, float]) -> tuple[Structure, Array]:
        """Return the structure with a sample weight per row, looked up by its label as in Keras: 1 for other labels."""
        structure = self.ref.structure
        assert isinstance(structure, list)
        if len(structure) == 3:
            raise ValueError("class_weight and sample weights exclude each other, as in Keras.")
        labels = structure[1] if len(structure) == 2 else None
        if not isinstance(labels, int):
            raise ValueError("class_weight needs rows with a single label.")
        reader = self._readers[labels]
        weights = np.ones(self.ref.rows, np.float32)
        for start in range(0, self.ref.rows, 65536):
            rows = np.arange(start, min(start + 65536, self.ref.rows))
            values = reader.take(rows)
            if values.ndim > 2:
                raise ValueError(
                    f"class_weight needs rows with a single label, a number or one-hot; got labels of shape {values.shape[1:]} in a row. Give "
                    "sample weights instead."
                )
            if values.ndim > 1 and values.shape[-1] > 1:
                classes = values.argmax(axis=-1)
            else:
                classes = values.reshape(len(rows), -1)[:, 0].astype(np.float64).round().astype(np.int64)
            for label, weight in class_weight.items():
                weights[rows[classes == label]] = weight
        return [structure[0], structure[1], len(self._readers)], weights


def sample_of(ref: ShardRef, rows: int = 1) -> tuple[object, ...] | None:
    """Return the first rows of a shard as a batch, (x,), (x, y) or (x, y, sample_weight); None for an empty shard.

    Args:
        rows: rows of the batch; a shard with fewer repeats them, up to `sample_rows`.

    Raises:
        ShardMissing: the shard's files are not here.
    """
    if ref.rows == 0:
        return None
    verify(ref)
    columns = [open_column(column, ref.rows) for column in ref.columns]
    # No batch that is trained has more rows than there are, whatever `batch_size` is.
    rows = max(min(rows, ref.rows), sample_rows(rows, sum(column.row_nbytes for column in columns)))
    leaves = [column.take(np.arange(rows) % ref.rows) for column in columns]
    sample = unflatten(ref.structure, leaves)
    assert isinstance(sample, tuple)
    return sample
