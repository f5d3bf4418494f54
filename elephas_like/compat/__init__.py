"""The code behind Elephas' import paths; users reach it by those (`utils`, `parameter`, `worker`, `mllib`, `ml`).

elephas             attributes and older names of Elephas' SparkModel
parameter_server    servers that are started by hand, on those of `exchange`
parameters          their shared weights, requests and clients; framing: messages on a socket
spark_worker        workers for `rdd.mapPartitions`
weight_lists        arithmetic on weights; weight_bytes: their format; rwlock: their lock
labeled             RDDs and DataFrames of features and labels; labels: one-hot rows, padding
matrices            MLlib's vectors and matrices
"""

from elephas_like.core.extras import keras_backend, require

require("pyspark", keras_backend())
