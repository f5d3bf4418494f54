"""Searches of these tests run in this process."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where other tests have left a Spark session: integration/test_search_with_spark.py has the searches on it."""
    monkeypatch.setattr("elephas_like.tuning.search.context_for", lambda data, engine: data)
