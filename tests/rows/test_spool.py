"""Rows and blocks stream into a shard, a batch in memory at a time, and the same rows always give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import Row
from spooling import Spool, columns, contents, dtypes, peak

from elephas_like.core.errors import DataError
from elephas_like.core.structure import unflatten
from elephas_like.rows.shard_files import read_ref, remove_dataset
from elephas_like.rows.spool import Block

# rows


def test_images_and_labels(spooled: Spool, tmp_path: Path) -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1)
    ref = spooled((image, label) for image, label in zip(images, [7, 8, 9], strict=True))
    assert (ref.dataset, ref.worker, ref.rows, ref.structure) == ("d", 0, 3, [0, 1])
    assert ref.directory == str(tmp_path / "elephas_like-d" / "worker-0")
    assert ref.host
    assert [(column.dtype, column.shape) for column in ref.columns] == [("uint8", (2, 2, 1)), ("int64", ())]
    x, y = columns(ref)
    np.testing.assert_array_equal(x, images)
    assert y.tolist() == [7, 8, 9]
    assert contents(ref)[0] == bytes(range(12))


def test_an_empty_partition(spooled: Spool) -> None:
    for _ in range(2):
        ref = spooled([])
        assert (ref.rows, ref.columns, ref.structure, ref.checksum) == (0, (), None, 0)
        assert read_ref(ref.directory) == ref


def test_one_row(spooled: Spool) -> None:
    ref = spooled([(1.5, 1)])
    assert ref.rows == 1
    assert contents(ref) == [np.float32(1.5).tobytes(), np.int64(1).tobytes()]


def test_more_rows_than_a_batch_holds(spooled: Spool) -> None:
    ref = spooled((np.full(3, index, np.float32), str(index)) for index in range(10_000))
    x, y = columns(ref)
    np.testing.assert_array_equal(x, np.arange(10_000)[:, None] * np.ones(3))
    assert y.tolist() == [str(index) for index in range(10_000)]


def test_a_row_larger_than_a_batch(spooled: Spool) -> None:
    big = np.arange(2_000_000, dtype=np.float32)  # 8 MB
    text = "ä" * 3_000_000  # 6 MB
    ref = spooled([(big, text), (big + 1, "b")])
    x, y = columns(ref)
    np.testing.assert_array_equal(x[1], big + 1)
    assert y.tolist() == [text, "b"]


def test_an_array_that_the_caller_uses_again(spooled: Spool) -> None:
    buffer = np.zeros(2)

    def rows() -> Iterator[object]:
        for index in range(3):
            buffer[:] = index
            yield buffer, index

    assert columns(spooled(rows()))[0].tolist() == [[0, 0], [1, 1], [2, 2]]


# rows alike, which are looked at together


@pytest.mark.parametrize(
    "parts",
    [
        [(np.float32(1), 1), (np.float32(2), 2), (np.float32(3), 2**40), (np.float32(4), 4)],
        [(np.ones(2), 1), (np.ones(2), 2), (np.ones(2, np.int8), 1.5), (np.ones(2), 3), (np.ones(2, np.int8), 4)],
        [(np.arange(2), True), (np.arange(2), False), (np.arange(2), 3), (np.arange(2), True)],
        [(1, 2, 3.0), (2, 3, 4.0), (3, 4, 5), (5, 6, 7.0)],
        [(np.zeros((0, 3)), 1.5), (np.ones((0, 3)), 2.5), (np.ones((0, 3)), 2.5)],
        [(np.zeros((3, 0)), 1.5), (np.ones((3, 0)), 2.5), (np.ones((3, 0)), 2.5)],
        [(np.array(1.5), True), (np.array(2.5), False), (np.array(3.5), True)],
        [(np.arange(6.0).reshape(2, 3)[:, ::2], 1), (np.ones((2, 2)), 2), (np.ones((2, 2)).T, 3)],
        [(np.full(2, index, "float64"), index) for index in range(1300)],
        [(np.full(2, index, "float32"), np.float64(index)) for index in range(700)] + [(np.ones(2), 1.0)] * 700,
    ],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_alike_are_written_as_rows_one_by_one_would_be(
    spooled: Spool, parts: list[tuple[object, ...]], ahead: bool
) -> None:
    whole = spooled(parts, ahead=ahead)
    seen = [[unflatten(whole.structure, [c[i] for c in columns(whole)]) for i in range(len(parts))]]
    for row, expected in zip(seen[0], parts, strict=True):
        for got, part in zip(row, expected, strict=True):
            np.testing.assert_array_equal(got, part)
    changed = spooled([tuple(map(np.asarray, row)) for row in parts], dataset="one by one")  # arrays of no axis
    assert (dtypes(changed), contents(changed)) == (dtypes(whole), contents(whole))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("row", [np.ones(2), (np.ones(2),), Row(x=np.ones(2))], ids=["x", "tuple", "Row"])
def test_x_alone_comes_bare_or_in_a_row_of_one(spooled: Spool, row: object, ahead: bool) -> None:
    ref = spooled([row] * 5, expect_target=False, ahead=ahead)
    assert (ref.structure, columns(ref)[0].tolist()) == ([0], [[1, 1]] * 5)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_number_too_large_after_rows_alike_is_refused_with_its_place(spooled: Spool, ahead: bool) -> None:
    with pytest.raises(DataError, match=r"row 3: .*"):
        spooled([(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 2**70)], ahead=ahead)


@pytest.mark.parametrize("ahead", [False, True])
def test_another_shape_after_rows_alike_is_refused_with_its_place(spooled: Spool, ahead: bool) -> None:
    rows = [(np.ones(2), 1)] * 2 + [(np.ones(3), 1)]
    with pytest.raises(DataError, match=r"row 2: .*expected shape \(2,\), got \(3,\)"):
        spooled(rows, ahead=ahead)


def test_blocks_and_other_rows_among_rows_alike_stay_in_order(spooled: Spool) -> None:
    rows = [(np.full(2, index, "float32"), index) for index in range(2000)]
    block = Block((np.full((3, 2), 7, "float32"), np.array([1, 2, 3])), 3)
    mixed = [*rows[:900], block, *rows[900:1000], ([5.0, 5.0], 5), *rows[1000:]]
    ref = spooled(mixed, ahead=True)
    x, y = columns(ref)
    expected = [*range(900), 1, 2, 3, *range(900, 1000), 5, *range(1000, 2000)]
    assert (ref.rows, y.tolist()) == (2004, expected)
    assert x[:, 0].tolist() == [*range(900), 7, 7, 7, *range(900, 1000), 5, *range(1000, 2000)]


def test_a_block_equals_its_rows(spooled: Spool) -> None:
    generator = np.random.default_rng(0)
    x = {"image": generator.random((5000, 4, 3)), "text": np.array([f"n°{index}" for index in range(5000)])}
    y, weight = generator.integers(0, 10, 5000), generator.random(5000).astype(np.float32)
    rows = [({"image": x["image"][i], "text": x["text"][i]}, y[i], weight[i]) for i in range(5000)]
    by_row, by_block = spooled(rows), spooled([Block((x, y, weight), 5000)], dataset="e")
    assert contents(by_row) == contents(by_block)
    assert by_row.checksum == by_block.checksum
    assert by_row.structure == by_block.structure


def test_blocks_of_any_size_among_rows_in_order(spooled: Spool) -> None:
    x = np.arange(10, dtype=np.int64)
    pieces = [
        (0, 0),
        Block((x[1:4], x[1:4]), 3),
        Block((x[:0], x[:0]), 0),
        (4, 4),
        (5, 5),
        Block((x[6:], x[6:], None), 4),
    ]
    whole, piecewise = spooled([Block((x, x), 10)], dataset="e"), spooled(pieces)
    assert columns(piecewise)[0].tolist() == list(range(10))
    assert piecewise.checksum == whole.checksum


def test_a_block_of_pandas_text(spooled: Spool) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", "bc"], "label": [0, 1]})
    x, y = columns(spooled([Block((frame["text"], frame["label"]), 2)]))
    assert (x.tolist(), y.tolist()) == (["a", "bc"], [0, 1])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block((np.zeros(3),), 3), r"expected a Block of \(features, labels\) or .*, got 1 parts"),
        (Block((np.zeros(3), np.zeros(2)), 3), r"label 'y' expected 3 rows along the first axis, got shape \(2,\)"),
        (Block((np.zeros(3), 1), 3), r"label 'y' expected 3 rows along the first axis, got shape \(\)"),
        (Block((np.zeros((3, 2)), np.zeros(3)), 3), r"feature 'x' expected shape \(\), got \(2,\)"),
        (Block((np.array([1, None, 2]), np.zeros(3)), 3), "got int in an array"),
    ],
)
def test_blocks_that_do_not_fit(spooled: Spool, block: Block, message: str) -> None:
    with pytest.raises(DataError, match=f"partition 0, rows from 1: .*{message}"):
        spooled([(0.0, 0.0), block])


# errors


def test_another_shape(spooled: Spool, tmp_path: Path) -> None:
    rows = [((1, np.zeros((28, 28))), 1)] * 17 + [((1, np.zeros((28, 27))), 1)]
    with pytest.raises(DataError) as error:
        spooled(rows, worker=3)
    assert str(error.value) == (
        "partition 3, row 17: feature 'x[1]' expected shape (28, 28), got (28, 27). All rows of an RDD must have one shape."
    )
    assert not list(tmp_path.iterdir())


def test_the_error_of_the_rows_themselves_passes_and_leaves_nothing(spooled: Spool, tmp_path: Path) -> None:
    other = spooled([(1, 1)], worker=1)

    def rows() -> Iterator[object]:
        yield from [(index, 0) for index in range(5000)]
        raise KeyError("upstream")

    with pytest.raises(KeyError, match="upstream"):
        spooled(rows())
    assert list((tmp_path / "elephas_like-d").iterdir()) == [Path(other.directory)]


def test_arguments(spooled: Spool) -> None:
    with pytest.raises(ValueError, match=r"floatx must be one of 'float16', .*; got 'float8'"):
        spooled([], floatx="float8")
    for dataset in ("", "../up", "a/b"):
        with pytest.raises(ValueError, match="without path separators"):
            spooled([], dataset=dataset)
        with pytest.raises(ValueError, match="without path separators"):
            remove_dataset(dataset)


def test_the_checksum_sees_values_dtypes_and_shapes(spooled: Spool) -> None:
    variants: list[list[object]] = [
        [([1, 2], 0)],
        [([2, 1], 0)],
        [([[1, 2]], 0)],
        [(np.array([1, 2], np.uint64), 0)],
        [((1, 2), 0)],
        [([1, 2], 1)],
        [("ab", "c")],
        [("a", "bc")],
    ]
    checksums = {spooled(rows, worker=worker).checksum for worker, rows in enumerate(variants)}
    assert len(checksums) == len(variants)


# memory


def test_memory_is_bounded_by_a_batch(spooled: Spool) -> None:
    rows = ((np.full(50_000, index, np.float32), index) for index in range(1000))  # 200 MB
    assert peak(rows, spooled) < 20 * 2**20


def test_a_block_is_not_copied_whole(spooled: Spool) -> None:
    grid = np.zeros((100, 100_000))  # 80 MB, stored as half of it
    assert peak([Block((grid.T, grid.T[:, 0]), 100_000)], spooled) < 20 * 2**20


# rows that are prepared


def test_rows_are_written_as_what_prepares_them_makes_of_them(spooled: Spool) -> None:
    """One row in, two rows with other columns out: a feature, and a label that the given rows do not have."""
    seen: list[list[np.ndarray]] = []

    def prepare(given):
        seen.append(columns(given))
        assert Path(given.directory).is_dir()
        for value in columns(given)[0]:
            yield {"a": np.array([value, value + 1])}, np.array([len(str(value))] * 2)

    ref = spooled([10, 200, 3], expect_target=None, prepare=prepare)
    a, label = columns(ref)
    assert seen[0][0].tolist() == [10, 200, 3]
    assert (ref.rows, ref.structure) == (6, [{"a": 0}, 1])
    assert a.tolist() == [10, 11, 200, 201, 3, 4]
    assert label.tolist() == [2, 2, 3, 3, 1, 1]
    assert sorted(path.name for path in Path(ref.directory).iterdir()) == ["column-0", "column-1", "shard.json"]


def test_no_rows_are_prepared_to_none(spooled: Spool) -> None:
    ref = spooled([], prepare=lambda given: iter([]))
    assert (ref.rows, ref.columns) == (0, ())


@pytest.mark.parametrize("bad", ["given", "prepared"])
def test_rows_that_cannot_be_prepared_leave_no_files(spooled: Spool, tmp_path: Path, bad: str) -> None:
    def prepare(given):
        yield (np.zeros((2, 3)),)
        yield (np.zeros((1, 4)),)

    said = (
        r"partition 0, row 1: feature 'x' expected shape"
        if bad == "given"
        else r"partition 0, rows from 2: feature 'x' expected shape \(3,\)"
    )
    with pytest.raises(DataError, match=said):
        spooled([[1.0, 2.0], [1.0] if bad == "given" else [3.0, 4.0]], expect_target=None, prepare=prepare)
    assert list(tmp_path.iterdir()) == []
