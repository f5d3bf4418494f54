"""Writing a SparkModel: as a Keras file with the SparkModel's configuration, or as a TensorFlow SavedModel."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from elephas_like.core.errors import ElephasWarning
from elephas_like.core.strategies.config import to_config
from elephas_like.spark import files
from elephas_like.spark.session import started_context
from elephas_like.trainer.model_files import save_model


def save(
    model: keras.Model,
    file_name: str | os.PathLike[str],
    class_name: str,
    config: Mapping[str, Any],
    *,
    overwrite: bool,
    hadoop: bool,
) -> None:
    """Saves a model, and in the same file the name and the arguments of the class that trains it."""
    target, context = model_path(file_name), started_context()
    files.refuse_existing(target, context, overwrite=overwrite, hadoop=hadoop)
    plain = _plain(config)

    def write(path: str) -> None:
        save_model(model, path, {"class_name": class_name, "config": plain})

    files.put_written(write, f"model{Path(target).suffix}", target, context, overwrite=overwrite, hadoop=hadoop)


def export(model: keras.Model, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Exports a model as a TensorFlow SavedModel."""
    target, context = os.fspath(path), started_context()
    files.refuse_existing(target, context, overwrite=overwrite)

    def write(path: str) -> None:
        model.export(path, format="tf_saved_model", verbose=False)

    files.put_written(write, "saved_model", target, context, overwrite=overwrite)


def model_path(file_name: str | os.PathLike[str]) -> str:
    """The path of a model's file.

    Raises:
        ValueError: it ends neither with `.keras` nor with `.h5`.
    """
    path = os.fspath(file_name)
    if not path.endswith((".keras", ".h5")):
        raise ValueError(f"file_name must end with '.keras' or '.h5'; got {path!r}.")
    return path


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that JSON can hold. The user is warned of every other one."""
    plain: dict[str, Any] = {}
    for name, value in config.items():
        try:
            plain[name] = to_config(value)
            json.dumps(plain[name])
        except (TypeError, ValueError) as error:
            plain.pop(name, None)
            warnings.warn(
                f"{name}={value!r} is not saved ({error}); give it to load_spark_model.",
                ElephasWarning,
                stacklevel=4,  # of the caller of SparkModel.save
            )
    return plain
