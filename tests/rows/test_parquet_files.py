"""What Parquet files hold, and which rows each worker gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as sql

from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.parquet_files import (
    ParquetFile,
    ParquetTable,
    Part,
    RowGroup,
    parquet_table,
    spark_schema,
)
from elephas_like.rows.parquet_listing import ParquetFiles
from elephas_like.rows.parquet_read import read_part, rows_of
from elephas_like.rows.shards import dealt


def write(path: Path, values: Sequence[int], group: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"v": np.array(values)}), path, row_group_size=group)


def values(part: Part) -> list[int]:
    """What a part's column v holds."""
    from elephas_like.core.types import Slot

    schema = sql.StructType([sql.StructField("v", sql.LongType())])
    read = plan(schema, ColumnChoice("v", None), Slot("input"), None, floatx="float32", classes=None)
    return [int(value) for block in read_part(read, part) for value in np.ravel(block.columns[0])]


def all_values(path: object) -> list[int]:
    (part,) = parquet_table(ParquetFiles(path)).in_order(1)
    return values(part)


def test_several_paths_are_read_in_their_order_each_as_often_as_it_is_given(tmp_path: Path) -> None:
    folder = tmp_path
    write(folder / "b.parquet", [3, 4])
    write(folder / "a.parquet", [1, 2])
    write(folder / "later" / "c.parquet", [5])
    assert all_values([folder / "b.parquet", folder / "a.parquet"]) == [3, 4, 1, 2]
    assert all_values([folder / "b.parquet", folder / "b.parquet"]) == [3, 4, 3, 4]
    assert all_values([folder / "later", folder, folder / "later"]) == [5, 1, 2, 3, 4, 5, 5]
    parts = parquet_table(ParquetFiles([folder / "b.parquet"] * 2)).dealt(2)
    assert sorted(value for part in parts for value in values(part)) == [3, 3, 4, 4]


def test_files_that_hold_a_column_as_two_kinds_of_numbers_are_read_together(tmp_path: Path) -> None:
    paths = [tmp_path / f"{kind}.parquet" for kind in ("float32", "float64", "int64")]
    for path in paths:
        pq.write_table(pa.table({"v": np.array([1, 2], path.stem)}), path)
    assert all_values(paths) == all_values(tmp_path) == [1, 2, 1, 2, 1, 2]


def test_directories_called_name_value_give_their_rows_a_column(tmp_path: Path) -> None:
    write(tmp_path / "day=1" / "kind=a" / "0.parquet", [1])
    write(tmp_path / "day=2" / "kind=b" / "0.parquet", [2])
    found = parquet_table(ParquetFiles(tmp_path))
    assert [group.file.constants for group in found.groups] == [
        (("day", 1), ("kind", "a")),
        (("day", 2), ("kind", "b")),
    ]
    assert [(field.name, field.dataType) for field in found.schema] == [
        ("v", sql.LongType()),
        ("day", sql.LongType()),
        ("kind", sql.StringType()),
    ]


@pytest.mark.parametrize(
    ("names", "kind", "expected"),
    [
        (["0.5", "1", "1e1"], sql.DoubleType(), [0.5, 1.0, 10.0]),
        (["-.25", "__HIVE_DEFAULT_PARTITION__"], sql.DoubleType(), [-0.25, None]),
        (["007", "8"], sql.LongType(), [7, 8]),
        (["3000000000", "7"], sql.LongType(), [3000000000, 7]),
        (["0.5", "a"], sql.StringType(), ["0.5", "a"]),
        (["1_0", "2"], sql.StringType(), ["1_0", "2"]),
    ],
)
def test_directories_called_by_numbers_give_numbers(
    tmp_path: Path, names: list[str], kind: sql.DataType, expected: list[object]
) -> None:
    for name in names:
        write(tmp_path / f"y={name}" / "0.parquet", [1])
    found = parquet_table(ParquetFiles(tmp_path))
    assert found.schema["y"].dataType == kind
    assert {group.file.constants for group in found.groups} == {(("y", value),) for value in expected}


