"""DataFrame columns as arrays: by plan, in order, each row once; what does not fit is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions
from pyspark.sql import types as sql
from small_frames import X, Y

from elephas_like.core.errors import DataError
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Slot
from elephas_like.rows import frame_read
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.frame_schema import plan
from elephas_like.rows.shards import partitioned


@dataclass(frozen=True)
class Rows:
    """Rows as Python gets them from Spark: a batch of Arrow arrays, with the DataFrame's schema."""

    schema: sql.StructType
    batch: pa.RecordBatch

    def arrays(self, path: tuple[str, ...]) -> pa.Array:
        """A column, or a field of a struct."""
        column = self.batch.column(path[0])
        for name in path[1:]:
            column = column.field(name)
        return column


def read(rows: Rows, choice: ColumnChoice, inputs: object = X, outputs: object = Y, classes: int | None = None):
    """The columns of all rows, in order, as (x,), (x, y) or (x, y, sample_weight) trees."""
    made = plan(rows.schema, choice, inputs, outputs, floatx="float32", classes=classes)
    arrays = [rows.arrays(cell.path) for cell in made.cells]
    parts = [leaves for leaves, _ in frame_read.BatchReader(made).blocks(arrays, rows.batch.num_rows)]
    return made.tree([np.concatenate(leaves) for leaves in zip(*parts, strict=True)])


@pytest.fixture(scope="module")
def rows(table) -> Rows:
    """The table's, in the bytes that Spark sends."""

    def sent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["batch"])

    (one,) = table.mapInArrow(sent, "batch binary").collect()
    return Rows(table.schema, pa.ipc.open_stream(one.batch).read_next_batch())


@pytest.mark.parametrize(
    ("features", "inputs", "expected"),
    [
        ("dense", X, [[0, 1], [1, 2], [2, 3], [3, 4]]),
        ("sparse", X, [[0, 0], [0, 1], [0, 2], [0, 3]]),
        ("old", X, [[0, 0], [1, -1], [2, -2], [3, -3]]),
        (["id", "small"], X, [[0, 0], [1, 0.5], [2, 1], [3, 1.5]]),
        (["small", "flag"], X, [[0, 1], [0.5, 0], [1, 1], [1.5, 0]]),
        (["dense", "small"], Slot("x", (3,)), [[0, 1, 0], [1, 2, 0.5], [2, 3, 1], [3, 4, 1.5]]),
        ("small", Slot("x", (1,)), [[0], [0.5], [1], [1.5]]),
        ("small", Slot("x", ()), [0, 0.5, 1, 1.5]),
        ("small", Slot("x"), [[0], [0.5], [1], [1.5]]),
        ("grid", Slot("x", (None, 2)), [[[i, 1], [2, 3]] for i in range(4)]),
        ("grid", Slot("x", (4,)), [[i, 1, 2, 3] for i in range(4)]),
        ("text", Slot("x", (1,), text=True), [[f"t{i}"] for i in range(4)]),
        ("both.b", X, [[1, 0], [1, 1], [1, 2], [1, 3]]),
    ],
    ids=str,
)
def test_columns_of_all_kinds(rows, features, inputs, expected) -> None:
    (x,) = read(rows, ColumnChoice(features, None), inputs)
    assert x.tolist() == expected


def test_dtypes_are_floatx_or_the_column_s_own(rows) -> None:
    for features, dtype in (("dense", "float32"), ("small", "float32"), ("id", "int64"), (["id", "small"], "float32")):
        (x,) = read(rows, ColumnChoice(features, None), Slot("x"))
        assert x.dtype == dtype


def test_bytes_with_dtype_and_shape(rows) -> None:
    (x,) = read(rows, ColumnChoice("raw", None, dtypes={"raw": "uint8"}, shapes={"raw": (1, 2)}), Slot("x", (1, 2)))
    assert x.dtype == np.uint8
    assert x.tolist() == [[[i, i + 1]] for i in range(4)]


def test_several_inputs_by_order_by_name_as_dict_and_from_a_struct(rows) -> None:
    pair = (Slot("a", (1,)), Slot("b", (2,)))
    for features in (["small", "dense"], {"b": "dense", "a": "small"}):
        (x,) = read(rows, ColumnChoice(features, None), pair)
        assert [part.tolist() for part in x] == [[[0], [0.5], [1], [1.5]], [[0, 1], [1, 2], [2, 3], [3, 4]]]
    (x,) = read(rows, ColumnChoice("both", None), {"a": Slot("a", (1,)), "b": Slot("b", (2,))})
    assert x["a"].tolist() == [[0], [1], [2], [3]]
    assert x["b"].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]
    (x,) = read(rows, ColumnChoice("both", None), Slot("input"))  # a model that does not say what it takes
    assert set(x) == {"a", "b"}


