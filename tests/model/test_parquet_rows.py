"""Parquet files as data: what workers read by themselves trains, scores and predicts as the same rows from anywhere else."""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import dedent

import keras
import numpy as np
import pandas as pd
import pytest
from forked import run
from frame_data import breast_cancer, mlp

from elephas_like import DataError, ParquetFiles, SparkModel, WorkerError, search, shard, train_ensemble
from elephas_like.model.sources import FrameRows, column_source
from elephas_like.rows.frame_plan import ColumnChoice, Invalid

COLUMNS = [f"f{index}" for index in range(30)]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    x, y = breast_cancer()
    return x[:203].astype(np.float32), y[:203]


@pytest.fixture(scope="module")
def path(rows, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The rows in three files of row groups of 40 rows."""
    place = tmp_path_factory.mktemp("rows")
    whole = pd.DataFrame(rows[0], columns=COLUMNS).assign(label=rows[1])
    for number, begin in enumerate(range(0, 203, 80)):
        whole[begin : begin + 80].to_parquet(place / f"{number}.parquet", row_group_size=40)
    return str(place)


def binary() -> keras.Model:
    return mlp(30, 1, "sigmoid", "binary_crossentropy", metrics=["accuracy", "AUC"])


def same(one: keras.Model, other: keras.Model) -> bool:
    return all(map(np.array_equal, one.get_weights(), other.get_weights()))


@pytest.fixture(scope="module")
def of_arrays(rows) -> tuple[keras.Model, dict[str, list[float]]]:
    """What a fit of the rows on the driver makes of the model, and its history."""
    model = binary()
    fitted = SparkModel(model, 2, engine="in_process", seed=3)
    return model, fitted.fit(*rows, epochs=2, validation_data=rows, verbose=0).history


@pytest.mark.parametrize("engine", ["server", "gang", "in_process", pytest.param("jobs", marks=pytest.mark.slow)])
def test_a_small_table_trains_as_its_rows_on_the_driver_to_the_last_bit(sc, path, rows, of_arrays, engine: str) -> None:
    """Both are dealt like cards. Validation rows are scored by the workers, each on its part; the sum is Keras' on all of them."""
    by_files = binary()
    found = SparkModel(by_files, 2, engine=engine, seed=3).fit(
        path, features_col=COLUMNS, epochs=2, validation_data=path, verbose=0
    )
    assert same(by_files, of_arrays[0])
    assert found.history == of_arrays[1]
    assert found.history["val_loss"][-1] == pytest.approx(by_files.evaluate(*rows, verbose=0)[0], rel=1e-4)


def test_predict_and_evaluate_are_those_of_keras_in_the_order_of_the_rows(sc, path, rows) -> None:
    model = binary()
    spark_model = SparkModel(model)
    found = spark_model.predict(path, features_col=COLUMNS)
    np.testing.assert_allclose(found, model.predict(rows[0], verbose=0), rtol=1e-5)
    scores = spark_model.evaluate(path, features_col=COLUMNS, return_dict=True)
    expected = model.evaluate(*rows, verbose=0, return_dict=True)
    assert scores == pytest.approx(expected, rel=1e-4)
    frame = spark_model.predict(path, features_col=COLUMNS, collect=False)
    assert frame.count() == 203
    assert "prediction" in frame.columns


def test_shards_searches_and_ensembles_read_files(sc, path, rows) -> None:
    model = binary()
    with shard(path, 2, model=model, features_col=COLUMNS, shuffle=True, seed=5) as dataset:
        one = SparkModel(model, 2, seed=3).fit(dataset, verbose=0)
        assert sum(record.samples for record in one.rounds) == 203
    members = train_ensemble(lambda seed: binary(), path, num_members=2, epochs=1, features_col=COLUMNS, verbose=0)
    np.testing.assert_allclose(members.predict(path, features_col=COLUMNS), members.predict(rows[0]))
    assert members.evaluate(path, features_col=COLUMNS) == pytest.approx(members.evaluate(*rows), rel=1e-4)

    def build(params: dict) -> keras.Model:
        return binary()

    from hyperopt import hp

    found = search(
        build,
        {"u": hp.uniform("u", 0, 1)},
        path,
        max_evals=1,
        epochs=1,
        validation_split=0.2,
        features_col=COLUMNS,
        verbose=0,
    )
    assert len(found.trials) == 1
    assert found.best_model.count_params() == model.count_params()


def test_a_shuffled_dataset_has_each_row_once(sc, path) -> None:
    with shard(path, 3, features_col=COLUMNS, shuffle=True, seed=5) as dataset:
        found = [float(row[0]) for block in dataset.source.collect() for row in block.columns[0]]
    assert sorted(found) == sorted(pd.read_parquet(path)["f0"].tolist())
    assert found != pd.read_parquet(path)["f0"].tolist()


def test_without_spark_files_are_read_here(path, rows) -> None:
    """No session, no Java: training, scores and predictions alike."""
    script = f"""
        import sys
        import numpy as np, keras
        from elephas_like import SparkModel
        from pyspark import SparkContext
        model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile("sgd", "binary_crossentropy")
        spark_model, columns = SparkModel(model, 2), {COLUMNS!r}
        history = spark_model.fit({path!r}, features_col=columns, epochs=1, verbose=0)
        loss = spark_model.evaluate({path!r}, features_col=columns)
        found = spark_model.predict({path!r}, features_col=columns)
        assert SparkContext._active_spark_context is None
        print(sum(record.samples for record in history.rounds), found.shape, np.isfinite(loss))
    """
    done = run(["-c", dedent(script)])
    assert done.stdout.split("\n")[-2:] == ["203 (203, 1) True", ""], done.stderr


def test_files_without_rows_are_said_to_be_such(tmp_path: Path) -> None:
    pd.DataFrame({"f": [1.0], "label": [0]})[:0].to_parquet(tmp_path / "a.parquet")
    source = column_source(str(tmp_path), ColumnChoice("f", "label"), None)
    with pytest.raises(ValueError, match="there are no rows to train on"):
        source.arrays()


@pytest.mark.parametrize("invalid", [None, Invalid.SKIP])
def test_files_of_directories_in_a_directory_are_read_whoever_reads_them(spark, tmp_path: Path, invalid) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a.parquet", "below/b.parquet"):
        pd.DataFrame({"f": [1.0, 2.0], "label": [0, 1]}).to_parquet(tmp_path / name)
    source = column_source(str(tmp_path), ColumnChoice("f", "label", invalid=invalid), None)
    assert sum(block.rows for block in source.rows()) == 4


def test_spark_reads_what_workers_cannot(spark, path, caplog: pytest.LogCaptureFixture) -> None:
    columns = ColumnChoice(COLUMNS, "label")
    with caplog.at_level(logging.INFO, "elephas_like"):
        source = column_source(path, ColumnChoice(COLUMNS, "label", invalid=Invalid.SKIP), None)
    assert isinstance(source, FrameRows)
    assert "as a DataFrame, for handle_invalid='skip'" in caplog.text
    with pytest.raises(OSError, match=r"Spark cannot read \['wasbs://.*as PyArrow cannot \(.*NativeAzureFileSystem"):
        column_source("wasbs://rows@account/x", columns, None)


def test_files_that_do_not_fit_are_refused_before_any_job(path) -> None:
    model = SparkModel(binary())
    with pytest.raises(ValueError, match="there is no column 'featurs'"):
        model.fit(path, features_col="featurs")
    with pytest.raises(ValueError, match="holds y and sample_weight too"):
        model.fit(path, np.zeros(3), features_col=COLUMNS)
    with pytest.raises(FileNotFoundError, match="there is no Parquet file"):
        model.fit(path + "-none", features_col=COLUMNS)
    with pytest.raises(TypeError, match="validation_data is a path of Parquet files"):
        model.fit(np.zeros((2, 30)), np.zeros(2), validation_data=path)


def test_a_worker_says_which_row_of_which_file_is_wrong(sc, path, tmp_path: Path) -> None:
    table = pd.read_parquet(path)
    table.loc[150, "f3"] = None
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    with pytest.raises(
        WorkerError, match=r"column 'f3'.*rows.parquet, row group 1, row 50: expected a value"
    ) as raised:
        SparkModel(binary(), 2).fit(ParquetFiles(tmp_path), features_col=COLUMNS, verbose=0)
    assert isinstance(raised.value, DataError)
