"""Engines: how rounds, or the trials of a search, are run. No Keras here.

in_process      rounds in this process, without Spark
job_rounds      each round is a Spark job; job_tasks: what its tasks do
shuffled_sums   updates that Spark adds up before the driver has them
server_rounds   one long Spark task per worker, which exchanges with the driver's server
gang_rounds     barrier stages, with server and loop in one of their tasks
member_calls    a user's function on all members of a gang
printing        what it prints, on its way to the driver
map_shards      predictions and evaluations over an RDD; map_frames: over a DataFrame
function_trials trials of any Python function; function_settings: Keras' around them
runs            independent runs of one task each: trials of a search, members of an ensemble
"""

from elephas_like.core.extras import require

require("pyspark")
