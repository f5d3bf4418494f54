"""Arguments and exit codes of `python -m elephas_like`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bare import ROOT, command

from elephas_like import __version__
from elephas_like.console.command import main


def test_version_needs_no_package() -> None:
    done = command("version", without=("numpy", "keras", "tensorflow", "pyspark", "pandas"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"elephas_like {__version__}, Python 3.")


def test_the_module_runs_the_command() -> None:
    assert command("version").stdout.startswith(f"elephas_like {__version__}")


@pytest.mark.parametrize(
    "arguments", [[], ["train"], ["demo", "--workers", "0"], ["demo", "--epochs", "many"], ["demo", "--engine", "fast"]]
)
def test_wrong_arguments_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert "usage: elephas-like" in capsys.readouterr().err


def test_arguments_that_are_no_numbers_are_said_in_words(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--epochs", "many"])
    assert "expected a whole number of 1 or more, got 'many'" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["by who reads", "from the start"])
def test_output_that_nobody_reads_is_no_traceback(closed: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    shell = "exec python -m elephas_like version" + (" >&-" if closed == "from the start" else "")
    done = subprocess.run(
        shell.replace("python", sys.executable),
        shell=True,
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1 if closed == "by who reads" else 0, b"")
