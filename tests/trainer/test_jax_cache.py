"""Compiled programs in files, which other Python processes of an executor read. Run by `make test-jax`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pyspark.worker
import pytest
from jax.experimental.compilation_cache import compilation_cache

from elephas_like.trainer.backends import jax_cache
from elephas_like.trainer.backends.jax_loop import JaxLoop
from elephas_like.trainer.building import build
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import mlp, rows

X, Y = rows(22)
SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The local directory of an executor, whose Python process this one is."""
    assert sys.modules["pyspark.worker"] is pyspark.worker
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    monkeypatch.setattr(jax_cache, "MIN_SECONDS", 0.0)
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def hits() -> Iterator[list[str]]:
    """Programs that were read and not compiled."""
    found: list[str] = []

    def note(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            found.append(event)

    jax.monitoring.register_event_listener(note)
    yield found
    jax.monitoring.unregister_event_listener(note)


def trained() -> list[bytes]:
    """The state of a small model after an epoch, in a process that has compiled nothing of it."""
    jax.clear_caches()
    model = mlp("adam")
    build(model, (X, Y))
    JaxLoop(model, model.train_step).run(tensors([X, Y]), [0, 1], row_numbers(22), 4, 0, 6)
    return [part.tobytes() for part in Variables(model).read().parts().values()]


def test_programs_are_read_where_another_process_has_compiled_them(local: Path, hits: list[str]) -> None:
    compiled = trained()
    written = {path.name.split("-")[0] for path in (local / "elephas_like_jax").iterdir()}
    assert {"jit_loop", "jit_one"} <= written
    before = len(hits)
    assert trained() == compiled
    assert len(hits) >= before + 2
    for path in (local / "elephas_like_jax").glob("jit_loop*"):
        path.write_bytes(path.read_bytes()[:100])  # its writer was killed
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert trained() == compiled


def chosen(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.config.update("jax_compilation_cache_dir", str(local / "own"))


def elsewhere(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark.worker")


def of_all(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (local / "elephas_like_jax").mkdir()
    os.chmod(local / "elephas_like_jax", 0o777)


def a_file(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (local / "elephas_like_jax").touch()


@pytest.mark.parametrize("case", [chosen, elsewhere, of_all, a_file])
def test_jax_keeps_its_own_settings(
    case: Callable[[Path, pytest.MonkeyPatch], None], local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case(local, monkeypatch)
    before = [getattr(jax.config, name) for name in SETTINGS]
    jax_cache.share_programs()
    assert [getattr(jax.config, name) for name in SETTINGS] == before
