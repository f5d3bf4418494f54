"""Weights that many read and subtract from, without a server around them; tests/compat/test_parameter_server.py has the servers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from elephas_like.compat.parameters import TOKEN_VARIABLE, SharedWeights, token_of_this_process
from elephas_like.compat.weight_bytes import weights_to_bytes


@pytest.mark.parametrize("locked", [True, False])
def test_what_was_read_stays_when_something_is_subtracted(locked: bool) -> None:
    given = [np.array([3.0, 5.0])]
    shared = SharedWeights(given, locked=locked)
    before = shared.read()
    shared.subtract_bytes(weights_to_bytes([np.array([1.0, 2.0])]))
    np.testing.assert_array_equal(shared.read()[0], [2.0, 3.0])
    np.testing.assert_array_equal(before[0], [3.0, 5.0])
    np.testing.assert_array_equal(given[0], [3.0, 5.0])


def test_a_delta_of_another_shape_changes_nothing() -> None:
    shared = SharedWeights([np.zeros(2)], locked=True)
    with pytest.raises(ValueError):
        shared.subtract_bytes(weights_to_bytes([np.ones(3)]))
    np.testing.assert_array_equal(shared.read()[0], [0.0, 0.0])


def test_no_update_is_lost_under_the_lock() -> None:
    shared = SharedWeights([np.zeros(1000)], locked=True)

    def subtract() -> None:
        for _ in range(50):
            shared.subtract([np.ones(1000)])

    threads = [threading.Thread(target=subtract) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(shared.read()[0], np.full(1000, -200.0))


def test_the_token_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "left here")
    assert token_of_this_process(None) == "left here"
    assert token_of_this_process("given") == "given"
    assert token_of_this_process(None) == "given"
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert len(token_of_this_process(None)) > 20
