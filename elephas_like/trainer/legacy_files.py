"""Models in `.h5` files: those of Keras 3 that it cannot load again, and those of Keras 2 (Elephas 3 to 7).

Also architectures in Keras 2's JSON, as in Elephas' Spark ML files.

Keras 3 loads the architecture and the weights of such files but fails on their compile arguments: short names of losses
("mse"), wrapped metrics, removed arguments of optimizers and layers. That part is read here.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras

from elephas_like.trainer.building import build_optimizer, restore_slots
from elephas_like.trainer.bytecode import refuse_bytecode

log = logging.getLogger(__name__)

# Arguments of Keras 2's layers that Keras 3 removed, with the values that have no effect.
_REMOVED: dict[str, tuple[object, ...]] = {
    "time_major": (False,),
    "groups": (1,),
    "renorm": (False,),
    "fused": (None, True, False),
    "virtual_batch_size": (None,),
    "adjustment": (None,),
}
_ACCURACIES = ("acc", "accuracy")


def load_h5(path: str, custom_objects: Mapping[str, object] | None = None, *, safe_mode: bool = True) -> keras.Model:
    """Return the model in an `.h5` file, compiled with its optimizer and slots if it was saved so.

    Args:
        custom_objects: classes and functions that the model refers to, by name.
        safe_mode: whether to refuse bytecode. Keras before 3.11.3 ran it from `.h5` files whatever its own `safe_mode` was
            (CVE-2025-9905).

    Raises:
        ValueError: the file holds bytecode, and `safe_mode` is True.
    """
    objects = dict(custom_objects or {})
    with h5py.File(path, "r") as file:
        architecture, training = file.attrs.get("model_config"), file.attrs.get("training_config")
        old = _text(file.attrs.get("keras_version", "3")).startswith("2")
    if safe_mode:
        for written in (architecture, training):
            refuse_bytecode(json.loads(written) if written is not None else None)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        warnings.simplefilter("ignore")  # of old arguments in the file, which the user cannot change
        if old and architecture is not None:
            path = _copy_without_removed(path, architecture, folder)
        model = keras.saving.load_model(path, custom_objects=objects, compile=False, safe_mode=safe_mode)
        if training is not None:
            with keras.saving.custom_object_scope(objects):
                model.compile(**_compile_arguments(json.loads(training), model, objects))
            if old:
                _restore_old_slots(model, path)
            else:
                restore_slots(model, path)
    return model


def is_old_architecture(config: Mapping[str, Any]) -> bool:
    """Return whether an architecture's JSON comes from Keras 2 or an `.h5` file.

    Layers do not name their modules there.
    """
    return "class_name" in config and "module" not in config


def of_old_architecture(config: Mapping[str, Any], custom_objects: Mapping[str, object] | None = None) -> keras.Model:
    """Return the model of an old architecture, with weights drawn anew.

    Raises:
        ValueError: it holds bytecode.
    """
    refuse_bytecode(config)
    objects = dict(custom_objects or {})
    known = objects.get(config["class_name"], keras.Sequential if config["class_name"] == "Sequential" else keras.Model)
    with warnings.catch_warnings(), keras.saving.custom_object_scope(objects):
        warnings.simplefilter("ignore")  # of old arguments in the JSON, which the user cannot change
        model: keras.Model = known.from_config(_without_removed(config["config"]), custom_objects=objects)  # type: ignore[attr-defined]
    return model


def _copy_without_removed(path: str, architecture: str | bytes, folder: str) -> str:
    """Return the path of a copy of the file without the layer arguments that Keras 3 removed."""
    copy = str(Path(folder) / "model.h5")
    shutil.copyfile(path, copy)
    with h5py.File(copy, "a") as file:
        file.attrs["model_config"] = json.dumps(_without_removed(json.loads(architecture))).encode()
    return copy


def _without_removed(config: object) -> Any:
    if isinstance(config, list):
        return [_without_removed(item) for item in config]
    if not isinstance(config, dict):
        return config
    return {
        name: _without_removed(value)
        for name, value in config.items()
        if not (name in _REMOVED and value in _REMOVED[name])
    }


def _compile_arguments(training: dict[str, Any], model: keras.Model, objects: Mapping[str, object]) -> dict[str, Any]:
    """Return arguments for `compile` from the training configuration of a file."""
    arguments: dict[str, Any] = {
        "optimizer": _optimizer(training["optimizer_config"]),
        "loss": _map_each(training.get("loss"), lambda loss: _loss(loss, objects)),
        "loss_weights": training.get("loss_weights"),
    }
    for name in ("metrics", "weighted_metrics"):
        metrics = training.get(name)
        if metrics and len(model.outputs or [None]) == 1 and isinstance(metrics, list) and isinstance(metrics[0], list):
            metrics = metrics[0]  # Keras 2 nests the list by output, even for one output
        arguments[name] = _map_each(metrics, lambda metric: _metric(metric, objects)) or None
    for name in ("run_eagerly", "steps_per_execution", "jit_compile"):
        if training.get(name) is not None:
            arguments[name] = training[name]
    return arguments


def _map_each(tree: Any, read: Any) -> Any:
    """Apply `read` to each loss or metric in lists and in dicts by output."""
    if isinstance(tree, list):
        return [_map_each(item, read) for item in tree]
    if isinstance(tree, dict) and "class_name" not in tree:
        return {name: _map_each(item, read) for name, item in tree.items()}
    return None if tree is None else read(tree)


def _optimizer(written: dict[str, Any]) -> keras.optimizers.Optimizer:
    if "module" in written:
        return keras.saving.deserialize_keras_object(written)
    config = dict(written["config"])
    decay = config.pop("decay", 0)
    for name in ("jit_compile", "is_legacy_optimizer"):
        config.pop(name, None)
    rate = config.get("learning_rate")
    if isinstance(rate, dict):
        config["learning_rate"] = _schedule(rate)
    elif decay:
        # What `decay` did: learning_rate / (1 + decay * steps).
        config["learning_rate"] = keras.saving.serialize_keras_object(
            keras.optimizers.schedules.InverseTimeDecay(rate, decay_steps=1, decay_rate=decay)
        )
    return keras.optimizers.deserialize(
        {"class_name": _own_name(written["class_name"], keras.optimizers), "config": config}
    )


_KINDS = {
    "m": "momentum",
    "v": "velocity",
    "rms": "velocity",
    "mg": "average_gradient",
    "accum_grad": "accumulated_grad",
    "accum_var": "accumulated_delta_var",
    "vhat": "velocity_hat",
    "u": "norm",
    "accumulator": "accumulator",
    "linear": "linear",
}
"""Keras 3's words for what optimizers of Keras 2 keep of each weight: by them the kind is told from the names of layers."""


