"""Outputs as predictions, probabilities and raw predictions: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from elephas_like.core.decisions import Task, class_predictions, columns_of


def test_a_binary_probability() -> None:
    found = class_predictions(Task.BINARY, np.array([[0.25], [0.5], [0.75]], np.float32))
    assert found.prediction.tolist() == [0, 0, 1]
    assert found.probability.tolist() == [[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]
    np.testing.assert_allclose(found.raw, [[np.log(3), -np.log(3)], [0, 0], [-np.log(3), np.log(3)]], atol=1e-12)


def test_a_binary_logit_also_a_large_one() -> None:
    found = class_predictions(Task.BINARY_LOGITS, np.array([0.0, np.log(3.0), -2000.0]))
    assert found.prediction.tolist() == [0, 1, 0]
    np.testing.assert_allclose(found.probability, [[0.5, 0.5], [0.25, 0.75], [1, 0]])
    np.testing.assert_allclose(found.raw, [[0, 0], [-np.log(3.0), np.log(3.0)], [2000, -2000]])


def test_several_classes_from_probabilities_and_from_logits() -> None:
    found = class_predictions(Task.CLASSES, np.array([[0.2, 0.5, 0.3]]))
    assert (found.prediction.tolist(), found.probability.tolist()) == ([1], [[0.2, 0.5, 0.3]])
    np.testing.assert_allclose(found.raw, np.log([[0.2, 0.5, 0.3]]))
    votes = class_predictions(Task.VOTES, np.array([[0.2, 0.5, 0.3]]))
    assert votes.raw.tolist() == votes.probability.tolist() == [[0.2, 0.5, 0.3]]
    found = class_predictions(Task.CLASSES_LOGITS, np.log([[2.0, 1.0, 1.0], [1.0, 1.0, 6.0]]) + 1000)
    np.testing.assert_allclose(found.probability, [[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
    assert found.prediction.tolist() == [0, 2]


def test_raw_is_the_same_whether_the_model_or_its_loss_has_the_activation() -> None:
    logits = np.array([[-3.0], [0.5], [4.0]])
    inside = class_predictions(Task.BINARY, 1 / (1 + np.exp(-logits)))
    outside = class_predictions(Task.BINARY_LOGITS, logits)
    for one, other in zip(inside, outside, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_raw_is_finite_and_in_order_also_for_certain_classes() -> None:
    found = class_predictions(Task.BINARY, np.array([0.0, 1e-30, 0.5, 1 - 2**-24, 1.0], np.float32))
    assert np.isfinite(found.raw).all()
    assert (np.diff(found.raw[:, 1]) > 0).all()
    assert np.isfinite(class_predictions(Task.CLASSES, np.array([[0.0, 1.0]])).raw).all()


@pytest.mark.parametrize(
    ("probability", "thresholds", "expected"),
    [
        ([0.2, 0.5, 0.3], [0.1, 0.5, 0.9], 0),  # 2, 1, 0.33
        ([0.2, 0.5, 0.3], [1.0, 1.0, 1.0], 1),
        ([0.2, 0.5, 0.3], [0.0, 1.0, 1.0], 0),  # infinite
        ([0.0, 0.5, 0.5], [0.0, 1.0, 0.4], 2),  # 0 / 0 loses, as in Spark
        ([1.0, 0.0, 0.0], [1.0, 0.0, 1.0], 0),
    ],
)
def test_thresholds_divide_probabilities(probability: list[float], thresholds: list[float], expected: int) -> None:
    assert class_predictions(Task.CLASSES, np.array([probability]), thresholds).prediction.tolist() == [expected]


def test_thresholds_of_a_binary_model_and_of_another_number() -> None:
    found = class_predictions(Task.BINARY, np.array([0.25, 0.05]), [0.9, 0.1])  # 0.83 < 2.5, 1.06 > 0.5
    assert found.prediction.tolist() == [1, 0]
    with pytest.raises(ValueError, match="expected 2 thresholds, one per class; got 3"):
        class_predictions(Task.BINARY, np.array([0.25]), [1, 1, 1])


@pytest.mark.parametrize("task", [Task.CLASSES, Task.CLASSES_LOGITS])
def test_what_is_not_a_number_is_no_class(task: Task) -> None:
    found = class_predictions(task, np.array([[np.nan, 1.0], [0.25, 0.75]]), None)
    assert np.isnan(found.prediction).tolist() == [True, False]


@pytest.mark.parametrize("task", [Task.BINARY, Task.BINARY_LOGITS, Task.CLASSES, Task.CLASSES_LOGITS])
def test_no_rows(task: Task) -> None:
    assert class_predictions(task, np.zeros((0, 3 if task.name.startswith("CLASSES") else 1))).prediction.shape == (0,)


def test_what_is_no_classifier_keeps_its_values() -> None:
    assert [part.tolist() for part in columns_of(Task.VALUE, [np.array([[1.5], [2.5]])])] == [[1.5, 2.5]]
    one, two = np.zeros((2, 3)), np.ones((2, 1))
    assert columns_of(Task.VALUES, [one, two]) == [one, two]
