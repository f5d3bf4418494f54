"""Spark ML: `estimator` and `ensemble_stages` hold the stages, `stage` what they share, `params` the table of their Params.

`saving` writes and reads stages. `udf` makes a model a SQL function.
"""
