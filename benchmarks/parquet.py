"""Parquet files as data: bytes per second to batches and to shards. bench.py has a table's whole fit against Keras and pandas.

    python benchmarks/parquet.py [--rounds 5]

Bytes: 400,000 rows of 1 kB (250 float32 and a label), read by two processes, each its part, from the page cache; once as one list
column, once as 250 columns. Rates count what the arrays hold; medians, and (lowest, highest).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KILOBYTE_ROWS = 400_000


def write_kilobytes(folder: Path) -> None:
    """Rows of 1 kB, as a list column and as columns of numbers."""
    values = np.random.default_rng(0).standard_normal((KILOBYTE_ROWS, 250), np.float32)
    labels = pa.array(np.arange(KILOBYTE_ROWS) % 10)
    ends = pa.array(np.arange(KILOBYTE_ROWS + 1, dtype=np.int32) * 250)
    one = pa.table({"x": pa.ListArray.from_arrays(ends, pa.array(values.reshape(-1))), "label": labels})
    pq.write_table(one, folder / "list.parquet", row_group_size=2**15)
    many = pa.table({**{f"f{i}": values[:, i].copy() for i in range(250)}, "label": labels})
    pq.write_table(many, folder / "columns.parquet", row_group_size=2**15)


def read(path: str, features: object, worker: int, to_shards: bool) -> int:
    """The bytes that one worker of two reads."""
    from elephas_like.core.types import Slot
    from elephas_like.rows.frame_plan import ColumnChoice
    from elephas_like.rows.frame_schema import plan
    from elephas_like.rows.parquet_files import parquet_table
    from elephas_like.rows.parquet_listing import ParquetFiles
    from elephas_like.rows.parquet_read import read_part
    from elephas_like.rows.spool import spool

    found = parquet_table(ParquetFiles(path))
    chosen = ColumnChoice(features, "label")
    made = plan(found.schema, chosen, Slot("x", (250,)), Slot("y"), floatx="float32", classes=None)
    part = found.dealt(2)[worker]
    blocks = read_part(made, part)
    if to_shards:
        with tempfile.TemporaryDirectory() as place:
            spool(blocks, dataset="d", worker=worker, base=place, floatx="float32", expect_target=True)
    else:
        for _ in blocks:
            pass
    return part.rows * 1000


def rates(folder: Path, rounds: int) -> None:
    """Print bytes per second of two processes."""
    print("| 1 kB rows | to batches, GB/s | to shards on disk, GB/s |\n|---|---|---|")
    features = {"list": "x", "columns": [f"f{i}" for i in range(250)]}
    seen: dict[tuple[str, bool], list[float]] = {(name, shards): [] for name in features for shards in (False, True)}
    with ProcessPoolExecutor(2) as pool:
        for number in range(rounds + 1):
            for (name, shards), found in seen.items():
                began = time.perf_counter()
                tasks = [
                    pool.submit(read, str(folder / f"{name}.parquet"), features[name], w, shards) for w in range(2)
                ]
                total = sum(task.result() for task in tasks)
                if number:  # the first round imports
                    found.append(total / (time.perf_counter() - began) / 1e9)
    for name in features:
        print(f"| {name} | {_spread(seen[name, False])} | {_spread(seen[name, True])} |", flush=True)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}, {max(values):.2f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write_kilobytes(Path(place))
        rates(Path(place), given.rounds)


if __name__ == "__main__":
    main()
