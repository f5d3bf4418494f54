import json
import os
import pickle
import tempfile
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elephas_like.core.columns import open_column, verify
from elephas_like.core.errors import DataError
from elephas_like.core.structure import unflatten
from elephas_like.core.types import ShardRef
from elephas_like.rows.shard_files import from_json, read_ref, remove, remove_dataset, to_json
from elephas_like.rows.spool import Block, spool

Spool = Callable[..., ShardRef]


@pytest.fixture
def spooled(tmp_path: Path) -> Iterator[Spool]:
    """spool into tmp_path; whatever happens, no draft may be left there."""

    def into_tmp_path(rows: Iterable[object], **options: Any) -> ShardRef:
        return spool(rows, **{"dataset": "d", "worker": 0, "base": str(tmp_path), **options})

    yield into_tmp_path
    assert not list(tmp_path.rglob(".worker*"))


def columns(ref: ShardRef) -> list[np.ndarray]:
    verify(ref)
    return [open_column(column, ref.rows).take(np.arange(ref.rows)) for column in ref.columns]


def dtypes(ref: ShardRef) -> list[str]:
    return [column.dtype for column in ref.columns]


def contents(ref: ShardRef) -> list[bytes]:
    return [Path(column.path).read_bytes() for column in ref.columns]


# what a row may be


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


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (True, "bool"),
        (2, "int64"),
        (0.5, "float32"),
        (np.float64(0.5), "float32"),
        (np.float16(0.5), "float32"),
        (np.uint8(2), "uint8"),
        (np.int32(2), "int32"),
        (np.array([1, 2], ">i4"), "int32"),
        (np.array([0.5, 2], ">f8"), "float32"),
        ([0.5, 2], "float32"),
        ([[1, 2], [3, 4]], "int64"),
        ([np.float32(0.5), np.float32(2)], "float32"),
        ([], "float32"),
        (2**63, "uint64"),
    ],
)
def test_stored_dtypes(spooled: Spool, x: object, dtype: str) -> None:
    ref = spooled([(x, 1), (x, 1)])
    assert (dtypes(ref), ref.structure) == ([dtype, "int64"], [0, 1])
    np.testing.assert_array_equal(columns(ref)[0], np.stack([np.asarray(x)] * 2))


@pytest.mark.parametrize(("floatx", "dtype"), [("float16", "float16"), ("float64", "float64"), ("bfloat16", "float32")])
def test_floats_are_stored_as_floatx(spooled: Spool, floatx: str, dtype: str) -> None:
    ref = spooled([(np.float32(0.5), 0.25)], floatx=floatx)
    assert dtypes(ref) == [dtype, dtype]
    assert [column.tolist() for column in columns(ref)] == [[0.5], [0.25]]


def test_text_and_bytes(spooled: Spool) -> None:
    ref = spooled(
        [("größe", ["a", "b\0"]), (b"abc", np.array(["", "dd"])), (np.str_("x"), np.array([b"y", "z"], object))]
    )
    assert dtypes(ref) == ["string", "string"]
    x, y = columns(ref)
    assert x.tolist() == ["größe", "abc", "x"]
    assert y.tolist() == [["a", "b\0"], ["", "dd"], ["y", "z"]]


def test_trees_of_inputs(spooled: Spool) -> None:
    rows = [({"b": [1.0, 2.0], "a": (index, np.array([index]))}, {"y": index % 2}) for index in range(3)]
    ref = spooled(rows)
    assert ref.structure == [{"a": [0, 1], "b": 2}, {"y": 3}]
    x, y = unflatten(ref.structure, columns(ref))  # type: ignore[misc]
    assert x["a"][0].tolist() == [0, 1, 2]
    assert x["a"][1].tolist() == [[0], [1], [2]]
    assert x["b"].tolist() == [[1, 2]] * 3
    assert y["y"].tolist() == [0, 1, 0]


def test_dicts_in_another_order_and_lists_of_arrays_are_the_same_row(spooled: Spool) -> None:
    one, two = np.ones(2), np.zeros(3)
    ref = spooled([({"a": (one, two), "b": 1}, 0), (OrderedDict(b=1, a=[one, two]), 0)])
    assert ref.rows == 2


def test_triples(spooled: Spool) -> None:
    ref = spooled([([1.0], 1, 0.5), [[2.0], 0, 2]])  # Spark sometimes yields lists
    assert ref.structure == [0, 1, 2]
    assert [column.tolist() for column in columns(ref)] == [[[1.0], [2.0]], [1, 0], [0.5, 2.0]]
    assert dtypes(ref)[2] == "float32"


