"""Whole fits on Spark: modes, servers, engines and their choice, training data that is kept, what the UI says."""

from __future__ import annotations

import logging
from functools import partial

import cloudpickle
import keras
import numpy as np
import pytest
from small import classifier, digits, line, points, rows, trained

import elephas_like
from elephas_like import CapacityError, SparkModel
from elephas_like.core.errors import ElephasWarning
from elephas_like.strategies import Average
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.learning_rate import scaled_schedules
from elephas_like.trainer.spec import Carry, ModelSpec


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "server", "parameter_server_mode": "http"},
        slow({"engine": "server", "parameter_server_mode": "socket"}),
        {"engine": "jobs"},
        slow({"engine": "server", "mode": "asynchronous", "parameter_server_mode": "http"}),
        {"engine": "server", "mode": "asynchronous", "parameter_server_mode": "socket"},
        {"engine": "server", "mode": "hogwild", "parameter_server_mode": "http"},
        slow({"engine": "server", "mode": "hogwild", "parameter_server_mode": "socket"}),
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_training_reads_digits(sc, options: dict) -> None:
    x, y = digits()
    model = classifier()
    before = model.get_weights()
    rdd = sc.parallelize(rows(x[:1500], y[:1500]), 2)
    history = SparkModel(model, 2, seed=3, batch_size=16, **options).fit(rdd, epochs=6, verbose=0)
    accuracy = model.evaluate(x[1500:], y[1500:], verbose=0)[1]
    assert accuracy > 0.8
    assert history.history["accuracy"][-1] > 0.85
    assert len(history.history["loss"]) == 6
    assert trained(history) >= 6 * 1500
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_arrays_and_validation_data_and_split(sc) -> None:
    x, y = digits()
    model = classifier()
    fitted = SparkModel(model, 2, seed=3, engine="server")
    history = fitted.fit(x[:400], y[:400], epochs=1, verbose=0, validation_data=(x[1500:], y[1500:]))
    assert history.history["val_accuracy"][0] == pytest.approx(
        model.evaluate(x[1500:], y[1500:], verbose=0)[1], abs=1e-6
    )
    history = fitted.fit(x[:400], y[:400], epochs=1, verbose=0, validation_split=0.25)
    assert trained(history) == 300
    assert "val_loss" in history.history


@pytest.mark.parametrize("engine", ["server", slow("jobs")])
def test_validation_rdd_of_any_partitions_gives_keras_numbers(sc, engine: str) -> None:
    x, y = digits()
    model = classifier()
    history = SparkModel(model, 2, seed=3, engine=engine).fit(
        sc.parallelize(rows(x[:200], y[:200]), 2),
        epochs=2,
        verbose=0,
        validation_data=sc.parallelize(rows(x[1500:], y[1500:]), 5),
    )
    loss, accuracy = model.evaluate(x[1500:], y[1500:], verbose=0)
    assert history.history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)
    assert history.history["val_accuracy"][-1] == pytest.approx(accuracy, abs=1e-6)


