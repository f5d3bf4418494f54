"""Rows that several fits of one DataFrame share: written to the executors' disks once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import keras
from pyspark.sql import DataFrame

from elephas_like.core.types import EngineName
from elephas_like.model.data_arguments import column_choice
from elephas_like.model.engine_choice import choose
from elephas_like.model.sharding import shard
from elephas_like.model.sources import frame_source, source_of
from elephas_like.rows.shards import ShardedDataset
from elephas_like.spark.gpus import worker_slots
from elephas_like.spark.session import is_remote

COLUMN_ARGUMENTS = {
    "features_col": "featuresCol",
    "label_col": "labelCol",
    "sample_weight_col": "weightCol",
    "column_shapes": "columnShapes",
    "column_dtypes": "columnDtypes",
    "handle_invalid": "handleInvalid",
}
"""Arguments that say how a DataFrame is read, each with the Param that holds it."""


def column_arguments(stage: Any) -> dict[str, Any]:
    """Return how a stage says that a DataFrame is read; no `label_col` where its Param has the default, which names nothing."""
    found = {argument: stage.given(param) for argument, param in COLUMN_ARGUMENTS.items()}
    return found if stage.isSet("labelCol") else found | {"label_col": None}


_READING = (
    *COLUMN_ARGUMENTS.values(),
    *("validationIndicatorCol", "numWorkers", "engine", "loss", "kerasModelConfig", "customObjects"),
    *("allowPlainText", "joinTimeout"),
)
"""Params on which it depends which rows a fit reads, as what, and for how many workers."""


class SharedRows:
    """The rows of several fits as one ShardedDataset, from the first of them to the last.

    fits: how many there will be. After a failed one the others, of which some may never come, read their rows themselves.
    """

    def __init__(self, fits: int) -> None:
        self._left, self._running, self._failed = fits, 0, False
        self._dataset: ShardedDataset | None = None
        self._lock = Lock()

    @contextmanager
    def __call__(self) -> Iterator[SharedRows | None]:
        """The rows during a fit; None if it is to read its own."""
        with self._lock:
            self._left -= 1
            self._running += 1
            usable = not self._failed
        try:
            yield self if usable else None
        except BaseException:
            self._failed = True
            raise
        finally:
            with self._lock:
                self._running -= 1
                over = self._running == 0 and (self._failed or self._left == 0)
                dataset, self._dataset = (self._dataset, None) if over else (None, self._dataset)
            if dataset is not None:
                dataset.release()

    def of(self, estimator: Any, rows: DataFrame, model: keras.Model, columns: Mapping[str, Any]) -> ShardedDataset:
        """Return the rows as the model reads them. The first fit writes them, while the others wait."""
        with self._lock:
            if self._dataset is None:
                dataset = shard(rows, _workers(estimator, rows), model=model, **columns)
                options = (
                    source_of(dataset)
                    .for_model(model)
                    .spool_options(allow_plain_text=estimator.given("allowPlainText"))
                )
                self._dataset = dataset
                dataset.references(options).count()  # a row that does not fit is an error of the fit
                dataset.written()
            return self._dataset


def shared_rows(estimators: Sequence[Any], dataset: object) -> list[AbstractContextManager[SharedRows | None]]:
    """Return for each fit a context with the rows that it shares with others; with None if it reads its own.

    Rows are shared on executors: not without Spark's tasks, nor over Spark Connect, which has no references to them.
    """
    groups: list[tuple[list[Any], list[int]]] = []
    for index, estimator in enumerate(estimators):
        reading = [estimator.given(name) for name in _READING]
        found = next((members for same, members in groups if _equal(same, reading)), None)
        if found is None:
            groups.append((reading, [index]))
        else:
            found.append(index)
    contexts: list[AbstractContextManager[SharedRows | None]] = [nullcontext()] * len(estimators)
    if is_remote(dataset):
        return contexts
    for _, members in groups:
        if len(members) > 1 and estimators[members[0]].given("engine") != EngineName.IN_PROCESS.value:
            shared = SharedRows(len(members))
            for index in members:
                contexts[index] = shared()
    return contexts


def validation_rows(held: Any, columns: Mapping[str, Any], model: keras.Model) -> Any:
    """Return rows to validate on as they go with a ShardedDataset: those of a DataFrame as an RDD."""
    if not isinstance(held, DataFrame):
        return held
    choice = column_choice(held, **columns)
    assert choice is not None
    return frame_source(held, choice, model).rdd


def _workers(estimator: Any, rows: DataFrame) -> int:
    """Return the workers that a fit would take if it were alone."""
    engine, asked = EngineName(estimator.given("engine")), estimator.given("numWorkers")
    context = rows.sparkSession.sparkContext
    free = (
        None
        if engine is EngineName.JOBS or asked
        else worker_slots(context, estimator.given("joinTimeout"), asked, estimator.given("resources"))
    )
    return asked or choose(engine, None, rows.rdd.getNumPartitions(), free, steady=False).workers


def _equal(left: list[Any], right: list[Any]) -> bool:
    return all(
        one is other or (type(one) is type(other) and bool(one == other))
        for one, other in zip(left, right, strict=True)
    )
