"""Spark ML stages: an estimator that trains a Keras model on a DataFrame, and a transformer that applies one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from pyspark.ml import Estimator, Model
from pyspark.ml.base import _FitMultipleIterator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import NumericType

from elephas_like.core.decisions import Task
from elephas_like.core.model_types import ModelType
from elephas_like.model.frame_predictions import appended, fields
from elephas_like.model.options import NAMES
from elephas_like.model.prepared import reader
from elephas_like.model.spark_model import SparkModel
from elephas_like.rows.frame_plan import ColumnChoice, Invalid
from elephas_like.stages.param_table import COLUMNS, FITTING
from elephas_like.stages.params import stage_params
from elephas_like.stages.saving import read_h5, write_h5
from elephas_like.stages.shared_rows import SharedRows, column_arguments, shared_rows, validation_rows
from elephas_like.stages.stage import KerasEstimator, Stage, check_frame, check_one_model
from elephas_like.stages.udf import sql_function
from elephas_like.trainer.compile_arguments import check_model
from elephas_like.trainer.inference import Predictor, Scorer
from elephas_like.trainer.recipe import from_json
from elephas_like.trainer.serialization import write_weights
from elephas_like.trainer.task import inputs, one_hot_classes, task

_INFERENCE_ROWS = 1024
_FIT = [
    "epochs",
    "verbose",
    "validation_freq",
    "class_weight",
    "shuffle",
    "initial_epoch",
    "global_batch_size",
    "checkpoint_dir",
    "checkpoint_freq",
    "resume",
    "monitor",
]
_EstimatorParams: Any = stage_params("_EstimatorParams", (*COLUMNS, *FITTING))
_TransformerParams: Any = stage_params(
    "_TransformerParams", COLUMNS + tuple(e for e in FITTING if e.name == "labelCol")
)


class _ElephasStage(Stage):
    """What Elephas' stages have in addition: HDF5 files."""

    def save(
        self, path: str | os.PathLike[str] | None = None, *, file_name: str | os.PathLike[str] | None = None
    ) -> None:
        """Save the stage in a new directory; if the name ends in .h5, as Elephas' HDF5 file, replacing an existing one.

        Args:
            path: a path, or a URL of any filesystem that Spark reaches.
            file_name: another name for `path`, as in Elephas.

        Raises:
            TypeError: neither `path` nor `file_name` is given, or both.
        """
        given = path if path is not None else file_name
        if given is None or None not in (path, file_name):
            raise TypeError("give the place once, as path or as file_name.")
        name = os.fspath(given)
        if name.endswith(".h5"):
            write_h5(self, name)
        else:
            self.write().save(name)

    @classmethod
    def load(cls, path: str | os.PathLike[str], custom_objects: Mapping[str, object] | None = None) -> Any:
        """Return the stage that was saved under `path`.

        Args:
            custom_objects: classes and functions by name, if their saved import paths no longer lead to them.
        """
        name = os.fspath(path)
        if name.endswith(".h5") or os.path.isfile(name):  # Elephas did not require a suffix
            return read_h5(cls, name, custom_objects)
        return cls.read(custom_objects).load(name)

    def _column_choice(self) -> ColumnChoice:
        """Return which columns `transform` reads."""
        given = self.given
        shapes, dtypes = given("columnShapes") or {}, given("columnDtypes") or {}
        return ColumnChoice(given("featuresCol"), None, None, shapes, dtypes, Invalid(given("handleInvalid")))


