"""Elephas' import path for RDDs of features and labels."""

from elephas_like.compat.labeled import from_labeled_point, lp_to_simple_rdd, to_labeled_point, to_simple_rdd
from elephas_like.compat.labels import encode_label

__all__ = ["encode_label", "from_labeled_point", "lp_to_simple_rdd", "to_labeled_point", "to_simple_rdd"]