@pytest.mark.parametrize("path", ["", "/0.parquet", "/*.parquet"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_directories_above_what_is_given_leave_the_files_columns_alone(tmp_path: Path, path: str, kind: str) -> None:
    folder = tmp_path / "v=1" / "rows"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"v": np.array([5, 6, 7], kind)}), folder / "0.parquet")
    assert all_values(f"{folder}{path}") == [5, 6, 7]
    assert all_values([f"{folder}{path}", f"{tmp_path}/v=1"]) == [5, 6, 7, 5, 6, 7]


def test_directories_that_match_a_glob_give_their_rows_a_column(tmp_path: Path) -> None:
    for day in (1, 2):
        write(tmp_path / f"day={day}" / "kind=a" / "0.parquet", [day])
    found = parquet_table(ParquetFiles([tmp_path / "day=2", tmp_path / "day=*" / "kind=a"]))
    assert [group.file.constants for group in found.groups] == [
        (("kind", "a"),),
        (("day", 1), ("kind", "a")),
        (("day", 2), ("kind", "a")),
    ]
    assert found.schema.names == ["v", "kind", "day"]


def test_directories_that_are_alternatives_of_a_glob_give_their_rows_a_column(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        write(tmp_path / f"day={day}" / "0.parquet", [day])
    found = parquet_table(ParquetFiles(tmp_path / "day={1,3}"))
    assert [group.file.constants for group in found.groups] == [(("day", 1),), (("day", 3),)]


def test_a_directory_and_a_column_of_one_name_and_two_types_are_refused_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "v=1" / "0.parquet", [5])
    write(tmp_path / "plain" / "0.parquet", [5])
    for path in (tmp_path, [tmp_path / "plain", tmp_path]):
        with pytest.raises(ValueError, match=r"one type for each column .*v has incompatible types.*name=value"):
            parquet_table(ParquetFiles(path))


def table(*rows: int, nbytes: int = 2**30) -> ParquetTable:
    """Row groups of so many rows."""
    groups = tuple(RowGroup(ParquetFile("f"), number, count, nbytes) for number, count in enumerate(rows))
    return ParquetTable(fs.LocalFileSystem(), groups, sql.StructType())


def taken(parts: list[Part]) -> list[list[tuple[int, tuple[int, ...], int]]]:
    return [[(piece.group.number, piece.shares, piece.mine) for piece in part.pieces] for part in parts]


def test_row_groups_go_to_the_worker_with_most_room_and_are_shared_to_make_parts_even() -> None:
    assert taken(table(4, 4, 4).dealt(2)) == [[(0, (4,), 0), (2, (2, 2), 0)], [(1, (4,), 0), (2, (2, 2), 1)]]
    assert taken(table(5).dealt(3)) == [[(0, (2, 2, 1), 0)], [(0, (2, 2, 1), 1)], [(0, (2, 2, 1), 2)]]


def test_rows_of_a_small_table_are_dealt_one_by_one_whatever_its_row_groups() -> None:
    """The extra row of a group goes round, so that parts differ by one row at most."""
    assert taken(table(3, 3, nbytes=10).dealt(2)) == [
        [(0, (2, 1), 0), (1, (1, 2), 0)],
        [(0, (2, 1), 1), (1, (1, 2), 1)],
    ]


@given(
    rows=st.lists(st.integers(1, 9), max_size=8),
    workers=st.integers(1, 6),
    small=st.booleans(),
    ordered=st.booleans(),
)
def test_each_row_is_in_exactly_one_part_and_parts_differ_by_one_row(
    rows: list[int], workers: int, small: bool, ordered: bool
) -> None:
    found = table(*rows, nbytes=1 if small else 2**30)
    parts = found.in_order(workers) if ordered else found.dealt(workers)
    places = [[(piece.group.number, int(row)) for piece in part.pieces for row in rows_of(piece)] for part in parts]
    assert sorted(place for mine in places for place in mine) == [
        (number, row) for number, count in enumerate(rows) for row in range(count)
    ]
    counts = [part.rows for part in parts]
    assert counts == [len(mine) for mine in places]
    assert max(counts) - min(counts) <= 1
    if ordered:
        flat = [place for mine in places for place in mine]
        assert flat == sorted(flat)


