"""Write and read Spark ML stages: Params as JSON, the model in Keras' own format, code by its import path.

A directory, on any filesystem that Spark reaches, holds `metadata` like every Spark ML stage, and `model`: the bytes of
a `.keras` archive (of an ensemble, a zip of those) in Parquet. Elephas' HDF5 files are read too. Nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pyspark
from pyspark.errors import AnalysisException
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import SparkSession

from elephas_like.core.extras import older
from elephas_like.core.model_types import ModelTypeEncoder, as_enum
from elephas_like.spark import files
from elephas_like.spark.session import context_of, started_context
from elephas_like.trainer.recipe import custom_objects_of

CHUNK = 16 * 2**20
"""Bytes of a model per row of the Parquet table."""
PYTHONS_OWN = "which is of Python's standard library: a saved stage refers to no such code"


class StageWriter(MLWriter):
    """Writes a stage (stages.stage.Stage); `overwrite()` allows replacing an existing one."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def save(self, path: str) -> None:
        """Write the stage under `path`, completely or not at all. A stage that is replaced stays until the end.

        Raises:
            FileExistsError: `path` exists, and `overwrite()` was not called.
            OSError: with the filesystem's reason.
            ValueError: a setting cannot be saved; the message names it. Or Spark could not read `path`.
        """
        path, context = os.fspath(path), context_of(self.sparkSession)
        if unreadable := sorted(set("[]{}?*" + "\\" * (os.sep == "/")).intersection(path)):
            raise ValueError(
                f"a stage cannot be saved to {path}: Spark reads {' and '.join(unreadable)} in a path as parts of a pattern, and would not find "
                "it again. Choose a path without them."
            )
        if context is None:
            self._save_remotely(path)
            return
        if not self.shouldOverwrite and files.exists(path, context, hadoop=True):
            raise FileExistsError(f"{path} already exists; write().overwrite().save(...) replaces it.")
        with files.os_errors(f"cannot write {path}"), files.staged(path, context) as draft:
            self.saveImpl(draft)

    def _save_remotely(self, path: str) -> None:
        """Write the stage over Spark Connect, which cannot rename: the metadata last, so that no half of it can be read."""
        if self.shouldOverwrite:
            raise ValueError(
                "write().overwrite() needs a classic session: over Spark Connect nothing can be deleted. Save to a new path, or "
                "delete the old one first."
            )
        try:
            self.saveImpl(path)
        except AnalysisException as error:
            if "PATH_ALREADY_EXISTS" not in str(error):
                raise OSError(f"cannot write {path}: {error}") from None
            raise FileExistsError(f"{path} already exists; delete it, or save to a new path.") from None

    def saveImpl(self, path: str) -> None:
        """Write the stage under `path`."""
        described, model = describe(self._stage)
        if model is not None:
            write_bytes(self.sparkSession, os.path.join(path, "model"), model)
        DefaultParamsWriter.saveMetadata(
            self._stage,
            path,
            _for_metadata(self.sparkSession),
            extraMetadata={"elephas_like": {name: value for name, value in described.items() if name != "params"}},
            paramMap=described["params"],
        )


