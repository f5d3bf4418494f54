"""dist-keras' import path `evaluators`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

_INSTEAD = {
    "AccuracyEvaluator": "SparkModel(model).evaluate(df, features_col=..., label_col=...), or pyspark.ml.evaluation",
    "Evaluator": "pyspark.ml.evaluation",
}
__all__ = [*_INSTEAD]
__getattr__ = instead_of(_INSTEAD)
