"""A model's file carries a configuration that Keras itself does not see, and is a plain Keras file for everyone else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like.trainer.model_files import load_model, save_model
from tests.trainer.small import mlp, rows

CONFIG = {"class_name": "SparkModel", "config": {"num_workers": 4, "words": "é"}}


@pytest.fixture
def model() -> keras.Model:
    trained = mlp("adam")
    trained.fit(*rows(8), verbose=0)
    return trained


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_model_optimizer_and_configuration_come_back(model: keras.Model, tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"model.{suffix}")
    save_model(model, path, CONFIG)
    loaded, config = load_model(path)
    assert config == CONFIG
    for mine, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_plain_keras_reads_the_file(model: keras.Model, tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"model.{suffix}")
    save_model(model, path, CONFIG)
    x, _ = rows(4)
    # Not compiled: of an .h5 file with the string "mse" Keras 3 cannot read its own compile arguments.
    np.testing.assert_array_equal(keras.models.load_model(path, compile=False)(x), model(x))


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_file_of_keras_own_has_no_configuration(model: keras.Model, tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"model.{suffix}")
    model.save(path)
    assert load_model(path)[1] == {}


def test_what_json_cannot_hold_is_refused_before_anything_is_written(model: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="JSON"):
        save_model(model, str(tmp_path / "model.keras"), {"config": object()})
    assert list(tmp_path.iterdir()) == []


def unknown() -> type[keras.layers.Layer]:
    class Unknown(keras.layers.Layer):
        """Nowhere to be imported from."""

        def call(self, x: object) -> object:
            return x

    return Unknown


class Stubborn(keras.layers.Layer):
    """Its constructor does not take what its configuration has."""

    def __init__(self) -> None:
        super().__init__()

    def call(self, x: object) -> object:
        return x

    def get_config(self) -> dict[str, object]:
        return {"factor": 1.0}


KNOWN = {"Stubborn": Stubborn}


@pytest.mark.parametrize(
    ("suffix", "layer", "given", "said"),
    [
        (".keras", unknown(), {}, "again: Could not locate class 'Unknown'.* custom_objects="),
        (".keras", Stubborn, KNOWN, "again: .*unexpected keyword argument 'factor'. Classes .*an __init__ has to take"),
        (".h5", Stubborn, KNOWN, "again: .*unexpected keyword argument 'factor'. Classes .*an __init__ has to take"),
    ],
)
def test_what_cannot_be_made_again_is_said_without_the_model_s_configuration(
    tmp_path: Path, suffix: str, layer: type, given: dict[str, object], said: str
) -> None:
    model = keras.Sequential([keras.Input((4,)), layer(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    path = str(tmp_path / f"model{suffix}")
    save_model(model, path, {})
    with pytest.raises(TypeError, match=said) as caught:
        load_model(path, given)
    assert len(str(caught.value)) < 700


def test_a_file_of_keras_2_that_keras_3_cannot_read_is_said_to_be_one(model: keras.Model, tmp_path: Path) -> None:
    """tf_keras names other modules and arguments in it."""
    old, path = str(tmp_path / "old.keras"), str(tmp_path / "model.keras")
    model.save(path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(old, "w") as written:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "metadata.json":
                content = b'{"keras_version": "2.15.0"}'
            elif name == "config.json":
                content = content.replace(b'"batch_shape"', b'"batch_input_shape"').replace(b'"units"', b'"size"')
            written.writestr(name, content)
    with pytest.raises(ValueError, match=r"written by Keras 2\.15\.0.*read here: .*made again: .*as \.h5 there"):
        load_model(old)
