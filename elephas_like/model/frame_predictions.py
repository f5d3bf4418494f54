"""A DataFrame with what a model says of its rows: the model sent to executors, the columns that its output becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import keras
from pyspark.sql import DataFrame

from elephas_like.core.decisions import Task
from elephas_like.core.structure import flatten
from elephas_like.core.types import Slot
from elephas_like.model.data_arguments import frame_plan
from elephas_like.model.parquet_rows import as_frame
from elephas_like.model.prepared import reader
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.prediction_columns import Field, with_predictions
from elephas_like.trainer.inference import EnsemblePredictor, Predictor, Scorer
from elephas_like.trainer.task import outputs


def appended(
    df: DataFrame,
    columns: ColumnChoice,
    model: keras.Model,
    *,
    batch_size: int,
    task: Task = Task.VALUES,
    names: tuple[str, str | None, str | None] = ("prediction", None, None),
    predictor: Predictor | EnsemblePredictor | None = None,
    thresholds: Sequence[float] | None = None,
) -> DataFrame:
    """The DataFrame with columns of predictions after its own.

    Args:
        df: the DataFrame, or where the Parquet files are that Spark makes one of.
        names: of prediction, probability and rawPrediction; None and "" leave a column out. Models with several outputs get one
            prediction column each: "prediction_" and the output's name, numbered where several have one name.
        predictor: of the model, where there is one already; or of an ensemble, of which `model` is a member.
        thresholds: of a classifier, one per class: the class with the largest probability / threshold is predicted.

    Raises:
        ValueError: there are not as many thresholds as classes.
    """
    df = as_frame(df)
    plan = frame_plan(df, replace(columns, label=None, sample_weight=None), reader(model), endless=True)
    if thresholds is not None:
        _check_thresholds(thresholds, model, task)
    if predictor is None:
        predictor = Predictor.of(model, batch_size)
    scorer = Scorer(predictor, task, None if thresholds is None else tuple(thresholds))
    return with_predictions(df, plan, scorer, fields(model, task, names))


def _check_thresholds(thresholds: Sequence[float], model: keras.Model, task: Task) -> None:
    if not task.classifies:
        raise ValueError(
            f"thresholds choose a class, and {model.name!r} predicts none: by its loss and last activation, or by model_type "
            "or predict_classes. Clear them."
        )
    slot = outputs(model)
    width = slot.shape[-1] if isinstance(slot, Slot) and slot.shape else 1
    if width is not None and len(thresholds) != max(2, width):
        raise ValueError(f"thresholds must have one number for each of {max(2, width)} classes; got {len(thresholds)}.")


def fields(model: keras.Model, task: Task, names: tuple[str, str | None, str | None]) -> list[Field]:
    """The columns that a model's predictions become.

    Raises:
        ValueError: the model does not say what shape its output has, or says that it is text, or a probability is asked of one that
            has none.
    """
    prediction, probability, raw = names
    if task.classifies:
        wanted = [Field(prediction, 0)] if prediction else []
        for name, source in ((probability, 1), (raw, 2)):
            if name:
                wanted.append(Field(name, source, rank=1, vector=True))
        return wanted
    if probability or raw:
        raise ValueError(
            f"probability and rawPrediction are of models that classify; {model.name!r} is none by its loss and its last "
            "layer's activation. If it is, say model_type='classification'."
        )
    if not prediction:
        return []
    if task is Task.VALUE:
        return [Field(prediction, 0)]
    slots: list[Any] = flatten(outputs(model))[0]
    if any(slot.shape is None for slot in slots):
        raise ValueError(
            f"the model {model.name!r} does not say what it puts out: a class of your own needs to be built by keras.Input "
            "and keras.Model(inputs, outputs) to predict DataFrames."
        )
    if any(slot.text for slot in slots):
        raise ValueError(
            f"the model {model.name!r} puts out text, and columns of predictions hold numbers. Collect its predictions: predict(rows)."
        )
    if len(slots) == 1:
        return [_values(prediction, 0, slots[0])]
    named = zip(_numbered([slot.name for slot in slots]), slots, strict=True)
    return [_values(f"{prediction}_{name}", index, slot) for index, (name, slot) in enumerate(named)]


def _numbered(names: Sequence[str]) -> list[str]:
    """Number equal names, as Keras does: a layer `d` that is called twice makes the outputs d and d_1."""
    found: list[str] = []
    for name in names:
        free = (each for number in count(1) if (each := f"{name}_{number}") not in {*names, *found})
        found.append(next(free) if name in found else name)
    return found


def _values(name: str, source: int, slot: Slot) -> Field:
    assert slot.shape is not None
    return Field(name, source, rank=len(slot.shape), dtype="double" if slot.wide else "float")
