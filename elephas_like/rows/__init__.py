"""Any data becomes shards: columns in raw files on the executors' disks.

- data: what a fit is given. shards: one partition, and one shard, per worker. replicas: all rows on every executor.
- spool: writes rows as a shard. row_values: rows as arrays. column_files: columns being written. shard_files: directories,
  references and removal of shards.
- frame_plan: which columns of a DataFrame become which arrays; frame_schema makes it of a schema. frame_read: batches read by a plan. frame_shards:
  and written where they are read. vectors: Arrow columns as arrays. vector_columns: Spark's vectors. prediction_columns: predictions as columns.
- parquet_listing: which Parquet files a path means. parquet_files: who reads which row groups. parquet_read: workers read them,
  without Spark.
- tfrecord, with records and examples: TFRecord files.
"""

from elephas_like.core.extras import require

require("pyspark")
