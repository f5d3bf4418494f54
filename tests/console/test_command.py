"""Arguments and exit codes of `python -m elephas_like`."""

from __future__ import annotations

import pytest
from bare import command

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
