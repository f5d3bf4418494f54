"""Rows of Parquet files as a worker reads them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.ml.linalg import Vectors

from elephas_like.core.errors import DataError
from elephas_like.core.types import Slot
from elephas_like.rows import parquet_read
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.parquet_files import parquet_table
from elephas_like.rows.parquet_listing import ParquetFiles
from elephas_like.rows.parquet_read import read_part


def read(path: Path, features: Any, label: str | None = None, workers: int | None = None, **choice: Any) -> list[Any]:
    """The columns of each worker's rows, whole; of one, if None."""
    table = parquet_table(ParquetFiles(path))
    output = None if label is None else Slot("output")
    chosen = plan(
        table.schema, ColumnChoice(features, label, **choice), Slot("input"), output, floatx="float32", classes=None
    )
    found = []
    for part in table.in_order(1) if workers is None else table.dealt(workers):
        blocks = [block.columns for block in read_part(chosen, part)]
        found.append(tuple(np.concatenate(column) for column in zip(*blocks, strict=True)))
    return found


VIEW, BYTES_VIEW = getattr(pa, "string_view", pa.string)(), getattr(pa, "binary_view", pa.binary)()
"""PyArrow has them from version 16 on."""
SHORT_DECIMAL, SHORT_INTEGER = pa.decimal128(9, 0), np.int64
if hasattr(pa, "decimal32"):  # from version 19 on
    SHORT_DECIMAL, SHORT_INTEGER = pa.decimal32(9, 0), np.int32


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path / "rows.parquet", **options)
    return path


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2], pa.uint8()), np.array([[1], [2]], np.uint8)),
        (pa.array([True, False]), np.array([[True], [False]])),
        (pa.array([0.5, 2.0], pa.float64()), np.array([[0.5], [2]], np.float32)),
        (pa.array([Decimal("1.25"), Decimal("-3.50")]), np.array([[1.25], [-3.5]], np.float32)),
        (pa.array([[Decimal("1.25")], [Decimal("-3.50")]]), np.array([[1.25], [-3.5]], np.float32)),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.decimal128(5, 2), 2)), np.array([[1, 2], [3, 4]], np.float32)),
        (
            pa.array([Decimal(20_000_001), Decimal(10**17 + 1)], pa.decimal128(18, 0)),
            np.array([[20_000_001], [10**17 + 1]]),
        ),
        (pa.array([Decimal(200_000_001), Decimal(2)], SHORT_DECIMAL), np.array([[200_000_001], [2]], SHORT_INTEGER)),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), np.array([[1, 2], [3, 4]], np.float32)),
        (pa.array([[1, 2], [3, 4]], pa.large_list(pa.int64())), np.array([[1, 2], [3, 4]])),
        (pa.array([[[1], [2]], [[3], [4]]]), np.array([[[1], [2]], [[3], [4]]])),
        (pa.array(["a", "b"]).dictionary_encode(), np.array(["a", "b"], object)),
        (pa.array(["a", "b"], VIEW), np.array(["a", "b"], object)),
    ],
    ids=[
        "uint8",
        "bool",
        "double",
        "decimal",
        "decimals",
        "fixed decimals",
        "whole decimals",
        "short decimals",
        "fixed list",
        "large list",
        "nested list",
        "dictionary",
        "view",
    ],
)
def test_columns_become_arrays(tmp_path: Path, column: pa.Array, expected: np.ndarray) -> None:
    ((found,),) = read(written(tmp_path, {"c": column}), "c")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    ("view", "plain", "features"),
    [
        (VIEW, pa.string(), "c"),
        (BYTES_VIEW, pa.binary(), "c"),
        (pa.list_(VIEW), pa.list_(pa.string()), "c"),
        (pa.list_(VIEW, 2), pa.list_(pa.string(), 2), "c"),
        (pa.struct([("a", VIEW)]), pa.struct([("a", pa.string())]), "c.a"),
    ],
    ids=["text", "bytes", "list", "fixed list", "struct"],
)
def test_several_workers_read_columns_of_views(
    tmp_path: Path, view: pa.DataType, plain: pa.DataType, features: str
) -> None:
    made = {
        pa.string(): [f"t{number}" for number in range(10)],
        pa.binary(): [bytes([number, 1]) for number in range(10)],
        pa.struct([("a", pa.string())]): [{"a": f"t{number}"} for number in range(10)],
    }
    values = made.get(plain, [[f"t{number}", "b"] for number in range(10)])
    found = []
    for name, kind in (("view", view), ("plain", plain)):
        (tmp_path / name).mkdir()
        path = written(tmp_path / name, {"c": pa.array(values, kind)})
        dtypes = {"c": "uint8"} if plain == pa.binary() else {}
        found.append([part.tolist() for (part,) in read(path, features, workers=3, dtypes=dtypes)])
    assert found[0] == found[1]
    assert [len(part) for part in found[0]] == [4, 3, 3]


