"""Predictions and evaluations of rows on executors, and how rows given as arrays, an RDD or a DataFrame get to a model.

What is sent to executors is a parameter, so that one model and an ensemble of several go the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import keras
import numpy as np
from pyspark import RDD

from elephas_like.core import checks, scores
from elephas_like.core.columns import example_batch, signature
from elephas_like.core.errors import DataError
from elephas_like.core.strategies.registry import resolve
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import FitConfig, Mode, Order, ShardRef, Slot
from elephas_like.engine.map_frames import map_frame
from elephas_like.engine.map_shards import (
    Chunk,
    MapJob,
    Predict,
    collected,
    joined_chunks,
    of_shards,
    predicted,
    prediction_chunks,
    rows_of,
)
from elephas_like.model.data_arguments import arrays, cut_features, cut_inputs, refuse_foreign
from elephas_like.model.interrupts import Interrupts
from elephas_like.model.parquet_rows import ParquetRows
from elephas_like.model.prepared import reader, single_texts
from elephas_like.model.source import Source
from elephas_like.model.sources import FrameRows, Rows, column_source
from elephas_like.rows.frame_plan import ColumnChoice
from elephas_like.rows.row_values import BadRow, as_array, leaf_names
from elephas_like.rows.shard_files import attempt_directory
from elephas_like.rows.shards import ShardedDataset, SpoolOptions, is_unpickled
from elephas_like.rows.spool import spool
from elephas_like.spark.broadcasts import ship
from elephas_like.spark.encryption import check_disks
from elephas_like.spark.gpus import gpu_tasks, on_gpus
from elephas_like.spark.session import check_executors, conf_of
from elephas_like.spark.versions import check_versions
from elephas_like.spark.waits import destroy, partition_count
from elephas_like.trainer.callbacks import warn_of_metrics
from elephas_like.trainer.code import broadcasts_of
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.inference import MetricSums
from elephas_like.trainer.label_rules import label_rules
from elephas_like.trainer.metric_results import build_metrics, metric_results
from elephas_like.trainer.model_facts import overrides, prepares_rows
from elephas_like.trainer.programs import check_rows_fit
from elephas_like.trainer.spec import Carry, ModelSpec
from elephas_like.trainer.state import Variables
from elephas_like.trainer.task import outputs
from elephas_like.trainer.tensors import is_text, text_tensors

Score = TypeVar("Score")


def feature_rows(data: Any, columns: ColumnChoice | None, model: keras.Model) -> Rows | FrameRows | ParquetRows | None:
    """Rows of features as a model takes them, of an RDD, a DataFrame or files; None where the data are arrays."""
    if columns is not None:
        return column_source(data, columns, reader(model), target=False)
    if not isinstance(data, RDD):
        return None
    cut = data if prepares_rows(model) else cut_features(data, model)
    return Rows(cut, has_target=False, ahead=is_unpickled(data))


def feature_arrays(data: Any, model: keras.Model) -> Any:
    """Arrays of features as a model takes them, text as tensors.

    Raises:
        TypeError: data of a kind that is not taken, with what to use instead.
        DataError: arrays that the model does not take, or that no model does.
    """
    if isinstance(data, ShardedDataset):
        raise TypeError(
            "the rows of a ShardedDataset have no order: predict what it was made from. (fit and evaluate take it.)"
        )
    refuse_foreign(data)
    if reader(model) is None:
        return single_texts(arrays(data))
    if prepares_rows(model):  # what its own code takes is its own matter
        return text_tensors(arrays(data))
    features = cut_inputs(arrays(data), model)
    check_arrays(features)
    check_rows_fit(model, (keras.tree.map_structure(lambda array: None if array is None else array[:1], features),))
    return text_tensors(features)


def check_arrays(features: Any, targets: Any = None, weights: Any = None) -> None:
    """Do nothing if arrays hold numbers or text: of complex numbers Keras would drop the imaginary part, and it names no array.

    Raises:
        DataError: it names the array.
    """
    given = (features,) if targets is None else (features, targets) if weights is None else (features, targets, weights)
    leaves, structure = flatten(given)
    try:
        for name, leaf in zip(leaf_names(structure, absent=True), leaves, strict=True):
            text = is_text(leaf) or "string" in str(getattr(leaf, "dtype", ""))  # which may be any bytes here
            if leaf is not None and not text:
                as_array(leaf, name)
    except BadRow as error:
        raise DataError(str(error)) from error.__cause__


def no_rows(features: Any) -> bool:
    """Return whether arrays of features are empty: Keras' own loops fail on them with errors of their insides."""
    leaves = keras.tree.flatten(features)
    return bool(leaves) and all(tuple(getattr(leaf, "shape", ()))[:1] == (0,) for leaf in leaves)


