"""Elephas' import path `mllib`: conversion of MLlib's matrices and vectors (`adapter`)."""

from elephas_like.mllib.adapter import from_matrix, from_vector, to_matrix, to_vector

__all__ = ["from_matrix", "from_vector", "to_matrix", "to_vector"]
