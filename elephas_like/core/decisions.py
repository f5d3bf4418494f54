"""Turn a model's outputs into the columns that Spark's evaluators read: prediction, probability, rawPrediction."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from elephas_like.core.types import Array, Floats


class Task(StrEnum):
    """How the output of a model is read.

    BINARY, BINARY_LOGITS: one number a row, the probability or the logit of class 1.
    CLASSES, CLASSES_LOGITS: a probability or a logit for each class.
    VALUE: one number, which is the prediction.
    VALUES: anything else; the output is the prediction.
    """

    BINARY = "binary"
    BINARY_LOGITS = "binary_logits"
    CLASSES = "classes"
    CLASSES_LOGITS = "classes_logits"
    VALUE = "value"
    VALUES = "values"

    @property
    def classifies(self) -> bool:
        """Whether the prediction is the index of a class."""
        return self not in (Task.VALUE, Task.VALUES)


class ClassPredictions(NamedTuple):
    """Predictions of a classifier for one batch: float64 arrays, rows first.

    prediction: (rows,), the class index.
    probability: (rows, classes).
    raw: (rows, classes), the model's logits where its outputs are logits, else the probabilities. A binary model's one
        column is completed by the column of class 0.
    """

    prediction: Floats
    probability: Floats
    raw: Floats


def class_predictions(task: Task, outputs: Array) -> ClassPredictions:
    """Return the predictions of a classifier for one batch.

    Binary: class 1 where its probability is above 1/2; a logit z has p = 1 / (1 + exp(-z)). Several classes: the class
    with the largest output; logits have p = softmax(z).

    Args:
        outputs: shape (rows,), (rows, 1) or (rows, classes).
    """
    values = np.asarray(outputs, np.float64)
    # One column: complete it by the column of class 0.
    if task in (Task.BINARY, Task.BINARY_LOGITS):
        one = values.reshape(len(values))
        if task is Task.BINARY:
            probability = raw = np.stack([1.0 - one, one], axis=1)
        else:
            positive = 0.5 * (1.0 + np.tanh(0.5 * one))  # the logistic function, without overflow
            probability, raw = np.stack([1.0 - positive, positive], axis=1), np.stack([-one, one], axis=1)
        return ClassPredictions((probability[:, 1] > 0.5).astype(np.float64), probability, raw)
    probability = values
    if task is Task.CLASSES_LOGITS:
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        probability = exponents / exponents.sum(axis=1, keepdims=True)
    return ClassPredictions(values.argmax(axis=1).astype(np.float64), probability, values)


def columns_of(task: Task, outputs: Sequence[Array]) -> list[Array]:
    """Return the arrays of a batch's prediction columns.

    A classifier has the three of `ClassPredictions`, VALUE one array (rows,), VALUES the outputs themselves.
    """
    if task.classifies:
        return list(class_predictions(task, outputs[0]))
    if task is Task.VALUE:
        return [np.asarray(outputs[0], np.float64).reshape(len(outputs[0]))]
    return list(outputs)
