"""Everything that works over Spark Connect, and what is said where something does not."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from data import X, Y, classifier
from image_data import png
from pyspark.sql import functions

from elephas_like import (
    CapacityError,
    DataError,
    ElephasError,
    ElephasEstimator,
    ElephasTransformer,
    ImageFeaturizer,
    SparkModel,
    VotingModel,
    WaitError,
    WorkerError,
    register_keras_udf,
    run_on_workers,
    shard,
    write_tfrecords,
)
from elephas_like.spark.remote import new_tag, run_job
from elephas_like.spark.session import active_remote, conf_of, context_of, is_remote
from elephas_like.spark.waits import Overdue


def fitted(data, epochs: int = 2, fit: dict | None = None, **options):
    model = classifier()
    history = SparkModel(model, seed=5, batch_size=16, **options).fit(data, epochs=epochs, verbose=0, **(fit or {}))
    return model, history


def same(one: keras.Model, other: keras.Model) -> bool:
    pairs = zip(one.variables, other.variables, strict=True)
    return all(np.array_equal(np.array(a.value), np.array(b.value)) for a, b in pairs)


def test_the_session_is_known_as_remote(remote) -> None:
    assert is_remote(remote)
    assert context_of(remote) is None
    assert conf_of(remote).get("spark.master", "") == "local[2]"
    assert active_remote() is remote
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(active_remote).result() is remote  # a thread of its own has no active session


def test_a_fit_takes_every_slot_and_is_always_the_same(df) -> None:
    one, history = fitted(df, fit={"validation_split": 0.1})
    other, again = fitted(df, engine="gang", epochs_per_job=1, num_workers=2, fit={"validation_split": 0.1})
    assert same(one, other)
    assert history.history == again.history
    assert history.epoch == [0, 1]
    assert {len(record.workers) for record in history.rounds} == {2}


def test_a_preflight_check_looks_at_the_model_and_the_first_row(df, remote) -> None:
    good = SparkModel(classifier(), 2).check(df, verbose=0)
    assert good.ok, str(good)
    found = {finding.name: finding.text for finding in good.findings}
    assert found["spark"] == f"Spark {remote.version} over Spark Connect"
    assert found["engine"] == "'gang' with 2 workers"
    assert found["first row"].endswith("the model takes it")
    assert "executors" in found  # not looked at
    assert SparkModel(classifier(), 2).check(X, Y, verbose=0).ok
    other = SparkModel(classifier(), 2, engine="jobs").check(df, verbose=0)
    assert "over Spark Connect use engine='gang'" in str(other.of("problem")[0])
    wide = df.select(functions.concat("features", "features").alias("features"), "label")
    (problem,) = SparkModel(classifier(), 2).check(wide, verbose=0).of("problem")
    assert problem.name == "first row"
    (problem,) = SparkModel(classifier(), 2).check(df.limit(0), verbose=0).of("problem")
    assert "empty" in problem.text


def test_arrays_are_trained_over_connect_as_in_this_process(remote) -> None:
    over_connect, history = fitted(X, engine="gang", num_workers=2, fit={"y": Y})
    here, expected = fitted(X, engine="in_process", num_workers=2, fit={"y": Y})
    np.testing.assert_allclose(history.history["loss"], expected.history["loss"], rtol=1e-4)
    for a, b in zip(over_connect.get_weights(), here.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_callbacks_run_here_and_may_use_the_session(df) -> None:
    seen = []

    class Counts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None) -> None:
            seen.append((epoch, df.count(), "val_loss" in logs))
            self.model.stop_training = epoch == 1

    _, history = fitted(df, epochs=4, fit={"callbacks": [Counts()], "validation_data": df.limit(40)})
    assert seen == [(0, 240, True), (1, 240, True)]
    assert history.epoch == [0, 1]


def test_asynchronous_workers(df) -> None:
    _, history = fitted(df, mode="asynchronous")
    assert history.epoch == [0, 1]


def test_predictions_and_evaluations_are_keras(df) -> None:
    model = classifier()
    spark_model = SparkModel(model)
    np.testing.assert_allclose(spark_model.predict(df), model.predict(X, verbose=0), atol=1e-6)
    np.testing.assert_allclose(spark_model.evaluate(df), model.evaluate(X, Y, verbose=0), rtol=1e-4)
    rows = spark_model.predict(df, collect=False).select("prediction").collect()
    np.testing.assert_allclose([row.prediction for row in rows], model.predict(X, verbose=0), atol=1e-6)


def test_votes(df) -> None:
    models = [classifier(), classifier()]
    voting = VotingModel(models)
    np.testing.assert_array_equal(voting.predict(df), models[0].predict(X, verbose=0).argmax(axis=1))


def test_a_transformer_and_a_sql_function(remote, df) -> None:
    expected = classifier().predict(X, verbose=0).argmax(axis=1)
    found = ElephasTransformer(classifier()).transform(df).select("prediction").collect()
    assert [int(row.prediction) for row in found] == expected.tolist()
    register_keras_udf(remote, "digit", classifier())
    df.createOrReplaceTempView("digits")
    assert [
        int(row.found) for row in remote.sql("SELECT digit(features) AS found FROM digits").collect()
    ] == expected.tolist()


def test_vectors_of_images(remote) -> None:
    pixels = (X[:6] * 255).astype("uint8").reshape(-1, 8, 8, 1)
    rows = [(i, png(image)) for i, image in enumerate(pixels)] + [(6, b"no image")]
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 3)])
    featurizer = ImageFeaturizer(model, pooling="max", handle_invalid="skip")
    found = featurizer.transform(remote.createDataFrame(rows, "id int, content binary")).orderBy("id").collect()
    expected = model.predict(pixels, verbose=0).max(axis=(1, 2))
    np.testing.assert_allclose([row.features.toArray() for row in found], expected, atol=1e-6)


def test_an_estimator_fits_and_its_transformer_predicts(df) -> None:
    transformer = ElephasEstimator(classifier(), epochs=2, num_workers=2, verbose=0).fit(df)
    assert transformer.transform(df).select("prediction").count() == 240


def test_a_stream_of_files_is_predicted_and_trained_on(remote, df, tmp_path) -> None:
    source = str(tmp_path / "rows")
    df.write.parquet(source)
    stream = remote.readStream.schema(df.schema).parquet(source)
    scored = ElephasTransformer(classifier()).transform(stream).select("label", "prediction")
    query = scored.writeStream.format("memory").queryName("scored").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    expected = sorted(zip(Y.tolist(), classifier().predict(X, verbose=0).argmax(axis=1).tolist(), strict=True))
    found = sorted((row.label, int(row.prediction)) for row in remote.table("scored").collect())
    assert found == expected


def test_functions_on_workers(remote) -> None:
    def work(member, factor):
        return member.rank * factor, member.all_gather(str(member.rank))

    assert run_on_workers(work, 2, args=(3,)) == [(0, ["0", "1"]), (3, ["0", "1"])]


def test_a_workers_error_has_its_type(df) -> None:
    with pytest.raises(DataError, match=r"column 'features', partition 0, row \d+: .*64"):
        ragged = functions.slice("features", 1, functions.when(df.label == 3, 60).otherwise(64))
        fitted(df.withColumn("features", ragged))
    with pytest.raises(WorkerError):
        fitted(df.withColumn("label", df.label + 10))


def test_a_job_is_cancelled_by_its_tag(remote) -> None:
    def wait(batches):
        threading.Event().wait(120)
        yield from batches

    job = remote.range(2).mapInArrow(wait, "id long").collect

    def late():
        threading.Event().wait(2)  # its time is over before the server knows it
        return job()

    with pytest.raises(Overdue):
        run_job(remote, new_tag("late"), "late", 1, late)
    with pytest.raises(WaitError, match="timeout=2 s"):
        run_on_workers(lambda member: threading.Event().wait(120), 2, timeout=2)
    began = time.monotonic()
    timer = threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_job(remote, new_tag("wait"), "wait", 600, job)
    assert time.monotonic() - began < 100


def test_seconds_begin_anew_when_a_task_ends(remote) -> None:
    def slow(batches):
        threading.Event().wait(3)
        yield from batches

    job = remote.range(0, 8, 1, 8).mapInArrow(slow, "id long").collect
    assert len(run_job(remote, new_tag("moves"), "moves", 9, job, by_progress=True)) == 8  # 12 seconds on two slots
    with pytest.raises(Overdue):
        run_job(remote, new_tag("short"), "short", 9, job)


def test_seconds_do_not_begin_anew_when_a_task_of_another_thread_ends(remote) -> None:
    def slow(seconds: float):
        def wait(batches):
            threading.Event().wait(seconds)
            yield from batches

        return remote.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect

    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            slow(1)()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        with pytest.raises(Overdue):
            run_job(remote, new_tag("alone"), "alone", 9, slow(60), by_progress=True)
    finally:
        ended.set()
        thread.join()


def test_rows_that_never_come_end_the_fit(df) -> None:
    def never(batches):
        for batch in batches:
            threading.Event().wait()
            yield batch

    with pytest.raises(WaitError, match=r"2 workers to write their rows, .*round_timeout=5 s"):
        fitted(df.mapInArrow(never, df.schema), round_timeout=5)
    assert df.count() == 240


def test_in_process_trains_on_the_rows_as_a_gang_deals_them(df) -> None:
    one, _ = fitted(df, num_workers=2)
    other, _ = fitted(df, num_workers=2, engine="in_process")
    assert same(one, other)
    with pytest.raises(WorkerError, match="column 'features'") as raised:
        fitted(df.withColumn("features", functions.slice("features", 1, 60)), num_workers=2, engine="in_process")
    assert isinstance(raised.value, DataError)


def test_a_path_is_the_servers_and_read_by_spark(df, tmp_path, caplog) -> None:
    path = str(tmp_path / "rows")
    df.write.parquet(path)
    with caplog.at_level("INFO", "elephas_like"):
        one, _ = fitted(path, num_workers=2)
    assert "as a DataFrame, over Spark Connect" in caplog.text
    other, _ = fitted(df.sparkSession.read.parquet(path), num_workers=2)
    assert same(one, other)


def test_stages_and_records_are_saved_to_new_paths(remote, df, tmp_path) -> None:
    stage = ElephasEstimator(classifier(), epochs=1, num_workers=2, seed=1).fit(df)
    path = str(tmp_path / "stage")
    stage.write().save(path)
    loaded = ElephasTransformer.load(path)
    assert all(map(np.array_equal, loaded.get_model().get_weights(), stage.get_model().get_weights()))
    with pytest.raises(FileExistsError, match="save to a new path"):
        stage.write().save(path)
    with pytest.raises(ValueError, match=r"overwrite\(\) needs a classic session"):
        stage.write().overwrite().save(path)
    rows = df.limit(7)
    assert write_tfrecords(rows, str(tmp_path / "records")) == 7
    with pytest.raises(ValueError, match="expected a path of this machine's disk; got 'hdfs://"):
        write_tfrecords(rows, "hdfs://somewhere/records")


def test_a_frame_whose_table_or_session_is_gone_is_said_so(remote, df) -> None:
    df.createOrReplaceTempView("gone")
    lost = remote.table("gone")
    remote.catalog.dropTempView("gone")
    for use in (SparkModel(classifier(), 2).predict, ElephasTransformer(classifier()).transform):
        with pytest.raises(ValueError, match=r"^Spark cannot make the DataFrame: \[TABLE_OR_VIEW_NOT_FOUND\][^\n]*$"):
            use(lost)
    other = remote.newSession()
    rows = other.createDataFrame(df.toPandas())
    model = classifier()
    leave = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: other.client.release_session())
    with pytest.raises(ElephasError, match="the session of Spark Connect has ended"):
        SparkModel(model, 2).fit(rows, epochs=2, verbose=0, callbacks=[leave])
    assert not same(model, classifier())  # it has the first epoch
    with pytest.raises(ElephasError, match="the session of Spark Connect has ended"):
        SparkModel(model, 2).predict(rows)
    other.client.close()  # or it would ask a server that has ended, at this process's end


def test_what_connect_has_not_is_said_in_a_sentence(remote, df) -> None:
    with pytest.raises(CapacityError, match="3 workers must run at the same time, and Spark has 2 slots"):
        fitted(df, num_workers=3)
    for engine in ("server", "jobs"):
        with pytest.raises(ValueError, match=f"engine='{engine}' needs a classic session; over Spark Connect use"):
            fitted(df, engine=engine)
    with pytest.raises(TypeError, match="Spark Connect"):
        shard(df, 2)
