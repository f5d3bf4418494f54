"""Elephas' import path `ml`: DataFrames of features and labels (`adapter`), Param mixins (`params`)."""

from elephas_like.ml.adapter import df_to_simple_rdd, from_data_frame, to_data_frame
from elephas_like.ml.params import (
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
    "df_to_simple_rdd",
    "from_data_frame",
    "to_data_frame",
]
