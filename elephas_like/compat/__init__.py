"""What stands behind Elephas' import paths; users reach it by those (`utils`, `parameter`, `worker`, `mllib`, `ml`).

`elephas` has the attributes and older names of its SparkModel, `parameter_server` with `parameters` and `framing` the servers
that are started by hand, `spark_worker` its workers; the rest are helpers by the names of its modules.
"""
