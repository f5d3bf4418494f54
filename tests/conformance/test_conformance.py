"""Whatever Keras trains, SparkModel with one worker trains the same."""

from __future__ import annotations

import pytest

from conformance.compare import by_keras, by_spark_model, difference
from conformance.models import TABLE


@pytest.mark.parametrize("name", TABLE)
def test_one_worker_trains_what_keras_trains(name: str) -> None:
    assert not difference(by_keras(TABLE[name]), by_spark_model(TABLE[name]))
