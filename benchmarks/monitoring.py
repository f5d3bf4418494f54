"""What the training page costs the driver in CPU time: `python benchmarks/monitoring.py`. Prints ms a round, and ms and kB a snapshot."""

from __future__ import annotations

import json
import time
from itertools import chain, repeat

from elephas_like.core.fit_monitor import FitMonitor, RoundTimes
from elephas_like.core.types import EngineName, Joined, RoundRecord, WorkerRecord

WORKERS, ROUNDS = 8, 50_000


def main() -> None:
    """Tell a monitor of a long fit, and take snapshots of it."""
    monitor = FitMonitor(time.perf_counter, time.time)
    monitor.describe(EngineName.SERVER, alone=False, first_epoch=0, epochs=100)
    monitor.joined([Joined(worker, 0, "host", 1000, 0, "") for worker in range(WORKERS)])
    monitor.epoch_begin(0)
    done = tuple(WorkerRecord(worker, 16, 2, 0.01) for worker in range(WORKERS))
    record = RoundRecord(0, 0, done, 1.0, 1, 0.5, 0.1)
    began = time.process_time()
    for _ in range(ROUNDS):
        monitor.exchanged(RoundTimes(0.0, 0.1, 1000, 1000))
        monitor.round_end(record)
    print(f"{1000 * (time.process_time() - began) / ROUNDS:.3f} ms a round of {WORKERS} workers")
    for which in chain(["the first"], repeat("a later", 2)):
        began = time.process_time()
        text = json.dumps(monitor.snapshot(), allow_nan=False, separators=(",", ":"))
        took = time.process_time() - began
        print(f"{which} snapshot after {ROUNDS:,} rounds: {1000 * took:.1f} ms, {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