def no_predictions(model: keras.Model) -> Any:
    """Return what a model predicts of no rows: empty arrays of its outputs' shapes, of shape (0,) where it does not say them."""
    own = any(overrides(model, name) for name in ("predict_step", "predict_on_batch", "make_predict_function"))
    slots, structure = flatten(Slot("output") if own else outputs(model))
    tree = unflatten(structure, [_empty(slot) for slot in slots if isinstance(slot, Slot)])
    return list(tree) if isinstance(tree, tuple) else tree


def _empty(slot: Slot) -> Any:
    return np.zeros((0, *(size or 0 for size in slot.shape or ())), object if slot.text else np.float32)


def refuse_no_rows(features: Any) -> None:
    """Raise ValueError if arrays that are to be evaluated are empty."""
    if no_rows(features):
        raise ValueError("there are no rows to evaluate: the arrays are empty.")


def predict_rows(
    features: Rows | FrameRows | ParquetRows,
    predictor: Predict,
    batch_size: int,
    *,
    none: Callable[[], Any],
    collect: bool,
    timeout: float = math.inf,
    allow_plain_text: bool = False,
    resources: str | None = None,
) -> Any:
    """Predictions in the order of the rows.

    Args:
        features: rows of features.
        predictor: gives the outputs of shards. It is sent to each executor once.
        batch_size: rows a batch.
        none: returns what no rows give.
        collect: False returns an RDD of predictions, computed when it is asked for.
        timeout: seconds in which no task starts or ends, after which collecting is given up; over Spark Connect, which shows no
            tasks, seconds for all of it.
        allow_plain_text: whether rows may be written on executors where Spark encrypts its own files.
        resources: "gpu" if each task needs a GPU.

    Returns:
        An array with a leading axis of rows, or a list or dict of them for several outputs; or the RDD.

    Raises:
        WaitError: `timeout` has passed. WorkerError: what was raised on an executor.
    """
    options = features.spool_options(allow_plain_text=allow_plain_text)
    context = features.context
    if context is None:
        return _predict_without_context(features, predictor, batch_size, options, none, timeout, resources)
    check_executors(context)
    gpus = gpu_tasks(context, resources, limited=False)
    shipped = ship(context, predictor)
    sent = (shipped, *broadcasts_of(predictor))  # PySpark ships the broadcasts that a function names
    chunks = on_gpus(prediction_chunks(features.rdd, lambda: sent[0].value, batch_size, options), gpus)
    if not collect:
        return rows_of(chunks)
    try:
        with Interrupts():
            return collected(chunks, MapJob(_title("predict", chunks), options.dataset, timeout), none)
    finally:
        destroy(context, shipped)


def _predict_without_context(
    features: Source,
    predictor: Predict,
    batch_size: int,
    options: SpoolOptions,
    none: Callable[[], Any],
    timeout: float,
    resources: str | None,
) -> Any:
    """Predictions over Spark Connect, or of files that are read by this process where there is no Spark."""

    def predict(index: int, rows: Iterator[object]) -> Iterator[Chunk]:
        return predicted(index, rows, lambda: predictor, batch_size, options)

    if not isinstance(features, FrameRows):
        return joined_chunks(list(predict(0, features.rows())), none)
    check_disks(conf_of(features.session), allow_plain_text=options.allow_plain_text)
    gpus = gpu_tasks(features.session, resources, limited=False)
    with Interrupts():
        return joined_chunks(
            map_frame(features.frame, predict, title="predict a DataFrame", timeout=timeout, gpus=gpus), none
        )


def score_shards(
    source: Source,
    scorer: Callable[[ShardRef], Score],
    *,
    timeout: float = math.inf,
    allow_plain_text: bool = False,
    resources: str | None = None,
) -> list[tuple[str, Score]]:
    """(the signature of its rows, what `scorer` returns) for each partition that has rows.

    Args:
        source: rows on Spark, as a model reads them. The shards of a ShardedDataset stay.
        scorer: takes a shard on an executor. It is pickled, and sent to each executor once.
        timeout: seconds in which no task starts or ends, after which it is given up.
        allow_plain_text, resources: as for `predict_rows`.

    Raises:
        WaitError: `timeout` has passed. WorkerError: what `scorer`, or the writing of rows, raised on an executor.
    """
    context = source.context
    options = source.spool_options(allow_plain_text=allow_plain_text)
    if context is None:
        return _score_without_context(source, scorer, options, timeout, resources)
    check_executors(context)
    data = source.data(options=options)
    with ExitStack() as stack:
        stack.enter_context(Interrupts())
        refs = data.references(context, options, stack)
        shipped = ship(context, scorer)
        sent = (shipped, *broadcasts_of(scorer))
        stack.callback(destroy, context, shipped)

        def score(_: int, ref: ShardRef) -> tuple[str, Score]:
            return signature(ref), sent[0].value(ref)

        gpus = gpu_tasks(context, resources, limited=False)
        job = MapJob(_title("evaluate", refs), options.dataset, timeout, data.kept, gpus)
        found = data.rewriting(lambda: of_shards(refs, score, job))
    return [(text, result) for text, result in found if text]


