"""Spark ML stages around Keras models.

estimator           ElephasEstimator, ElephasTransformer, their loaders, and SQL functions
ensemble_stages     the stages of ensembles
image_featurizer    images as vectors, by a model without its head
stage               what all stages share
param_table, params one table of Params, with checks and defaults
shared_rows         rows that the fits of a grid share
saving              stages written and read
udf                 a model as a SQL function
"""

from elephas_like.core.extras import keras_backend, require

require("pyspark", keras_backend())
