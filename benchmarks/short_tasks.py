"""How long Spark jobs of short tasks take: as Spark has them, without the 40 ms for which TCP holds their rows back, and with archives known.

    python benchmarks/short_tasks.py [--rounds 20]

Two tasks on `local[2]`, each of which reads one row and works for some milliseconds; its rows come as PySpark hands them over, or by
`spark/task_input.py`'s `at_once`; then also with the importers of `core/archives.py`, by which Spark before 4.2 does not read
archives again at each task. All in turn, each after a job that gives its processes these importers, or Python's own; the first ten do not
count; medians (least to most).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable

from pyspark.sql import SparkSession

WORK = (0, 10, 30, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.sparkContext.parallelize([1, 2], 2)

    def seconds(milliseconds: int, *, at_once: bool, known: bool) -> float:
        def work(given: Iterable[int]) -> list[int]:
            from elephas_like.spark import task_input

            read = list(task_input.at_once(given) if at_once else given)
            time.sleep(milliseconds / 1000)
            return read

        def prepare(given: Iterable[int]) -> Iterable[int]:
            import sys
            from zipimport import zipimporter

            from elephas_like.core.archives import KnownArchive, read_archives_once

            sys.path_hooks[:] = [zipimporter if hook is KnownArchive else hook for hook in sys.path_hooks]
            for place, importer in sys.path_importer_cache.items():
                if isinstance(importer, zipimporter):
                    sys.path_importer_cache[place] = zipimporter(place)
            if known:
                read_archives_once()
            return given

        rows.mapPartitions(prepare).count()
        begun = time.perf_counter()
        assert rows.mapPartitions(work).collect() == [1, 2]
        return time.perf_counter() - begun

    print("| ms of work in a task | a job, ms | with `at_once`, ms | and archives known, ms |\n|---|---|---|---|")
    for milliseconds in WORK:
        taken: dict[tuple[bool, bool], list[float]] = {(False, False): [], (True, False): [], (True, True): []}
        for number in range(10 + rounds):
            for (at_once, known), times in taken.items():
                took = seconds(milliseconds, at_once=at_once, known=known)
                if number >= 10:
                    times.append(1000 * took)
        columns = [f"{statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})" for each in taken.values()]
        print(f"| {milliseconds} | {' | '.join(columns)} |", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
