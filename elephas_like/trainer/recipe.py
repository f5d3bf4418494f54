"""Make models: from an architecture in JSON, as a copy, compiled otherwise, or from a saved archive."""

from __future__ import annotations

import json
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras

from elephas_like.trainer.archive import archive_of, custom_objects_of, lambdas_of
from elephas_like.trainer.bytecode import refuse_bytecode_in_archive
from elephas_like.trainer.legacy_files import is_old_architecture, of_old_architecture
from elephas_like.trainer.spec import ModelSpec

keras_lock = threading.RLock()
"""Lock for making models.

Keras keeps the settings of saving and loading, and the generators of initial weights, per process: parallel fits of a
grid search must not make models at the same time."""


def from_json(config: str, custom_objects: Mapping[str, object] | None = None, *, compiled: bool = True) -> keras.Model:
    """Return the model of an architecture in JSON, with weights drawn anew.

    Args:
        config: the result of `model.to_json()`, of Keras 2 or 3. Keras 3 includes the compile arguments.
        custom_objects: classes and functions that the architecture refers to, by name.
        compiled: whether to use those compile arguments.
    """
    parts = json.loads(config)
    if not compiled:
        parts.pop("compile_config", None)
    with keras_lock:
        if is_old_architecture(parts):
            return of_old_architecture(parts, custom_objects)
        return keras.models.model_from_json(json.dumps(parts), custom_objects=dict(custom_objects or {}))


def copy_of(model: keras.Model) -> keras.Model:
    """Return a model with the same weights, compile arguments and optimizer state that shares nothing with `model`."""
    with keras_lock:
        return ModelSpec.from_model(model).build()


def compile_as(
    model: keras.Model,
    *,
    optimizer: object = None,
    loss: object = None,
    metrics: Sequence[object] | None = None,
    custom_objects: Mapping[str, object] | None = None,
) -> None:
    """Compile a model with the given arguments; arguments that are not given stay as they were.

    Args:
        optimizer: a name, an optimizer (a copy is used), or the result of `keras.optimizers.serialize`.
        loss, metrics: as for `model.compile`. Metric objects are copied: they hold state, and models that are trained
            side by side each need their own.
        custom_objects: classes and functions by name.

    Raises:
        ValueError: no loss is given, and the model was not compiled before.
    """
    if loss is None and not model.compiled:
        raise ValueError(f"the model {model.name!r} is not compiled: give a loss too.")
    with keras.saving.custom_object_scope(custom_objects_of(model) | dict(custom_objects or {})):
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer = keras.optimizers.serialize(optimizer)
        arguments = {
            "optimizer": keras.optimizers.get(optimizer) if optimizer else None,
            "loss": loss,
            "metrics": None if metrics is None else keras.tree.map_structure(_own_metric, metrics),
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        before = model.get_compile_config() if model.compiled else None
        if before:
            kept = {name: value for name, value in before.items() if name not in given}
            given |= {name: keras.saving.deserialize_keras_object(value) for name, value in kept.items()}
        model.compile(**given)


def _own_metric(metric: object) -> object:
    return type(metric).from_config(metric.get_config()) if isinstance(metric, keras.metrics.Metric) else metric


def archive(model: keras.Model) -> bytes:
    """Return the model in `.keras` format, optimizer included.

    Raises:
        ValueError: it holds a lambda, which another process cannot load safely.
    """
    refuse_lambdas(model)
    with keras_lock:
        return archive_of(model)


def refuse_lambdas(model: keras.Model) -> None:
    """Raise ValueError if a model holds a lambda, which another process cannot load safely.

    Raises:
        ValueError: it does.
    """
    if lambdas_of(model):
        raise ValueError(
            f"the model {model.name!r} holds a lambda, which cannot be saved so that it can be loaded safely: make it a "
            "function with a name in a module, or a layer."
        )


def from_archive(content: bytes, custom_objects: Mapping[str, object] | None = None) -> keras.Model:
    """Return the model of an archive.

    Raises:
        ValueError: it holds bytecode.
    """
    with keras_lock, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(content)
        refuse_bytecode_in_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an optimizer that was not built has no variables to load
            return keras.saving.load_model(path, custom_objects=dict(custom_objects or {}))


__all__ = [
    "archive",
    "compile_as",
    "copy_of",
    "custom_objects_of",
    "from_archive",
    "from_json",
    "keras_lock",
    "refuse_lambdas",
]
