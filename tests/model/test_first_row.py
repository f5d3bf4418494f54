"""Whether a model takes the first row of the data."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest

from elephas_like.core.findings import Finding, Level
from elephas_like.core.types import Slot
from elephas_like.exchange.protocol import Sizes
from elephas_like.model.first_row import FirstRow, misfits, model_findings
from elephas_like.model.sources import source_of
from elephas_like.rows.samples import PartitionSample

layers = keras.layers
ONE = [PartitionSample(0, 1, True, None)]


def line(*parts: object, **compiled: object) -> keras.Model:
    model = keras.Sequential(list(parts) or [keras.Input((2,)), layers.Dense(1)], name="line")
    model.compile(**({"optimizer": "sgd", "loss": "mse"} | compiled))
    return model


def findings(model: keras.Model, x: object, y: object) -> tuple[int | None, dict[str, Finding]]:
    layout, lines = model_findings(model, FirstRow.of(source_of(x, y), ONE))
    return None if layout is None else Sizes.of(layout).state(), {line.name: line for line in lines}


def test_a_row_that_fits_and_the_bytes_of_the_state() -> None:
    model = line(optimizer=keras.optimizers.SGD(momentum=0.9))
    state, found = findings(model, np.ones((3, 2)), np.ones((3, 1)))
    # A kernel of 2 and a bias, a momentum for each, the learning rate: 7 of 4 bytes; the iterations: 8.
    assert state == 36
    assert found["first row"] == Finding("first row", Level.OK, "float32 (2,), float32 (1,): the model takes it")
    assert found["model"].level is Level.OK
    assert not model.optimizer.built  # it was a copy that was tried


def test_a_row_of_another_shape_says_what_was_expected_and_what_to_do() -> None:
    _, found = findings(line(), np.ones((3, 5)), np.ones((3, 1)))
    assert found["first row"].level is Level.PROBLEM
    said = r"expects features of shape (2,) for its input"
    assert said in found["first row"].text
    assert "the row's are (5,). Reshape the rows, or build the model with keras.Input((5,))." in found["first row"].text


def test_labels_that_the_loss_refuses() -> None:
    model = line(keras.Input((2,)), layers.Dense(3, "softmax"), loss="categorical_crossentropy")
    _, found = findings(model, np.ones((3, 2)), np.ones((3, 4)))
    assert found["first row"].level is Level.PROBLEM
    assert "the model 'line' raises on it (ValueError" in found["first row"].text


def test_a_row_that_is_none_by_itself(sc) -> None:
    source = source_of(sc.parallelize([1.0], 1)).for_model(line())
    first = FirstRow.of(source, [PartitionSample(0, 1, True, 1.0)])
    assert "expected a pair" in first.error
    assert model_findings(line(), first)[1][0].level is Level.PROBLEM
    assert FirstRow.of(source, [PartitionSample(0, 0, True, None)]) == FirstRow()


def test_a_model_that_is_built_from_the_row_stays_as_it_was() -> None:
    model = line(layers.Dense(1))
    state, _ = findings(model, np.ones((3, 2)), np.ones((3, 1)))
    assert state == 4 * 4 + 8
    assert not model.built
    state, lines = model_findings(line(layers.Dense(1)), FirstRow())
    assert state is None
    assert [(each.name, each.level) for each in lines] == [("model", Level.NOTE)]


def test_a_model_that_cannot_be_sent() -> None:
    model = line()
    model.lock = threading.Lock()
    state, found = findings(model, np.ones((3, 2)), np.ones((3, 1)))
    assert state is None
    assert found["model"].level is Level.PROBLEM
    assert "its lock is a _thread.lock" in found["model"].text


@pytest.mark.parametrize(
    ("slots", "features", "said"),
    [
        (Slot("x", (2,)), np.ones((1, 2)), None),
        (Slot("x", (None, 2)), np.ones((1, 7, 2)), None),
        (Slot("x", (None, 2)), np.ones((1, 7, 3)), r"shape \(None, 2\) for its input 'x', and the row's are \(7, 3\)"),
        (Slot("x"), np.ones((1, 7, 3)), None),
        (Slot("x", (2,)), np.array([["a", "b"]], object), "expects numbers for its input 'x', and the row has text"),
        (Slot("x", (), text=True), np.ones(1), "expects text for its input 'x', and the row has numbers"),
        ((Slot("a", (2,)), Slot("b", (3,))), (np.ones((1, 2)), np.ones((1, 4))), r"shape \(3,\) for its input 'b'"),
        ((Slot("a", (2,)), Slot("b", (3,))), np.ones((1, 2)), None),  # Keras' affair
    ],
)
def test_features_are_compared_with_inputs(slots: object, features: object, said: str | None) -> None:
    import re

    found = list(misfits("m", slots, features))
    assert bool(found) == (said is not None)
    assert said is None or re.search(said, found[0])
