"""Elephas' import path for models and weights as plain data."""

from elephas_like.compat.weight_bytes import bytes_to_weights, weights_to_bytes
from elephas_like.trainer.serialization import dict_to_model, model_to_dict

__all__ = ["bytes_to_weights", "dict_to_model", "model_to_dict", "weights_to_bytes"]
