"""Python programs as `subprocess` runs them, forked from a process that has imported Keras, which takes 4 s of CPU time each time.

They share what that process has: the seed of Python's hashes, the modules of the library that are imported, and what Python, Keras and
TensorFlow read of the environment when they begin. Where a test is about one of these, or about Python's own end, a new interpreter runs
the program: by `subprocess`, or `NewProgram`.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["elephas_like.model.spark_model", "pyspark.sql"])


class Program:
    """A running program: what tests use of `subprocess.Popen`. It leads a session of its own.

    Args:
        program: a file of Python, or "-m" and a module, or "-c" and code; then its arguments.
        stderr: a file that is open for writing; stdin and stdout are pipes.
        environment: all variables; None for those of this process.
        folder: in which it begins; None for that of this process.
    """

    def __init__(
        self,
        program: Sequence[str | Path],
        *,
        stderr: IO[str],
        environment: Mapping[str, str] | None = None,
        folder: Path | str | None = None,
    ) -> None:
        read_in, write_in = CONTEXT.Pipe(duplex=False)
        read_out, write_out = CONTEXT.Pipe(duplex=False)
        error = Connection(os.dup(stderr.fileno()), readable=False)
        self.stdin = os.fdopen(os.dup(write_in.fileno()), "w")
        self.stdout = os.fdopen(os.dup(read_out.fileno()))
        self.args = [str(each) for each in program]
        variables = dict(os.environ if environment is None else environment)
        streams = (read_in, write_out, error)
        self._process = CONTEXT.Process(
            target=_become, args=(self.args, variables, str(folder or Path.cwd()), _path(), streams)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        for each in (read_in, write_in, read_out, write_out, error):
            each.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        self.close()

    def end(self) -> None:
        """Ends it, and what it has started and that leads no group of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # where it was just forked, and leads none yet
            self.send_signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """Closes the pipes: after its end, for nobody else may read at the same time."""
        with suppress(BrokenPipeError):  # of a line that it has not read
            self.stdin.close()
        self.stdout.close()

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; minus the signal's number, if one has ended it."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)


class NewProgram(subprocess.Popen):
    """The same, run by an interpreter that is started anew."""

    stdin: IO[str]
    stdout: IO[str]

    def __init__(self, program: Sequence[str | Path], *, stderr: IO[str], environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-u", *map(str, program)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr, "text": True}
        super().__init__(command, **pipes, env=dict(environment), start_new_session=True)

    def end(self) -> None:
        """As `Program.end`."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """As `Program.close`."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()


def run(
    program: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """What a program has written when it is done; it is killed after `timeout` seconds."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        Program(program, environment=environment, stderr=errors, folder=folder) as running,
    ):
        running.stdin.close()
        overdue = threading.Event()

        def kill() -> None:
            overdue.set()
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)

        late = threading.Timer(timeout, kill)
        late.start()
        try:
            written = running.stdout.read()
            status = running.wait()
        finally:
            late.cancel()
        if overdue.is_set():
            raise subprocess.TimeoutExpired(running.args, timeout, written)
        errors.seek(0)
        return subprocess.CompletedProcess(running.args, status, written, errors.read())


@cache
def _path() -> list[str]:
    """Where a new Python looks for modules, before it has a program."""
    code = "import json, sys; print(json.dumps(sys.path[1:]))"
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd="/").stdout)


def _become(
    program: list[str], environment: dict[str, str], folder: str, path: list[str], streams: tuple[Connection, ...]
) -> None:
    """Be a program, in a process that was forked for it."""
    import numpy as np

    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _writer(1), _writer(2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path
    del sys.modules[__name__]
    tempfile.tempdir = None
    random.seed()
    np.random.seed()
    try:
        _run(*program)
    finally:  # Python's last steps, which multiprocessing leaves out, have no public names
        threading._shutdown()
        atexit._run_exitfuncs()


def _writer(number: int) -> IO[str]:
    return open(number, "w", buffering=1, closefd=False)


def _run(what: str, *arguments: str) -> None:
    if what == "-m":
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [what, *arguments]
        sys.path.insert(0, str(Path(what).resolve().parent))
        runpy.run_path(what, run_name="__main__")