class StageReader(MLReader):
    """Reads what StageWriter wrote.

    custom_objects: classes and functions by name, for those that can no longer be imported from their saved paths.
    """

    def __init__(self, kind: type, custom_objects: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._kind, self._custom_objects = kind, dict(custom_objects or {})

    def load(self, path: str) -> Any:
        """Return the stage, with the uid that it was saved with.

        Raises:
            ValueError: `path` holds a stage of another class.
        """
        metadata = DefaultParamsReader.loadMetadata(path, _for_metadata(self.sparkSession))
        expected = f"{self._kind.__module__}.{self._kind.__name__}"
        if metadata["class"] == f"elephas.ml_model.{self._kind.__name__}":  # Elephas' estimator has Params only
            given = {"custom_objects": self._custom_objects} if self._custom_objects else {}
            stage = self._kind(**metadata["paramMap"] | given)
            stage._resetUid(metadata["uid"])
            return stage
        if metadata["class"] != expected:
            raise ValueError(f"{path} holds a {metadata['class']}, not a {expected}.")
        described = metadata["elephas_like"] | {"params": metadata["paramMap"]}
        content = read_bytes(self.sparkSession, os.path.join(path, "model")) if described["has_model"] else None
        stage = restored(self._kind, described, content, self._custom_objects)
        stage._resetUid(metadata["uid"])
        return stage


def _for_metadata(spark: SparkSession) -> Any:
    """Return what reads and writes metadata: Spark 4 takes the session, Spark 3.5 only a SparkContext."""
    return spark.sparkContext if older(pyspark.__version__, "4") else spark


def describe(stage: Any) -> tuple[dict[str, Any], bytes | None]:
    """Return a stage's settings as JSON values, and its models as bytes.

    Raises:
        ValueError: a setting cannot be saved; the message names it.
    """
    given = stage.given("custom_objects") or {}
    custom: dict[str, object] = {}
    for model in stage.models_to_save():
        custom |= custom_objects_of(model)
    custom |= given
    params = {
        param.name: encoded(f"{type(stage).__name__}'s {param.name}", value)
        for param, value in stage.extractParamMap().items()
        if stage.isSet(param) and param.name != "customObjects"
    }
    packed: bytes | None = stage.packed(given)
    described = {
        "params": params,
        "given": sorted(given),
        "custom_objects": {name: encoded(f"the custom object {name!r}", value) for name, value in custom.items()},
        "history": encoded("the history", stage.history_to_save()),
        "has_model": packed is not None,
    }
    return described, packed


def restored(
    kind: Any, described: Mapping[str, Any], content: bytes | None, custom_objects: Mapping[str, object]
) -> Any:
    """Return the stage that `describe` described."""
    custom = dict(custom_objects)
    for name, value in described["custom_objects"].items():
        if name not in custom:
            custom[name] = decoded(value)
    params = {name: decoded(value, custom) for name, value in described["params"].items()}
    chosen = {name: custom[name] for name in (*described["given"], *custom_objects)}
    if chosen:
        params["custom_objects"] = chosen
    model = None if content is None else kind.unpacked(content, custom)
    return kind.from_saved(model, decoded(described["history"]), params)


def encoded(what: str, value: Any) -> Any:
    """Return a value as JSON can hold it: code by its import path, dataclasses and Keras objects by their fields.

    Args:
        what: the name of the setting, for the error.

    Raises:
        ValueError: the value could not be loaded again.
    """
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):  # a metric for each class
        return encoded(what, value.tolist())
    if isinstance(value, list | tuple):
        return [encoded(what, item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: encoded(what, item) for key, item in value.items()}
        return {"__pairs__": [[encoded(what, key), encoded(what, item)] for key, item in value.items()]}
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        if "<" in value.__qualname__:
            raise ValueError(
                f"{what} is {value.__qualname__}, which cannot be found again by its name: define it at the top of a module."
            )
        if _is_pythons_own(value.__module__):
            raise ValueError(f"{what} is {value.__module__}.{value.__qualname__}, {PYTHONS_OWN}.")
        return {"__import__": f"{value.__module__}:{value.__qualname__}"}
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: encoded(what, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init
        }
        return {"__fields__": fields, **encoded(what, type(value))}
    if hasattr(value, "get_config"):
        return {"__keras__": keras.saving.serialize_keras_object(value)}
    raise ValueError(f"{what} cannot be saved: {value!r} is of type {type(value).__name__}.")


def decoded(value: Any, custom_objects: Mapping[str, object] | None = None) -> Any:
    """Return the value that `encoded` encoded."""
    if isinstance(value, list):
        return [decoded(item, custom_objects) for item in value]
    if not isinstance(value, dict):
        return value
    if "__pairs__" in value:
        return {decoded(key): decoded(item, custom_objects) for key, item in value["__pairs__"]}
    if "__import__" in value:
        code = imported(value["__import__"], custom_objects)
        return _with_fields(code, decoded(value["__fields__"], custom_objects)) if "__fields__" in value else code
    if "__keras__" in value:
        return keras.saving.deserialize_keras_object(value["__keras__"], custom_objects=dict(custom_objects or {}))
    return {key: decoded(item, custom_objects) for key, item in value.items()}


def _with_fields(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return a dataclass with these fields, also if its constructor takes others (`KerasOuter` takes an optimizer)."""
    if kind.__dataclass_params__.init:
        return kind(**fields)
    made = object.__new__(kind)
    for name, field in fields.items():
        object.__setattr__(made, name, field)
    if hasattr(made, "__post_init__"):
        made.__post_init__()
    return made


def imported(path: str, custom_objects: Mapping[str, object] | None = None) -> Any:
    """Return the class or function at "module:name", or the custom object of that name.

    Raises:
        ValueError: it cannot be imported, or is Python's own: a file must not choose to call `os.system`.
    """
    module, _, name = path.partition(":")
    last = name.rpartition(".")[2]
    if custom_objects and last in custom_objects:
        return custom_objects[last]
    if _is_pythons_own(module):
        raise ValueError(
            f"what was saved refers to {name!r} of the module {module!r}, {PYTHONS_OWN}. If you trust the file, pass it, as in "
            f"load(path, custom_objects={{{last!r}: {last}}})."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"what was saved refers to {name!r} of the module {module!r}, which is not to be found here: {error}. Pass it, "
            f"as in load(path, custom_objects={{{last!r}: {last}}})."
        ) from error


def _is_pythons_own(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names and module.partition(".")[0] != "__main__"


def write_bytes(spark: SparkSession, path: str, content: bytes) -> None:
    """Write bytes of any length as a Parquet table of chunks."""
    rows = [
        (index, content[start : start + CHUNK]) for index, start in enumerate(range(0, max(1, len(content)), CHUNK))
    ]
    spark.createDataFrame(rows, "part int, content binary").write.parquet(path)


def read_bytes(spark: SparkSession, path: str) -> bytes:
    """Return the bytes that `write_bytes` wrote."""
    rows = spark.read.parquet(path).orderBy("part").toLocalIterator()
    return b"".join(bytes(row["content"]) for row in rows)


def write_h5(stage: Any, file_name: str) -> None:
    """Write Elephas' HDF5 form: settings as JSON in an attribute.

    And beside it everything that this form has no place for.

    Args:
        file_name: a path, or a URL of any Hadoop filesystem. An existing file is replaced, as in Elephas.
    """
    described, model = describe(stage)
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        local = str(Path(folder) / "stage.h5")
        with h5py.File(local, "w", libver="latest") as file:  # attributes of more than 64 KiB
            config = {"class_name": type(stage).__name__, "config": stage.get_config()}
            file.attrs["distributed_config"] = json.dumps(config, cls=ModelTypeEncoder, default=str)
            file["elephas_like"] = np.frombuffer(json.dumps(described | {"uid": stage.uid}).encode(), np.uint8)
            if model is not None:
                file["model"] = np.frombuffer(model, np.uint8)
        files.put(local, file_name, started_context(), overwrite=True)


def read_h5(kind: Any, file_name: str, custom_objects: Mapping[str, object] | None = None) -> Any:
    """Return a stage from an HDF5 file of this package or of Elephas.

    Args:
        kind: the class of the stage.
        file_name: a path, or a URL of any Hadoop filesystem.
        custom_objects: classes and functions by name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else.
    """
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        local = str(Path(folder) / "stage.h5")
        files.get(file_name, local, started_context())
        with h5py.File(local, "r") as file:
            text = file.attrs.get("distributed_config")
            if text is None:
                raise ValueError(f"{file_name} holds no Spark ML stage: it has no attribute 'distributed_config'.")
            saved = json.loads(text, object_hook=as_enum)
            described = json.loads(file["elephas_like"][()].tobytes()) if "elephas_like" in file else None
            content = file["model"][()].tobytes() if "model" in file else None
    if saved.get("class_name") != kind.__name__:
        raise ValueError(f"{file_name} holds a {saved.get('class_name')}, not a {kind.__name__}.")
    if described is None:
        config = {name: value for name, value in saved["config"].items() if value is not None}
        if "weights" in config:
            config["weights"] = [np.array(weight) for weight in config["weights"]]
        if custom_objects:
            config["custom_objects"] = dict(custom_objects)
        return kind(**config)
    stage = restored(kind, described, content, dict(custom_objects or {}))
    stage._resetUid(described["uid"])
    return stage
