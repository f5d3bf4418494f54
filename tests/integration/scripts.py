"""Runs a script in a process of its own: engines are compared, and clusters started, outside of pytest's."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from forked import NewProgram, Program

HERE = Path(__file__).resolve().parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
OURS = "PYSPARK_SUBMIT_ARGS"


class Script:
    """A running script whose lines of JSON on stdout are its answers. A context manager that ends the process.

    The process has a group of its own, with everything that it starts: it is ended as a whole, by its number.

    plain: its Spark has the settings that users' have, and not those of the tests (tests/conftest.py).
    anew: its interpreter is started anew, and not forked (forked.py).
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
        plain: bool = False,
        anew: bool = False,
    ) -> None:
        self.log = scratch / f"{Path(name).stem}-{arguments[0]}.log"
        self._stderr = self.log.open("w")
        self._lines: list[str] = []
        self._changed = threading.Condition()
        inherited = {name: value for name, value in os.environ.items() if not (plain and name == OURS)}
        more = {**QUIET, "TMPDIR": str(scratch), "PYSPARK_PYTHON": sys.executable, **(environment or {})}
        start = NewProgram if anew else Program
        self.process = start([HERE / name, *arguments], stderr=self._stderr, environment=inherited | more)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._changed:
                if line.startswith("{"):
                    self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._lines.append("")
            self._changed.notify_all()

    def answer(self, within: float = 240.0) -> dict:
        """The next line of JSON."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._lines), within):
                raise AssertionError(f"no answer in {within} s.\n{self._tail()}")
            line = self._lines[0]
            if not line:
                raise AssertionError(f"the script ended with {self.process.wait()}.\n{self._tail()}")
            del self._lines[0]
        return json.loads(line)

    def say(self, text: str) -> None:
        """Writes a line to the script's stdin."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ended(self, within: float = 60.0) -> int:
        """The exit status, once the script is done."""
        return self.process.wait(within)

    def _tail(self) -> str:
        self._stderr.flush()
        text = self.log.read_text()
        return text[max(0, text.rfind("Traceback (most")) :][:4000]

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *error: object) -> None:
        started = []
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.end()
        for process in started:  # Spark's Python daemons have groups of their own
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._reader.join(5)
        if not self._reader.is_alive():  # else what the program has started holds its stdout
            self.process.close()
        self._stderr.close()
