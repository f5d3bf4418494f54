"""Hyper-parameter search. The package is not called `search`: that is the function of the front door.

`search` checks the arguments, prepares and runs a search; `hyperas` is Elephas' HyperParamModel, whose functions with {{...}}
`templates` reads. `space` suggests points. `runner` starts trials, watches and records them; `trial_runs` is where they run,
and `trial`, `wide_trial` and `function_trial` are what one trial does. `search_rows` writes the rows down, and `first_model`
tries `build` on the driver. `log` keeps trials and models on disk; `result` and `plots` show them.
"""

from elephas_like.core.extras import require

require("pyspark", "tensorflow")
