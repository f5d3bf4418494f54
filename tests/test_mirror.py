"""tests/ mirrors the package: the tests of elephas_like/<room>/<module>.py are in tests/<room>/test_<module>.py."""

from __future__ import annotations

from pathlib import Path

import elephas_like

PACKAGE, TESTS = Path(elephas_like.__file__).parent, Path(__file__).parent
LINES = 40
"""A shorter module is tested through its callers, and needs no file."""

WITHOUT_A_FILE = {
    "core/workers.py": "protocols alone: the tests of each engine keep them",
    "engine/remote_runs.py": "over Spark Connect, in a process of its own: connect/test_remote_runs.py",
    "model/fit.py": "whole fits on Spark: integration/test_fit.py",
    "model/source.py": "an interface: the tests of its kinds keep it, model/test_sources.py",
    "stages/param_table.py": "the Params that are made of it: stages/test_params.py",
    "trainer/backends/protocol.py": "a protocol: trainer/test_steps.py and others keep it",
    "trainer/backends/tensorflow.py": "behind trainer/tensors.py: trainer/test_tensors.py",
    "tuning/wide_trial.py": "fits of several workers on Spark: integration/test_search_with_spark.py",
}
WITHOUT_A_MODULE = {
    "core/test_learning.py": "every strategy and codec, through core/loop.py",
}


def file_of(module: Path) -> str:
    """Where a module's tests are. The modules of core/strategies count as core's."""
    room = module.relative_to(PACKAGE).parts[0]
    return f"{room}/test_{module.stem}.py"


MODULES = [path for path in PACKAGE.glob("*/**/*.py") if path.name != "__init__.py"]


def test_every_module_has_a_file_of_tests() -> None:
    long = [path for path in MODULES if len(path.read_text().splitlines()) > LINES]
    without = {str(path.relative_to(PACKAGE)) for path in long if not (TESTS / file_of(path)).exists()}
    assert without == set(WITHOUT_A_FILE)


def test_every_file_of_tests_names_a_module() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0] for path in MODULES}
    files = {str(path.relative_to(TESTS)) for room in rooms for path in (TESTS / room).rglob("test_*.py")}
    assert files - set(map(file_of, MODULES)) == set(WITHOUT_A_MODULE)
