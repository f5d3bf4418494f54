"""Elephas' import path for DataFrames of features and labels."""

from elephas_like.compat.labeled import df_to_simple_rdd, from_data_frame, to_data_frame

__all__ = ["df_to_simple_rdd", "from_data_frame", "to_data_frame"]
