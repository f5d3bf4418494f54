"""Spark ML stages around Keras models.

estimator           ElephasEstimator, ElephasTransformer, their loaders, and SQL functions
ensemble_stages     the stages of ensembles
stage               what all stages share
params              one table of Params, with checks and defaults
saving              stages written and read
udf                 a model as a SQL function
"""

from elephas_like.core.extras import require

require("pyspark", "tensorflow")