def test_sample_weight_none_is_a_pair(spooled: Spool) -> None:
    ref = spooled([(1.0, 1, None), (2.0, 0)])
    assert ref.structure == [0, 1]


@pytest.mark.parametrize("row", [np.array([1.0, 2.0]), [1.0, 2.0], ([1.0, 2.0],)])
def test_rows_without_a_target(spooled: Spool, row: object) -> None:
    ref = spooled([row, row], expect_target=False)
    assert ref.structure == [0]
    assert columns(ref)[0].tolist() == [[1, 2], [1, 2]]


def test_a_row_without_a_target_may_be_a_tree(spooled: Spool) -> None:
    assert spooled([(1, 2.0)], expect_target=False).structure == [[0, 1]]
    assert spooled([{"a": 1}], expect_target=False, worker=1).structure == [{"a": 0}]


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


# promotion


def test_integers_become_floats_when_floats_come(spooled: Spool) -> None:
    rows = [([0, index], 1) for index in range(5000)] + [([0.5, 1.0], 1), ([7, 8], 1)]
    ref = spooled(rows)
    assert dtypes(ref) == ["float32", "int64"]
    x, y = columns(ref)
    np.testing.assert_array_equal(x, np.array([row[0] for row in rows]))
    assert y.tolist() == [1] * 5002


def test_promotion_gives_the_bytes_of_the_wide_dtype(spooled: Spool) -> None:
    late = spooled([(np.uint8(index), 0) for index in range(200)] + [(0.5, 0)])
    early = spooled([(float(index), 0) for index in range(200)] + [(0.5, 0)], dataset="e")
    assert contents(late) == contents(early)
    assert late.checksum == early.checksum
    assert sorted(os.listdir(late.directory)) == ["column-0", "column-1", "shard.json"]


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (np.uint8(200), np.int64(-1), "int64"),
        (np.uint8(200), np.int8(-1), "int16"),
        (True, 3, "int64"),
        (True, 0.5, "float32"),
        (3, 2**63, "float32"),
        (0.5, 3, "float32"),
        (0.5, True, "float32"),
        (3, True, "int64"),
    ],
)
def test_two_dtypes(spooled: Spool, first: object, second: object, dtype: str) -> None:
    ref = spooled([(first, 0), (second, 0), (first, 0)])
    assert dtypes(ref)[0] == dtype
    assert columns(ref)[0].tolist() == [first, second, first]


def test_promotion_of_a_later_column_keeps_the_row_whole(spooled: Spool) -> None:
    ref = spooled([((1, 1), 10), ((2, 0.5), 20), ((3, 3), 0.25)])
    assert [column.tolist() for column in columns(ref)] == [[1, 2, 3], [1, 0.5, 3], [10, 20, 0.25]]


# blocks


@pytest.mark.parametrize(
    "parts",
    [
        [(np.float32(1), 1), (np.float32(2), 2), (np.float32(3), 2**40), (np.float32(4), 4)],
        [(np.ones(2), 1), (np.ones(2), 2), (np.ones(2, np.int8), 1.5), (np.ones(2), 3), (np.ones(2, np.int8), 4)],
        [(np.arange(2), True), (np.arange(2), False), (np.arange(2), 3), (np.arange(2), True)],
        [(1, 2, 3.0), (2, 3, 4.0), (3, 4, 5), (5, 6, 7.0)],
    ],
)
def test_rows_alike_are_written_as_rows_one_by_one_would_be(spooled: Spool, parts: list[tuple[object, ...]]) -> None:
    whole = spooled(parts)
    seen = [[unflatten(whole.structure, [c[i] for c in columns(whole)]) for i in range(len(parts))]]
    for row, expected in zip(seen[0], parts, strict=True):
        for got, part in zip(row, expected, strict=True):
            np.testing.assert_array_equal(got, part)
    changed = spooled([tuple(map(np.asarray, row)) for row in parts], dataset="one by one")  # arrays of no axis
    assert (dtypes(changed), contents(changed)) == (dtypes(whole), contents(whole))


def test_a_number_too_large_after_rows_alike_is_refused_with_its_place(spooled: Spool) -> None:
    with pytest.raises(DataError, match=r"row 3: .*"):
        spooled([(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 2**70)])


def test_another_shape_after_rows_alike_is_refused_with_its_place(spooled: Spool) -> None:
    with pytest.raises(DataError, match=r"row 2: .*expected shape \(2,\), got \(3,\)"):
        spooled([(np.ones(2), 1), (np.ones(2), 1), (np.ones(3), 1)])


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


