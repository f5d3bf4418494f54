"""What is saved is loaded as what it was: files of Keras and of real Elephas, custom objects, other classes."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
from small_saved import X, small

from elephas_like import AsynchronousSparkModel, SparkMLlibModel, SparkModel, load_spark_model
from elephas_like.core.types import Frequency, Mode

ELEPHAS = Path(__file__).parent.parent / "data" / "elephas"


def test_what_keras_saved_is_a_spark_model(tmp_path) -> None:
    small().save(tmp_path / "model.keras")
    loaded = load_spark_model(tmp_path / "model.keras", num_workers=2)
    assert type(loaded) is SparkModel
    assert loaded.num_workers == 2


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_custom_objects_are_found(suffix, tmp_path) -> None:
    SparkModel(small(loss=own_loss)).save(tmp_path / f"model{suffix}")
    loaded = load_spark_model(tmp_path / f"model{suffix}", custom_objects={"own_loss": own_loss})
    assert loaded.custom_objects == {"own_loss": own_loss}
    assert loaded.evaluate(X, X.sum(axis=1), return_dict=True)["loss"] > 0


@pytest.mark.parametrize("path", sorted(ELEPHAS.glob("*.h5")), ids=lambda path: path.stem)
def test_a_file_of_real_elephas_is_the_model_that_was_saved(path: Path) -> None:
    if path.stem.startswith("7.3.0") and "quantization_config" not in inspect.signature(keras.layers.Dense).parameters:
        pytest.skip("the file was saved by a later Keras, and Keras reads no files of later ones")
    loaded = load_spark_model(path)
    name = path.stem.split("-")[1]
    kinds = {"mllib": SparkMLlibModel, "asynchronous": AsynchronousSparkModel}
    assert type(loaded) is kinds.get(name, SparkModel)
    assert (loaded.num_workers, loaded.batch_size) == (2, 16)
    modes = {"regression": Mode.HOGWILD, "asynchronous": Mode.ASYNCHRONOUS}
    assert loaded.mode is modes.get(name, Mode.SYNCHRONOUS)
    if name in ("regression", "asynchronous"):
        assert loaded.frequency is Frequency.BATCH
    seen = np.load(path.with_suffix(".npz"))
    loaded.master_network.run_eagerly = True
    np.testing.assert_allclose(loaded.master_network.predict(seen["x"], verbose=0), seen["y"], atol=1e-6)


def test_a_file_of_another_class_says_so(tmp_path) -> None:
    import h5py

    path = tmp_path / "model.h5"
    small().save(path)
    with h5py.File(path, "a") as file:
        file.attrs["distributed_config"] = b'{"class_name": "Other", "config": {}}'
    with pytest.raises(ValueError, match="holds a Other; expected one of SparkModel"):
        load_spark_model(path)