def test_fields_of_structs_bytes_and_what_a_directory_says(tmp_path: Path) -> None:
    place = tmp_path / "day=3"
    place.mkdir()
    pixels = pa.array([bytes([1, 2]), bytes([3, 4])])
    written(place, {"s": pa.array([{"a": 1.0, "b": 7}, {"a": 2.0, "b": 8}]), "pixels": pixels})
    assert [column.tolist() for (column,) in read(tmp_path, ["s.a", "day"])] == [[[1, 3], [2, 3]]]
    assert [column.tolist() for (column,) in read(tmp_path, ["s.b"])] == [[[7], [8]]]
    assert [x.tolist() for (x,) in read(tmp_path, "pixels", dtypes={"pixels": "uint8"})] == [[[1, 2], [3, 4]]]


def test_vectors_that_spark_wrote_are_known(spark, tmp_path: Path) -> None:
    rows = [(Vectors.dense([1.0, 2.0]), 0), (Vectors.sparse(2, [1], [4.0]), 1)]
    spark.createDataFrame(rows, ["features", "label"]).coalesce(1).write.parquet(str(tmp_path / "vectors"))
    ((x, y),) = read(tmp_path / "vectors", "features", "label")
    np.testing.assert_array_equal(x, np.array([[1, 2], [0, 4]], np.float32))
    assert y.tolist() == [0, 1]


def test_a_column_called_with_a_dot_and_one_that_is_chosen_twice(tmp_path: Path) -> None:
    written(tmp_path, {"a.b": [1, 2], "c": [3, 4]})
    assert [x.tolist() for (x,) in read(tmp_path, ["a.b", "c", "c"])] == [[[1, 3, 3], [2, 4, 4]]]


def test_rows_keep_their_order_over_row_groups_and_batches(tmp_path: Path) -> None:
    rows = np.arange(200_000)
    written(tmp_path, {"v": rows, "w": -rows}, row_group_size=70_000)
    ((x,),) = read(tmp_path, ["v", "w"])
    np.testing.assert_array_equal(x, np.stack([rows, -rows], axis=1))
    dealt = [x[:, 0] for (x,) in read(tmp_path, ["v", "w"], workers=3)]
    assert [len(each) for each in dealt] == [66_667, 66_667, 66_666]
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), rows)


def blocks(path: Path, features: Any, workers: int = 1) -> Sequence[int]:
    table = parquet_table(ParquetFiles(path))
    chosen = plan(table.schema, ColumnChoice(features, None), Slot("input"), None, floatx="float32", classes=None)
    return [block.rows for block in read_part(chosen, table.dealt(workers)[0])]


def test_a_block_holds_four_mebibytes_at_most_however_large_a_row_group_is(tmp_path: Path) -> None:
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(3 * 2**20, np.float32)), 2**10)
    written(tmp_path, {"x": wide}, use_dictionary=False)
    found = blocks(tmp_path, "x")
    assert max(found) <= 1024
    assert sum(found) == 3 * 1024


def decoded(path: Path, column: str) -> list[pa.RecordBatch]:
    """The batches of a column as they are decoded; they have all rows in order."""
    (part,) = parquet_table(ParquetFiles(path)).dealt(1)
    found = list(parquet_read._batches(part.filesystem, part.pieces[0].group.file, list(part.pieces), [(column,)]))
    numbers = [begin + np.arange(batch.num_rows) for *_, begin, batch in found]
    assert np.concatenate(numbers).tolist() == [row for piece in part.pieces for row in range(piece.rows)]
    for (_, rows, *_), expected in zip(found, numbers, strict=True):
        np.testing.assert_array_equal(rows, expected)
    return [batch for *_, batch in found]