def test_a_block_that_is_not_contiguous_and_widens(spooled: Spool) -> None:
    grid = np.arange(12).reshape(3, 4)
    ref = spooled([Block((grid.T,), 4), Block((grid.T[::-1] + 0.5,), 4)], expect_target=False)
    assert dtypes(ref) == ["float32"]
    np.testing.assert_array_equal(columns(ref)[0], np.concatenate([grid.T, grid.T[::-1] + 0.5]))


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


@pytest.mark.parametrize(
    ("row", "got"),
    [
        (7, "int"),
        (None, "NoneType"),
        (np.zeros(2), r"ndarray of shape \(2,\)"),
        ((1,), "tuple of 1"),
        ([1, 2, 3, 4], "list of 4"),
        ({"x": 1, "y": 2}, "dict of 2"),
        ("ab", "str"),
    ],
)
def test_not_a_pair(spooled: Spool, row: object, got: str) -> None:
    with pytest.raises(
        DataError,
        match=r"^partition 0, row 0: expected a pair \(features, label\) or a triple \(features, label, sample_weight\), "
        rf"got {got}\. Map the rows to pairs first",
    ):
        spooled([row])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, None)], "row 0: label 'y' expected a number, text or an array, got None"),
        ([((1, None), 1)], r"row 0: feature 'x\[1\]' expected .*, got None"),
        ([((), 1)], "row 0: feature 'x' expected .*, got an empty tuple or dict"),
        ([(1, 1), (1, 1, 0.5)], r"row 1: expected \(x, y\), as in the rows before, got \(x, y, sample_weight\)"),
        ([(1, 1, 0.5), (1, 1, None)], r"row 1: expected \(x, y, sample_weight\), as in the rows before, got \(x, y\)"),
        ([({"a": 1}, 1), ({"b": 1}, 1)], r"row 1: expected \(x\['a'\], y\), as in .*, got \(x\['b'\], y\)"),
        ([({"a": 1}, 1), ({"a": [1]}, 1)], r"row 1: feature \"x\['a'\]\" expected shape \(\), got \(1,\)"),
        ([([[1, 2], [3]], 1)], r"row 0: feature 'x' expected numbers or text in an array, got \[\[1, 2\], \[3\]\]"),
        ([([np.float32(1), [2]], 1)], r"row 0: expected numbers of one shape in a list"),
        ([(1j, 1)], "row 0: feature 'x' expected integers, floats, booleans or text, got dtype complex128"),
        ([(np.datetime64("2020-01-01"), 1)], "row 0: feature 'x' expected .*, got dtype datetime64"),
        ([([1, None], 1)], "row 0: feature 'x' expected .*, got (int|NoneType) in an array"),
        ([(["a", 1], 1)], r"row 0: feature 'x' expected .*, got int in an array of dtype object"),
        ([(object(), 1)], "row 0: feature 'x' expected .* got object in an array"),
        ([(2**64, 1)], "row 0: feature 'x' expected .*, got int in an array"),
        ([({0: 1}, 1)], r"row 0: expected the names of inputs as keys of a dict, got \[0\]"),
        ([("a", 1), (1, 1)], r"row 1: feature 'x' expected text, got numbers \(int64\)"),
        ([(1, 1), (1, "a")], r"row 1: label 'y' expected numbers \(int64\), got text"),
        ([(b"\xff", 1)], r"row 0: feature 'x' expected UTF-8 text, got b'\\xff'"),
        ([("\ud800", 1)], "row 0: feature 'x' expected UTF-8 text"),
        ([(1, 1, "a")], "row 0: sample weight 'sample_weight' expected numbers, got text"),
    ],
)
def test_rows_that_do_not_fit(spooled: Spool, tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(DataError, match=f"^validation partition 4, {message}"):
        spooled(rows, worker=4, place="validation partition")
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


# the directory


def test_spooling_again_gives_the_shard_that_is_there(spooled: Spool) -> None:
    rows = [([1.0, 2.0], "a"), ([3.0, 4.0], "b")]
    first = spooled(rows)
    inode = os.stat(first.columns[0].path).st_ino
    assert spooled(iter(rows)) == first
    assert os.stat(first.columns[0].path).st_ino == inode
    assert os.listdir(os.path.dirname(first.directory)) == ["worker-0"]


def test_a_second_attempt_that_is_faster_wins(spooled: Spool) -> None:
    fast: list[ShardRef] = []

    def slow() -> Iterator[object]:
        yield 1, 1
        fast.append(spooled([(1, 1), (2, 2)]))
        yield 2, 2

    assert spooled(slow()) == fast[0]
    assert os.listdir(os.path.dirname(fast[0].directory)) == ["worker-0"]


def test_other_rows_go_beside_the_shard_that_is_there(spooled: Spool) -> None:
    first, second = spooled([(1, 1)]), spooled([(2, 1)])
    assert second.directory.startswith(first.directory + "-")
    assert [column.tolist() for column in columns(first)] == [[1], [1]]
    assert [column.tolist() for column in columns(second)] == [[2], [1]]
    assert read_ref(second.directory) == second


@pytest.mark.parametrize("damage", ["unlink", "truncate", "reference"])
def test_a_damaged_shard_is_not_taken(spooled: Spool, damage: str) -> None:
    first = spooled([(1, 1)])
    path = Path(first.columns[0].path)
    if damage == "unlink":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(b"")
    else:
        (Path(first.directory) / "shard.json").write_text("{")
    second = spooled([(1, 1)])
    assert second.directory != first.directory
    assert columns(second)[0].tolist() == [1]
    assert second.checksum == first.checksum


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


def test_references_travel(spooled: Spool) -> None:
    ref = spooled([({"a": 1, "b": "t"}, [1.0], 0.5)])
    assert from_json(to_json(ref), ref.directory) == ref == read_ref(ref.directory) == pickle.loads(pickle.dumps(ref))  # noqa: S301
    assert ref.directory not in json.dumps(to_json(ref))


def test_remove_is_idempotent_and_leaves_the_others(spooled: Spool, tmp_path: Path) -> None:
    one, two = spooled([(1, 1)]), spooled([(1, 1)], worker=1)
    remove(one)
    remove(one)
    assert os.listdir(tmp_path / "elephas_like-d") == ["worker-1"]
    remove(two)
    assert not list(tmp_path.iterdir())


def test_remove_dataset_takes_all_of_one_dataset(spooled: Spool, tmp_path: Path) -> None:
    spooled([(1, 1)])
    spooled([(2, 1)])
    spooled([(1, 1)], dataset="e")
    remove_dataset("d", str(tmp_path))
    remove_dataset("d", str(tmp_path))
    assert os.listdir(tmp_path) == ["elephas_like-e"]


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"SPARK_EXECUTOR_DIRS": "{}/a,{}/b", "SPARK_LOCAL_DIRS": "{}/c"}, "a"),
        ({"SPARK_EXECUTOR_DIRS": "", "SPARK_LOCAL_DIRS": "{}/c,{}/d"}, "c"),
        ({}, "tmp"),
    ],
)
def test_the_default_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], chosen: str
) -> None:
    for name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS"):
        monkeypatch.setenv(name, environment.get(name, "").replace("{}", str(tmp_path)))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    ref = spool([(1, 1)], dataset="d", worker=0)
    assert ref.directory == str(tmp_path / chosen / "elephas_like-d" / "worker-0")
    remove_dataset("d")
    assert not os.path.exists(os.path.dirname(ref.directory))


