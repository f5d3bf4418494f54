"""Saving and loading SparkModels: configurations, classes, Hadoop filesystems, files of real Elephas, SavedModels."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_saved import X, small

from elephas_like import AsynchronousSparkModel, SparkMLlibModel, SparkModel, load_spark_model
from elephas_like.core.errors import ElephasWarning
from elephas_like.core.types import Frequency
from elephas_like.strategies import Nesterov, Strategy


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    """A model that tests save, and otherwise leave as it is."""
    return small()


def outputs(model: keras.Model) -> np.ndarray:
    return keras.ops.convert_to_numpy(model(X))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("kind", [SparkModel, AsynchronousSparkModel, SparkMLlibModel])
def test_every_class_comes_back_with_its_configuration(kind, suffix, trained, tmp_path) -> None:
    options = {"num_workers": 3, "batch_size": 7, "port": 1234, "parameter_server_mode": "socket", "seed": 5}
    expected = outputs(trained)
    saved = kind(trained, **options, join_timeout=12)
    path = tmp_path / f"model{suffix}"
    saved.save(path)
    loaded = load_spark_model(path)
    assert type(loaded) is kind
    assert loaded.get_config() == saved.get_config()
    np.testing.assert_array_equal(outputs(loaded.master_network), expected)
    np.testing.assert_array_equal(outputs(saved.master_network), expected)
    assert int(loaded.master_optimizer.iterations) == 1
    plain = keras.models.load_model(path, compile=suffix == ".keras")  # Keras itself cannot load "mse" from .h5
    np.testing.assert_array_equal(outputs(plain), expected)
    assert os.listdir(tmp_path) == [path.name]


def test_where_the_temporary_directory_has_no_room_a_model_is_written_beside_its_place(tmp_path, monkeypatch) -> None:
    """First in the system's temporary directory, since mounted object stores take whole files only; a full disk is named."""
    place, temporary = tmp_path / "models" / "model.keras", tmp_path / "temporary"
    full, drafts = [temporary], []

    class Looks(keras.layers.Dense):
        def save_own_variables(self, store: object) -> None:
            drafts.extend(found.parent for found in tmp_path.rglob("*elephas_like-*"))
            if drafts[-1] in full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the system says it, without a name
            super().save_own_variables(store)

    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    model = keras.Sequential([keras.Input((2,)), Looks(1)])
    model.compile("sgd", "mse")
    saved = SparkModel(model)
    saved.save(place)
    assert drafts == [temporary, place.parent]
    assert os.listdir(place.parent) == [place.name]
    full.append(place.parent)
    with pytest.raises(OSError, match=r"No space left on device: not written: '.*model.keras'"):
        saved.save(place, overwrite=True)
    full.clear()
    saved.save(place, overwrite=True)
    assert drafts == [temporary, place.parent, temporary, place.parent, temporary]
    assert os.listdir(place.parent) == [place.name]
    assert not os.listdir(temporary)


def test_strategies_are_saved_and_options_win(trained, tmp_path) -> None:
    path = str(tmp_path / "model.keras")
    SparkModel(trained, strategy=Nesterov(momentum=0.25), frequency=7).save(path)
    loaded = load_spark_model(path, frequency="epoch")
    assert loaded.strategy == Nesterov(momentum=0.25)
    assert loaded.frequency is Frequency.EPOCH


def test_what_cannot_be_saved_is_said_and_left_out(trained, tmp_path) -> None:
    @dataclass(frozen=True)
    class Mine(Strategy):
        pass

    model = SparkModel(trained, strategy=Mine())
    with pytest.warns(ElephasWarning, match="strategy=.*is not saved.*give it to load_spark_model"):
        model.save(tmp_path / "model.keras")
    assert load_spark_model(tmp_path / "model.keras").strategy is None


def test_saving_as_h5_does_not_spoil_the_next_keras_file(tmp_path) -> None:
    model = SparkModel(small())
    model.save(tmp_path / "model.h5")
    model.save(tmp_path / "model.keras")
    assert isinstance(load_spark_model(tmp_path / "model.keras").master_optimizer, keras.optimizers.Adam)


def test_hadoop_filesystems_hold_models(sc, trained, tmp_path) -> None:
    (tmp_path / "there").mkdir()
    sc._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.models.link./data", f"file://{tmp_path}/there")
    saved = SparkModel(trained, num_workers=2)
    for url in (f"file://{tmp_path}/one.keras", "viewfs://models/data/deep/two.h5"):
        saved.save(url)
        with pytest.raises(FileExistsError, match="overwrite=True"):
            saved.save(url)
        saved.save(url, overwrite=True)
        assert load_spark_model(url).get_config() == saved.get_config()
    assert (tmp_path / "there" / "deep" / "two.h5").exists()
    with pytest.raises(FileNotFoundError):
        load_spark_model("viewfs://models/data/none.keras")
    plain = str(tmp_path / "three.keras")
    saved.save(plain, to_hadoop=True)
    assert load_spark_model(plain, from_hadoop=True).num_workers == 2


def test_a_saved_model_of_tensorflow(sc, tmp_path) -> None:
    spark_model = SparkModel(small())
    spark_model.export(tmp_path / "plain")
    spark_model.export(f"file://{tmp_path}/url")
    with pytest.raises(FileExistsError):
        spark_model.export(tmp_path / "plain")
    spark_model.export(tmp_path / "plain", overwrite=True)
    for name in ("plain", "url"):
        served = tf.saved_model.load(str(tmp_path / name))
        np.testing.assert_allclose(served.serve(X), spark_model.master_network.predict(X, verbose=0), atol=1e-6)
