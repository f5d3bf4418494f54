"""elephas_like: train Keras models on Spark.

Names are imported on first use, so that importing the package loads neither TensorFlow nor Spark. Averaging strategies,
codecs and schedules are in `elephas_like.strategies`. Where a name needs a package of an extra that is not installed, its import
raises MissingExtraError.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from elephas_like.core.version import __version__ as __version__

if TYPE_CHECKING:
    from elephas_like.core.errors import (
        CapacityError,
        DataError,
        ElephasError,
        MissingExtraError,
        NonFiniteError,
        PlainTextError,
        WaitError,
        WorkerError,
    )
    from elephas_like.core.pruning import ASHA, Hyperband, MedianRule
    from elephas_like.core.types import Frequency, Mode
    from elephas_like.ensembles.selection import greedy_selection
    from elephas_like.ensembles.soups import greedy_soup, recalibrate_batch_norm, uniform_soup
    from elephas_like.ensembles.train import train_ensemble
    from elephas_like.ensembles.voting_model import VotingModel
    from elephas_like.model.asynchronous_model import AsynchronousSparkModel
    from elephas_like.model.functions import run_on_workers
    from elephas_like.model.loading import load_spark_model
    from elephas_like.model.metrics import Metrics
    from elephas_like.model.mllib import SparkMLlibModel
    from elephas_like.model.plots import plot_history
    from elephas_like.model.sharding import shard
    from elephas_like.model.spark_model import SparkModel
    from elephas_like.rows.parquet_listing import ParquetFiles
    from elephas_like.rows.shards import ShardedDataset
    from elephas_like.rows.tfrecord import read_tfrecords, write_tfrecords
    from elephas_like.stages.ensemble_stages import EnsembleEstimator, EnsembleModel
    from elephas_like.stages.estimator import (
        ElephasEstimator,
        ElephasTransformer,
        load_ml_estimator,
        load_ml_transformer,
        register_keras_udf,
    )
    from elephas_like.stages.image_featurizer import ImageFeaturizer
    from elephas_like.tuning.hyperas import HyperParamModel
    from elephas_like.tuning.result import SearchResult
    from elephas_like.tuning.search import search

_MODULES = {
    "elephas_like.core.errors": (
        "CapacityError",
        "DataError",
        "ElephasError",
        "MissingExtraError",
        "NonFiniteError",
        "PlainTextError",
        "WaitError",
        "WorkerError",
    ),
    "elephas_like.core.pruning": ("ASHA", "Hyperband", "MedianRule"),
    "elephas_like.core.types": ("Frequency", "Mode"),
    "elephas_like.rows.parquet_listing": ("ParquetFiles",),
    "elephas_like.rows.shards": ("ShardedDataset",),
    "elephas_like.ensembles.train": ("train_ensemble",),
    "elephas_like.tuning.search": ("search",),
    "elephas_like.tuning.hyperas": ("HyperParamModel",),
    "elephas_like.stages.ensemble_stages": ("EnsembleEstimator", "EnsembleModel"),
    "elephas_like.stages.estimator": (
        "ElephasEstimator",
        "ElephasTransformer",
        "load_ml_estimator",
        "load_ml_transformer",
        "register_keras_udf",
    ),
    "elephas_like.stages.image_featurizer": ("ImageFeaturizer",),
    "elephas_like.tuning.result": ("SearchResult",),
    "elephas_like.ensembles.soups": ("greedy_soup", "recalibrate_batch_norm", "uniform_soup"),
    "elephas_like.model.loading": ("load_spark_model",),
    "elephas_like.model.metrics": ("Metrics",),
    "elephas_like.model.mllib": ("SparkMLlibModel",),
    "elephas_like.model.plots": ("plot_history",),
    "elephas_like.model.sharding": ("shard",),
    "elephas_like.model.functions": ("run_on_workers",),
    "elephas_like.model.asynchronous_model": ("AsynchronousSparkModel",),
    "elephas_like.model.spark_model": ("SparkModel",),
    "elephas_like.rows.tfrecord": ("read_tfrecords", "write_tfrecords"),
    "elephas_like.ensembles.voting_model": ("VotingModel",),
    "elephas_like.ensembles.selection": ("greedy_selection",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ASHA",
    "AsynchronousSparkModel",
    "CapacityError",
    "DataError",
    "ElephasError",
    "ElephasEstimator",
    "ElephasTransformer",
    "EnsembleEstimator",
    "EnsembleModel",
    "Frequency",
    "HyperParamModel",
    "Hyperband",
    "ImageFeaturizer",
    "MedianRule",
    "Metrics",
    "MissingExtraError",
    "Mode",
    "NonFiniteError",
    "ParquetFiles",
    "PlainTextError",
    "SearchResult",
    "ShardedDataset",
    "SparkMLlibModel",
    "SparkModel",
    "VotingModel",
    "WaitError",
    "WorkerError",
    "greedy_selection",
    "greedy_soup",
    "load_ml_estimator",
    "load_ml_transformer",
    "load_spark_model",
    "plot_history",
    "read_tfrecords",
    "recalibrate_batch_norm",
    "register_keras_udf",
    "run_on_workers",
    "search",
    "shard",
    "train_ensemble",
    "uniform_soup",
    "write_tfrecords",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'elephas_like' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