class ElephasEstimator(_ElephasStage, KerasEstimator, _EstimatorParams, Estimator):
    """Trains a Keras model on the rows of a DataFrame; `fit` returns an ElephasTransformer.

    Args:
        model: a compiled Keras model. It is not changed: each fit trains a copy from its weights, so that grid searches
            may run in parallel. Or None with Elephas' `keras_model_config` (JSON), `optimizer_config`, `loss`, `metrics`;
            the last three also compile the copy of a given model anew.
        callbacks, worker_callbacks, validation_data: as for `SparkModel.fit`. Not saved with the estimator.
        params: by name, camelCase or snake_case: `features_col`, `label_col`, `sample_weight_col`, `validation_col`,
            `epochs`, `batch_size`, ... `explainParams()` lists them. They have the meaning they have for SparkModel and
            its `fit`.

    Raises:
        TypeError, ValueError: unknown names and invalid values, when they are set.
    """

    __module__ = "elephas_like.ml_model"  # saved stages name their class by this path

    def __init__(
        self,
        model: keras.Model | None = None,
        *,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None = None,
        worker_callbacks: Sequence[keras.callbacks.Callback] | None = None,
        validation_data: Any = None,
        **params: Any,
    ) -> None:
        super().__init__()
        check_one_model(model, params)
        self._model = model
        self.callbacks = callbacks
        self.worker_callbacks = worker_callbacks
        self.validation_data = validation_data
        self._set(**params)

    def get_config(self) -> dict[str, Any]:
        """Return the values of the Params by Elephas' names."""
        names = "mode frequency num_workers categorical loss metrics validation_split featuresCol labelCol epochs batch_size"
        config = {name: self.given(name) for name in f"{names} verbose nb_classes outputCol optimizer_config".split()}
        return {
            "keras_model_config": self.architecture_to_save(),
            **config,
            "custom_objects": self.given("custom_objects"),
        }

    @classmethod
    def from_saved(cls, model: keras.Model | None, history: list[Any], params: dict[str, Any]) -> ElephasEstimator:
        """Return the estimator that was saved."""
        architecture = {name: params.pop(name) for name in ("keras_model_config", "kerasModelConfig") if name in params}
        estimator: ElephasEstimator = cls(model, **params)._set(**architecture)
        return estimator

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[Mapping[Any, Any]]) -> Any:
        """Return an iterator of (index, model) for each param map, which several threads may ask.

        Maps that read the same rows in the same way, for example those that differ in `epochs` or `optimizerConfig`, share
        them: the rows are written to the executors' disks once, by the first fit, and deleted after the last one.

        Raises:
            ValueError: several maps have one `checkpointDir`, so that a fit would go on from another map's checkpoint.
        """
        estimators = [self.copy(given) for given in paramMaps]
        places = Counter(place for each in estimators if (place := each.given("checkpointDir")) is not None)
        if shared_place := next((str(place) for place, count in places.items() if count > 1), None):
            raise ValueError(
                f"several param maps write checkpoints to {shared_place}, and would go on from one another's: leave "
                "checkpointDir out of a search."
            )
        shared = shared_rows(estimators, dataset)

        def fitted(index: int) -> ElephasTransformer:
            with shared[index] as rows:
                return estimators[index]._trained(dataset, rows)

        return _FitMultipleIterator(fitted, len(estimators))

    def _fit(self, dataset: DataFrame) -> ElephasTransformer:
        return self._trained(dataset, None)

    def _trained(self, dataset: DataFrame, shared: SharedRows | None) -> ElephasTransformer:
        """Return the trained model. Its rows are the shared ones, if there are any."""
        check_frame(dataset)
        model = self.get_model()
        check_model(model)
        self._check_labels(dataset, model)
        columns = column_arguments(self)
        rows, held, split = self.split(dataset)
        if shared is not None and reader(model) is not None:  # rows that are prepared are written by each fit
            rows, held = shared.of(self, rows, model, columns), validation_rows(held, columns, model)
            columns = {}
        options = {name: self.given(name) for name in NAMES}
        spark_model = SparkModel(model, **options)
        # A batch size that was not set gives way to a global one; if both were set, `fit` raises.
        arguments = {name: self.given(name) for name in _FIT}
        if self.given("global_batch_size") is not None and self.isSet("batch_size"):
            arguments["batch_size"] = self.given("batch_size")  # both are set: fit raises
        spark_model.fit(
            rows,
            **arguments,
            validation_split=split,
            validation_data=held,
            callbacks=self.callbacks,
            worker_callbacks=self.worker_callbacks,
            **columns,
        )
        fitted = ElephasTransformer(model, history=spark_model.training_histories)
        return self._copyValues(fitted)._resetUid(self.uid)

    def _check_labels(self, dataset: DataFrame, model: keras.Model) -> None:
        """Check Elephas' `nb_classes` and `categorical` against the model."""
        classes, asked = one_hot_classes(model), self.given("nb_classes")
        if asked is not None and classes is not None and asked != classes:
            raise ValueError(f"nb_classes={asked}, and the model has {classes} outputs.")
        name = self.given("labelCol")
        scalar = isinstance(name, str) and name in dataset.columns and _is_number(dataset.schema[name].dataType)
        if classes is not None and scalar and not self.given("categorical"):
            raise ValueError(
                f"categorical=False, and the loss wants one-hot labels: label_col={name!r} holds class indices. Use the loss "
                "'sparse_categorical_crossentropy', a column of vectors, or categorical=True."
            )


