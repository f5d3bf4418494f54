"""Rounds of the jobs engine with the driver adding updates up, and with Spark's shuffle: what each takes here, and what follows elsewhere.

    python benchmarks/shuffled_sums.py [--rounds 5] [--docs docs/performance.md]

Both ways alternate on a cluster of two executors on this machine. Workers train nothing: they make an update of the state's size. The
next state is computed as in a fit (`average`), and is the same to the last bit.

A line through the rounds by shuffle says what one costs on a cluster with a machine for each of K workers, state of S bytes, links of B
bytes a second in each direction:

    t(K) = fixed + S * (driver + cores * worker) + 4 * S / B

    driver    seconds a byte of the state, however many workers there are: broadcast, and what the driver does with the sum
    worker    seconds a byte of each worker's update, on this machine's cores together; every machine does its own
    4 S / B   the state goes out by Spark's torrent (2, as it passes on what it gets), slices go round (1), sums come back (1)

The driver alone has to take in K * S bytes over its link, whatever its speed: that column is only this, and the state's way out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
from contestants import Clock
from convergence import put
from pyspark import SparkContext
from pyspark.sql import SparkSession
from scaling import EPOCH, EXCHANGES, LINKS, STATES, WORKERS
from soak import layout_of, state_of

from elephas_like.core.averaging import Round
from elephas_like.core.layout import Layout
from elephas_like.core.strategies import Average
from elephas_like.core.strategies.algebra import Context
from elephas_like.core.types import Joined, Order, Role, ShardRef, Span, TrainState, Update
from elephas_like.engine import job_rounds, shuffled_sums
from elephas_like.engine.job_rounds import JobRounds
from elephas_like.engine.job_tasks import JobRun

SIZES = ((4, 2.5e7), (8, 2.5e7), (4, 1e8), (8, 1e8))
CORES = 2


class Brings:
    """A worker whose update is its number, added to each weight."""

    def __init__(self, number: int, layout_hash: str) -> None:
        self.number, self.layout_hash = number, layout_hash

    def joined(self, attempt: int, host: str) -> Joined:
        """Join with one row."""
        return Joined(self.number, attempt, host, 1, 0, self.layout_hash)

    def train(self, order: Order) -> Update:
        """Bring an update as large as the state."""
        assert order.state is not None
        none, whole = np.zeros(0, np.float32), np.zeros(0, np.int64)
        delta = order.state.weights + np.float32(self.number + 1)
        return Update(
            worker=self.number, number=order.number, version=order.version, samples=1 + self.number, steps=1, delta=delta,
            statistics=none, slots=none, counters=whole, loss_scale=none, seeds=whole, metrics=np.ones(2), seconds=0.0,
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is open."""


def rounds_of(context: SparkContext, workers: int, layout: Layout) -> JobRounds:
    """The rounds of workers that have no rows."""
    run, hashed = f"scaling-{workers}-{layout.size(Role.WEIGHT)}", layout.hash

    def references(index: int, _: Iterator[int]) -> Iterator[tuple[ShardRef, None]]:
        yield ShardRef(run, index, f"/nowhere/{run}/worker-{index}", "here", 1, (), None, 0), None

    refs = context.parallelize(range(workers), workers).mapPartitionsWithIndex(references).cache()
    return JobRounds(
        context,
        refs,
        JobRun(run, lambda: lambda index, shard, validation: Brings(index, hashed)),
        f"elephas_like-{run}",
        lambda order: "a round",
        False,
        datasets=[run],
        round_timeout=600.0,
    )


def one_round(rounds: JobRounds, state: TrainState, layout: Layout, workers: int, by_shuffle: bool) -> TrainState:
    """The state after a round."""
    strategy, context = Average(), Context(0, workers, layout)
    merged = Round(state, strategy.init(state.weights), layout, strategy, context)
    order = Order("train", 0, 0, Span(0), state)
    if by_shuffle:
        summed = rounds.train_summed(order, merged.weighing)
        assert summed is not None
        merged.add_summed(summed)
    else:
        for update in rounds.train(order):
            merged.add(update)
    return merged.finish()[0]


def measured(context: SparkContext, workers: int, nbytes: float, times: int) -> dict[bool, list[tuple[float, float]]]:
    """Wall and CPU seconds of rounds, by the driver alone and by a shuffle, in turns."""
    layout = layout_of(int(nbytes) // 4, 0)
    state = state_of(layout)
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with rounds_of(context, workers, layout) as rounds:
        rounds.joined()
        for number in range(times + 1):
            after = {}
            for by_shuffle in found:
                with Clock() as clock:
                    after[by_shuffle] = one_round(rounds, state, layout, workers, by_shuffle)
                if number:
                    found[by_shuffle].append((clock.seconds, clock.cpu))
            assert after[False].weights.tobytes() == after[True].weights.tobytes()
    return found


def table(context: SparkContext, times: int) -> tuple[str, Callable[[int, float, float], float]]:
    """The table of rounds, and the model of rounds by shuffle."""
    lines = [
        "| workers | state, MB | driver alone, s | CPU s | by shuffle, s | CPU s |",
        "|---|---|---|---|---|---|",
    ]
    points, seconds = [], []
    for workers, nbytes in SIZES:
        found = measured(context, workers, nbytes, times)
        cells = []
        for by_shuffle in found:
            walls, cpus = zip(*found[by_shuffle], strict=True)
            cells.append(
                f"{statistics.median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f}) | {statistics.median(cpus):.1f}"
            )
        points.append((1.0, nbytes, workers * nbytes))
        seconds.append(statistics.median(wall for wall, _ in found[True]))
        lines.append(f"| {workers} | {nbytes / 1e6:.0f} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    (fixed, driver, worker), *_ = np.linalg.lstsq(np.array(points), np.array(seconds), rcond=None)
    driver, worker = max(0.0, driver), max(0.0, worker)
    lines.append(
        f"\nA line through the rounds by shuffle: {fixed:.2f} s, {driver * 1e9:.1f} s a GB of the state, "
        f"{worker * 1e9:.1f} s a GB of each update on {CORES} cores."
    )
    return "\n".join(
        lines
    ), lambda workers, nbytes, link: fixed + nbytes * (driver + CORES * worker) + 4 * nbytes / link


def shares(model: Callable[[int, float, float], float]) -> str:
    """Which part of an epoch's training time its exchanges take besides; in brackets, what the driver's link alone would take."""
    lines = ["| state | link | " + " | ".join(f"{count} workers" for count in WORKERS) + " |"]
    lines.append("|---|---|" + "---|" * len(WORKERS))
    for size, nbytes in list(STATES.items())[2:]:
        for link, rate in LINKS.items():
            cells = []
            for count in WORKERS:
                alone = (count + 2) * nbytes / rate
                cells.append(f"{EXCHANGES * model(count, nbytes, rate) / EPOCH:.0%} ({EXCHANGES * alone / EPOCH:.0%})")
            lines.append(f"| {size} | {link} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or write them into a document as well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--docs", type=Path, help="a document to write the tables into")
    arguments = parser.parse_args()
    job_rounds.worth_it = shuffled_sums.worth_it = lambda *_, **__: True  # type: ignore[assignment]
    session = (
        SparkSession.builder.master(f"local-cluster[{CORES},1,3072]")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.maxResultSize", "0")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    context = session.sparkContext
    context.setLogLevel("OFF")
    try:
        found, model = table(context, arguments.rounds)
    finally:
        session.stop()
    text = f"{found}\n\n{shares(model)}"
    print(f"\n{text}")
    if arguments.docs:
        put(arguments.docs, **{"shuffled sums": text})


if __name__ == "__main__":
    main()
