import math
import os
from pathlib import Path

import numpy as np
import pytest

from elephas_like.core.columns import nbytes, open_column, verify
from elephas_like.core.errors import ShardMissing
from elephas_like.core.types import Column, ShardRef


def numbers(path: Path, values: np.ndarray) -> Column:
    path.write_bytes(values.tobytes())
    return Column(str(path), values.dtype.name, values.shape[1:])


def texts(path: Path, values: list[str], shape: tuple[int, ...] = ()) -> Column:
    encoded = [value.encode() for value in values]
    path.write_bytes(b"".join(encoded))
    ends = np.cumsum([len(value) for value in encoded], dtype=np.int64)
    Path(f"{path}.ends").write_bytes(ends.tobytes())
    return Column(str(path), "string", shape)


def shard(rows: int, *columns: Column) -> ShardRef:
    return ShardRef("d", 2, os.path.dirname(columns[0].path), "node-7", rows, columns, [0])


def test_take_copies_rows_in_the_order_asked(tmp_path: Path) -> None:
    reader = open_column(numbers(tmp_path / "x", np.arange(6, dtype=np.float32).reshape(3, 2)), 3)
    taken = reader.take(np.array([2, 0, 2]))
    np.testing.assert_array_equal(taken, [[4, 5], [0, 1], [4, 5]])
    assert taken.dtype == np.float32
    assert taken.flags.c_contiguous
    assert taken.flags.writeable
    assert (reader.row_nbytes, reader.nbytes) == (8, 24)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float16", "float64"])
def test_dtypes_survive(tmp_path: Path, dtype: str) -> None:
    values = np.array([[[1, 0]], [[0, 1]]], dtype)
    taken = open_column(numbers(tmp_path / "x", values), 2).take(np.array([1]))
    np.testing.assert_array_equal(taken, values[1:])
    assert taken.dtype == dtype


def test_text_comes_back_as_str(tmp_path: Path) -> None:
    reader = open_column(texts(tmp_path / "x", ["äh", "", "c\0"]), 3)
    taken = reader.take(np.array([2, 1, 0]))
    assert taken.dtype == object
    assert taken.tolist() == ["c\0", "", "äh"]
    assert reader.nbytes == 5 + 3 * 8
    assert reader.row_nbytes == 10  # 29 / 3, rounded up


def test_text_of_a_shape_is_row_major(tmp_path: Path) -> None:
    reader = open_column(texts(tmp_path / "x", ["a", "bb", "ccc", "d"], (2,)), 2)
    assert reader.take(np.array([1, 0])).tolist() == [["ccc", "d"], ["a", "bb"]]
    assert reader.take(np.array([-1])).tolist() == [["ccc", "d"]]


@pytest.mark.parametrize("shape", [(), (4,), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_no_rows_need_no_bytes(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    reader = open_column(Column(str(tmp_path / "none"), dtype, shape), 0)
    assert reader.take(np.array([], dtype=np.int64)).shape == (0, *shape)
    assert reader.nbytes == 0
    assert reader.row_nbytes == (4 * math.prod(shape) if dtype == "float32" else 0)


def test_rows_of_no_values_are_rows(tmp_path: Path) -> None:
    reader = open_column(Column(str(tmp_path / "none"), "string", (0,)), 3)
    assert reader.take(np.array([2, 0])).shape == (2, 0)


def test_a_row_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for column in (numbers(tmp_path / "x", np.zeros(2)), texts(tmp_path / "t", ["a", "b"])):
        with pytest.raises(IndexError):
            open_column(column, 2).take(np.array([2]))


def test_verify_is_content_with_what_is_whole(tmp_path: Path) -> None:
    ref = shard(3, numbers(tmp_path / "x", np.zeros((3, 5))), texts(tmp_path / "t", ["a", "b", "cc"]))
    verify(ref)
    assert [len(open_column(column, ref.rows).whole()) for column in ref.columns] == [3, 3]


def test_verify_names_a_file_that_is_gone_and_its_host(tmp_path: Path) -> None:
    ref = shard(3, numbers(tmp_path / "x", np.zeros((3, 5))))
    (tmp_path / "x").unlink()
    with pytest.raises(ShardMissing, match=r"worker 2: .*/x is not here\. The shard was written on host 'node-7'"):
        verify(ref)


@pytest.mark.parametrize(("name", "size"), [("x", 120), ("t", 4), ("t.ends", 24)])
def test_verify_counts_bytes(tmp_path: Path, name: str, size: int) -> None:
    ref = shard(3, numbers(tmp_path / "x", np.zeros((3, 5))), texts(tmp_path / "t", ["a", "b", "cc"]))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardMissing, match=rf"{path} .*expected {size} bytes for 3 rows, got {size - 1}\."):
        verify(ref)


def test_verify_sees_a_missing_directory(tmp_path: Path) -> None:
    column = Column(str(tmp_path / "gone" / "column-0"), "int64", ())
    with pytest.raises(ShardMissing, match="node-7"):
        verify(shard(1, column))


def test_a_shard_is_as_large_as_its_files_that_are_here(tmp_path: Path) -> None:
    """3 rows of 2 float32, and texts of 1 + 2 + 3 bytes with an int64 end each."""
    ref = shard(3, numbers(tmp_path / "x", np.zeros((3, 2), np.float32)), texts(tmp_path / "t", ["a", "bb", "ccc"]))
    assert nbytes(ref) == 24 + 6 + 24
    (tmp_path / "x").unlink()
    assert nbytes(ref) == 30
