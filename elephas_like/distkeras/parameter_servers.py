"""dist-keras' import path `parameter_servers`: what to use in place of its names."""

from __future__ import annotations

from elephas_like.core.replaced import instead_of

_INSTEAD = {
    "DeltaParameterServer": "SparkModel(model, mode='asynchronous', strategy='downpour')",
    "ADAGParameterServer": "SparkModel(model, mode='asynchronous', strategy='adag')",
    "DynSGDParameterServer": "SparkModel(model, mode='asynchronous', strategy='dynsgd')",
    "ParameterServer": "SparkModel(model, mode='asynchronous'), or elephas_like.parameter for a server of your own",
}
__all__ = [*_INSTEAD]
__getattr__ = instead_of(_INSTEAD)
