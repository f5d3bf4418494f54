"""What Spark ML stages around Keras models share: saving and loading, and how an estimator gets its model and rows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame, functions

from elephas_like.core import checks
from elephas_like.rows.prediction_columns import column_called
from elephas_like.spark.plans import quoted
from elephas_like.spark.session import check_frame_runs, is_remote
from elephas_like.stages.saving import StageReader, StageWriter
from elephas_like.trainer.recipe import archive, compile_as, copy_of, from_archive, from_json

log = logging.getLogger(__name__)


class Stage(MLReadable, MLWritable):
    """A stage with Params from a table (stages/params.py) and Keras models, which can be written and read."""

    given: Callable[[str], Any]

    def added_columns(self, dataset: DataFrame, *, classifies: bool) -> tuple[str, str, str]:
        """Return the names of prediction, probability and rawPrediction; "" adds none.

        The last two are of classifiers. If their names were not set, and the DataFrame has a column of that name, it stays,
        so that several models of a pipeline need a name for the prediction only.
        """
        names = [self.given("predictionCol")]
        for param in ("probabilityCol", "rawPredictionCol"):
            name = self.given(param)
            there = column_called(dataset, name)
            if not self.isSet(param) and there is not None and classifies:
                log.warning("the DataFrame has a column %r: set %s to add another, or '' for none", there, param)
                name = ""
            names.append(name if classifies or self.isSet(param) else "")
        return names[0], names[1], names[2]

    def set_params(self, **params: Any) -> Any:
        """Set Params by name, in either style."""
        return self._set(**params)

    def setParams(self, **params: Any) -> Any:
        """Set Params by name, as `set_params`: Spark's name of it."""
        return self._set(**params)

    def write(self) -> StageWriter:
        """Return the writer, for `write().overwrite().save(path)`."""
        return StageWriter(self)

    @classmethod
    def read(cls, custom_objects: Mapping[str, object] | None = None) -> StageReader:
        """Return the reader, for `read().load(path)`."""
        return StageReader(cls, custom_objects)

    @classmethod
    def load(cls, path: str, custom_objects: Mapping[str, object] | None = None) -> Any:
        """Return the stage that was saved under `path`.

        Args:
            custom_objects: classes and functions by name, if their saved import paths no longer lead to them.
        """
        return cls.read(custom_objects).load(path)

    def models_to_save(self) -> list[keras.Model]:
        """Return the models to save."""
        raise NotImplementedError

    def history_to_save(self) -> list[dict[str, list[float]]]:
        """Return the history to save."""
        return []

    def packed(self, custom_objects: Mapping[str, object]) -> bytes | None:
        """Return the models as bytes; None if there is none."""
        models = self.models_to_save()
        return archive(models[0]) if models else None

    @classmethod
    def unpacked(cls, content: bytes, custom_objects: Mapping[str, object]) -> Any:
        """Return the models that `packed` packed, as `from_saved` takes them."""
        return from_archive(content, custom_objects)


class KerasEstimator(Stage):
    """An estimator whose fits start from a compiled Keras model, or from Elephas' configuration of one in its Params.

    Every fit starts from a copy, so that fits with other Params may run at the same time.
    """

    _model: keras.Model | None
    callbacks: Any
    validation_data: Any

    def get_model(self) -> keras.Model:
        """Return the model that a fit starts from, a new one each time.

        Raises:
            ValueError: neither a model nor `keras_model_config` was given.
        """
        custom = self.given("customObjects")
        if self._model is not None:
            model = copy_of(self._model)
        elif self.isDefined("kerasModelConfig"):
            model = from_json(self.given("kerasModelConfig"), custom, compiled=not self.isSet("loss"))
        else:
            raise ValueError(f"no model: give one, {type(self).__name__}(model, ...), or keras_model_config and loss.")
        return self.compiled(model, whole=self._model is None and self.isSet("loss"))

    def compiled(self, model: keras.Model, *, whole: bool = False) -> keras.Model:
        """Return the same model, compiled with the Params that are set, if any.

        Args:
            whole: keep nothing of an earlier compilation: metrics come from the Params too, by default.
        """
        parts = {"loss": self.given("loss"), "optimizer": self.given("optimizerConfig")}
        if self.isSet("metrics") or whole:
            parts["metrics"] = self.given("metrics")
        if any(value is not None for value in parts.values()):
            compile_as(model, **parts, custom_objects=self.given("customObjects"))
        return model

    def split(self, dataset: DataFrame) -> tuple[DataFrame, Any, float]:
        """Return (rows to train on, rows to validate on, share to hold out).

        Rows to validate on come from the validation column or from `validation_data`.

        Raises:
            TypeError: the validation column is not boolean.
            ValueError: both are given, or the column does not exist.
        """
        held, name = self.validation_data, self.given("validationIndicatorCol")
        if name is not None:
            if held is not None:
                raise ValueError("give validation_col or validation_data, not both.")
            if name not in dataset.columns:
                raise ValueError(
                    f"validation_col={name!r} is none of {dataset.columns}.{checks.did_you_mean(name, dataset.columns)}"
                )
            if dataset.schema[name].dataType.simpleString() != "boolean":
                raise TypeError(
                    f"validation_col={name!r} must be boolean; it is {dataset.schema[name].dataType.simpleString()}."
                )
            chosen = functions.coalesce(functions.col(quoted(name)), functions.lit(False))
            dataset, held = dataset.filter(~chosen), dataset.filter(chosen)
        share = 0.0 if held is not None and not self.isSet("validationSplit") else self.given("validationSplit")
        return dataset, held, share

    def copy(self, extra: Mapping[Any, Any] | None = None) -> Any:
        """Return a copy with other values.

        Callbacks are copied too, because fits with param maps may run at the same time.
        """
        copied = super().copy(extra)
        for name in ("callbacks", "worker_callbacks"):
            given = getattr(self, name, None)
            if given is not None:
                one = not isinstance(given, Sequence)
                setattr(copied, name, copy.copy(given) if one else [copy.copy(callback) for callback in given])
        return copied

    def models_to_save(self) -> list[keras.Model]:
        """Return the model to save, if one was given."""
        return [] if self._model is None else [self._model]

    def architecture_to_save(self) -> str | None:
        """Return the model's architecture in JSON."""
        return self._model.to_json() if self._model is not None else self.given("kerasModelConfig")


def check_frame(dataset: object) -> None:
    """Raise TypeError if `dataset` is no Spark DataFrame.

    Raises:
        TypeError: with what to do instead.
        ElephasError: it is Spark Connect's of a Spark that is too old for that, or its SparkContext was stopped.
    """
    if not isinstance(dataset, DataFrame):
        is_remote(dataset)
        raise TypeError(
            f"expected a Spark DataFrame, got {type(dataset).__module__}.{type(dataset).__name__}; "
            "spark.createDataFrame(...) makes one. SparkModel takes RDDs and arrays too."
        )
    check_frame_runs(dataset)


def check_one_model(model: object, params: Mapping[str, Any]) -> None:
    """Raise if both a Keras model and Elephas' configuration of one are given.

    Raises:
        TypeError: `model` is no Keras model.
        ValueError: both are given.
    """
    if model is None:
        return
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model; got {type(model).__name__}.")
    for name in ("keras_model_config", "kerasModelConfig"):
        if name in params:
            raise ValueError(f"give a model or {name}, not both.")
