"""What TensorFlow prints while it is imported: nothing on workers, everything elsewhere and where the import fails."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elephas_like.core.quiet import LEVEL, is_worker

LOADS = """
import os
from elephas_like.core.quiet import quiet_import
with quiet_import():
    os.write(2, b"could not find drivers")
    if {fails}:
        raise ImportError("no library")
os.write(2, b"afterwards " + os.environ.get("TF_CPP_MIN_LOG_LEVEL", "unset").encode())
"""


def printed(*, fails: bool = False, **environment: str) -> str:
    own = {name: value for name, value in os.environ.items() if name != LEVEL and not name.startswith("PYTHON_WORKER")}
    done = subprocess.run([sys.executable, "-c", LOADS.format(fails=fails)], env=own | environment, capture_output=True)
    return done.stderr.decode()


def test_a_worker_is_quiet() -> None:
    assert printed(PYTHON_WORKER_FACTORY_SECRET="x") == "afterwards 3"


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_unless_the_user_wants_to_see_it(level: str) -> None:
    shown = printed(PYTHON_WORKER_FACTORY_SECRET="x", TF_CPP_MIN_LOG_LEVEL=level)
    assert shown == f"could not find driversafterwards {level}"


def test_the_driver_is_left_as_it_is() -> None:
    assert printed() == "could not find driversafterwards unset"


def test_an_import_that_fails_shows_all() -> None:
    shown = printed(fails=True, PYTHON_WORKER_FACTORY_SECRET="x")
    assert shown.startswith("could not find drivers")
    assert "ImportError: no library" in shown


def test_sparks_own_processes_are_known(sc) -> None:
    assert not is_worker(os.environ)
    assert sc.parallelize([0], 1).map(lambda _: is_worker(os.environ)).collect() == [True]
