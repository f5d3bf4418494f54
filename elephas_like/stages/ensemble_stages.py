"""Spark ML stages of ensembles: an estimator that trains the members, and the model that combines their votes."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame

from elephas_like.core.voting import Voting
from elephas_like.ensembles.train import train_ensemble
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.stages.param_table import COLUMNS, ENSEMBLE, FITTING, entries_of
from elephas_like.stages.params import stage_params
from elephas_like.stages.shared_rows import COLUMN_ARGUMENTS, column_arguments
from elephas_like.stages.stage import KerasEstimator, Stage, check_frame, check_one_model
from elephas_like.trainer.recipe import refuse_lambdas

_INFERENCE_ROWS = 1024
_SHARED = entries_of(
    COLUMNS,
    "featuresCol labelCol predictionCol probabilityCol rawPredictionCol thresholds handleInvalid columnShapes columnDtypes "
    "inferenceBatchSize customObjects",
)
_TRAINING = entries_of(
    (*COLUMNS, *FITTING),
    "kerasModelConfig optimizerConfig loss metrics epochs batchSize verbose validationSplit weightCol "
    "validationIndicatorCol engine tls allowPlainText fusedOptimizer seed classWeight shuffle monitor",
)
_EnsembleEstimatorParams: Any = stage_params("_EnsembleEstimatorParams", (*_SHARED, *_TRAINING, *ENSEMBLE))
_EnsembleModelParams: Any = stage_params("_EnsembleModelParams", _SHARED)
_FIT = {
    "bagging": "bagging",
    "seed": "seed",
    "workers_per_member": "workersPerMember",
    "epochs": "epochs",
    "batch_size": "batchSize",
    "voting": "voting",
    "class_weight": "classWeight",
    "shuffle": "shuffle",
    "max_failures": "maxFailures",
    "engine": "engine",
    "tls": "tls",
    "allow_plain_text": "allowPlainText",
    "fused_optimizer": "fusedOptimizer",
    "custom_objects": "customObjects",
    "verbose": "verbose",
    "monitor": "monitor",
    "weights": "weights",
    **COLUMN_ARGUMENTS,
}
"""Arguments of `train_ensemble`, each with the Param that holds it."""


class EnsembleEstimator(KerasEstimator, _EnsembleEstimatorParams, Estimator):
    """Trains the members of an ensemble in parallel on the rows of a DataFrame; `fit` returns an EnsembleModel.

    Args:
        build_or_model: a compiled Keras model, which is not changed: each member is a copy whose trainable weights are
            drawn anew. Or a function that returns one, called once per member, as for `train_ensemble`. Or None with
            `keras_model_config` (JSON), `loss`, `optimizer_config`, `metrics`; the last three also compile a given model or function's models anew.
        callbacks: Keras callbacks; each member has copies of its own. Not saved with the estimator.
        validation_data: a DataFrame, arrays or an RDD. Not saved with the estimator.
        params: by name, camelCase or snake_case: `num_members`, `bagging`, `voting`, `weights`, `workers_per_member`,
            `max_failures`, `features_col`, `label_col`, `sample_weight_col`, `validation_col`, `epochs`, `batch_size`, ...
            `explainParams()` lists them. They have the meaning they have for `train_ensemble`.

    Raises:
        TypeError, ValueError: unknown names and invalid values, when they are set.
    """

    __module__ = "elephas_like.ml_ensemble"  # saved stages name their class by this path

    def __init__(
        self,
        build_or_model: Callable[..., keras.Model] | keras.Model | None = None,
        *,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None = None,
        validation_data: Any = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self._model = build_or_model if isinstance(build_or_model, keras.Model) else None
        if build_or_model is not None and self._model is None:
            if "build" in params:
                raise TypeError("give the function once, as build_or_model or as build.")
            params["build"] = build_or_model
        check_one_model(self._model, params)
        self.callbacks = callbacks
        self.validation_data = validation_data
        self._set(**params)

    @classmethod
    def from_saved(cls, model: keras.Model | None, history: list[Any], params: dict[str, Any]) -> EnsembleEstimator:
        """Return the estimator that was saved."""
        return cls(model, **params)

    def _fit(self, dataset: DataFrame) -> EnsembleModel:
        check_frame(dataset)
        source = self._members_source()
        rows, held, split = self.split(dataset)
        ensemble = train_ensemble(
            source,
            rows,
            self.given("numMembers"),
            validation_split=split,
            validation_data=held,
            callbacks=self.callbacks,
            **({argument: self.given(param) for argument, param in _FIT.items()} | column_arguments(self)),
        )
        return self._copyValues(EnsembleModel(ensemble))._resetUid(self.uid)

    def _members_source(self) -> Callable[..., keras.Model] | keras.Model:
        """Return what members are made from: a model, or a function that builds one."""
        build = self.given("build")
        if build is None:
            return self.get_model()
        if self._model is not None or self.isDefined("kerasModelConfig"):
            raise ValueError("give a model (or keras_model_config), or a function that builds one; got both.")

        @functools.wraps(build)  # train_ensemble inspects whether it takes a seed
        def built(*seed: int) -> keras.Model:
            model = build(*seed)
            return (
                self.compiled(model) if isinstance(model, keras.Model) else model
            )  # train_ensemble raises for anything else

        return built


class EnsembleModel(Stage, _EnsembleModelParams, Model):
    """Applies an ensemble to the rows of a DataFrame: `transform` adds a column of predictions in one pass.

    With hard and soft votes the prediction is the index of the class, a double, as Spark's evaluators expect. With
    "mean" it is the mean output, an array unless it is one number. Of classes, `probability` and `rawPrediction` are added
    too, both the members' share of each class.

    Args:
        ensemble: a VotingModel.
        params: by name, camelCase or snake_case; `explainParams()` lists them.
    """

    __module__ = "elephas_like.ml_ensemble"  # saved stages name their class by this path

    def __init__(self, ensemble: VotingModel, **params: Any) -> None:
        super().__init__()
        if not isinstance(ensemble, VotingModel):
            raise TypeError(f"ensemble must be a VotingModel; got {type(ensemble).__name__}.")
        self.ensemble = ensemble
        self._set(**params)

    @property
    def models(self) -> list[keras.Model]:
        """The members."""
        return self.ensemble.models

    @property
    def histories(self) -> list[dict[str, list[float]]]:
        """Loss and metrics per epoch, `val_*` included, of each member."""
        return self.ensemble.histories

    def models_to_save(self) -> list[keras.Model]:
        """Return the models to save."""
        return self.ensemble.models

    def packed(self, custom_objects: Mapping[str, object]) -> bytes:
        """Return the file that `VotingModel.save` writes: members, votes and histories."""
        for model in self.ensemble.models:
            refuse_lambdas(model)
        with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            path = Path(folder) / "ensemble.zip"
            self.ensemble.save(path)
            return path.read_bytes()

    @classmethod
    def unpacked(cls, content: bytes, custom_objects: Mapping[str, object]) -> VotingModel:
        """Return the ensemble that `packed` packed."""
        with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            path = Path(folder) / "ensemble.zip"
            path.write_bytes(content)
            return VotingModel.load(path, custom_objects)

    @classmethod
    def from_saved(cls, ensemble: VotingModel, history: list[Any], params: dict[str, Any]) -> EnsembleModel:
        """Return the model that was saved."""
        return cls(ensemble, **params)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        ensemble = copy.copy(self.ensemble)
        ensemble.custom_objects = ensemble.custom_objects | self.given("customObjects")
        prediction, probability, raw = self.added_columns(dataset, classifies=ensemble.voting is not Voting.MEAN)
        return ensemble.transform(
            dataset,
            features_col=self.given("featuresCol"),
            output_col=prediction,
            probability_col=probability,
            raw_prediction_col=raw,
            batch_size=self.given("inferenceBatchSize") or _INFERENCE_ROWS,
            handle_invalid=self.given("handleInvalid"),
            thresholds=self.given("thresholds"),
            column_shapes=self.given("columnShapes"),
            column_dtypes=self.given("columnDtypes"),
        )
