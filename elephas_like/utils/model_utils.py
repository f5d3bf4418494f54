"""Elephas' import path for the type of a model, and its numbers of inputs and outputs."""

from elephas_like.compat.labeled import argmax
from elephas_like.core.model_types import LossModelTypeMapper, ModelType, ModelTypeEncoder, as_enum
from elephas_like.trainer.model_facts import is_multiple_input_model, is_multiple_output_model

__all__ = [
    "LossModelTypeMapper",
    "ModelType",
    "ModelTypeEncoder",
    "argmax",
    "as_enum",
    "is_multiple_input_model",
    "is_multiple_output_model",
]
