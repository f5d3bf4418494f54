"""Lambdas in the files of models: found by us, and loaded only if it is asked for."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from elephas_like import load_spark_model
from elephas_like.trainer.bytecode import refuse_bytecode, refuse_bytecode_in_archive
from elephas_like.trainer.legacy_files import of_old_architecture
from elephas_like.trainer.recipe import from_archive

FOUND = r"holds the bytecode of a Python lambda, .* safe_mode=False"


def with_lambda(tmp_path: Path, ending: str) -> str:
    """A saved model that holds a lambda."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x * 3)])
    model.compile("sgd", "mse")
    path = str(tmp_path / f"lambda{ending}")
    model.save(path)
    return path


@pytest.mark.parametrize("ending", [".h5", ".keras"])
def test_bytecode_is_loaded_only_if_it_is_asked_for(tmp_path: Path, ending: str) -> None:
    path = with_lambda(tmp_path, ending)
    with pytest.raises(ValueError, match=FOUND):
        load_spark_model(path)
    model = load_spark_model(path, safe_mode=False).master_network
    assert model.predict(np.ones((1, 1)), verbose=0).tolist() == [[3]]


def test_our_own_check_finds_it_whatever_the_version_of_keras(tmp_path: Path) -> None:
    with h5py.File(with_lambda(tmp_path, ".h5"), "r") as file:
        written = json.loads(file.attrs["model_config"])
    with pytest.raises(ValueError, match=FOUND):
        refuse_bytecode(written)
    # Keras 2: code, defaults and closure, as a list
    layer = {"class_name": "Lambda", "config": {"function": ["4wEAAAA=", None, None], "function_type": "lambda"}}
    with pytest.raises(ValueError, match=FOUND):
        of_old_architecture({"class_name": "Sequential", "config": {"layers": [layer]}})
    named = {"class_name": "Lambda", "config": {"function": "relu", "function_type": "function"}}
    refuse_bytecode({"class_name": "Sequential", "config": {"layers": [named]}})


def test_archives_of_stages(tmp_path: Path) -> None:
    path = with_lambda(tmp_path, ".keras")
    with pytest.raises(ValueError, match=FOUND):
        refuse_bytecode_in_archive(path)
    with pytest.raises(ValueError, match=FOUND):
        from_archive(Path(path).read_bytes())
    with zipfile.ZipFile(tmp_path / "plain.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {}}))
    refuse_bytecode_in_archive(tmp_path / "plain.keras")
