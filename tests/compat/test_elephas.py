"""What Elephas' SparkModel had beside the work itself."""

from __future__ import annotations

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like import SparkModel
from elephas_like.compat.elephas import (
    HyperasWorker,
    SparkHFModel,
    get_minor_version,
    get_server_weights,
    is_running_in_notebook,
    put_deltas_to_server,
    save_and_zip_model,
)
from elephas_like.compat.parameters import RefusedError
from elephas_like.parameter import HttpServer
from elephas_like.utils import model_to_dict

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")


def classifier() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_attributes_say_what_the_model_says() -> None:
    model = classifier()
    ours = SparkModel(model)
    assert ours.master_optimizer is model.optimizer
    assert ours.master_loss == "sparse_categorical_crossentropy"
    assert ours.master_metrics == ["accuracy"]
    assert list(ours.serialized_model) == ["model", "weights"]
    for one, other in zip(ours.weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_train_is_fit_of_older_days() -> None:
    ours = SparkModel(classifier(), engine="in_process", num_workers=2)
    history = ours.fit(X, np.zeros(20), epochs=1, verbose=0)
    assert "val_loss" not in history.history
    with pytest.raises(TypeError, match="give the data once"):
        ours.train(None)


def test_classes_are_predicted() -> None:
    ours = SparkModel(classifier())
    np.testing.assert_array_equal(ours.predict_classes(X), np.argmax(ours.predict(X), axis=1))
    single = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    single.compile("sgd", "binary_crossentropy")
    assert set(np.unique(SparkModel(single).predict_classes(X))) <= {0, 1}


def test_the_order_of_0_x_takes_a_context_first(sc) -> None:
    for ours in (
        SparkModel(sc, classifier(), None, "asynchronous", "epoch", 3),
        SparkModel(sc, classifier(), mode="asynchronous", frequency="epoch", num_workers=3),
        SparkModel(sc, master_network=classifier(), mode="asynchronous", frequency="epoch", num_workers=3),
    ):
        assert (ours.mode, ours.frequency, ours.num_workers) == ("asynchronous", "epoch", 3)
    with pytest.raises(ValueError, match=r"optimizer= is no more.*strategy="):
        SparkModel(sc, classifier(), keras.optimizers.SGD())


def test_train_of_0_x_on_an_rdd(sc) -> None:
    rows = sc.parallelize(list(zip(X, np.zeros(20), strict=True)), 2)
    history = SparkModel(sc, classifier()).train(rows, nb_epoch=2, batch_size=4, verbose=0, validation_split=0.2)
    assert len(history.history["val_loss"]) == 2


def test_servers_are_asked_by_the_functions_of_0_3(monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("ELEPHAS_LIKE_TOKEN", raising=False)
    with HttpServer(model_to_dict(classifier()), 0, "asynchronous") as server:
        place = f"localhost:{server.port}"
        before = get_server_weights(place)
        assert put_deltas_to_server([np.ones_like(weight) for weight in before], place) == b"Update done"
        for was, now in zip(before, get_server_weights(place), strict=True):
            np.testing.assert_allclose(now, was - 1)
        monkeypatch.delenv("ELEPHAS_LIKE_TOKEN")
        with pytest.raises(RefusedError, match="401"):
            get_server_weights(place)


def test_hugging_face_models_say_what_to_use() -> None:
    with pytest.raises(NotImplementedError, match="keras-hub"):
        SparkHFModel(object(), tokenizer="x")


def test_the_worker_of_elephas_search_says_what_to_use() -> None:
    with pytest.raises(NotImplementedError, match="HyperParamModel"):
        HyperasWorker("model", 10)._minimize(iter(()))


def test_small_things(tmp_path: Path) -> None:
    assert get_minor_version("2.15.1") == 15
    assert is_running_in_notebook() is False

    class Model:
        def save_pretrained(self, folder: str) -> None:
            Path(folder).mkdir()
            Path(folder, "weights").write_text("w")

    path = save_and_zip_model(Model(), str(tmp_path / "model"))
    assert zipfile.ZipFile(path).namelist() == ["weights"]