def test_one_column_for_several_inputs_is_cut_into_equal_parts(rows) -> None:
    (x,) = read(rows, ColumnChoice("dense", None), (Slot("a", (1,)), Slot("b", (1,))))
    assert [part.tolist() for part in x] == [[[0], [1], [2], [3]], [[1], [2], [3], [4]]]
    with pytest.raises(Exception, match="column 'dense', row 0: expected a row of 3 equal parts"):
        read(rows, ColumnChoice("dense", None), (Slot("a"), Slot("b"), Slot("c")))


def test_labels_scalar_vector_array_several_and_weights(rows) -> None:
    _, y, weight = read(rows, ColumnChoice("dense", "label", "small"))
    assert (y.tolist(), weight.tolist()) == ([0, 1, 0, 1], [0, 0.5, 1, 1.5])
    assert read(rows, ColumnChoice("dense", "sparse"))[1].shape == (4, 2)
    assert read(rows, ColumnChoice("dense", "grid"))[1].shape == (4, 2, 2)
    assert read(rows, ColumnChoice("dense", ["id", "small"]))[1].tolist() == [[0, 0], [1, 0.5], [2, 1], [3, 1.5]]
    heads = (Slot("one", (1,)), Slot("two", (2,)))
    _, (one, two) = read(rows, ColumnChoice("dense", {"two": "dense", "one": "label"}), X, heads)
    assert (one.tolist(), two.shape) == ([0, 1, 0, 1], (4, 2))
    assert read(rows, ColumnChoice("dense", "label"), classes=3)[1].tolist() == [[1, 0, 0], [0, 1, 0]] * 2


WIDE = sql.ArrayType(sql.DoubleType())