class ElephasTransformer(_ElephasStage, _TransformerParams, Model):
    """Applies a Keras model to the rows of a DataFrame: `transform` adds a column of predictions.

    A classifier's prediction is the index of the class, a double, as Spark's evaluators expect; `probability` and
    `rawPrediction` are added too. A regression's prediction is the value. Other models, and `predict_classes=False`, give
    the model's output, an array.

    Args:
        model: a trained Keras model. Or None with Elephas' `keras_model_config` (JSON) and `weights`.
        weights: arrays in `get_weights()` order.
        model_type: "classification" or "regression" (or Elephas' ModelType), where loss and activation do not determine
            it.
        history: of the training, a dict of lists per fit.
        params: by name, camelCase or snake_case; `explainParams()` lists them.

    Raises:
        TypeError, ValueError: unknown names and invalid values, when they are set.
    """

    __module__ = "elephas_like.ml_model"  # saved stages name their class by this path

    def __init__(
        self,
        model: keras.Model | None = None,
        *,
        weights: Sequence[np.ndarray] | None = None,
        model_type: ModelType | str | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
        **params: Any,
    ) -> None:
        super().__init__()
        check_one_model(model, params)
        if model is not None and weights is not None:
            raise ValueError("a model brings its weights: weights= goes with keras_model_config.")
        self._model = model
        self._history = [dict(one) for one in history or ()]
        if model_type is not None:
            params["modelType"] = model_type.name.lower() if isinstance(model_type, ModelType) else model_type
        self._set(**params)
        self._weights = None if weights is None else list(weights)

    @property
    def history(self) -> list[dict[str, list[float]]]:
        """Loss and metrics per epoch, `val_*` included: one dict per fit."""
        return self._history

    @property
    def weights(self) -> list[np.ndarray]:
        """The model's weights, in `get_weights()` order; they may be set."""
        weights: list[np.ndarray] = self.get_model().get_weights()
        return weights

    @weights.setter
    def weights(self, value: Sequence[np.ndarray]) -> None:
        if self._model is not None:
            write_weights(self._model, value)
        self._weights = list(value)

    def get_model(self) -> keras.Model:
        """Return the Keras model with its weights.

        Raises:
            ValueError: neither a model nor `keras_model_config` with `weights` was given.
        """
        if self._model is None:
            if not self.isDefined("keras_model_config"):
                raise ValueError(
                    "no model: give one, ElephasTransformer(model, ...), or keras_model_config and weights."
                )
            if self._weights is None:
                raise ValueError(
                    "this ElephasTransformer has an architecture only, no weights: set them, transformer.weights = "
                    "model.get_weights(), or give weights= to its constructor."
                )
            model = from_json(self.given("kerasModelConfig"), self.given("customObjects"))
            write_weights(model, self._weights)
            self._model = model
        return self._model

    def get_config(self) -> dict[str, Any]:
        """Return the values of the Params by Elephas' names, with the weights as lists."""
        names = {name: self.given(name) for name in ("labelCol", "featuresCol", "outputCol")}
        if self._has_no_weights():
            kept = {"weights": None, "model_type": self._given_type()}
            return {"keras_model_config": self.given("kerasModelConfig"), **names, **kept}
        return {
            "keras_model_config": self.get_model().to_json(),
            **names,
            "weights": [weight.tolist() for weight in self.weights],
            "model_type": self._given_type() or self._inferred_type(),
        }

    def _has_no_weights(self) -> bool:
        """Whether there is an architecture whose weights are still to be set."""
        return self._model is None and self._weights is None and self.isDefined("kerasModelConfig")

    def models_to_save(self) -> list[keras.Model]:
        """Return the model to save; none, if its weights are still to be set."""
        return [] if self._has_no_weights() else [self.get_model()]

    def history_to_save(self) -> list[dict[str, list[float]]]:
        """Return the history to save."""
        return self._history

    @classmethod
    def from_saved(cls, model: keras.Model | None, history: list[Any], params: dict[str, Any]) -> ElephasTransformer:
        """Return the transformer that was saved."""
        architecture = {name: params.pop(name) for name in ("keras_model_config", "kerasModelConfig") if name in params}
        transformer: ElephasTransformer = cls(model, history=history, **params)._set(**architecture)
        return transformer

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        model = self.get_model()
        found = task(model, self._given_type()) if self.given("predict_classes") else Task.VALUES
        return appended(
            dataset,
            self._column_choice(),
            model,
            batch_size=self.given("inference_batch_size") or _INFERENCE_ROWS,
            task=found,
            names=self.added_columns(dataset, classifies=found.classifies),
            thresholds=self.given("thresholds"),
        )

    def _given_type(self) -> ModelType | None:
        return _type_of(self.given("modelType"))

    def _inferred_type(self) -> ModelType:
        return ModelType.CLASSIFICATION if task(self.get_model()).classifies else ModelType.REGRESSION


