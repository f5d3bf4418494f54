"""Columns of vectors, and that workers do without pyspark.ml."""

from __future__ import annotations

import subprocess
import sys

from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import functions
from pyspark.sql import types as sql

from elephas_like.rows.vector_columns import as_array, as_vector, is_vector


def test_vectors_of_both_packages_are_known() -> None:
    assert is_vector(VectorUDT())
    assert is_vector(OldVectorUDT())
    assert not is_vector(sql.ArrayType(sql.DoubleType()))


def test_vectors_to_arrays_and_back(spark) -> None:
    df = spark.createDataFrame([(Vectors.sparse(3, [1], [2.5]),)], ["v"])
    arrays = df.select(as_array(functions.col("v")).alias("a"))
    assert arrays.collect() == [([0.0, 2.5, 0.0],)]
    assert arrays.select(as_vector(functions.col("a"))).collect() == [(Vectors.dense([0, 2.5, 0]),)]


def test_what_tasks_import_does_not_bring_pyspark_ml() -> None:
    """It is half a second of CPU time where Python compiles it, as from Spark's archive, in each new process."""
    modules = ", ".join(
        f"elephas_like.{name}" for name in ("rows.frame_shards", "engine.map_frames", "model.frame_predictions")
    )
    code = f"import sys, pyspark.worker, {modules}; print('pyspark.ml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