def _score_without_context(
    source: Source, scorer: Callable[[ShardRef], Score], options: SpoolOptions, timeout: float, resources: str | None
) -> list[tuple[str, Score]]:
    """Scores over Spark Connect, or of files that are read by this process where there is no Spark."""

    def score(index: int, rows: Iterator[object]) -> Iterator[tuple[str, Score]]:
        check_versions(options.versions)
        with attempt_directory(options.dataset, index) as place:
            ref = spool(
                rows,
                dataset="rows",
                worker=index,
                base=place,
                floatx=options.floatx,
                expect_target=options.expect_target,
                prepare=options.prepare,
            )
            yield signature(ref), scorer(ref)

    if isinstance(source, FrameRows):
        check_disks(conf_of(source.session), allow_plain_text=options.allow_plain_text)
        gpus = gpu_tasks(source.session, resources, limited=False)
        with Interrupts():
            found = map_frame(source.frame, score, title="evaluate a DataFrame", timeout=timeout, gpus=gpus)
    else:
        found = list(score(0, source.rows()))
    return [(text, result) for text, result in found if text]


def _title(what: str, rdd: RDD) -> str:
    return f"{what} {partition_count(rdd)} partitions"


def evaluate_rows(
    model: keras.Model,
    source: Source,
    batch_size: int,
    *,
    timeout: float = math.inf,
    allow_plain_text: bool = False,
    resources: str | None = None,
) -> dict[str, float]:
    """Loss and metrics by name, of all rows of an RDD or a DataFrame together: metric states are summed.

    Args:
        model: a compiled model. It is built if it is not yet.
        source: the rows, as the model reads them.
        batch_size: rows a batch.
        timeout, allow_plain_text, resources: as for `score_shards`.

    Raises:
        ValueError: there are no rows. WaitError, WorkerError: as `score_shards`.
    """
    source.build(model, batch_size, timeout)
    variables = Variables(model)
    # Rows of this process are one part, as those of Keras. Of Spark's any number of parts: their steps must all do without a batch's size.
    parts = 1 if source.context is None and source.session is None else 2
    factory = TrainerFactory(
        spec=ModelSpec.from_model(model, Carry.NOTHING),
        config=FitConfig(batch_size=batch_size, shuffle=False, num_workers=parts),
        strategy=resolve("average", Mode.SYNCHRONOUS, 1),
        layout_hash=variables.layout.hash,
        cores=source.task_cpus,
        labels=label_rules(model),
    )

    scorer = MetricSums(factory, Order.to_evaluate(variables.read()))
    found = score_shards(source, scorer, timeout=timeout, allow_plain_text=allow_plain_text, resources=resources)
    if not found:
        raise ValueError("there are no rows to evaluate: the RDD is empty.")
    batch, sums = example_batch(found[0][0], batch_size), scores.add(metrics for _, metrics in found)
    if sums.size:
        build_metrics(model, batch, sums.size)
        warn_of_metrics(model, batch)
    return metric_results(model, sums, evaluated=True)


def refuse_labels(batch_size: object) -> None:
    """Say what is meant where labels came in the place of the batch size.

    Raises:
        TypeError: `predict(x, y)`.
    """
    if hasattr(batch_size, "__len__"):
        raise TypeError(
            "predict takes features alone, and batch_size as its second argument. For labels there is evaluate(x, y)."
        )


def time_limit(timeout: float | None) -> float:
    """The seconds of a `timeout` argument; None is no limit.

    Raises:
        ValueError: no positive number.
    """
    return math.inf if timeout is None else checks.positive_seconds("timeout", timeout)


def keras_verbose(verbose: int | str) -> int:
    """Keras' number: silence for "auto".

    Raises:
        ValueError: it is none of Keras'.
    """
    return 0 if verbose == "auto" else checks.verbosity(verbose)


def refuse_callbacks(callbacks: object) -> None:
    """Raise ValueError if there are callbacks, for rows that are not here."""
    if callbacks:
        raise ValueError(
            "callbacks= of predict and evaluate are for arrays, which go through the model here; rows of an RDD or DataFrame "
            "go through copies of it on the executors."
        )
