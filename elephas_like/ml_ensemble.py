"""The import path of the Spark ML stages of ensembles, under which they are saved."""

from elephas_like.stages.ensemble_stages import EnsembleEstimator, EnsembleModel

__all__ = ["EnsembleEstimator", "EnsembleModel"]
