"""What one slow worker costs: rounds that wait for all, and rounds that end at a quorum.

    python benchmarks/stragglers.py [--seeds 0 1 2] [--data digits mnist] [--slow 5]

Eight workers, of which the first is `--slow` times slower, with Keras' global batch of 32 (a worker's 4). Training is real; time is that of
the virtual clock of engine="in_process", on which a worker needs steps / speed units. So cores that are shared do not blur
it. Printed are the time beside that of eight equal workers that wait for each other, the test accuracy, the share of rows
that came into the model, and both of a worker's rows. `dropped` leaves late updates out instead of adding them to a later round.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import numpy as np
from convergence import EPOCHS, GLOBAL_BATCH, held_out, network, parts, rows_of

import elephas_like.model.launch as launch
from elephas_like import SparkModel
from elephas_like.core.types import Order, Update
from elephas_like.engine.in_process import InProcessQuorumWorkers
from elephas_like.rows.spool import Block

WORKERS = 8


class Watched(InProcessQuorumWorkers):
    """Workers of given speeds, whose clock can be read after the fit."""

    last: Watched
    drops = False

    def __init__(self, workers, quorum, speeds) -> None:
        super().__init__(workers, quorum, speeds)
        Watched.last = self

    def train(self, order: Order) -> Iterator[Update]:
        for update in super().train(order):
            if update.number == order.number or not Watched.drops:
                yield update


@dataclass(frozen=True)
class Variant:
    """One way to treat the slow worker. quorum: workers; all of them waits for it."""

    name: str
    quorum: int
    slow: bool = True
    drops: bool = False
    grace: float = 0.1


VARIANTS = (
    Variant("all equal, wait for all", WORKERS, slow=False),
    Variant("wait for all", WORKERS),
    Variant("quorum 7, late ones added", WORKERS - 1),
    Variant("quorum 7, late ones dropped", WORKERS - 1, drops=True),
)


def run(variant: Variant, data: str, split: str, seed: int, slow: float) -> tuple[float, float, float, float]:
    """(virtual time, test accuracy, share of rows trained, the slow worker's share of its rows)."""
    speeds = np.ones(WORKERS)
    speeds[0] = 1 / slow if variant.slow else 1
    launch.speeds_of = lambda workers, seed: speeds
    launch.InProcessQuorumWorkers, Watched.drops = Watched, variant.drops
    x, y = rows_of(data)
    train, test = held_out(y, seed)
    shards = parts(split, y, train, WORKERS, seed)
    model = network(x.shape[1], seed)
    spark_model = SparkModel(
        model,
        WORKERS,
        engine="in_process",
        batch_size=GLOBAL_BATCH // WORKERS,
        quorum=variant.quorum,
        quorum_grace=variant.grace,
        seed=seed,
    )
    blocks = [Block((x[rows], y[rows]), len(rows)) for rows in shards]
    epochs = EPOCHS[data, "B"]
    history = spark_model.fit(blocks, epochs=epochs, verbose=0)
    done = [record for each in history.rounds for record in each.workers]
    mine = sum(record.samples for record in done if record.worker == 0)
    _, accuracy = model.evaluate(x[test], y[test], verbose=0)
    total = sum(record.samples for record in done)
    return Watched.last.now, accuracy, total / (len(train) * epochs), mine / (len(shards[0]) * epochs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", nargs="+", default=["digits", "mnist"])
    parser.add_argument("--slow", type=float, default=5.0)
    arguments = parser.parse_args()
    print("| rows | rounds | time | accuracy | rows trained | slow worker's |\n|---|---|---|---|---|---|")
    for data in arguments.data:
        for split in ("iid", "sorted"):
            base = 0.0
            for variant in VARIANTS:
                found = np.array([run(variant, data, split, seed, arguments.slow) for seed in arguments.seeds])
                time, accuracy, rows, mine = found.mean(axis=0)
                base = base or time
                spread = 100 * found[:, 1].std()
                print(
                    f"| {data}, {split} | {variant.name} | {time / base:.2f} | {100 * accuracy:.1f} ± {spread:.1f} % | "
                    f"{100 * rows:.0f} % | {100 * mine:.0f} % |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
