"""SparkModel, and what its fits, predictions and evaluations are put together from.

`spark_model` has the class, `mllib` the one for MLlib's data, `options` the constructor's arguments in one table.
`data_arguments` converts and checks the data that users pass, `sources` has a class for each kind of it, `prepared` one for
rows that a preprocessor of KerasHub prepares first, and `sharding` writes
it to the executors once.

A fit: `fit` is the flow from checked arguments to History. `engine_choice` decides on an engine and holds its slots, `launch`
starts the workers on it, and `plan` says, once they have joined, what the rounds will be. `interrupts` sees to Ctrl-C.

`inference` has SparkModel's methods `predict` and `evaluate`, `predict` what they do on executors, `frame_predictions` the columns that a DataFrame gets. `saving` writes
models, `loading` reads them. `plots` draws fits and searches.
"""

from elephas_like.core.extras import keras_backend, require

require("pyspark", keras_backend())
