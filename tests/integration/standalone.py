"""A cluster of real processes on this machine: Spark's standalone master and two workers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from leftovers import eventually


@contextmanager
def standalone(scratch: Path, *, without: Iterable[str] = ()) -> Iterator[str]:
    """The URL of a master with a worker on 127.0.0.1 and one on 127.0.0.2, which are two hosts to Spark.

    without: environment variables that its processes do not inherit.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    environment = {**inherited, "SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(scratch), "TMPDIR": str(scratch)}
    running: list[subprocess.Popen] = []

    def start(name: str, *arguments: str) -> Path:
        log = scratch / f"{name}.log"
        with log.open("w") as output:
            kind = f"org.apache.spark.deploy.{name.rstrip('12')}"
            command = [str(home / "bin" / "spark-class"), kind, *arguments, "--port", "0", "--webui-port", "0"]
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        running.append(process)
        return log

    def said(log: Path, pattern: str) -> str:
        assert eventually(lambda: re.search(pattern, log.read_text()) is not None, 60), log.read_text()[-3000:]
        found = re.search(pattern, log.read_text())
        assert found is not None
        return found.group(0)

    try:
        url = said(start("master.Master", "--host", "127.0.0.1"), r"spark://127\.0\.0\.1:\d+")
        for number in (1, 2):
            options = ("--host", f"127.0.0.{number}", "--cores", "2", "--memory", "1g", url)
            log = start(f"worker.Worker{number}", *options[:-1], "--work-dir", str(scratch / f"work-{number}"), url)
            said(log, "Successfully registered with master")
        yield url
    finally:
        for process in running:
            started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for each in (process, *started):
                try:
                    each.kill()
                except psutil.NoSuchProcess:
                    continue
            process.wait()
