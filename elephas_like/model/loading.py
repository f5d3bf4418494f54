"""`load_spark_model`: what `SparkModel.save` saved, as an object of the same class."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elephas_like.core.errors import ElephasWarning
from elephas_like.core.strategies.config import from_config
from elephas_like.model.asynchronous_model import AsynchronousSparkModel
from elephas_like.model.mllib import SparkMLlibModel
from elephas_like.model.options import NAMES
from elephas_like.model.saving import model_path
from elephas_like.model.spark_model import SparkModel
from elephas_like.spark import files
from elephas_like.spark.session import started_context
from elephas_like.trainer.model_files import load_model

_CLASSES = {kind.__name__: kind for kind in (SparkModel, AsynchronousSparkModel, SparkMLlibModel)}


def load_spark_model(
    file_name: str | os.PathLike[str],
    from_hadoop: bool = False,
    custom_objects: Mapping[str, object] | None = None,
    safe_mode: bool = True,
    **options: Any,
) -> Any:
    """The SparkModel, AsynchronousSparkModel or SparkMLlibModel that `save` saved, with its configuration.

    Files of Elephas 3 to 7 are loaded too, and so is a model that Keras saved, as a SparkModel.

    Args:
        file_name: ends with `.keras` or `.h5`; a path, or a URL of any Hadoop filesystem.
        from_hadoop: a path without a scheme is one of Spark's default filesystem.
        custom_objects: names of custom classes and functions, as for `keras.models.load_model`.
        safe_mode: whether to refuse files that hold the bytecode of lambdas, which is run when it is loaded.
        options: arguments of the constructor, in place of those that were saved.

    Raises:
        FileNotFoundError: there is no such file. OSError: with the filesystem's reason.
        ValueError: the file holds bytecode, and `safe_mode` is True.
    """
    path = model_path(file_name)
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        local = str(Path(folder) / f"model{Path(path).suffix}")
        files.get(path, local, started_context(), hadoop=from_hadoop)
        model, saved = load_model(local, custom_objects, safe_mode=safe_mode)
    name = saved.get("class_name", "SparkModel")
    if name not in _CLASSES:
        raise ValueError(f"{path} holds a {name}; expected one of {', '.join(_CLASSES)}. Has it a loader of its own?")
    config = {key: from_config(value) for key, value in saved.get("config", {}).items()}
    unknown = [name for name in config if name not in NAMES]
    if unknown:
        text = f"{path} was saved with {', '.join(unknown)}, which SparkModel does not have: left out."
        warnings.warn(text, ElephasWarning, stacklevel=2)
    known = {name: value for name, value in config.items() if name in NAMES}
    return _CLASSES[name](model, custom_objects=custom_objects, **(known | options))
