"""What pipelines of tf.data map over batches is traced once for each kind of rows, and then called without a pipeline."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elephas_like.trainer.backends.tensorflow_rows import TracedRows

NUMBERS, TEXTS = np.arange(6.0, dtype=np.float32), np.array(["a b", "c", "d e f"] * 2, dtype=object)


class Counted:
    """Cuts texts into words, and counts how often Python does so."""

    def __init__(self, *also: Callable[[], object]) -> None:
        self.calls, self._also = 0, also

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        self.calls += 1
        for draw in self._also:
            x = tf.strings.join([x, tf.strings.as_string(draw())])
        words = tf.strings.split(x).to_tensor(default_value="-", shape=(None, 3))
        return keras.utils.pack_x_y_sample_weight({"words": words, "first": words[:, 0]}, y, sample_weight)


def piped(function: Any, *columns: np.ndarray) -> list[Any]:
    data = tf.data.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0]).batch(4)
    return list(data.map(function).as_numpy_iterator())


def numbers(tree: Any) -> Any:
    return keras.tree.map_structure(lambda part: np.asarray(part).tolist(), tree)


def test_a_kind_of_rows_is_traced_once() -> None:
    """In all pipelines and without one; other rows are of another kind."""
    counted = Counted()
    rows = TracedRows(counted)
    assert rows.step((TEXTS, NUMBERS, None)) is None  # which no pipeline has had
    expected = piped(Counted(), TEXTS, NUMBERS)
    assert numbers(piped(rows, TEXTS, NUMBERS)) == numbers(piped(rows, TEXTS, NUMBERS)) == numbers(expected)
    step = rows.step((TEXTS, NUMBERS, None))
    assert numbers([step(TEXTS[:4], NUMBERS[:4]), step(TEXTS[4:], NUMBERS[4:])]) == numbers(expected)
    assert counted.calls == 1
    piped(rows, TEXTS)
    assert counted.calls == 2
    assert numbers(rows.step((TEXTS, None, None))(TEXTS[:1])) == {"words": [[b"a", b"b", b"-"]], "first": [b"a"]}
    assert rows.step((NUMBERS, None, None)) is rows.step((TEXTS, TEXTS, None)) is None
    assert counted.calls == 2


@pytest.mark.parametrize(
    "columns", [(list(TEXTS), NUMBERS), (TEXTS, NUMBERS[:5]), (TEXTS, np.float32(1)), (tf.constant(TEXTS), NUMBERS)]
)
def test_what_are_no_arrays_of_one_length_is_for_a_pipeline(columns: tuple[Any, ...]) -> None:
    rows = TracedRows(Counted())
    piped(rows, TEXTS, NUMBERS)
    assert rows.step((*columns, None)) is None


def test_sparse_and_ragged_rows_are_of_other_kinds_than_arrays() -> None:
    dense = np.array([[1, 0, 2], [0, 3, 0]])
    for given in (tf.sparse.from_dense(dense), tf.RaggedTensor.from_tensor(dense)):
        rows = TracedRows(lambda x, y, sample_weight: x.values)
        list(tf.data.Dataset.from_tensor_slices(given).batch(2).map(rows))
        assert rows.step((dense, None, None)) is None


def by_keras() -> Any:
    return keras.random.uniform(())


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        np.random.rand,
        lambda: tf.random.uniform(()),
        lambda: tf.random.stateless_uniform((), [1, 2]),
        by_keras,
    ],
)
def test_what_draws_is_traced_in_each_pipeline(draw: Callable[[], object]) -> None:
    """As what Python draws is in its graph."""
    counted = Counted(draw)
    rows = TracedRows(counted)
    for _ in range(2):
        before = counted.calls
        piped(rows, TEXTS, NUMBERS)
        assert counted.calls > before
    assert rows.step((TEXTS, NUMBERS, None)) is None


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_what_python_draws_repeats_by_its_seed(draw: Callable[[], object]) -> None:
    """To find out that it draws takes no draw: rows that are prepared again by the same seed are the same."""

    def seeded(function: Any) -> Any:
        random.seed(1)
        np.random.seed(1)
        return numbers(piped(function, TEXTS, NUMBERS))

    rows = TracedRows(Counted(draw))
    assert seeded(rows) == seeded(rows) == seeded(Counted(draw))


def test_outside_of_a_graph_the_function_is_called() -> None:
    """As by Grain, whose pipelines are of Python."""
    counted = Counted()
    rows = TracedRows(counted)
    assert numbers(rows(["a b"])["first"]) == [b"a"]
    rows(["a b"])
    assert counted.calls == 2


def test_errors_of_the_function_are_those_of_the_pipeline() -> None:
    def refuses(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        raise ValueError("no such word")

    for function in (refuses, TracedRows(refuses)):
        with pytest.raises(ValueError, match="no such word"):
            piped(function, TEXTS)
