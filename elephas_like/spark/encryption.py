"""What Spark encrypts and this library does not: said, so that nobody relies on it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark import SparkConf


def in_plain_text(conf: SparkConf, *, server: bool) -> Iterator[str]:
    """Yield a sentence for each thing that Spark's settings encrypt, and that a fit leaves in plain text.

    Args:
        server: whether workers exchange with a parameter server, beside Spark.
    """
    network = [name for name in ("spark.network.crypto.enabled", "spark.ssl.enabled") if _is_on(conf, name)]
    if network and server:
        yield (
            f"{network[0]} is on, but the connections between workers and the parameter server are not encrypted: weights and "
            "metrics travel in plain text. engine='jobs' (synchronous modes) sends them through Spark."
        )
    if _is_on(conf, "spark.io.encryption.enabled"):
        yield (
            "spark.io.encryption.enabled is on, but shards are not encrypted: rows lie in plain text in the executors' local "
            "directories until the fit ends, or their ShardedDataset is released. Use an encrypted disk for spark.local.dir."
        )


def _is_on(conf: SparkConf, name: str) -> bool:
    return (conf.get(name, "false") or "").lower() == "true"
