"""Several models as one.

`train` checks the arguments of `train_ensemble` and collects what comes of it; `member_runs` is where members are trained, and
`members` what the training of one is. `voting_model` lets models vote, `selection` chooses them greedily, and
`ensemble_files` saves and loads them. `soups` averages weights. `scoring` and `recalibration` are what is done on executors. `prepared_members` is for
members whose preprocessors make their rows.
"""

from elephas_like.core.extras import keras_backend, require

require("pyspark", keras_backend())
