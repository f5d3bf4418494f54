"""Which rows come when: every row once an epoch, by seed, and none of those held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like.core import columns
from elephas_like.core.errors import ShardMissing
from elephas_like.core.types import FitConfig
from elephas_like.rows.spool import spool
from elephas_like.trainer.batches import ShardData, sample_of
from trainer.small import config, shard

X = np.arange(30, dtype="float32").reshape(10, 3)
Y = np.arange(10)


def data(base: Path, worker: int = 0, **fields: object) -> ShardData:
    return ShardData(shard(base, X, Y, worker=worker), config(**fields))


def test_without_shuffling_rows_come_as_they_are(tmp_path: Path) -> None:
    found = data(tmp_path)
    assert found.order(0).tolist() == found.order(7).tolist() == list(range(10))
    x, y = found.take(found.order(0))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


def test_shuffling_follows_seed_worker_and_epoch_and_nothing_else(tmp_path: Path) -> None:
    def order(seed: int = 1, worker: int = 0, epoch: int = 0) -> list[int]:
        return data(tmp_path, worker, shuffle=True, seed=seed).order(epoch).tolist()

    assert order() == order()
    assert sorted(order()) == list(range(10))
    assert len({tuple(order()), tuple(order(seed=2)), tuple(order(worker=1)), tuple(order(epoch=1))}) == 4


def test_an_epoch_s_order_is_drawn_once_for_all_of_its_rounds(tmp_path: Path) -> None:
    """(seed 3, worker 0, epoch 1) of ten rows, as NumPy has it; the array stays until another epoch is asked for."""
    found = data(tmp_path, shuffle=True, seed=3)
    expected = np.random.default_rng([3, 0, 1]).permutation(np.arange(10))
    first = found.order(1)
    np.testing.assert_array_equal(first, expected)
    assert found.order(1) is first
    assert found.order(2).tolist() != first.tolist()
    np.testing.assert_array_equal(found.order(1), expected)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


@pytest.mark.parametrize(("split", "held_out"), [(0.0, 0), (0.05, 0), (0.1, 1), (0.25, 2), (0.3, 3), (0.99, 9)])
def test_validation_rows_are_an_exact_share_never_trained_on(tmp_path: Path, split: float, held_out: int) -> None:
    found = data(tmp_path, shuffle=True, seed=4, validation_split=split)
    assert len(found.validation_rows) == held_out
    for epoch in range(3):
        trained = found.order(epoch).tolist()
        assert sorted([*trained, *found.validation_rows.tolist()]) == list(range(10))


def test_validation_rows_follow_seed_and_worker_but_not_shuffling(tmp_path: Path) -> None:
    def held_out(**fields: object) -> list[int]:
        worker = int(fields.pop("worker", 0))
        return data(tmp_path, worker, **({"seed": 4, "validation_split": 0.5} | fields)).validation_rows.tolist()

    assert held_out() == held_out(shuffle=True)
    assert held_out() != held_out(seed=5)
    assert held_out() != held_out(worker=1)


@pytest.mark.parametrize("chunk_bytes", [1, 16 * 4 * 2, 10**6])
def test_chunks_are_the_batches_of_a_span_in_order(tmp_path: Path, chunk_bytes: int) -> None:
    found = data(tmp_path, chunk_bytes=chunk_bytes)
    order = np.arange(10)[::-1].copy()
    chunks = list(found.chunks(order, 1, 3))
    assert sum(steps for _, steps in chunks) == 2
    assert np.concatenate([columns[1] for columns, _ in chunks]).tolist() == [5, 4, 3, 2, 1, 0]
    assert all(len(columns[0]) == len(columns[1]) for columns, _ in chunks)


def test_a_row_s_bytes_are_those_of_all_its_columns(tmp_path: Path) -> None:
    found = data(tmp_path)
    assert found.row_nbytes == 3 * 4 + 8
    assert found.nbytes == 10 * found.row_nbytes


LABELS = {
    "integers": Y % 3,
    "a column of integers": (Y % 3)[:, None],
    "floats": (Y % 3).astype("float32"),
    "one-hot": np.eye(3, dtype="float32")[Y % 3],
}


@pytest.mark.parametrize("kind", LABELS)
def test_class_weights_are_those_of_keras(tmp_path: Path, kind: str) -> None:
    class_weight = {0: 2.0, 2: 0.5}
    found = ShardData(shard(tmp_path, X, LABELS[kind]), config(), class_weight)
    expected = [class_weight.get(label % 3, 1.0) for label in range(10)]
    assert found.structure == [0, 1, 2]
    assert found.take(np.arange(10))[2].tolist() == expected
    assert found.take(np.array([5, 0]))[2].tolist() == [0.5, 2.0]


def test_class_weights_of_labels_for_each_step_of_a_row_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"single label.*\(3, 1\).*sample weights"):
        ShardData(shard(tmp_path, X, np.zeros((10, 3, 1))), config(), {0: 2.0})


def test_rows_held_out_carry_no_class_weights(tmp_path: Path) -> None:
    """Keras weighs by class what it trains on, not what it validates on."""
    found = ShardData(shard(tmp_path, X, Y % 3), config(validation_split=0.5), {0: 2.0})
    structure, chunks = found.unweighted(found.validation_rows)
    assert structure == [0, 1]
    assert [[len(column) for column in columns] for columns, _ in chunks] == [[5, 5]]


def test_a_sample_is_the_first_row_in_the_shape_of_a_batch(tmp_path: Path) -> None:
    features = {"a": X, "b": (Y, X[:, :2])}
    x, y, weight = sample_of(shard(tmp_path, features, Y, X[:, 0]))
    assert keras.tree.map_structure(lambda array: array.tolist(), x) == {"a": [[0, 1, 2]], "b": ([0], [[0, 1]])}
    assert (y.tolist(), weight.tolist()) == ([0], [0.0])


def test_a_sample_repeats_rows_as_long_as_that_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `batch_size` far above the number of rows took gigabytes."""
    monkeypatch.setattr(columns, "SAMPLE_ROWS", 8)
    monkeypatch.setattr(columns, "SAMPLE_BYTES", 1)
    one, two = (sample_of(shard(tmp_path, X[:rows]), 10**12)[0] for rows in (1, 10))
    assert one.shape == (8, 3)
    assert len(two) == 10
    np.testing.assert_array_equal(one[-1], X[0])


