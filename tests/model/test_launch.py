"""What a fit's server is started with. How fits run on it is in tests/integration."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import Context, Nesterov
from elephas_like.core.summing import Weighing
from elephas_like.core.types import Role
from elephas_like.model import launch
from elephas_like.model.options import Options

MiB = 2**20


def test_how_updates_are_weighed_reaches_workers_without_the_users_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "average_of_mine.py").write_text(
        "from elephas_like.strategies import Average\n"
        "class Twice(Average):\n"
        "    def weight(self, update, context):\n"
        "        return 2.0 * update.samples\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("average_of_mine")
    packed = launch._by_value(Weighing(mine.Twice(), Context(0, 2), Layout(())))
    monkeypatch.undo()
    del sys.modules["average_of_mine"]
    assert cloudpickle.loads(packed)[0].strategy.weight(SimpleNamespace(samples=3), Context(0, 2)) == 6.0


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_server_reads_two_updates_of_a_large_model_at_a_time(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(
        (
            LayoutEntry("kernel", Role.WEIGHT, (100 * MiB,), "float32"),
            LayoutEntry("momentum", Role.SLOT, (100 * MiB,), "float32"),
        )
    )
    fit: Any = SimpleNamespace(
        options=Options.checked(mode=mode),
        strategy=Nesterov(),
        hooks=SimpleNamespace(variables=SimpleNamespace(layout=layout)),
        config=SimpleNamespace(control_variates=False),
        faults=None,
    )
    data: Any = SimpleNamespace(num_workers=2)
    monkeypatch.setattr(launch, "server_addresses", lambda context, host: ("127.0.0.1", "127.0.0.1"))
    monkeypatch.setattr(launch, "settings_of", lambda context: {})
    context: Any = SimpleNamespace()
    with launch._listening(fit, context, data) as listening:
        assert 800 * MiB <= listening.store._waits.read_ahead < 805 * MiB
