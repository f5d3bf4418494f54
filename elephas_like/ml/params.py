"""Elephas' import path for its Param mixins, which elephas_like/stages/params.py makes from one table."""

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
]