@given(rows=st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_rows_of_a_small_table_go_to_the_workers_that_get_them_of_arrays(rows: list[int]) -> None:
    begins = np.cumsum([0, *rows])
    for workers in range(1, 6):
        parts = table(*rows, nbytes=1).dealt(workers)
        found = [
            [int(row + begins[piece.group.number]) for piece in part.pieces for row in rows_of(piece)] for part in parts
        ]
        assert found == [block.columns[0].tolist() for block in dealt((np.arange(sum(rows)),), workers)]


def test_every_worker_gets_rows_of_all_regions_of_a_sorted_file(tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", range(1000))
    parts = parquet_table(ParquetFiles(tmp_path)).dealt(3)
    assert [values(part) for part in parts] == [list(range(worker, 1000, 3)) for worker in range(3)]


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("text.csv.gz", r"spark\.read\.csv\(path, header=True, inferSchema=True\)"),
        ("rows.tfrecord", r"read_tfrecords\(spark, path\)"),
        ("7.PNG", r"'binaryFile'.*column_dtypes=\{'content': 'image'\}"),
        ("part-0", r"spark\.read\.format\(\.\.\.\)"),
    ],
)
def test_files_that_are_no_parquet_are_refused_with_what_reads_them(name: str, reader: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=f"expected Parquet files.*{name}.*{reader}"):
        parquet_table(ParquetFiles(tmp_path))


def test_types_that_are_not_known_here_are_told_as_the_file_has_them() -> None:
    """Those of a package that is not installed, or of a newer Spark, in columns that nobody reads; vectors are Spark's own."""
    vector = {"type": "udt", "pyClass": "pyspark.ml.linalg.VectorUDT", "sqlType": {}}
    kinds = {
        "shape": {"type": "udt", "class": "org.elsewhere.GeometryUDT", "sqlType": "binary"},
        "v": vector,
        "n": "unheard_of",
    }
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    note = {b"org.apache.spark.sql.parquet.row.metadata": json.dumps({"type": "struct", "fields": fields}).encode()}
    schema = pa.schema([("shape", pa.binary()), ("v", pa.binary()), ("n", pa.int32())], note)
    found = [type(field.dataType) for field in spark_schema(schema)]
    assert found == [sql.BinaryType, VectorUDT, sql.LongType]


def test_types_are_told_as_spark_calls_them() -> None:
    point = pa.struct([("x", pa.float32())])
    schema = pa.schema(
        [
            ("number", pa.uint8()),
            ("flag", pa.bool_()),
            ("half", pa.float16()),
            ("price", pa.decimal128(9, 2)),
            ("text", pa.dictionary(pa.int8(), pa.large_string())),
            ("bytes", pa.binary(4)),
            ("list", pa.large_list(pa.list_(pa.float32(), 3))),
            ("point", point),
            ("day", pa.date32()),
            ("time", pa.timestamp("us")),
            ("tensor", pa.fixed_shape_tensor(pa.float32(), [2, 2])),
            ("nothing", pa.null()),
            ("map", pa.map_(pa.string(), pa.float32())),
            ("span", pa.duration("s")),
        ]
    )
    double, text = sql.DoubleType(), sql.StringType()
    assert [field.dataType for field in spark_schema(schema)] == [
        *(sql.LongType(), sql.BooleanType(), double, sql.DecimalType(9, 2), text, sql.BinaryType()),
        *(sql.ArrayType(sql.ArrayType(double)), sql.StructType([sql.StructField("x", double)]), sql.DateType()),
        *(sql.TimestampType(), sql.ArrayType(double), sql.NullType()),
        *(sql.MapType(text, double), sql.DayTimeIntervalType()),
    ]


def test_a_thread_that_outlives_the_main_thread_reads_footers(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / f"{number}.parquet", [number])
    script = """
        import sys
        import threading
        from elephas_like.rows.parquet_files import parquet_table
        from elephas_like.rows.parquet_listing import ParquetFiles

        def fit() -> None:
            threading.main_thread().join()
            print(parquet_table(ParquetFiles(sys.argv[1])).rows)

        threading.Thread(target=fit).start()
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "40\n", done.stderr
