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
    VOTES: a share of votes for each class.
    VALUE: one number, which is the prediction.
    VALUES: anything else; the output is the prediction.
    """

    BINARY = "binary"
    BINARY_LOGITS = "binary_logits"
    CLASSES = "classes"
    CLASSES_LOGITS = "classes_logits"
    VOTES = "votes"
    VALUE = "value"
    VALUES = "values"

    @property
    def classifies(self) -> bool:
        """Whether the prediction is the index of a class."""
        return self not in (Task.VALUE, Task.VALUES)


class ClassPredictions(NamedTuple):
    """Predictions of a classifier for one batch: float64 arrays, rows first.

    prediction: (rows,), the class index; NaN where a probability is NaN.
    probability: (rows, classes).
    raw: (rows, classes), logits: `probability` is their softmax, and of [-z, z] of a binary model with one output the
        logistic function of z. Where the model puts out probabilities, they are the logarithms. Votes stay votes.
    """

    prediction: Floats
    probability: Floats
    raw: Floats


def class_predictions(task: Task, outputs: Array, thresholds: Sequence[float] | None = None) -> ClassPredictions:
    """Return the predictions of a classifier for one batch.

    Binary: class 1 where its probability is above 1/2; a logit z has p = 1 / (1 + exp(-z)). Several classes: the class
    with the largest output; logits have p = softmax(z).

    Args:
        outputs: shape (rows,), (rows, 1) or (rows, classes).
        thresholds: a number per class: the class with the largest p / t is predicted. A class whose t is 0 is predicted
            unless its p is 0, as in Spark.
    """
    values = np.asarray(outputs, np.float64)
    if task in (Task.BINARY, Task.BINARY_LOGITS):
        probability, raw = _binary(task, values.reshape(len(values)))
        prediction = (probability[:, 1] > 0.5).astype(np.float64)
    else:
        probability, raw = _several(task, values)
        prediction = values.argmax(axis=1).astype(np.float64)
    if thresholds is not None:
        prediction = _by_thresholds(probability, np.asarray(thresholds, np.float64))
    prediction[np.isnan(probability).any(axis=1)] = np.nan
    return ClassPredictions(prediction, probability, raw)


def _binary(task: Task, one: Floats) -> tuple[Floats, Floats]:
    """Return (probabilities, raw) of both classes from the column of class 1."""
    if task is Task.BINARY:
        probability = np.stack([1.0 - one, one], axis=1)
        logit = _log(probability[:, 1]) - _log(probability[:, 0])
    else:
        positive, logit = 0.5 * (1.0 + np.tanh(0.5 * one)), one  # the logistic function, without overflow
        probability = np.stack([1.0 - positive, positive], axis=1)
    return probability, np.stack([-logit, logit], axis=1)


def _several(task: Task, values: Floats) -> tuple[Floats, Floats]:
    """Return (probabilities, raw) from a column for each class."""
    if task is Task.CLASSES_LOGITS:
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        return exponents / exponents.sum(axis=1, keepdims=True), values
    return values, values if task is Task.VOTES else _log(values)


def _log(probability: Floats) -> Floats:
    """The logarithm. A float32's 0 is at most its smallest number, so that no logit is infinite."""
    logarithm: Floats = np.log(np.maximum(probability, np.finfo(np.float32).tiny))
    return logarithm


def _by_thresholds(probability: Floats, thresholds: Floats) -> Floats:
    """The class with the largest probability / threshold; 0 / 0 loses."""
    if len(thresholds) != probability.shape[1]:
        raise ValueError(f"expected {probability.shape[1]} thresholds, one per class; got {len(thresholds)}.")
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(probability > 0, probability / thresholds, 0.0)
    return np.asarray(scaled.argmax(axis=1), np.float64)


def columns_of(task: Task, outputs: Sequence[Array], thresholds: Sequence[float] | None = None) -> list[Array]:
    """Return the arrays of a batch's prediction columns.

    A classifier has the three of `ClassPredictions`, VALUE one array (rows,), VALUES the outputs themselves.
    """
    if task.classifies:
        return list(class_predictions(task, outputs[0], thresholds))
    if task is Task.VALUE:
        return [np.asarray(outputs[0], np.float64).reshape(len(outputs[0]))]
    return list(outputs)
