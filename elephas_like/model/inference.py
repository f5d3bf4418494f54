"""The methods `predict` and `evaluate` of a SparkModel: here for arrays, on executors for rows on Spark and for files."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
from pyspark import RDD

from elephas_like.core import checks
from elephas_like.model.array_checks import check_label_arrays
from elephas_like.model.data_arguments import arrays, cut_targets
from elephas_like.model.frame_predictions import appended
from elephas_like.model.one_at_a_time import evaluating
from elephas_like.model.predict import (
    check_arrays,
    evaluate_rows,
    feature_arrays,
    feature_rows,
    keras_verbose,
    no_predictions,
    no_rows,
    predict_rows,
    refuse_callbacks,
    refuse_labels,
    refuse_no_rows,
    time_limit,
)
from elephas_like.model.prepared import given_for, prepared, reader
from elephas_like.model.sources import source_of
from elephas_like.rows.frame_plan import Choice
from elephas_like.rows.shards import ShardedDataset
from elephas_like.trainer.compile_arguments import check_rows_are_kept, warn_of_own
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.metric_results import in_order
from elephas_like.trainer.request import refuse_unknown


class Inference(ABC):
    """The methods `predict` and `evaluate` of a SparkModel."""

    _model: keras.Model
    batch_size: int
    allow_plain_text: bool
    resources: Any

    @abstractmethod
    def _check(self, others: Mapping[str, Any], method: Callable[..., Any]) -> None:
        """Raise TypeError for arguments that a method does not have, and check the model."""

    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        verbose: int | str = 0,
        *,
        collect: bool = True,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None = None,
        features_col: Choice | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **others: Any,
    ) -> Any:
        """Predictions in the order of the rows.

        Args:
            data: arrays, predicted by the model here on the driver; or an RDD of features, a DataFrame or the path of Parquet
                files, predicted on the executors batch by batch.
            batch_size: rows a batch; None takes the constructor's.
            verbose: of arrays, 1 shows Keras' progress bar.
            callbacks: of arrays, Keras callbacks.
            collect: False returns an RDD of predictions for an RDD, and for a DataFrame or files a DataFrame with a column
                `prediction` of what the model puts out; nothing runs until it is asked for. The model as it is now stays in Spark,
                and in a file of the driver, until the application ends: in a loop call it once.
            features_col, column_shapes, column_dtypes: of a DataFrame, as for `fit`.
            timeout: on executors, seconds in which no task starts or ends, after which a WaitError is raised. None: no limit.

        Returns:
            An array with a leading axis of rows, or a list (dict) of them for models with several outputs.
        """
        refuse_unknown(others, inspect.signature(type(self).predict).parameters)
        refuse_labels(batch_size)
        rows, shown, on_executors = self._rows_of(batch_size), keras_verbose(verbose), self._on_executors(timeout)
        names = {"features_col": features_col, "column_shapes": column_shapes, "column_dtypes": column_dtypes}
        given = given_for(self._model, checks.one_of(data=data), target=False, **names)
        if given.columns is not None and not collect:
            return appended(given.x, given.columns, self._model, batch_size=rows)
        features = feature_rows(given.x, given.columns, self._model)
        if features is not None:
            refuse_callbacks(callbacks)
            warn_of_own(self._model, "predict")
            predictor = Predictor.of(self._model, rows)
            none = partial(no_predictions, self._model)
            return predict_rows(features, predictor, rows, none=none, collect=collect, **on_executors)
        if not collect:
            raise ValueError("collect=False needs an RDD, a DataFrame or a path; arrays are predicted on the driver.")
        features = feature_arrays(given.x, self._model)
        if no_rows(features):
            return no_predictions(self._model)
        return self._model.predict(features, batch_size=rows, verbose=shown, callbacks=callbacks)

    def _on_executors(self, timeout: float | None) -> dict[str, Any]:
        """How jobs of `predict` and `evaluate` run."""
        allowed = self.allow_plain_text
        return {"timeout": time_limit(timeout), "allow_plain_text": allowed, "resources": self.resources}

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        batch_size: int | None = None,
        sample_weight: Any = None,
        return_dict: bool = False,
        verbose: int | str = 0,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None = None,
        features_col: Choice | None = None,
        label_col: Choice | None = None,
        sample_weight_col: str | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
        handle_invalid: str | None = None,
        timeout: float | None = None,
        **others: Any,
    ) -> Any:
        """Loss and metrics as Keras gives them on all rows together.

        Args:
            x: arrays, with `y`, evaluated here on the driver; or an RDD of `(x, y)` or `(x, y, sample_weight)` rows, a
                ShardedDataset, a DataFrame, or the path of Parquet files, evaluated on the executors: their metric states are
                summed, so that AUC and the like are exact.
            callbacks: of arrays, Keras callbacks.
            features_col, label_col, sample_weight_col, column_shapes, column_dtypes, handle_invalid: of a DataFrame, as for `fit`.
            timeout: as for `predict`.

        Returns:
            A float, or `[loss, *metrics]`, or a dict with `return_dict=True`.

        Raises:
            ElephasError: arrays, while another thread fits or evaluates this model: its metrics would count for both.
        """
        x = checks.one_of(x=x, x_test=others.pop("x_test", None))
        y = others.pop("y_test", y)
        self._check(others, type(self).evaluate)
        rows, shown, on_executors = self._rows_of(batch_size), keras_verbose(verbose), self._on_executors(timeout)
        given = given_for(
            self._model,
            x,
            y,
            sample_weight,
            features_col=features_col,
            label_col=label_col,
            sample_weight_col=sample_weight_col,
            column_shapes=column_shapes,
            column_dtypes=column_dtypes,
            handle_invalid=handle_invalid,
        )
        if given.columns is None and not isinstance(x, RDD | ShardedDataset):
            features = feature_arrays(given.x, self._model)
            refuse_no_rows(features)
            targets, weights = arrays(given.y), arrays(given.sample_weight)
            if reader(self._model) is not None:
                check_label_arrays(self._model, source_of(given.x, given.y).for_model(self._model))
                targets = cut_targets(targets, self._model)
            check_arrays(features, targets, weights)
            with evaluating(self._model):
                return self._model.evaluate(
                    features,
                    targets,
                    batch_size=rows,
                    sample_weight=weights,
                    return_dict=return_dict,
                    verbose=shown,
                    callbacks=callbacks,
                )
        refuse_callbacks(callbacks)
        check_rows_are_kept(self._model, "evaluate", prepared=True)
        source = source_of(given.x, given.y, given.sample_weight, given.columns, reader(self._model))
        source = prepared(source, self._model).for_model(self._model)
        results = evaluate_rows(self._model, source, rows, **on_executors)
        if return_dict:
            return results
        values = in_order(self._model, results)
        return values[0] if len(values) == 1 else values

    def _rows_of(self, batch_size: int | None) -> int:
        return self.batch_size if batch_size is None else checks.positive_int("batch_size", batch_size)
