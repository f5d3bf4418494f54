"""SparkMLlibModel: SparkModel for the data types of Spark MLlib."""

from __future__ import annotations

from typing import Any

import keras
from pyspark import RDD

from elephas_like.compat.labeled import classes_of, lp_to_simple_rdd
from elephas_like.compat.matrices import from_matrix, from_vector, is_matrix, is_vector, like_matrix, like_vector
from elephas_like.core import checks
from elephas_like.model.spark_model import SparkModel
from elephas_like.trainer.task import one_hot_classes


class SparkMLlibModel(SparkModel):
    """SparkModel for MLlib's data: trains on LabeledPoints, predicts matrices and vectors."""

    _saved_as = "SparkMLlibModel"

    def fit(  # type: ignore[override]  # Elephas' order
        self,
        labeled_points: Any = None,
        epochs: int = 10,
        batch_size: int | None = None,
        verbose: int | str = 0,
        validation_split: float = 0.1,
        categorical: bool = False,
        nb_classes: int | None = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains on an RDD of LabeledPoints.

        Args:
            batch_size: rows a batch on each worker; None takes the constructor's, 32 by default.
            validation_split: share of each worker's rows that is held out; 0 where `validation_data` is given.
            categorical: labels become one-hot rows.
            nb_classes: of `categorical`; None takes what the model puts out, else the largest label + 1, which costs a job.
            options: further ones of `SparkModel.fit`; an RDD as `validation_data` is one of LabeledPoints too.
        """
        points = checks.one_of(labeled_points=labeled_points, rdd=options.pop("rdd", None))
        held = options.get("validation_data")
        if categorical and nb_classes is None:
            nb_classes = one_hot_classes(self._model) or classes_of(points)
        if held is not None:
            validation_split = 0.0
            if isinstance(held, RDD):
                options["validation_data"] = lp_to_simple_rdd(held, categorical, nb_classes)
        return super().fit(
            lp_to_simple_rdd(points, categorical, nb_classes),
            epochs=epochs,
            batch_size=batch_size,
            verbose=verbose,
            validation_split=validation_split,
            **options,
        )

    def predict(  # type: ignore[override]  # no columns: the data is MLlib's
        self, mllib_data: Any, batch_size: int | None = None, *, collect: bool = True
    ) -> Any:
        """Predictions for a matrix of rows (a matrix), for a vector (a vector), or for an RDD of vectors (an array).

        Raises:
            ValueError: anything else.
        """
        if is_matrix(mllib_data):
            return like_matrix(super().predict(from_matrix(mllib_data), batch_size), mllib_data)
        if is_vector(mllib_data):
            return like_vector(super().predict(from_vector(mllib_data)[None, :], batch_size)[0], mllib_data)
        if isinstance(mllib_data, RDD):
            return super().predict(mllib_data.map(_features), batch_size, collect=collect)
        raise ValueError(
            f"Provide an MLlib matrix or vector, or an RDD of vectors or LabeledPoints; got {type(mllib_data).__name__}."
        )


def _features(row: Any) -> Any:
    """The array of a vector or of a LabeledPoint's features; other rows stay what they are."""
    vector = getattr(row, "features", row)
    return from_vector(vector) if is_vector(vector) else row
