"""pyspark helpers that know nothing of training.

waits       run a job with a time limit, cancel it without progress, clean up after it
groups      job groups
failures    Spark's errors, translated
parallel    independent runs, several at a time
slots       task slots, counted and reserved
versions    packages of driver and executors, compared
encryption  what Spark encrypts, and a fit must not leave in plain text
files       atomic writes on any Hadoop filesystem
session     the SparkContext of this process
"""

from elephas_like.core.extras import require

require("pyspark")
