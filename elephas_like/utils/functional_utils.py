"""Elephas' import path for arithmetic on weights."""

from elephas_like.compat.weight_lists import add_params, average_and_subtract, divide_by, get_neutral, subtract_params

__all__ = ["add_params", "average_and_subtract", "divide_by", "get_neutral", "subtract_params"]
