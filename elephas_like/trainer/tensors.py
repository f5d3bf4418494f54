"""Tensors, threads and variables of the backend that this process's Keras runs on, as the rest of the package uses them.

What each name does, trainer/backends/protocol.py says.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

# Losses read a mask off the tensor, and no public name does. Keras 3.16 has these here alone.
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from elephas_like.core.errors import ElephasError
from elephas_like.core.extras import another_backend
from elephas_like.core.types import Array
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.backends.protocol import AnyVariable, Tensor
from elephas_like.trainer.backends.text import is_text

__all__ = ["AnyVariable", "Tensor", "is_text"]

tensors = BACKEND.tensors
row_numbers = BACKEND.row_numbers
tensor_tree = BACKEND.tensor_tree
text_tensors = BACKEND.text_tensors
is_ragged = BACKEND.is_ragged
is_sparse = BACKEND.is_sparse
dense = BACKEND.dense

limit_threads = BACKEND.limit_threads
compiled = BACKEND.compiled
many_graphs = BACKEND.many_graphs

is_variable = BACKEND.is_variable
variables_in = BACKEND.variables_in
at_rest = BACKEND.at_rest
backend_variable = BACKEND.backend_variable
dtype_of = BACKEND.dtype_of
name_of = BACKEND.name_of
is_number = BACKEND.is_number
assign = BACKEND.assign
value_of = BACKEND.value_of
content_of = BACKEND.content_of
generators = BACKEND.generators

is_compiled = BACKEND.is_compiled
reduction = BACKEND.reduction
variable_attributes = BACKEND.variable_attributes


def array_of(value: Any) -> Array:
    """Return a tensor, a Keras variable or a number as an array; bfloat16 as float32."""
    # Keras' own conversion raises for a scalar of bfloat16 on TensorFlow with NumPy 2.
    if hasattr(value, "dtype") and keras.backend.standardize_dtype(value.dtype) == "bfloat16":
        value = keras.ops.cast(value, "float32")
    return np.asarray(keras.ops.convert_to_numpy(value))


def mask_of(output: Any) -> Array | None:
    """Return the mask that a model's output bears, as of an Embedding(mask_zero=True): losses and metrics leave those steps out. None for no mask."""
    mask = get_keras_mask(output)
    return None if mask is None else array_of(mask)


def masked(output: Array, mask: Array | None) -> Tensor:
    """Return an array as a tensor that bears a mask."""
    tensor = tensor_tree(output)
    if mask is not None:
        set_keras_mask(tensor, tensor_tree(mask))
    return tensor


def check_backend() -> None:
    """Raise if Keras does not run on the backend that this process trains with.

    Raises:
        ElephasError: it runs on another one.
    """
    if keras.backend.backend() != BACKEND.NAME:
        raise ElephasError(another_backend(keras.backend.backend(), BACKEND.NAME))
