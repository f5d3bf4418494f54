"""Defects of Elephas 7.3 that must not come along, one test each, named after its number in the project's list of them.

P2, P19, P20 and P21 are those of the Spark ML classes, in elephas/test_ml_defects.py.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
import pytest
from pyspark.mllib.linalg import DenseVector, Matrices, Vectors
from pyspark.mllib.regression import LabeledPoint

from elephas_like import (
    AsynchronousSparkModel,
    HyperParamModel,
    SparkMLlibModel,
    SparkModel,
    VotingModel,
    WorkerError,
    load_spark_model,
)
from elephas_like.core.types import Mode
from elephas_like.mllib import from_matrix, to_matrix
from elephas_like.parameter import HttpClient, HttpServer, SocketClient, SocketServer
from elephas_like.utils import (
    average_and_subtract,
    bytes_to_weights,
    from_labeled_point,
    model_to_dict,
    to_simple_rdd,
    weights_to_bytes,
)
from elephas_like.utils.model_utils import LossModelTypeMapper, ModelType

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True).astype("float32")


def line(optimizer: object = "sgd", loss: object = "mse", metrics: object = None) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=metrics)
    return model


def weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.fixture(autouse=True)
def loopback(monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("ELEPHAS_LIKE_TOKEN", raising=False)


@contextmanager
def nothing_left() -> Iterator[None]:
    """No thread of ours is alive afterwards that was not before."""

    def ours() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("elephas-like")}

    yield
    for _ in range(500):
        if not ours():
            break
        threading.Event().wait(0.01)
    assert not ours()


def test_p1_mode_asynchronous_trains_asynchronously(sc) -> None:
    model = line()
    history = SparkModel(model, mode="asynchronous", num_workers=2, seed=1).fit(
        to_simple_rdd(sc, X, Y), epochs=2, batch_size=4, verbose=0
    )
    assert all(len(record.workers) == 1 for record in history.rounds)  # an exchange is of one worker, not of all


def test_p3_fit_without_batch_size_takes_the_constructors(sc) -> None:
    history = SparkModel(line(), num_workers=2, batch_size=5, frequency="epoch", seed=1).fit(
        to_simple_rdd(sc, X, Y), verbose=0
    )
    assert [record.steps for record in history.rounds[0].workers] == [4, 4]  # 20 rows each, 5 a batch


def test_p4_partitions_smaller_than_a_batch_are_trained(sc) -> None:
    model = line()
    before = weights(model)
    history = SparkModel(model, num_workers=2, seed=1).fit(
        to_simple_rdd(sc, X[:6], Y[:6]).coalesce(2), batch_size=32, epochs=1, verbose=0
    )
    assert sum(record.samples for record in history.rounds) == 6
    assert np.abs(weights(model) - before).max() > 0


def two_inputs(*, run_eagerly: bool) -> keras.Model:
    keras.utils.set_random_seed(3)
    one, two = keras.Input((2,)), keras.Input((2,))
    joined = keras.layers.Concatenate()([one, two])
    model = keras.Model([one, two], [keras.layers.Dense(1, name="a")(joined), keras.layers.Dense(1, name="b")(joined)])
    model.compile("sgd", ["mse", "mse"], run_eagerly=run_eagerly)
    return model


def test_p5_models_of_several_inputs_train_in_step_on_one_array_a_row(sc) -> None:
    both = np.concatenate([Y, -Y], axis=1)
    ours, theirs = two_inputs(run_eagerly=False), two_inputs(run_eagerly=True)
    model = SparkModel(ours, num_workers=1, strategy="average", batch_size=8)
    rdd = sc.parallelize(list(zip(X, both, strict=True)), 1)
    model.fit(rdd, epochs=2, shuffle=False, verbose=0)
    x, y = np.hsplit(X, 2), np.hsplit(both, 2)
    theirs.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(weights(ours), weights(theirs), atol=1e-6)
    expected = [np.asarray(output) for output in ours(x)]
    for data in (X, sc.parallelize(list(X), 3)):
        for found, right in zip(model.predict(data), expected, strict=True):
            np.testing.assert_allclose(found, right, atol=1e-6)
    right = theirs.evaluate(x, y, batch_size=8, verbose=0)  # Keras' losses of outputs are means of batches
    assert model.evaluate(X, both) == pytest.approx(right, abs=1e-5)
    assert model.evaluate(rdd) == pytest.approx(right, abs=1e-5)


def test_p6_empty_partitions_are_predicted(sc) -> None:
    model = line()
    rdd = sc.parallelize(list(X[:3]), 8)
    np.testing.assert_allclose(SparkModel(model).predict(rdd), model.predict(X[:3], verbose=0), atol=1e-6)


def test_p7_keras_files_are_saved(tmp_path) -> None:
    SparkModel(line(), num_workers=3).save(tmp_path / "model.keras")
    assert load_spark_model(tmp_path / "model.keras").num_workers == 3
    keras.models.load_model(tmp_path / "model.keras")


def test_p8_overwrite_false_overwrites_nothing(tmp_path) -> None:
    path = tmp_path / "model.keras"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        SparkModel(line()).save(path)
    assert path.read_text() == "mine"


def test_p9_an_asynchronous_model_comes_back(tmp_path) -> None:
    AsynchronousSparkModel(line(), mode="hogwild", frequency="batch").save(tmp_path / "model.keras")
    loaded = load_spark_model(tmp_path / "model.keras")
    assert type(loaded) is AsynchronousSparkModel
    assert (loaded.mode, loaded.frequency) == ("hogwild", "batch")


@pytest.mark.parametrize("name", ["mse", "mae"])
def test_p10_an_h5_file_compiled_with_a_short_name_comes_back(name, tmp_path) -> None:
    SparkModel(line(loss=name, metrics=[name])).save(tmp_path / "model.h5")
    loaded = load_spark_model(tmp_path / "model.h5")
    assert loaded.master_loss == name
    assert set(loaded.evaluate(X, Y, return_dict=True)) == {"loss", name}


def of_a_free_port() -> AsynchronousSparkModel:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return AsynchronousSparkModel(line(), num_workers=2, port=port, frequency="batch", seed=1)


def test_p11_fits_of_one_model_follow_each_other(sc) -> None:
    model = of_a_free_port()
    with nothing_left():
        for _ in range(2):
            model.fit(to_simple_rdd(sc, X, Y), batch_size=4, verbose=0)
    assert len(model.training_histories) == 2


def test_p12_a_failed_fit_leaves_no_server_and_no_port(sc) -> None:
    model = of_a_free_port()
    good = to_simple_rdd(sc, X, Y)
    with nothing_left(), pytest.raises(WorkerError):
        model.fit(good.map(lambda row: (row[0][: 3 + int(row[1][0] > 0)], row[1])), batch_size=4, verbose=0)
    with socket.create_server(("127.0.0.1", model.port)):
        pass  # the port is free
    model.fit(good, batch_size=4, verbose=0)


def test_p13_the_spawn_start_method_changes_nothing() -> None:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with HttpServer(model_to_dict(line()), 0, "asynchronous") as server:
            assert len(HttpClient(server.port).get_parameters()) == 2
            assert multiprocessing.active_children() == []
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_p14_socket_calls_leave_no_thread() -> None:
    with SocketServer(model_to_dict(line()), 0, "asynchronous") as server:
        before = threading.active_count()
        for _ in range(20):
            SocketClient(server.port).get_parameters()
        for _ in range(500):
            if threading.active_count() <= before:
                break
            threading.Event().wait(0.01)
        assert threading.active_count() <= before


def test_p15_mllib_models_predict(sc) -> None:
    model = line()
    expected = model.predict(X[:3], verbose=0)
    ours = SparkMLlibModel(model)
    np.testing.assert_allclose(ours.predict(to_matrix(X[:3])).toArray(), expected, atol=1e-6)
    found = ours.predict(DenseVector(X[0]))
    assert isinstance(found, DenseVector)
    np.testing.assert_allclose(found.toArray(), expected[0], atol=1e-6)
    with pytest.raises(ValueError, match=r"Provide an MLlib matrix or vector.*got str"):
        ours.predict("no")


def test_p16_matrices_keep_the_places_of_their_elements() -> None:
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(from_matrix(to_matrix(array)), array)
    assert to_matrix(array)[1, 0] == 3.0
    np.testing.assert_array_equal(from_matrix(Matrices.sparse(2, 2, [0, 1, 1], [1], [5.0])), [[0, 0], [5, 0]])


def test_p17_weights_without_axes_keep_having_none() -> None:
    (found,) = bytes_to_weights(weights_to_bytes([np.array(2.5)]))
    assert found.shape == ()


def test_p18_a_model_that_is_not_compiled_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"is not compiled. Compile it first"):
        SparkModel(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))


def test_p22_counters_stay_whole(sc) -> None:
    normalize = keras.layers.Normalization()
    normalize.adapt(X)
    model = keras.Sequential([keras.Input((4,)), normalize, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    before = [variable.numpy().dtype for variable in model.variables]
    SparkModel(model, num_workers=2, seed=1).fit(to_simple_rdd(sc, X, Y), batch_size=4, verbose=0)
    assert [variable.numpy().dtype for variable in model.variables] == before
    assert model.optimizer.iterations.numpy().dtype.kind == "i"
    assert int(model.optimizer.iterations) == 5  # 20 rows a worker, 4 a batch: the largest count, and no mean
    assert average_and_subtract([np.array([7])], [[np.array([1])], [np.array([2])]])[0].dtype == np.int64


def test_p23_averages_go_by_rows(sc) -> None:
    """30 rows that pull towards 4 and 10 towards 0, a step each of SGD: the mean of all is 3, that of the workers 2."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    rows = [(np.ones(1), 4.0)] * 30 + [(np.ones(1), 0.0)] * 10
    rdd = sc.parallelize([0, 1], 2).mapPartitionsWithIndex(lambda i, _: iter(rows[:30] if i == 0 else rows[30:]))
    SparkModel(model, num_workers=2, strategy="average", frequency="epoch").fit(rdd, batch_size=32, verbose=0)
    assert float(weights(model)[0]) == pytest.approx(3.0)


