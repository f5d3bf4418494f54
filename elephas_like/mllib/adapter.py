"""Elephas' import path for MLlib's matrices and vectors."""

from elephas_like.compat.matrices import from_matrix, from_vector, to_matrix, to_vector

__all__ = ["from_matrix", "from_vector", "to_matrix", "to_vector"]
