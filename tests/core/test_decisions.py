"""Outputs as predictions, probabilities and raw predictions: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from elephas_like.core.decisions import Task, class_predictions, columns_of


def test_a_binary_probability() -> None:
    found = class_predictions(Task.BINARY, np.array([[0.25], [0.5], [0.75]], np.float32))
    assert found.prediction.tolist() == [0, 0, 1]
    assert found.probability.tolist() == [[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]
    assert found.raw.tolist() == found.probability.tolist()


def test_a_binary_logit_also_a_large_one() -> None:
    found = class_predictions(Task.BINARY_LOGITS, np.array([0.0, np.log(3.0), -2000.0]))
    assert found.prediction.tolist() == [0, 1, 0]
    np.testing.assert_allclose(found.probability, [[0.5, 0.5], [0.25, 0.75], [1, 0]])
    np.testing.assert_allclose(found.raw, [[0, 0], [-np.log(3.0), np.log(3.0)], [2000, -2000]])


def test_several_classes_from_probabilities_and_from_logits() -> None:
    found = class_predictions(Task.CLASSES, np.array([[0.2, 0.5, 0.3]]))
    assert (found.prediction.tolist(), found.probability.tolist()) == ([1], [[0.2, 0.5, 0.3]])
    found = class_predictions(Task.CLASSES_LOGITS, np.log([[2.0, 1.0, 1.0], [1.0, 1.0, 6.0]]) + 1000)
    np.testing.assert_allclose(found.probability, [[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
    assert found.prediction.tolist() == [0, 2]


@pytest.mark.parametrize("task", [Task.BINARY, Task.BINARY_LOGITS, Task.CLASSES, Task.CLASSES_LOGITS])
def test_no_rows(task: Task) -> None:
    assert class_predictions(task, np.zeros((0, 3 if task.name.startswith("CLASSES") else 1))).prediction.shape == (0,)


def test_what_is_no_classifier_keeps_its_values() -> None:
    assert [part.tolist() for part in columns_of(Task.VALUE, [np.array([[1.5], [2.5]])])] == [[1.5, 2.5]]
    one, two = np.zeros((2, 3)), np.ones((2, 1))
    assert columns_of(Task.VALUES, [one, two]) == [one, two]
