"""Searches for hyper-parameters. The package is not called `search`: that is the function of the front door.

`search` has what users call. `space` suggests points, `runner` keeps slots busy and stops hopeless trials, `trial`,
`wide_trial` and `function_trial` are what a slot does. `log` keeps trials on disk, `result` and `plots` show them.
`templates` reads Elephas' functions with {{...}}.
"""
