"""Keras models in files, with a configuration beside them that plain `keras.models.load_model` ignores.

.h5      the HDF5 attribute `distributed_config`, as in Elephas
.keras   the member `distributed_config.json` of the zip archive
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py
import keras

from elephas_like.trainer.bytecode import refuse_bytecode_in_archive
from elephas_like.trainer.compile_arguments import complete_compile_arguments
from elephas_like.trainer.legacy_files import load_h5

KEY = "distributed_config"
_MEMBER = f"{KEY}.json"


def save_model(model: keras.Model, path: str, config: Mapping[str, Any]) -> None:
    """Save a model, optimizer included, and a configuration of JSON values.

    Args:
        path: ends with `.keras` or `.h5`; an existing file is replaced.
    """
    text = json.dumps(config)
    complete_compile_arguments(model)
    model.save(path)
    if path.endswith(".h5"):
        with h5py.File(path, "a") as file:
            file.attrs[KEY] = text.encode("utf-8")
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_MEMBER, text)


def load_model(
    path: str, custom_objects: Mapping[str, object] | None = None, *, safe_mode: bool = True
) -> tuple[keras.Model, dict[str, Any]]:
    """Return a model saved by `save_model`, Keras or Elephas, compiled if it was, and its configuration, {} for none.

    Args:
        safe_mode: whether to refuse files that hold bytecode.

    Raises:
        ValueError: the file holds bytecode, and `safe_mode` is True; or it is a .keras file of Keras 2.
        TypeError, ValueError: a class or function is not known, or cannot be made from its configuration.
    """
    if path.endswith(".h5"):
        with told_in_short():
            return load_h5(path, custom_objects, safe_mode=safe_mode), _of_h5(path)
    if safe_mode:
        refuse_bytecode_in_archive(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        found = json.loads(archive.read(_MEMBER)) if _MEMBER in members else {}
        version = (
            json.loads(archive.read("metadata.json")).get("keras_version", "") if "metadata.json" in members else ""
        )
    try:
        with told_in_short():
            return keras.saving.load_model(path, custom_objects=dict(custom_objects or {}), safe_mode=safe_mode), found
    except (TypeError, ValueError) as error:
        if not version.startswith("2."):
            raise
        raise ValueError(
            f"the file was written by Keras {version} (TensorFlow before 2.16, or tf_keras), and cannot be read here: {str(error).strip().rstrip('.')}. "
            "If Keras 3 does not read such a file at all, save the model as .h5 there, which can be read here: model.save('model.h5')."
        ) from error


@contextmanager
def told_in_short() -> Iterator[None]:
    """Raise Keras' errors of loading without the configuration of the whole model, which they repeat for each object around the one in question."""
    try:
        yield
    except (TypeError, ValueError) as error:
        reason = str(error).rsplit("Exception encountered: ", 1)[-1].split(" Full object config")[0].strip()
        if reason == str(error).strip():
            raise
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"the model in the file cannot be made again: {reason.rstrip('.')}. Classes and functions of your own are given by "
            "custom_objects={name: ...}, unless they are registered; an __init__ has to take what get_config returns, and **kwargs for Keras' own arguments."
        ) from error


def _of_h5(path: str) -> dict[str, Any]:
    with h5py.File(path, "r") as file:
        written = file.attrs.get(KEY)
    config: dict[str, Any] = json.loads(written) if written is not None else {}
    return config
