"""VotingModel: several Keras models that predict as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import keras
import numpy as np
from pyspark import RDD
from pyspark.sql import DataFrame

from elephas_like.core import checks
from elephas_like.core import voting as votes
from elephas_like.core.columns import example_batch
from elephas_like.core.decisions import Task
from elephas_like.core.html import html_table
from elephas_like.core.model_types import ModelType
from elephas_like.core.report import write_report
from elephas_like.core.types import Array, Integers, Slot
from elephas_like.core.voting import Ballot, Voting
from elephas_like.ensembles.ensemble_files import read, write, zip_path
from elephas_like.ensembles.member_models import check_models
from elephas_like.ensembles.member_page import report_of
from elephas_like.ensembles.scoring import Judge, ShardJudge, gives_logits, output_width
from elephas_like.model.data_arguments import arrays, column_choice, cut_targets
from elephas_like.model.frame_predictions import appended
from elephas_like.model.predict import (
    check_arrays,
    feature_arrays,
    feature_rows,
    no_predictions,
    no_rows,
    predict_rows,
    refuse_labels,
    refuse_no_rows,
    score_shards,
)
from elephas_like.model.prepared import as_read, given_for, reader
from elephas_like.model.source import Source
from elephas_like.model.sources import source_of
from elephas_like.rows.frame_plan import Choice, ColumnChoice, Invalid
from elephas_like.rows.shards import ShardedDataset
from elephas_like.trainer.compile_arguments import check_rows_are_kept
from elephas_like.trainer.inference import EnsemblePredictor, Predictor
from elephas_like.trainer.task import outputs, task


class VotingModel:
    """Several Keras models of one output each, which predict together.

    Args:
        models: trained Keras models with equal outputs; `model_list=` means the same, as in hyperas.
        voting: "hard" (each member votes for its most probable class), "soft" (the mean of the members' probabilities) or
            "mean" (the mean of their outputs: regression).
        weights: one number per model, at least 0; they need not sum to 1. None weighs all equally.
        nb_classes: number of classes, for a check against the models' outputs; None reads it off them. A binary model has
            one sigmoid output or two softmax outputs.
        custom_objects: names of custom classes and functions, as for `keras.models.load_model`; what the models refer to is
            found without.
        allow_plain_text: as for SparkModel: whether rows of an RDD may be written on executors where Spark encrypts its files.

    Equal shares of hard votes go to the lowest label, as in scikit-learn. Logits become probabilities where a member's
    loss says `from_logits=True`.

    Attributes:
        models: the members. weights: their shares, which sum to 1.
        histories: loss and metrics by epoch of each member that `train_ensemble` trained.
        failures: (number, error) of members that failed there.

    Raises:
        ValueError: no models, models with different inputs or outputs, weights of another number, or classes that are not
            the models'.
        TypeError: something that is no Keras model.
    """

    def __init__(
        self,
        models: Sequence[keras.Model] | None = None,
        voting: str = "hard",
        weights: Sequence[float] | None = None,
        nb_classes: int | None = None,
        *,
        custom_objects: Mapping[str, object] | None = None,
        model_list: Sequence[keras.Model] | None = None,
        allow_plain_text: bool = False,
    ) -> None:
        if isinstance(models, keras.Model):
            raise TypeError(f"VotingModel takes a list of models: VotingModel([model]); got {type(models).__name__}.")
        if (models is None) == (model_list is None):
            raise TypeError("give the models once, as `models` or as `model_list`.")
        self.models: list[keras.Model] = list(models if models is not None else model_list or [])
        self.voting = checks.choice("voting", voting, Voting)
        check_models(self.models)
        self.weights = tuple(_weights(weights, len(self.models)))
        self.nb_classes = self._classes(nb_classes)
        self.custom_objects = dict(custom_objects or {})
        self.allow_plain_text = checks.flag("allow_plain_text", allow_plain_text)
        self.histories: list[dict[str, list[float]]] = []
        self.failures: list[tuple[int, BaseException]] = []

    def predict(
        self,
        data: Any = None,
        batch_size: int = 128,
        verbose: int | str = 0,
        *,
        X: Any = None,
        collect: bool = True,
        features_col: Choice | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
    ) -> Any:
        """Labels, shape (rows,), for hard and soft votes; the mean output, shaped as a member's, for "mean".

        Args:
            data: arrays of features, or tuples and dicts of them, predicted here; or an RDD of features, a DataFrame or the
                path of Parquet files, predicted on the executors in one pass for all members. `X=` means the same, as in hyperas.
            batch_size: rows a batch.
            verbose: Keras' progress bar for arrays, one per member.
            collect: False returns an RDD with a prediction per row for an RDD, and for a DataFrame itself with a column
                `prediction`, as `transform` gives it; nothing runs until it is asked for.
            features_col, column_shapes, column_dtypes: of a DataFrame, as for `SparkModel.fit`.
        """
        data = checks.one_of(data=data, X=X)
        names = {"features_col": features_col, "column_shapes": column_shapes, "column_dtypes": column_dtypes}
        data, columns = self._features_of(data, batch_size, names)
        if columns is not None and not collect:
            return self._appended(data, columns, ("prediction", None, None), batch_size)
        return self._predicted(data, columns, batch_size, verbose, collect, labels=self.voting is not Voting.MEAN)

    def predict_proba(
        self,
        data: Any,
        batch_size: int = 128,
        verbose: int | str = 0,
        *,
        collect: bool = True,
        features_col: Choice | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
    ) -> Any:
        """Class probabilities, shape (rows, classes): the members' weighted mean, or with hard votes the share of each class.

        A binary model with one output has the two columns 1 - p and p. Arguments as for `predict`; a DataFrame with
        `collect=False` gets a column `probability` besides.

        Raises:
            ValueError: voting is "mean", which has no classes.
        """
        if self.voting is Voting.MEAN:
            raise ValueError("predict_proba needs voting='soft' or 'hard'; with voting='mean' use predict.")
        names = {"features_col": features_col, "column_shapes": column_shapes, "column_dtypes": column_dtypes}
        data, columns = self._features_of(data, batch_size, names)
        if columns is not None and not collect:
            return self._appended(data, columns, ("prediction", "probability", None), batch_size)
        return self._predicted(data, columns, batch_size, verbose, collect, labels=False)

    def transform(
        self,
        df: DataFrame,
        *,
        features_col: Choice | None = None,
        output_col: str = "prediction",
        probability_col: str | None = None,
        raw_prediction_col: str | None = None,
        batch_size: int = 1024,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
        handle_invalid: str | None = None,
        thresholds: Sequence[float] | None = None,
    ) -> DataFrame:
        """The DataFrame with what the ensemble says of each row, computed in one pass for all members when it is read.

        Args:
            features_col, column_shapes, column_dtypes: as for `SparkModel.fit`.
            output_col: of the prediction: the label of hard and soft votes, a double, as Spark's evaluators want it; the mean
                output of "mean", a double where that is one number, else an array.
            probability_col, raw_prediction_col: of Vectors with what `predict_proba` gives; None adds none. Votes have no
                other raw form.
            batch_size: rows that are predicted at once.
            handle_invalid: what becomes of rows with null, NaN or a wrong length: "error", "skip" (they are left out), or "keep"
                (predicts null). None: "error", but NaN goes to the members.
            thresholds: one per class: the class with the largest probability / threshold is the prediction.

        Raises:
            ValueError: columns that are not there or do not fit the members, or are there already; a probability of "mean";
                members that put out more than one class a row.
        """
        columns = column_choice(
            df,
            features_col=features_col,
            column_shapes=column_shapes,
            column_dtypes=column_dtypes,
            handle_invalid=handle_invalid,
        )
        if columns is None:
            raise TypeError(f"transform takes a DataFrame; got {type(df).__name__}. predict takes arrays and RDDs.")
        names = output_col, probability_col, raw_prediction_col
        return self._appended(df, columns, names, batch_size, thresholds)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 128,
        sample_weight: Any = None,
        return_dict: bool = False,
        features_col: Choice | None = None,
        label_col: Choice | None = None,
        sample_weight_col: str | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
    ) -> Any:
        """Loss and metrics of the ensemble, those that the first model was compiled with, as Keras gives them.

        The loss is that of the mean output (mean probabilities in a classification), plus the members' weighted mean of
        regularization. So are the metrics; with hard votes, those that look at decisions (accuracy, precision, recall, F
        scores, counts) are given what was voted for. An ensemble of one model has exactly its numbers.

        Args:
            x: arrays of features, or tuples and dicts of them; or an RDD of `(x, y)` or `(x, y, sample_weight)` rows, a
                ShardedDataset, a DataFrame, or the path of Parquet files, evaluated on the executors in one pass for all members: metric states are summed.
            y: targets of arrays. sample_weight: weights of their rows.
            features_col, label_col, sample_weight_col, column_shapes, column_dtypes: of a DataFrame, as for `SparkModel.fit`.

        Returns:
            A float, or `[loss, *metrics]`, or a dict with `return_dict=True`.

        Raises:
            ValueError: the first model is not compiled. DataError: a label that it does not take; the message names its row.
            ElephasError: the first model prepares its rows in an `evaluate` of its own that is not KerasHub's.
        """
        first = self.models[0]
        check_rows_are_kept(first, "evaluate", prepared=True)
        given = given_for(
            first,
            x,
            y,
            sample_weight,
            features_col=features_col,
            label_col=label_col,
            sample_weight_col=sample_weight_col,
            column_shapes=column_shapes,
            column_dtypes=column_dtypes,
        )
        columns = given.columns
        rows = checks.positive_int("batch_size", batch_size)
        judge = Judge(self.models, self._ballot())
        if columns is not None or isinstance(x, RDD | ShardedDataset):
            source = source_of(given.x, given.y, given.sample_weight, columns, reader(first))
            results = self._evaluated(as_read(source, first), judge, rows)
        else:
            features, targets = feature_arrays(given.x, first), arrays(given.y)
            targets = targets if reader(first) is None else cut_targets(targets, first)
            refuse_no_rows(features)
            of_rows = arrays(given.sample_weight)
            check_arrays(features, targets, of_rows)
            results = judge.evaluate(features, targets, of_rows, rows)
        if return_dict:
            return results
        values = list(results.values())
        return values[0] if len(values) == 1 else values

    def save(self, file_name: str | os.PathLike[str], overwrite: bool = True) -> None:
        """Writes one zip: the members in Keras' own `.keras` format, and a JSON that says how they vote. Nothing is pickled.

        The file is complete or not there: it is written beside its place and moved.
        """
        path = zip_path(file_name)
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists; pass overwrite=True to replace it.")
        description = {
            "voting": self.voting.value,
            "weights": list(self.weights),
            "nb_classes": self.nb_classes,
            "histories": self.histories,
        }
        write(path, self.models, description)

    @classmethod
    def load(
        cls,
        file_name: str | os.PathLike[str],
        custom_objects: Mapping[str, object] | None = None,
        *,
        safe_mode: bool = True,
    ) -> VotingModel:
        """The ensemble that `save` wrote.

        Args:
            custom_objects, safe_mode: as for `keras.models.load_model`.

        Raises:
            ValueError: a file that no `save` wrote.
        """
        models, description = read(zip_path(file_name), dict(custom_objects or {}), safe_mode)
        loaded = cls(
            models,
            description["voting"],
            description["weights"],
            description["nb_classes"],
            custom_objects=custom_objects,
        )
        loaded.histories = description["histories"]
        return loaded

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the training page of the members to a file: HTML that needs no server and no network.

        Raises:
            ValueError: the members were not trained by `train_ensemble`: nothing is known of their training.
        """
        write_report(path, report_of(self.histories, self.failures, {"votes": self.voting.value}))

    def __repr__(self) -> str:
        """Members, voting and weights."""
        shares = ", ".join(f"{weight:.3g}" for weight in self.weights)
        return f"VotingModel({len(self.models)} models, voting={self.voting.value!r}, weights=[{shares}])"

    def _repr_html_(self) -> str:
        """The same for a notebook, with a row for each member: its weight, its size, and its last epoch's loss and metrics."""
        last = [{name: values[-1] for name, values in each.items() if values} for each in self.histories]
        names = list(last[0]) if len(last) == len(self.models) else []
        rows = [
            [model.name, share, model.count_params(), *(last[number].get(name, "") for name in names)]
            for number, (model, share) in enumerate(zip(self.models, self.weights, strict=True))
        ]
        return html_table(repr(self), ["model", "weight", "parameters", *names], rows)

    def _features_of(self, data: Any, batch_size: object, names: Mapping[str, Any]) -> tuple[Any, ColumnChoice | None]:
        """Features, and the columns that a DataFrame's are in."""
        refuse_labels(batch_size)
        given = given_for(self.models[0], data, target=False, **names)
        return given.x, given.columns

    def _predicted(
        self,
        data: Any,
        columns: ColumnChoice | None,
        batch_size: int,
        verbose: int | str,
        collect: bool,
        *,
        labels: bool,
    ) -> Any:
        rows = checks.positive_int("batch_size", batch_size)
        ballot = self._ballot()
        features = feature_rows(data, columns, self.models[0])
        if features is not None:
            predictor = self._predictor(rows, _Labels(ballot) if labels else ballot)
            allowed = self.allow_plain_text
            none = partial(self._of_no_rows, ballot, labels=labels)
            return predict_rows(features, predictor, rows, none=none, collect=collect, allow_plain_text=allowed)
        if not collect:
            raise ValueError("collect=False needs an RDD or a DataFrame; arrays are predicted here.")
        given = feature_arrays(data, self.models[0])
        if no_rows(given):
            return self._of_no_rows(ballot, labels=labels)
        combined = ballot([model.predict(given, batch_size=rows, verbose=verbose) for model in self.models])
        return votes.labels(combined) if labels else combined

    def _appended(
        self,
        df: DataFrame,
        columns: ColumnChoice,
        names: tuple[str, str | None, str | None],
        batch_size: int,
        thresholds: Sequence[float] | None = None,
    ) -> DataFrame:
        """The DataFrame with columns of predictions, probabilities and raw predictions, where these have names."""
        rows = checks.positive_int("batch_size", batch_size)
        first = self.models[0]
        if self.voting is Voting.MEAN:
            if names[1] or names[2]:
                raise ValueError("probabilities need voting='soft' or 'hard'; voting='mean' has no classes.")
            kind = task(first, ModelType.REGRESSION)
        else:
            kind = Task.VOTES
            slot = outputs(first)
            if isinstance(slot, Slot) and slot.shape is not None and len(slot.shape) > 1:
                raise ValueError(
                    f"the members put out classes of shape {slot.shape} a row, and a column of predictions has one: "
                    "predict(df) gives all of them, as an array."
                )
        ballot = replace(self._ballot(), keeps_nan=columns.invalid is Invalid.KEEP)
        predictor = self._predictor(rows, ballot)
        return appended(
            df, columns, first, batch_size=rows, task=kind, names=names, predictor=predictor, thresholds=thresholds
        )

    def _evaluated(self, source: Source, judge: Judge, batch_size: int) -> dict[str, float]:
        """Loss and metrics of rows that stay where they are."""
        ballot = self._ballot()
        scorer = ShardJudge(self._predictor(batch_size, ballot), ballot)
        found = score_shards(source, scorer, allow_plain_text=self.allow_plain_text)
        if not found:
            raise ValueError("there are no rows to evaluate: the data is empty.")
        total = reduce(add, (tally for _, tally in found if tally is not None))
        return judge.results(total, example_batch(found[0][0]))

    def _predictor(self, batch_size: int, combine: Callable[[Sequence[Array]], Array]) -> EnsemblePredictor:
        return EnsemblePredictor(tuple(Predictor.of(model, batch_size) for model in self.models), combine, batch_size)

    def _of_no_rows(self, ballot: Ballot, *, labels: bool) -> Any:
        found = [no_predictions(model) for model in self.models]
        if any(each.ndim < 2 or not all(each.shape[1:]) for each in found):  # models that do not say what they put out
            return np.zeros(0, np.int64 if labels else np.float32)
        combined = ballot(found)
        return votes.labels(combined) if labels else combined

    def _ballot(self) -> Ballot:
        return Ballot(self.voting, self.weights, tuple(gives_logits(model) for model in self.models))

    def _classes(self, asked: int | None) -> int | None:
        width = output_width(self.models[0])
        found = None if width is None else max(2, width)
        if asked is None:
            return None if self.voting is Voting.MEAN else found
        if self.voting is Voting.MEAN:
            raise ValueError("nb_classes is for hard and soft votes; voting='mean' has no classes.")
        classes = checks.positive_int("nb_classes", asked, least=2)
        if found is not None and classes != found:
            raise ValueError(f"nb_classes is {classes}, and the models' outputs have {width} columns: {found} classes.")
        return classes


@dataclass(frozen=True)
class _Labels:
    """A ballot's outcome as labels, on executors."""

    ballot: Ballot

    def __call__(self, outputs: Sequence[Array]) -> Integers:
        return votes.labels(self.ballot(outputs))


def _weights(weights: Sequence[float] | None, count: int) -> list[float]:
    shares: list[float] = votes.normalized(weights, count).tolist()
    return shares
