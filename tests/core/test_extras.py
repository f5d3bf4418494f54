"""Packages of extras that are missing or too old are named with what installs them, by every import path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from forked import run

import elephas_like
from elephas_like.core.errors import ElephasError, MissingExtraError
from elephas_like.core.extras import EXTRAS, chosen_backend, older, require

IMPORT_ALL = """
import contextlib, importlib, importlib.abc, json, os, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

# What takes seconds is imported once. Each package is hidden in a process that is forked from this one, and forgets it there, with
# Keras, whose import depends on its backend, and with all of ours.
for name in ("keras", "pyspark.sql", "pyspark.ml", "hyperopt", "optuna", "pandas", "matplotlib"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for hidden, names in json.loads(sys.argv[1]).items():
    if os.fork():
        os.wait()
        continue
    for name in list(sys.modules):
        if name.partition(".")[0] in (hidden, "keras", "elephas_like"):
            del sys.modules[name]
    sys.meta_path.insert(0, Hidden())
    said = {}
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found = importlib.import_module(module)
            if attribute:
                getattr(found, attribute)
            said[name] = None
        except Exception as error:
            said[name] = [type(error).__name__, str(error)]
    print(json.dumps([hidden, said]), flush=True)
    os._exit(0)
"""
FRONT = [f"elephas_like:{name}" for name in elephas_like.__all__]
PACKAGE = Path(elephas_like.__file__).parent
MODULES = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in sorted(PACKAGE.rglob("*.py"))]
MODULES = [name.removesuffix(".__init__") for name in MODULES]
OF_BACKENDS = {
    other: [name for name in MODULES if name.startswith(f"elephas_like.trainer.backends.{other}")]
    for other in ("jax", "torch")
}
MODULES = [name for name in MODULES if not any(name in names for names in OF_BACKENDS.values())]
WORKS_WITHOUT = {
    "pyspark": {
        "elephas_like.core.loop",
        "elephas_like.exchange.server",
        "elephas_like.trainer.worker",
        "elephas_like.strategies",
    },
    "tensorflow": {
        "elephas_like.core.loop",
        "elephas_like.exchange.server",
        "elephas_like.rows.shards",
        "elephas_like:Mode",
        "elephas_like:read_tfrecords",  # or `from elephas_like import *` would fail on JAX
    },
    "hyperopt": {
        "elephas_like.spark_model",
        "elephas_like:SparkModel",
        "elephas_like:train_ensemble",
        "elephas_like.ml_model",
    },
    "jax": {"elephas_like:SparkModel", "elephas_like:search", "elephas_like.ml"},
    "torch": {"elephas_like:SparkModel", "elephas_like:search", "elephas_like.ml"},
    "optuna": {"elephas_like:search", "elephas_like.tuning.samplers"},
}
NEEDS = {
    "pyspark": {
        "elephas_like:SparkModel",
        "elephas_like:search",
        "elephas_like.worker",
        "elephas_like.ml",
        "elephas_like.mllib",
    },
    "tensorflow": {
        "elephas_like:SparkModel",
        "elephas_like.optimizers",
        "elephas_like.distkeras",
        "elephas_like.rows.examples",
    },
    "hyperopt": {
        "elephas_like:search",
        "elephas_like:HyperParamModel",
        "elephas_like.hyperparam",
        "elephas_like:SearchResult",
    },
    "jax": {"elephas_like.trainer.backends.jax", "elephas_like.trainer.backends.jax_loop"},
    "torch": {f"elephas_like.trainer.backends.torch{part}" for part in ("", "_generator", "_loop")},
    "optuna": {"elephas_like.tuning.optuna_sampler"},
}


@pytest.fixture(scope="module")
def imports() -> dict[str, dict[str, list[str] | None]]:
    """What became of each import, None or its error, by the package that was hidden."""
    wanted = {hidden: [*FRONT, *MODULES, *OF_BACKENDS.get(hidden, [])] for hidden in EXTRAS}
    done = run(["-c", IMPORT_ALL, json.dumps(wanted)], folder=PACKAGE.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))


@pytest.mark.parametrize("hidden", EXTRAS)
def test_every_module_and_every_name_imports_or_names_the_extra(
    hidden: str, imports: dict[str, dict[str, list[str] | None]]
) -> None:
    said = imports[hidden]
    assert len(said) > 300
    start = f"No module named {hidden!r}, which elephas_like needs here. Run pip install 'elephas-like[{EXTRAS[hidden].name}]'. "
    failed = {name for name, error in said.items() if error is not None}
    for name in failed:
        assert said[name] == ["MissingExtraError", start + EXTRAS[hidden].otherwise], name
    assert failed >= NEEDS[hidden]
    assert not failed & WORKS_WITHOUT[hidden]


def test_python_without_docstrings_is_said_so() -> None:
    command = [sys.executable, "-OO", "-c", "from elephas_like import SparkModel"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ElephasError: python -OO (PYTHONOPTIMIZE=2) takes out docstrings" in done.stderr
    assert "Traceback" not in done.stderr.split("ElephasError")[1]
    command[-1] = "import elephas_like.engine, elephas_like.rows"  # what workers import
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


def test_the_error_is_caught_as_pythons_own_and_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperopt", None)  # what Python itself notes of a module that must not be imported
    with pytest.raises(ModuleNotFoundError) as caught:
        require("pyspark", "hyperopt")
    assert isinstance(caught.value, MissingExtraError)
    assert isinstance(caught.value, ElephasError)
    assert caught.value.name == "hyperopt"


def test_a_package_that_lacks_another_one_keeps_its_own_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hyperopt.py").write_text("import not_to_be_found")
    monkeypatch.delitem(sys.modules, "hyperopt", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'not_to_be_found'$") as caught:
        require("hyperopt")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize(
    ("held", "fine"),
    [("3.5.0", True), ("3.5.2.dev0", True), ("4.0", True), ("3.4.4", False), ("3.4.9+vendor.7", False)],
)
def test_a_version_below_the_floor_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, held: str, fine: bool
) -> None:
    own = ModuleType("pyspark")
    own.__version__ = held  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", own)
    if fine:
        require("pyspark")
    else:
        with pytest.raises(
            MissingExtraError, match=r"pyspark .* is too old: elephas_like needs 3.5.0 or later. Run pip install"
        ):
            require("pyspark")


def test_versions_are_compared_by_their_numbers() -> None:
    assert older("3.9", "3.10")
    assert not older("3.10.0", "3.10")
    assert not older("2.18.0rc1", "2.18")
    assert older("unknown", "1")


def test_the_backend_is_that_of_the_environment_then_of_keras_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert chosen_backend() == "tensorflow"
    for text, backend in (('{"backend": "jax"}', "jax"), ("{", "tensorflow"), ("[]", "tensorflow")):
        (tmp_path / "keras.json").write_text(text)
        assert chosen_backend() == backend
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert chosen_backend() == "torch"