# memory


def peak(rows: Iterable[object], spooled: Spool) -> int:
    tracemalloc.start()
    try:
        spooled(rows)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_by_a_batch(spooled: Spool) -> None:
    rows = ((np.full(50_000, index, np.float32), index) for index in range(1000))  # 200 MB
    assert peak(rows, spooled) < 20 * 2**20


def test_memory_is_bounded_for_text_and_promotion(spooled: Spool) -> None:
    assert peak((("word" * 10_000, 1) for _ in range(2000)), spooled) < 20 * 2**20  # 80 MB
    narrow = ((np.zeros(50_000, np.uint8), 1) for _ in range(500))  # 25 MB, 200 MB as int64
    wide = ((np.zeros(50_000, np.int64), 1) for _ in range(2))

    def rows() -> Iterator[object]:
        yield from narrow
        yield from wide

    assert peak(rows(), lambda rows: spooled(rows, worker=1)) < 30 * 2**20


def test_a_block_is_not_copied_whole(spooled: Spool) -> None:
    grid = np.zeros((100, 100_000))  # 80 MB, stored as half of it
    assert peak([Block((grid.T, grid.T[:, 0]), 100_000)], spooled) < 20 * 2**20


def test_a_dataset_whose_last_shard_is_removed_while_another_begins(tmp_path: Path) -> None:
    """One worker writes and removes its shard over and over; another's must not lose its directory in between."""
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            remove(spool([(1.0, 2.0)], dataset="shared", worker=0, base=str(tmp_path)))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            ref = spool([(3.0, 4.0)], dataset="shared", worker=1, base=str(tmp_path))
            verify(ref)
            remove(ref)
    finally:
        done.set()
        thread.join()
    assert not list(tmp_path.iterdir())