@pytest.mark.parametrize(
    ("values", "kind", "labels", "said"),
    [
        ([1.0, 1.0, 1.0, None], sql.DoubleType(), [0] * 4, "column 'x', row 3: expected a value, got null"),
        ([[1.0, 2.0], [1.0]], WIDE, [0, 0], "column 'x', row 1: expected 2 values"),
        ([[1.0, 2.0], [1.0, None]], WIDE, [0, 0], "row 1: .*an array with a null in it"),
        ([1.0, 1.0], sql.DoubleType(), [0, 7], "column 'y', row 1: expected a class from 0 to 1, got 7"),
        ([[1.0, 2.0, 3.0]], WIDE, [0], r"column 'x', row 0: the model takes shape \(1,\), got \(3,\)"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_named_with_column_and_place(values, kind, labels, said) -> None:
    schema = sql.StructType().add("x", kind).add("y", sql.IntegerType())
    rows = Rows(schema, pa.record_batch([pa.array(values), pa.array(labels, pa.int32())], ["x", "y"]))
    wide = isinstance(values[0], list) and len(values[0]) == 2
    with pytest.raises(DataError, match=said):
        read(rows, ColumnChoice("x", "y"), Slot("x", (2,)) if wide else Slot("x", (1,)), classes=2)


@pytest.mark.classic
def test_a_row_that_does_not_fit_is_named_with_its_partition(spark) -> None:
    df = spark.createDataFrame([(1.0,), (None,)], "x double").coalesce(1)
    made = plan(df.schema, ColumnChoice("x", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    with pytest.raises(Exception, match="column 'x', partition 0, row 1: expected a value, got null"):
        Frame(df, made).blocks.collect()


@pytest.mark.classic
def test_spark_brings_the_columns_of_the_plan_in_its_order(table) -> None:
    features = {"a": "dense", "b": ["id", "small"], "c": "both.b", "d": "old", "e": "text", "f": "grid", "g": "flag"}
    choice = ColumnChoice(features, "label", "small")
    made = plan(table.schema, choice, Slot("input"), Y, floatx="float32", classes=None)
    (block,) = Frame(table, made).blocks.collect()
    x, y, weight = unflatten(made.structure, flatten(block.columns)[0])
    assert {name: np.asarray(part).tolist()[3] for name, part in x.items()} == {
        "a": [3, 4],
        "b": [3, 1.5],
        "c": [1, 3],
        "d": [3, -3],
        "e": "t3",
        "f": [[3, 1], [2, 3]],
        "g": [0],
    }
    assert (y.tolist(), weight.tolist()) == ([0, 1, 0, 1], [0, 0.5, 1, 1.5])


@pytest.mark.classic
def test_decimals_without_a_fraction_are_whole_numbers(spark, tmp_path) -> None:
    """As keys of tables are: float32 rounds them from 16,777,217 on."""
    keys = [20_000_001, 10**17 + 1]
    df = spark.createDataFrame([(key, [key]) for key in keys], "k long, ks array<long>").selectExpr(
        "CAST(k AS DECIMAL(18, 0)) AS x", "CAST(ks AS ARRAY<DECIMAL(18, 0)>) AS xs", "CAST(k AS DECIMAL(20, 0)) AS wide"
    )
    for name in ("x", "xs"):
        made = plan(df.schema, ColumnChoice(name, None), Slot("x", (1,)), None, floatx="float32", classes=None)
        (x,) = (block.columns[0] for block in Frame(df.coalesce(1), made).blocks.collect())
        assert x.dtype == np.int64
        assert x.ravel().tolist() == keys
    made = plan(df.schema, ColumnChoice("wide", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    (x,) = (block.columns[0] for block in Frame(df.coalesce(1), made).blocks.collect())
    assert x.dtype == np.float32


@pytest.mark.classic
@pytest.mark.parametrize("pieces", [1, 3])
def test_every_row_comes_once_however_many_pieces_are_dealt(spark, pieces: int) -> None:
    df = spark.range(0, 1001, 1, 2).select("id")
    made = plan(df.schema, ColumnChoice("id", None), Slot("x", (1,)), None, floatx="float32", classes=None)
    blocks = Frame(df, made).dealt(pieces).collect()
    assert sorted(int(i) for block in blocks for i in block.columns[0].reshape(-1)) == list(range(1001))
    assert max(block.rows for block in blocks) - min(block.rows for block in blocks) <= 1


@pytest.mark.classic
def test_large_rows_of_one_partition_go_to_all_workers(spark) -> None:
    df = spark.range(0, 4, 1, 1).select(
        functions.array_repeat(functions.lit(1.0), 600_000).alias("x")
    )  # a block for each row
    made = plan(df.schema, ColumnChoice("x", None), Slot("x", (600_000,)), None, floatx="float32", classes=None)
    rows = partitioned(Frame(df, made).dealt(4), 4).mapPartitions(lambda blocks: [sum(block.rows for block in blocks)])
    assert rows.collect() == [1, 1, 1, 1]


@pytest.mark.classic
def test_rows_are_dealt_on_over_the_batches_of_a_partition(spark) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    try:
        df = spark.range(0, 12, 1, 1)
        made = plan(df.schema, ColumnChoice("id", None), Slot("x", (1,)), None, floatx="float32", classes=None)
        rdd = partitioned(Frame(df, made).dealt(3), 3)
        rows = rdd.mapPartitions(
            lambda blocks: [[int(i) for block in blocks for i in block.columns[0].reshape(-1)]]
        ).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert rows == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.classic
def test_blocks_are_bounded(spark) -> None:
    df = spark.range(0, 20, 1, 1).select(functions.array_repeat(functions.lit(1.0), 100_000).alias("x"))
    made = plan(df.schema, ColumnChoice("x", None), Slot("x", (100_000,)), None, floatx="float32", classes=None)
    sizes = [block.columns[0].nbytes for block in Frame(df, made).blocks.collect()]
    assert sum(sizes) == 20 * 400_000
    assert max(sizes) <= 4 * 2**20


@pytest.mark.classic
def test_sparse_vectors_become_dense_a_few_at_a_time(spark) -> None:
    rows = [(Vectors.sparse(1_000_000, [i], [1.0]),) for i in range(3)]
    df = spark.createDataFrame(rows, ["x"]).coalesce(1)
    made = plan(df.schema, ColumnChoice("x", None), Slot("x", (1_000_000,)), None, floatx="float32", classes=None)
    found = Frame(df, made).blocks.map(lambda block: (block.rows, block.columns[0].nbytes, block.columns[0].sum()))
    assert [(rows, nbytes, float(total)) for rows, nbytes, total in found.collect()] == [(1, 4_000_000, 1.0)] * 3