def test_p24_nobody_debugs_or_speaks_without_the_token() -> None:
    with pytest.warns(UserWarning, match="debug=True is not honoured"):
        server = HttpServer(model_to_dict(line()), 0, "asynchronous", debug=True)
    with server, socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        stranger.sendall(b"GET /console HTTP/1.0\r\n\r\n")
        assert stranger.makefile("rb").readline().split()[1] == b"401"
    huge = b"\x01\0\0\0\x01" + (2**62).to_bytes(8, "little") + b"\x05\0uint8" + (2**62).to_bytes(8, "little")
    with pytest.raises(ValueError, match="the bytes end in array 0"):
        bytes_to_weights(huge)  # and no 4 EiB were asked for


def test_p25_clients_know_the_driver_before_they_travel(monkeypatch) -> None:
    clients = [HttpClient(1234), SocketClient(1234)]
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.9.8.7")  # what a worker's environment says
    assert {client.master_url for client in clients} == {"127.0.0.1:1234"}


def sure_of(share: float) -> keras.Model:
    """A model that gives class 0 this probability, and class 1 the rest, whatever it is asked."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    model.layers[0].bias.assign([share, 1 - share])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def test_p26_best_models_are_the_best() -> None:
    def model(params: dict[str, float]) -> dict[str, object]:
        layers = [keras.Input((1,)), keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(params["x"]))]
        return {"loss": params["x"], "status": "ok", "model": keras.Sequential(layers)}

    search = HyperParamModel(None, algo="random", seed=0, verbose=0)
    space = {"x": ("uniform", 0, 1)}
    (trials,) = search.compute_trials(model, lambda: (), 5, space=space)
    best = search.best_models(2, model, lambda: (), 5, space=space)
    assert [float(found.get_weights()[1][0]) for found in best] == pytest.approx(sorted(trials.losses())[:2])


def test_p27_the_hard_vote_is_a_majority() -> None:
    members = [sure_of(1.0), sure_of(0.9), sure_of(0.0)]  # two for class 0, one for class 1
    assert VotingModel(members, voting="hard").predict(np.zeros((1, 1))).tolist() == [0]


def test_p28_a_callable_loss_is_what_it_is() -> None:
    mapper = LossModelTypeMapper()
    assert mapper.get_model_type(keras.losses.mean_squared_error) is ModelType.REGRESSION
    assert mapper.get_model_type(keras.losses.MeanAbsoluteError()) is ModelType.REGRESSION
    assert mapper.get_model_type(keras.losses.CategoricalCrossentropy()) is ModelType.CLASSIFICATION

    def loss_of_my_own(y_true: object, y_pred: object) -> object: ...

    mapper.register_loss(loss_of_my_own, ModelType.REGRESSION)
    assert mapper.get_model_type(loss_of_my_own) is ModelType.REGRESSION


def test_p29_auc_is_that_of_all_rows(sc) -> None:
    model = line(loss="binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    labels = (Y > 0).astype("float32")
    order = np.argsort(labels[:, 0], kind="stable")  # partitions of one class each have no AUC at all
    rdd = sc.parallelize(list(zip(X[order], labels[order], strict=True)), 2)
    found = SparkModel(model, batch_size=8).evaluate(rdd, return_dict=True)
    expected = model.evaluate(X, labels, batch_size=8, verbose=0, return_dict=True)
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6)


def test_p30_targets_are_not_cut_off(sc) -> None:
    points = sc.parallelize([LabeledPoint(0.75, Vectors.dense([1.0])), LabeledPoint(-1.5, Vectors.dense([2.0]))], 1)
    features, labels = from_labeled_point(points)
    assert features.tolist() == [[1.0], [2.0]]
    assert labels.tolist() == [0.75, -1.5]


def test_servers_started_from_the_model_are_of_its_mode() -> None:
    model = SparkModel(line(), "hogwild", "epoch", "socket", port=0)
    with model.run_parameter_server() as server, warnings.catch_warnings():
        assert isinstance(server, SocketServer)
        assert server.mode is Mode.HOGWILD
        assert os.environ["ELEPHAS_LIKE_TOKEN"] == server.token
        assert len(model.client.get_parameters()) == 2