def test_an_empty_shard_has_no_sample_no_rows_and_no_chunks(tmp_path: Path) -> None:
    ref = spool([], dataset="empty", worker=0, base=str(tmp_path))
    found = ShardData(ref, config(validation_split=0.5, shuffle=True), {0: 2.0})
    assert sample_of(ref) is None

    assert found.order(0).tolist() == found.validation_rows.tolist() == []
    assert list(found.chunks(found.order(0), 0, 0)) == []


def test_a_shard_whose_files_are_gone_is_missing(tmp_path: Path) -> None:
    ref = shard(tmp_path, X, Y)
    Path(ref.columns[1].path).unlink()
    with pytest.raises(ShardMissing, match="column-1"):
        ShardData(ref, config())


def test_a_bootstrap_draws_as_many_rows_with_replacement_from_those_not_held_out(tmp_path: Path) -> None:
    ref = spool([(float(i), 0.0) for i in range(100)], dataset="bag", worker=0, base=str(tmp_path))
    given = FitConfig(seed=1, split_seed=7, validation_split=0.2)
    bags = [ShardData(ref, replace(given, bootstrap=seed)) for seed in (1, 1, 2)]
    assert [len(bag.rows) for bag in bags] == [80, 80, 80]
    assert bags[0].rows.tolist() == bags[1].rows.tolist() != bags[2].rows.tolist()
    held_out = set(ShardData(ref, given).validation_rows.tolist())
    for bag in bags:
        assert set(bag.validation_rows.tolist()) == held_out
        assert not set(bag.rows.tolist()) & held_out
        assert 0.5 < len(set(bag.rows.tolist())) / 80 < 0.75  # 1 - 1/e in the mean
    assert sorted(bags[0].order(0).tolist()) == bags[0].rows.tolist()
    assert len(ShardData(spool([], dataset="no", worker=0, base=str(tmp_path)), replace(given, bootstrap=1)).rows) == 0
