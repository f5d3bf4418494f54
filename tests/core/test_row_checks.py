"""Which rows cannot be trained on, and how they are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stable_ids import named

from elephas_like.core.errors import DataError, ShardMissing
from elephas_like.core.row_checks import (
    LabelKind,
    LabelRule,
    check_labels,
    check_shard_labels,
    names_of_leaves,
    not_finite,
    not_finite_in_shard,
)
from elephas_like.rows.spool import spool

SPARSE = LabelRule(LabelKind.INDEX, "sparse_categorical_crossentropy", 10)
ONE_HOT = LabelRule(LabelKind.ONE_HOT, "categorical_crossentropy", 10)
NUMBER = LabelRule(LabelKind.NUMBER, "mean_squared_error", 1)
PIXELS = LabelRule(LabelKind.INDEX, "sparse_categorical_crossentropy", 3, rank=3, ignored=255)


@pytest.mark.parametrize(
    ("rule", "labels", "expected"),
    [
        (SPARSE, np.array([0, 9, 3, 14]), r"^label 14 in row 3: the model has 10 outputs \(0-9\)"),
        (SPARSE, np.array([0, -1]), r"^label -1 in row 1: "),
        (SPARSE, np.array([[1.0], [np.nan]]), r"^label nan in row 1: "),
        (SPARSE, np.array([10.0, 1]), r"^label 10 in row 0: "),
        (SPARSE, np.eye(10)[:2], r"^the labels are one-hot, of shape \(10,\).*use categorical_crossentropy"),
        (SPARSE, np.array(["cat", "dog"]), r"^the labels are text.*the numbers 0 to 9.*The first one is 'cat'"),
        (SPARSE, np.array(["cat" * 40, "dog"], object), r"The first one is '(cat){25}c\.\.\.\."),
        (ONE_HOT, np.array([1, 2]), r"single numbers, of shape \(\).*use sparse_categorical_crossentropy.*to_categorical\(y, 10\)"),
        (ONE_HOT, np.array([[1], [2]]), r"single numbers, of shape \(1,\)"),
        (ONE_HOT, np.eye(14), r"^the labels have 14 columns each, and the model has 10 outputs"),
        (NUMBER, np.array(["1.5"]), r"^the labels are text.*takes numbers"),
        (PIXELS, np.array([[[0, 1], [2, 255]], [[0, 7], [0, 255]]]), r"^label 7 in row 1: the model has 3 outputs \(0-2\)"),
    ],
    ids=named,
)  # fmt: skip
def test_labels_that_a_model_does_not_take(rule: LabelRule, labels: np.ndarray, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        check_labels(rule, labels)


@pytest.mark.parametrize(
    ("rule", "labels"),
    [
        (SPARSE, np.arange(10)),
        (SPARSE, np.arange(10.0)[:, None]),
        (SPARSE, np.zeros(0)),
        (SPARSE, np.array([True, False])),
        (ONE_HOT, np.eye(10)),
        (ONE_HOT, np.full((2, 10), np.nan)),  # a loss that becomes NaN names them
        (NUMBER, np.array([1.5, np.nan])),
        (PIXELS, np.array([[[0, 1], [2, 255]]])),
        (None, np.array(["anything"])),
    ],
    ids=named,
)
def test_labels_that_it_takes(rule: LabelRule | None, labels: np.ndarray) -> None:
    check_labels(rule, labels)


def test_each_output_has_its_labels() -> None:
    rules = {"kind": SPARSE, "price": NUMBER}
    check_labels(rules, {"kind": np.array([1]), "price": np.array([2.5])})
    with pytest.raises(DataError, match="label 11 in row 1"):
        check_labels(rules, {"kind": np.array([1, 11]), "price": np.array([2.5, 1])})
    with pytest.raises(DataError, match="label 12 in row 0"):
        check_labels((NUMBER, SPARSE), (np.array([20]), np.array([12])))


def test_labels_that_are_put_together_in_another_way_are_left_to_keras() -> None:
    check_labels((SPARSE, SPARSE), np.array([99]))
    check_labels({"kind": SPARSE}, (np.array([99]),))
    check_labels(SPARSE, (np.array([99]),))


def shard(tmp_path: Path, rows: list[object]):
    return spool(rows, dataset="rows", worker=3, base=str(tmp_path))


def test_a_shards_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.core.row_checks.BYTES_AT_ONCE", 16)  # two labels at a time
    ref = shard(tmp_path, [([0.5], label) for label in (1, 2, 3, 4, 5, 14, 15)])
    with pytest.raises(DataError, match=r"^label 14 in partition 3, row 5: "):
        check_shard_labels(SPARSE, ref, "partition 3")
    check_shard_labels(LabelRule(LabelKind.INDEX, "sparse_categorical_crossentropy", 16), ref, "partition 3")


def test_a_shards_text_is_shown(tmp_path: Path) -> None:
    ref = shard(tmp_path, [([0.5], "cat")])
    with pytest.raises(DataError, match=r"^partition 3: the labels are text.*The first one is 'cat'"):
        check_shard_labels(SPARSE, ref, "partition 3")


def test_of_several_outputs_in_a_shard(tmp_path: Path) -> None:
    ref = shard(tmp_path, [([0.5], {"kind": 1, "price": 2.5}), ([0.5], {"kind": 12, "price": 2.5})])
    with pytest.raises(DataError, match="label 12 in here, row 1"):
        check_shard_labels({"kind": SPARSE, "price": NUMBER}, ref, "here")


def test_rows_without_labels_pass(tmp_path: Path) -> None:
    check_shard_labels(SPARSE, spool([[1.0]], dataset="x", worker=0, base=str(tmp_path), expect_target=False), "here")
    check_shard_labels(SPARSE, shard(tmp_path, []), "here")


def test_the_first_row_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.core.row_checks.BYTES_AT_ONCE", 16)
    x, y = np.ones((5, 2)), np.arange(5.0)
    assert not_finite(names_of_leaves((x, y))) is None
    y[4] = np.inf
    assert not_finite(names_of_leaves((x, y))) == (4, "y")
    x[3, 1] = np.nan
    assert not_finite(names_of_leaves((x, y))) == (3, "x")
    names = names_of_leaves(({"b": x, "a": np.arange(5)}, (y, y)))
    assert [name for name, _ in names] == ["x['a']", "x['b']", "y[0]", "y[1]"]
    assert not_finite(names) == (3, "x['b']")


def test_the_first_row_of_a_shard_that_is_not_finite(tmp_path: Path) -> None:
    assert not_finite_in_shard(shard(tmp_path, [(([1.0], "text"), 1), (([2.0], ""), 2)])) is None
    ref = spool([(([1.0], "a"), 1.0), (([2.0], "b"), float("nan"))], dataset="y", worker=0, base=str(tmp_path))
    assert not_finite_in_shard(ref) == (1, "y")


def test_labels_whose_files_are_gone_or_cut_short_are_a_missing_shard(tmp_path: Path) -> None:
    """For Spark to write them again, and no error of the rows'."""
    ref = shard(tmp_path, [([1.0], 0), ([2.0], 1)])
    path = Path(ref.columns[1].path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardMissing, match="expected 16 bytes for 2 rows, got 15"):
        check_shard_labels(SPARSE, ref, "partition 0")
    path.unlink()
    with pytest.raises(ShardMissing, match="is not here"):
        check_shard_labels(SPARSE, ref, "partition 0")
