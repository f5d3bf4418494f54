"""Who holds the rounds of a fit: `in_process`, `job_rounds` (Spark jobs), or `server_rounds` (long tasks and a server).

Other work on shards: `map_shards` predicts and evaluates, and `runs` makes independent runs of one task each, for searches
and ensembles.
"""
