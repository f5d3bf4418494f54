"""Searches for hyper-parameters. The package is not called `search`: that is the function of the front door.

`search` has what users call. `space` suggests points, `runner` starts, watches and records trials, `trial_runs` is where they
run, and `trial`, `wide_trial` and `function_trial` are what one trial does. `log` keeps trials on disk, `result` and `plots`
show them. `templates` reads Elephas' functions with {{...}}.
"""
