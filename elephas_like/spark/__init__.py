"""pyspark helpers that know nothing of training.

waits       run a job with a time limit, cancel it without progress, clean up after it
job_tags    tags of jobs, and their tasks
failures    Spark's errors, translated
broadcasts  values shipped that may refer to broadcasts of the user's
parallel    independent runs, several at a time
slots       task slots, counted and reserved
gpus        a card for each worker process
gang        the tasks of a barrier stage, which run at the same time
remote      jobs of a session of either kind
versions    packages of driver and executors, compared
encryption  what Spark encrypts, and a fit must not leave in plain text
files       atomic writes on any Hadoop filesystem
plans       what Spark does with a DataFrame when it is only planned
shuffles    their files, deleted in time
task_input  whether a task was sent all of its rows
settings    Spark's settings, as `check` looks at them
session     the session or SparkContext of this process
"""

from elephas_like.core.extras import require

require("pyspark")