def load_ml_estimator(
    file_name: str | os.PathLike[str], custom_objects: Mapping[str, object] | None = None
) -> ElephasEstimator:
    """Return the estimator saved in an HDF5 file of Elephas or this package, or in a directory that `write()` made."""
    estimator: ElephasEstimator = ElephasEstimator.load(file_name, custom_objects)
    return estimator


def load_ml_transformer(
    file_name: str | os.PathLike[str], custom_objects: Mapping[str, object] | None = None
) -> ElephasTransformer:
    """Return the transformer saved in an HDF5 file of Elephas or this package, or in a directory that `write()` made."""
    transformer: ElephasTransformer = ElephasTransformer.load(file_name, custom_objects)
    return transformer


def register_keras_udf(
    spark: SparkSession,
    name: str,
    model: keras.Model,
    *,
    custom_objects: Mapping[str, object] | None = None,
    batch_size: int = _INFERENCE_ROWS,
    output: str = "prediction",
    model_type: ModelType | str | None = None,
    dtype: str | None = None,
) -> Any:
    """Register a model as a SQL function, `SELECT name(features) FROM t`, and return it for use with DataFrames.

    Its arguments are columns of vectors, numbers, text, arrays or bytes. Several are concatenated for a model with one
    input, or go to its inputs in their order. One is enough for several inputs: a struct whose fields have their names, or a vector or
    array, which is cut into equal parts. A null in them is an error: leave such rows out in WHERE (`features IS NOT NULL`). A CASE
    around the function does not: Spark computes functions of Python for every row before it.

    Args:
        spark: the session to register it in.
        name: of the SQL function.
        model: a trained Keras model.
        custom_objects: not needed, for the model is shipped by value with what it refers to; taken for calls that pass it.
        batch_size: rows that are predicted at once; default 1024.
        output: "prediction" (class index, value, or the model's output) or "probability" (an array).
        model_type: "classification" or "regression", where loss and activation do not determine it.
        dtype: of the bytes in binary arguments.

    Raises:
        TypeError, ValueError: an argument is invalid, or the model has several outputs.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model; got {type(model).__name__}.")
    found = task(model, _type_of(model_type))
    if output not in ("prediction", "probability"):
        raise ValueError(f"output must be one of 'prediction', 'probability'; got {output!r}.")
    both = fields(model, found, ("prediction", "probability" if output == "probability" else None, None))
    wanted = both[-1] if output == "probability" else both[0]
    if output == "prediction" and len(both) > 1:
        raise ValueError(f"{name}: a SQL function returns one column, and {model.name!r} has {len(both)} outputs.")
    scorer = Scorer(Predictor.of(model, batch_size), found)
    function = sql_function(inputs(model), scorer, wanted, floatx=keras.config.floatx(), dtype=dtype)
    return spark.udf.register(name, function)


def _type_of(told: ModelType | str | None) -> ModelType | None:
    if told is None or isinstance(told, ModelType):
        return told
    known = {kind.name.lower(): kind for kind in ModelType}
    if told not in known:
        raise ValueError(f"model_type must be one of {', '.join(map(repr, known))}; got {told!r}.")
    return known[told]


def _is_number(kind: Any) -> bool:
    return isinstance(kind, NumericType)
