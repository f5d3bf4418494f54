"""Engines: what runs the workers of a fit, and other work on shards.

- in_process: workers of this process, without Spark. job_rounds: each round is a Spark job. server_rounds: long Spark tasks that
  exchange with the driver's server. The training loop sees them as core.workers.SyncWorkers and AsyncWorkers.
- map_shards: predictions and evaluations over an RDD. trial_jobs: the trials of a search.
"""
