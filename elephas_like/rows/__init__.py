"""Any data becomes shards: columns in raw files on the executors' disks.

`frames` and `vectors` read a DataFrame's columns. `spool` writes rows down, `shards` does so in every partition, `replicas`
ships all rows to every executor. `data` is what a fit is given. `tfrecord`, with `records`, `features` and `examples`, reads
and writes TFRecord files.
"""
