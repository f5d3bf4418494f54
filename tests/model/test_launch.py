"""What a fit's server is started with. How fits run on it is in tests/integration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.strategies import Nesterov
from elephas_like.core.types import Role
from elephas_like.model import launch
from elephas_like.model.options import Options

MiB = 2**20


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
        faults=None,
    )
    data: Any = SimpleNamespace(num_workers=2)
    monkeypatch.setattr(launch, "server_addresses", lambda context, host: ("127.0.0.1", "127.0.0.1"))
    monkeypatch.setattr(launch, "settings_of", lambda context: {})
    context: Any = SimpleNamespace()
    with launch._listening(fit, context, data) as listening:
        assert 800 * MiB <= listening.store._waits.read_ahead < 805 * MiB
