"""A script: a fit one of whose Python processes dies once, while it writes its rows, where Spark runs the task again."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from session import say, started
from small import line, points

from elephas_like import SparkModel


def main(engine: str) -> None:
    scratch = tempfile.gettempdir()
    context = started("local[2,4]", "died")

    def dies(index: int, rows: Iterator[object]) -> Iterator[object]:
        yield next(rows)
        if index == 1 and not os.path.exists(marker := os.path.join(scratch, "died")):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from rows

    rows = context.parallelize(points(20), 2).mapPartitionsWithIndex(dies)
    history = SparkModel(line(), 2, engine=engine).fit(rows, verbose=0)
    say(
        {
            "died": os.path.exists(os.path.join(scratch, "died")),
            "samples": sum(worker.samples for each in history.rounds for worker in each.workers),
            "files": [str(path) for path in Path(scratch).rglob("elephas_like-*")],
        }
    )
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
