"""dist-keras' import path `predictors`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

__getattr__ = instead_of(
    {
        "ModelPredictor": "SparkModel(model).predict(df, features_col=..., collect=False)",
        "Predictor": "SparkModel(model).predict(df, features_col=..., collect=False)",
    }
)