def _restore_old_slots(model: keras.Model, path: str) -> None:
    """Load what an optimizer of Keras 2 has kept, in its order and under its names, into that of the model."""
    if not build_optimizer(model, complete=True):
        return
    values: dict[str, list[Any]] = {}
    with h5py.File(path, "r") as file:
        group = file.get("optimizer_weights")
        for key in () if group is None else sorted(group.attrs):
            for name in map(_text, group.attrs[key]):
                values.setdefault(_kind(name), []).append(group[name][()])
    steps = values.pop("iter", None) or values.pop("iteration", None)
    optimizer: Any = model.optimizer
    if isinstance(optimizer, keras.optimizers.Adamax) and "velocity" in values:
        values["norm"] = values.pop("velocity")  # before TensorFlow 2.11 it was called "v", too
    slots: dict[str, list[Any]] = {}
    for variable in optimizer.variables:
        if variable is not optimizer.iterations and variable.name != "learning_rate":
            kind = next((kind for kind in sorted(values, key=len, reverse=True) if variable.name.endswith(kind)), "")
            slots.setdefault(kind, []).append(variable)
    shapes = [{kind: [tuple(part.shape) for part in parts] for kind, parts in each.items()} for each in (values, slots)]
    if steps is None or (slots and shapes[0] != shapes[1]):
        if values:
            log.warning(
                "what the optimizer in the file has kept (%s) is not what Keras 3's %s keeps: training begins without it.",
                ", ".join(sorted(values)),
                type(optimizer).__name__,
            )
        return
    optimizer.iterations.assign(steps[0])
    for kind, variables in slots.items():
        for variable, value in zip(variables, values[kind], strict=True):
            variable.assign(value)


def _kind(name: str) -> str:
    """Return what a variable of an optimizer of Keras 2 is: "momentum" of "Adam/dense/kernel/m:0" and of "Adam/m/dense/kernel:0"."""
    parts = name.split(":")[0].split("/")
    # Before TensorFlow 2.11 the kind stood last.
    place = -1 if len(parts) < 3 or parts[-1] in _KINDS or parts[-1] in _KINDS.values() else 1
    return _KINDS.get(parts[place], parts[place])


def _schedule(written: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a learning rate schedule; Keras 2 wrote `name: null`, which Keras 3 refuses."""
    name = written["class_name"]
    kind = getattr(keras.optimizers.schedules, name, None) if _is_keras_own(name, keras.optimizers.schedules) else None
    config = {name: value for name, value in written["config"].items() if name != "name" or value is not None}
    return written if kind is None else keras.saving.serialize_keras_object(kind.from_config(config))


def _own_name(registered: str, module: Any) -> str:
    """Return the name of a class of Keras' own, which TensorFlow 2.11 to 2.15 wrote as "Custom>Adam"; another name as it is."""
    name = registered.removeprefix("Custom>")
    return name if keras.saving.get_registered_object(registered) is None and hasattr(module, name) else registered


def _is_keras_own(name: str, module: Any) -> bool:
    """Return whether a name stands for what Keras' module has of that name, and not for something of the user's."""
    return hasattr(module, name) and keras.saving.get_registered_object(name) is None


def _loss(written: Any, objects: Mapping[str, object]) -> Any:
    if isinstance(written, str):
        return objects.get(written, written)
    config = dict(written.get("config") or {})
    if config.get("reduction") == "auto":
        config["reduction"] = "sum_over_batch_size"
    name = written["class_name"]
    if "module" not in written and name != "LossFunctionWrapper" and _is_keras_own(name, keras.losses):
        config.pop("fn", None)  # the class says it, too
    return keras.losses.deserialize({**written, "config": config})


def _metric(written: Any, objects: Mapping[str, object]) -> Any:
    if isinstance(written, str):
        return objects.get(written, written)
    config = written.get("config") or {}
    function = config.get("fn") if isinstance(config, dict) else None
    if "module" in written or not isinstance(function, str):
        return keras.metrics.deserialize(written)
    if config["name"] in _ACCURACIES:
        return config["name"]  # Keras chooses the variant by the shapes, as Keras 2 did
    found = objects.get(function) or getattr(keras.metrics, function, None) or getattr(keras.losses, function)
    return keras.metrics.MeanMetricWrapper(found, name=config["name"])


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
