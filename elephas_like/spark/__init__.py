"""What any program on pyspark could use, and nothing of training.

`waits`, `groups` and `failures` start jobs, cancel those that get nowhere, and say why one failed; `parallel` runs several at
a time. `slots` counts and reserves task slots. `versions` compares packages of driver and executors. `files` reads and writes
any Hadoop filesystem. `session` finds the SparkContext of this process.
"""
