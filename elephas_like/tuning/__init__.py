"""Hyper-parameter search. The package is not called `search`: that is the function of the front door.

`search` checks the arguments, prepares and runs a search; `function_search` does so for any Python function, and `hyperas` for
Elephas' HyperParamModel, whose functions with {{...}} `templates` reads. `space` is what points are taken from, and `samplers` says
who suggests them: hyperopt, or Optuna by `optuna_sampler`. `runner` starts trials, watches and records them; `trial_runs` is where
they run, and `trial`, `wide_trial` and `function_trial` are what one trial does. `search_rows` writes the rows down, `prepared_rows`
what a model's preprocessor makes of them, and `first_model` tries `build` on the driver; `keras_options` copies Keras objects of a space for each model. `log` keeps trials and models on disk; `result` shows them, by the pictures of `model.plots`, and `mlflow_runs`
writes them to MLflow.
"""

from elephas_like.core.extras import keras_backend, require

require("pyspark", keras_backend())