@pytest.mark.parametrize(
    "column",
    [
        pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(8192 * 256, np.float32)), 256).cast(pa.list_(pa.float32())),
        pa.array(["t" * 1024] * 8192),
        pa.array(["t" * 1024] * 8192).dictionary_encode(),
    ],
    ids=["list", "text", "dictionary"],
)
def test_a_batch_is_bounded_however_small_its_rows_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pa.Array
) -> None:
    monkeypatch.setattr(parquet_read, "READ_BYTES", 2**18)
    written(tmp_path, {"c": column}, row_group_size=5000)
    assert pq.ParquetFile(tmp_path / "rows.parquet").metadata.row_group(0).total_byte_size < 2**18
    batches = decoded(tmp_path, "c")
    sizes = [batch.num_rows for batch in batches]
    assert max(sizes) <= 2**8
    assert max(sizes) > 200
    assert sizes[0] == 64


def test_batches_grow_to_what_is_decoded_at_once_and_columns_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(0).random(150_000 * 40)), 40)
    written(tmp_path, {"v": np.arange(150_000), "wide": wide})
    assert [batch.num_rows for batch in decoded(tmp_path, "v")] == [64, 512, 4096, 32_768, 65_536, 47_024]
    assert max(batch.num_rows for batch in decoded(tmp_path, "wide")) < 1.1 * 2**24 / 320


def test_batches_become_smaller_where_rows_become_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_read, "READ_BYTES", 2**16)
    values = ["a"] * 4096 + ["b" * 1024] * 2000
    written(tmp_path, {"c": pa.array(values)})
    batches = decoded(tmp_path, "c")
    assert max(batch.num_rows for batch in batches) > 512
    assert {batch.num_rows for batch in batches[-10:-1]} == {63}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.0, None, 3.0]), "row group 0, row 1: expected a value, got null"),
        (pa.array([[1.0], [2.0], [3.0, 4.0]]), "row group 0, row 2: expected 1 values, as in the rows before, got 2"),
    ],
    ids=["null", "ragged"],
)
def test_what_is_wrong_is_said_with_file_row_group_and_row(tmp_path: Path, column: pa.Array, message: str) -> None:
    written(tmp_path, {"c": column})
    with pytest.raises(DataError, match=rf"^column 'c', .*rows.parquet, {message}"):
        read(tmp_path, "c")


def test_row_numbers_are_those_of_the_file_for_a_worker_who_reads_each_third(tmp_path: Path) -> None:
    values = [1.0] * 10
    values[7] = None  # type: ignore[call-overload]  # worker 1 of 3 has the rows 1, 4, 7
    written(tmp_path, {"c": pa.array(values)})
    with pytest.raises(DataError, match="row group 0, row 7: expected a value"):
        read(tmp_path, "c", workers=3)


def test_a_file_that_was_changed_or_deleted_since_it_was_found_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, {"c": [1, 2, 3]})
    table = parquet_table(ParquetFiles(tmp_path))
    chosen = plan(table.schema, ColumnChoice("c", None), Slot("input"), None, floatx="float32", classes=None)
    (part,) = table.dealt(1)
    written(tmp_path, {"c": [1, 2, 3, 4]})
    with pytest.raises(DataError, match="has changed since the fit began: expected 3 rows in row group 0"):
        list(read_part(chosen, part))
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"is not there for this worker.*spark.read.parquet"):
        list(read_part(chosen, part))


def test_a_column_that_later_files_lack_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [3]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1.parquet has no column 'b'.*spark.read"):
        read(tmp_path, ["a", "b"])


def test_a_field_of_a_struct_that_later_files_lack_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": [{"a": 1.0, "b": 2.0}]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"s": [{"a": 3.0}]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1.parquet has no column 's.b'.*df.withColumn\('s', .*withField\('b', "):
        read(tmp_path, ["s.a", "s.b"])
    pq.write_table(pa.table({"s": [3.0]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1.parquet has no column 's.a'.*spark.read"):
        read(tmp_path, ["s.a"])
