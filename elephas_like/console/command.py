"""Arguments and exit codes of `python -m elephas_like`."""

from __future__ import annotations

import argparse
import io
import os
import platform
import sys
from collections.abc import Sequence
from typing import TextIO

from elephas_like.core.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 if all went well, 1 if not, 2 for wrong arguments.

    Whoever reads what it prints may stop to, as `head` does: it ends with 1 then, too, without a word.
    """
    given = _parser().parse_args(arguments)
    if sys.stdout is None:  # closed by whoever started it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have letters that the console has not
    try:
        found = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_broken(sys.stdout):  # but a connection of somebody else
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
        return 1
    return found


def _is_broken(file: TextIO) -> bool:
    """Return whether nobody reads a file any more, which has something left to write then."""
    try:
        file.write("\n")
        file.flush()
    except BrokenPipeError:
        return True
    return False


def _run(given: argparse.Namespace) -> int:
    if given.command == "doctor":
        from elephas_like.console.doctor import doctor

        return doctor(given.master, session=not given.no_session)
    if given.command == "demo":
        from elephas_like.console.demo import demo

        return demo(given.workers, given.epochs, given.engine, given.plot)
    sys.stdout.write(f"elephas_like {__version__}, Python {platform.python_version()}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="elephas-like", description="Train Keras models on Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="demo | doctor | version")
    text = "look at Java, Spark, Keras, its backend and the slots; say what is missing, and the command that mends it"
    doctor = commands.add_parser("doctor", help=text, description=f"{text}. Exits with 1 if no fit on Spark can run.")
    doctor.add_argument("--master", help="of the Spark session that is started for it; Spark's own default if left out")
    doctor.add_argument("--no-session", action="store_true", help="start no Spark session: slots are not looked at")
    text = "train a small model on scikit-learn's images of digits, on Spark in local mode"
    demo = commands.add_parser("demo", help=text, description=text)
    demo.add_argument("--workers", type=_positive, default=2, metavar="N", help="Spark workers (2)")
    demo.add_argument("--epochs", type=_positive, default=10, metavar="N", help="passes over the rows (10)")
    engines = ("auto", "server", "jobs", "gang", "in_process")
    demo.add_argument("--engine", choices=engines, default="auto", help="in_process starts no Spark and needs no Java")
    demo.add_argument("--plot", metavar="FILE", help="write a picture of the training, such as fit.png")
    commands.add_parser("version", help="print the version")
    return parser


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return number
