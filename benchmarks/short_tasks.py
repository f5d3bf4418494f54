"""How long Spark jobs of short tasks take, with and without the 40 ms for which TCP holds their rows back.

    python benchmarks/short_tasks.py [--rounds 20]

Two tasks on `local[2]`, each of which reads one row and works for some milliseconds; its rows come as PySpark hands them over, or by
`spark/task_input.py`'s `at_once`. Both in turn, after ten jobs that do not count; medians (least to most).
"""

from __future__ import annotations

import argparse
import statistics
import time

from pyspark.sql import SparkSession

WORK = (0, 10, 30, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.sparkContext.parallelize([1, 2], 2)

    def seconds(milliseconds: int, *, at_once: bool) -> float:
        def work(given):
            from elephas_like.spark import task_input

            read = list(task_input.at_once(given) if at_once else given)
            time.sleep(milliseconds / 1000)
            return read

        begun = time.perf_counter()
        assert rows.mapPartitions(work).collect() == [1, 2]
        return time.perf_counter() - begun

    print("| ms of work in a task | a job, ms | with `at_once`, ms |\n|---|---|---|")
    for milliseconds in WORK:
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(10 + rounds):
            for at_once, times in taken.items():
                took = seconds(milliseconds, at_once=at_once)
                if number >= 10:
                    times.append(1000 * took)
        columns = [f"{statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})" for each in taken.values()]
        print(f"| {milliseconds} | {' | '.join(columns)} |", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
