"""Rows that live in a database: read in parts over JDBC, trained on, and the predictions written back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
from databases import Database, postgresql, tool
from forked import run
from sklearn.datasets import load_diabetes

EXAMPLE = Path(__file__).parents[2] / "examples" / "jdbc.py"


@pytest.fixture
def database() -> Iterator[Database]:
    missing = tool().problem()
    if missing:
        pytest.skip(f"{missing} (make postgresql)")
    with postgresql() as running:
        yield running


@pytest.mark.slow
def test_predictions_of_a_table_are_in_the_database_as_keras_makes_them(database: Database, tmp_path: Path) -> None:
    saved = tmp_path / "model.keras"
    environment = {**os.environ, **database.environment, "EPOCHS": "8", "PYSPARK_PYTHON": sys.executable}
    done = run([EXAMPLE, database.url, tool().driver(), saved], environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "partitions: 4\n" in done.stdout
    assert "as they were predicted: 442\n" in done.stdout

    x, y = load_diabetes(return_X_y=True)
    expected = keras.saving.load_model(saved).predict((x * 20).astype("float32"), verbose=0)[:, 0]
    rows = np.array(database.ask("SELECT id, prediction FROM predictions ORDER BY id"), float)
    assert rows[:, 0].tolist() == list(range(442))
    np.testing.assert_allclose(rows[:, 1], expected, rtol=1e-4, atol=1e-5)
    error = float(np.mean((expected - (y - 152) / 77) ** 2))
    assert f"mean squared error: {error:.2f} " in done.stdout
    assert error < 0.8  # the mean alone: 1