def test_auto_takes_the_server_where_workers_fit(sc, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    SparkModel(line(), 2).fit(sc.parallelize(points(20), 2), verbose=0)
    assert "engine='server': 2 workers fit in the free ones of Spark's 2 slots" in caplog.text


def test_auto_takes_jobs_where_workers_do_not_fit_and_says_why(sc, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    history = SparkModel(line(), 3).fit(sc.parallelize(points(20), 3), verbose=0)
    assert "engine='jobs': 3 workers would run at once, and Spark has 2 slots" in caplog.text
    assert len(history.rounds[0].workers) == 3


def test_asynchronous_workers_that_do_not_fit_are_told(sc) -> None:
    with pytest.raises(CapacityError, match="3 workers must run at the same time, and Spark has 2 slots"):
        SparkModel(line(), 3, mode="asynchronous").fit(sc.parallelize(points(20), 3), verbose=0)


def test_as_many_workers_as_partitions_and_slots(sc) -> None:
    history = SparkModel(line()).fit(sc.parallelize(points(20), 5), verbose=0)
    assert len(history.rounds[0].workers) == 2
    history = SparkModel(line(), engine="jobs").fit(sc.parallelize(points(20), 5), verbose=0)
    assert len(history.rounds[0].workers) == 5


def test_driver_callbacks_see_and_change_the_fit(sc) -> None:
    model = line(optimizer=keras.optimizers.SGD(0.5))
    seen: list[float] = []

    class Halves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            seen.append(float(self.model.optimizer.learning_rate))
            self.model.optimizer.learning_rate = seen[-1] / 2
            self.model.stop_training = epoch == 2

    history = SparkModel(model, 2, engine="server").fit(
        sc.parallelize(points(20), 2), epochs=9, verbose=0, callbacks=[Halves()]
    )
    assert seen == [0.5, 0.25, 0.125]
    assert len(history.history["loss"]) == 3


@pytest.mark.parametrize("engine", [slow("server"), "jobs"])
def test_a_sharded_dataset_is_written_once_and_trained_on_twice(sc, scratch, engine: str) -> None:
    written = sc.accumulator(0)

    def counted(row: object) -> object:
        written.add(1)
        return row

    with elephas_like.shard(sc.parallelize(points(30), 3).map(counted), 2) as dataset:
        for _ in range(2):
            history = SparkModel(line(), 2, engine=engine).fit(dataset, epochs=2, verbose=0)
            assert trained(history) == 60
        assert written.value == 30
        assert list(scratch.rglob("elephas_like-*/worker-*"))
    assert not list(scratch.rglob("elephas_like-*"))
    with pytest.raises(ValueError, match="released"):
        SparkModel(line(), 2).fit(dataset, verbose=0)


@pytest.mark.parametrize("engine", ["server", slow("jobs")])
def test_a_sharded_dataset_with_validation_data(sc, scratch, engine: str) -> None:
    x, y = digits()
    with elephas_like.shard(sc.parallelize(rows(x[:100], y[:100]), 2), 2) as dataset:
        history = SparkModel(classifier(), 2, engine=engine).fit(dataset, validation_data=(x[:50], y[:50]), verbose=0)
        assert "val_accuracy" in history.history
        assert not list(scratch.rglob("elephas_like-*-val"))  # validation rows went with the fit


@pytest.mark.parametrize("engine", ["server", "jobs"])
def test_jobs_have_a_tag_a_readable_description_and_the_callers_group(sc, engine: str) -> None:
    sc.setJobGroup("mine", "my own")
    status = sc._jsc.sc().statusStore()
    known = {int(job.jobId()) for job in _listed(status.jobsList(None))}
    SparkModel(line(), 2, engine=engine).fit(sc.parallelize(points(20), 2), epochs=2, verbose=0)
    jobs = [job for job in _listed(status.jobsList(None)) if int(job.jobId()) not in known]
    tags = [{str(tag) for tag in _listed(job.jobTags())} for job in jobs]
    described = [job.description().get() for job in jobs if job.description().isDefined()]
    assert jobs
    assert all(any(tag.startswith("elephas_like-") for tag in each) for each in tags)
    alone = {job.description().get() for job in jobs if not job.jobGroup().isDefined()}
    assert alone <= {"elephas_like: delete shards"}  # what cancels the caller's group cancels the others
    assert {job.jobGroup().get() for job in jobs if job.jobGroup().isDefined()} == {"mine"}
    assert any("line, 2 workers" in text for text in described)
    if engine == "jobs":
        assert any(text.endswith("epoch 2, round 1 of 1") for text in described)
    assert sc.getLocalProperty("spark.jobGroup.id") == "mine"
    sc.setLocalProperty("spark.jobGroup.id", None)
    sc.setLocalProperty("spark.job.description", None)


@pytest.mark.parametrize("engine", ["server", slow("jobs"), slow("gang")])
def test_what_workers_get_may_refer_to_broadcasts(sc, spark, engine: str) -> None:
    """As PySpark's own functions may. A pickle of them is loaded on the driver, too."""
    factor = sc.broadcast(3.0)

    class Scaled(keras.layers.Layer):
        def call(self, x: object) -> object:
            return x * factor.value

    class Sees(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            assert factor.value == 3.0

    class Own(Average):
        def weight(self, update: object, context: object) -> float:
            return factor.value / 3 * super().weight(update, context)

    assert cloudpickle.loads(pickle_by_value([lambda: factor]))[0]() is factor
    model = keras.Sequential([keras.Input((2,)), Scaled(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    worker_callbacks = [Sees()] if engine == "server" else None
    rdd = sc.parallelize(points(20), 2)
    fitted = SparkModel(model, 2, engine=engine, strategy=Own())
    assert trained(fitted.fit(rdd, verbose=0, worker_callbacks=worker_callbacks)) == 20
    features = [row[0] for row in points(20)]
    expected = model.predict(np.array(features), verbose=0)
    np.testing.assert_allclose(fitted.predict(sc.parallelize(features, 2)), expected, rtol=1e-5)
    assert fitted.evaluate(rdd) == pytest.approx(
        float(model.evaluate(*map(np.array, zip(*points(20), strict=True)), verbose=0))
    )
    frame = spark.createDataFrame([(list(row),) for row in features], "features array<double>")
    np.testing.assert_allclose(fitted.predict(frame), expected, rtol=1e-5)
    # What this thread's next job ships is its own, and no broadcast that its user may have destroyed.
    assert list(sc._pickled_broadcast_vars) == []


def _listed(jobs: object) -> list:
    return [jobs.apply(index) for index in range(jobs.size())]


@pytest.mark.parametrize("kind", ["metrics", "loss alone", "scaled schedule"])
def test_later_fits_and_evaluations_find_the_compiled_model_of_the_first_fit(sc, kind: str) -> None:
    """The driver's loss and metrics are built by then, which is no reason to compile: the table is of the Python processes that run tasks."""
    model, scale = line(), "linear" if kind == "scaled schedule" else None
    rate = keras.optimizers.schedules.CosineDecay(0.01, 100) if scale else 0.01
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"] if kind == "metrics" else None)
    rdd = sc.parallelize(points(24), 2)
    on_spark = SparkModel(model, num_workers=2, engine="server", scale_learning_rate=scale)
    on_spark.fit(rdd, batch_size=4, verbose=0)
    model.evaluate(*map(np.array, zip(*points(24), strict=True)), verbose=0)
    on_spark.fit(rdd, batch_size=4, verbose=0)
    if not scale:
        on_spark.evaluate(rdd)

    def kept(_: object) -> list[str]:
        from elephas_like.trainer.programs import PROGRAMS

        return [key.split()[0] for key in PROGRAMS._free]

    with scaled_schedules(model, 2.0 if scale else 1.0):
        spec = ModelSpec.from_model(model, Carry.NOTHING)
    assert spec.unbuilt is not None
    found = sc.parallelize(range(32), 32).mapPartitions(kept).collect()  # of all processes that Spark keeps, in turn
    assert spec.unbuilt[0] in found
    assert spec.key not in found


@pytest.mark.parametrize("used", ["synchronous", "asynchronous", "evaluate"])
def test_metrics_that_do_not_add_up_are_named_at_the_first_use(sc, used: str) -> None:
    class Peak(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="peak")
            self.peak = self.add_weight(shape=(), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None) -> None:
            self.peak.assign(keras.ops.maximum(self.peak, keras.ops.max(keras.ops.abs(y_pred))))

        def result(self):
            return self.peak + 0.0

    model = line()
    model.compile("sgd", "mse", metrics=[Peak()])
    rdd = sc.parallelize(points(24), 2)
    mode = "synchronous" if used == "evaluate" else used
    on_spark = SparkModel(model, num_workers=2, mode=mode, engine="server", batch_size=4)
    use = partial(on_spark.evaluate, rdd) if used == "evaluate" else partial(on_spark.fit, rdd, verbose=0)
    with pytest.warns(ElephasWarning, match="'peak' do not add up"):
        use()
