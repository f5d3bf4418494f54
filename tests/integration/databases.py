"""A PostgreSQL of a test's own: made in a temporary directory, on a free port, and ended with the test."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tool_modules import loaded

STARTS = 3


def tool() -> ModuleType:
    """tools/postgresql.py, which knows where PostgreSQL is."""
    return loaded("postgresql")


@dataclass(frozen=True)
class Database:
    """A running PostgreSQL. environment: what its programs, and the example, log in with."""

    programs: Path
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.environment['PGPORT']}/postgres"

    def ask(self, query: str) -> list[list[str]]:
        """The rows of a query's answer, as psql has them."""
        command = [str(self.programs / "psql"), "--no-psqlrc", "--csv", "--tuples-only", "-c", query]
        environment = os.environ | self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return [line.split(",") for line in done.stdout.splitlines()]


@contextmanager
def postgresql() -> Iterator[Database]:
    """A PostgreSQL without tables. It refuses to run as root, who starts it as the user that its package made."""
    programs, root = tool().programs(), os.geteuid() == 0
    folder = Path(
        tempfile.mkdtemp(prefix="postgresql-", dir="/tmp")
    )  # root's own temporary directories are closed to others
    user = {"user": "postgres", "group": "postgres", "extra_groups": ()} if root else {}
    password = secrets.token_hex(16)
    (folder / "password").write_text(password)

    def run(program: str, *arguments: str) -> int:
        with (folder / "programs.log").open("a") as log:
            command = [str(programs / program), "-D", str(folder / "data"), *arguments]
            done = subprocess.run(command, stdout=log, stderr=log, cwd=folder, timeout=120, check=False, **user)
        return done.returncode

    try:
        if root:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        made = run("initdb", "-U", "tester", f"--pwfile={folder / 'password'}", "-A", "scram-sha-256", "--no-sync")
        assert made == 0, (folder / "programs.log").read_text()
        for _ in range(STARTS):
            port = _free_port()
            options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
            if run("pg_ctl", "start", "--wait", "-o", options, "-l", str(folder / "server.log")) == 0:
                break
        else:
            raise AssertionError((folder / "server.log").read_text())
        try:
            login = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "tester", "PGPASSWORD": password}
            yield Database(programs, {**login, "PGDATABASE": "postgres"})
        finally:
            run("pg_ctl", "stop", "--wait", "-m", "fast")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    """A port that is free now; somebody else may be faster, and then another one is tried."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
