"""SparkModel, and what a fit, a prediction and an evaluation are put together from.

`sources` takes the data that users give, as a model reads it. `fitting` runs a fit over an engine. `frame_predictions` adds
columns to a DataFrame. `spark_model` holds the classes.
"""
