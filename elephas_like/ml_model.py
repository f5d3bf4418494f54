"""Elephas' import path for Spark ML stages, under which they are saved, and for their mixins."""

from elephas_like.stages.estimator import (
    ElephasEstimator,
    ElephasTransformer,
    load_ml_estimator,
    load_ml_transformer,
    register_keras_udf,
)
from elephas_like.stages.image_featurizer import ImageFeaturizer
from elephas_like.stages.params import (
    HasBatchSize,
    HasCategoricalLabels,
    HasCustomObjects,
    HasEpochs,
    HasFrequency,
    HasInferenceBatchSize,
    HasKerasModelConfig,
    HasKerasOptimizerConfig,
    HasLoss,
    HasMetrics,
    HasMode,
    HasNumberOfClasses,
    HasNumberOfWorkers,
    HasPredictClasses,
    HasValidationSplit,
    HasVerbosity,
)

__all__ = [
    "ElephasEstimator",
    "ElephasTransformer",
    "HasBatchSize",
    "HasCategoricalLabels",
    "HasCustomObjects",
    "HasEpochs",
    "HasFrequency",
    "HasInferenceBatchSize",
    "HasKerasModelConfig",
    "HasKerasOptimizerConfig",
    "HasLoss",
    "HasMetrics",
    "HasMode",
    "HasNumberOfClasses",
    "HasNumberOfWorkers",
    "HasPredictClasses",
    "HasValidationSplit",
    "HasVerbosity",
    "ImageFeaturizer",
    "load_ml_estimator",
    "load_ml_transformer",
    "register_keras_udf",
]
