"""dist-keras' import path `predictors`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

_INSTEAD = {
    "ModelPredictor": "SparkModel(model).predict(df, features_col=..., collect=False)",
    "Predictor": "SparkModel(model).predict(df, features_col=..., collect=False)",
}
__all__ = [*_INSTEAD]
__getattr__ = instead_of(_INSTEAD)
