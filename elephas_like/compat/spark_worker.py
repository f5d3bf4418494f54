"""Workers for code that calls `rdd.mapPartitions(worker.train)` by hand, as with Elephas.

`SparkModel.fit` does not use them: its own workers keep the compiled model and the rows from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from elephas_like.compat.weight_lists import Weights, get_neutral, subtract_params
from elephas_like.core.checks import choice
from elephas_like.core.errors import DataError
from elephas_like.core.parts import cut
from elephas_like.core.types import Array, Frequency
from elephas_like.spark.gpus import take_gpu
from elephas_like.trainer.model_facts import input_count, target_count
from elephas_like.trainer.serialization import write_weights

DEFAULT_BATCH = 32


class ParameterClient(Protocol):
    """Connects asynchronous workers to the shared weights."""

    def get_parameters(self) -> Weights:
        """Return the current shared weights."""
        ...

    def update_parameters(self, delta: Sequence[Array]) -> Any:
        """Subtract `delta` from the shared weights."""
        ...


class _Broadcast(Protocol):
    """The part of a Spark broadcast that workers use."""

    @property
    def value(self) -> Weights: ...


class SparkWorker:
    """Trains a model on one partition and returns the change of its weights.

    Args:
        json: the architecture, `model.to_json()`.
        parameters: a broadcast of the weights to start from.
        train_config: arguments of Keras' `fit`; `batch_size` defaults to 32.
        master_optimizer: an optimizer, its name, or its serialized configuration.
        master_loss: as for `compile`.
        master_metrics: as for `compile`.
        custom_objects: classes and functions that the architecture refers to, by name.
    """

    def __init__(
        self,
        json: str,
        parameters: _Broadcast,
        train_config: Mapping[str, Any],
        master_optimizer: Any,
        master_loss: Any,
        master_metrics: Any,
        custom_objects: Mapping[str, object] | None,
    ) -> None:
        self.json = json
        self.parameters = parameters
        self.train_config = dict(train_config)
        self.master_optimizer = master_optimizer
        self.master_loss = master_loss
        self.master_metrics = master_metrics
        self.custom_objects = custom_objects
        self.model: keras.Model | None = None

    def train(self, data_iterator: Iterable[tuple[Any, Any]]) -> Iterator[list[Any]]:
        """Yield `[deltas, history]`: weights before minus after, and Keras' history dict.

        A partition without rows yields zeros and None. One that is smaller than a batch is trained like any other.
        """
        take_gpu()
        self.model = _compiled(self, self.parameters.value)
        data = _columns(data_iterator, self.model)
        before = self.model.get_weights()
        if data is None:
            yield [get_neutral(before), None]
            return
        history = self.model.fit(*data, **{"batch_size": DEFAULT_BATCH, **self.train_config})
        yield [subtract_params(before, self.model.get_weights()), history.history]


class AsynchronousSparkWorker:
    """Trains a model on one partition and sends updates to a parameter server, after each epoch or each batch.

    Args:
        client: connects to the server.
        frequency: "epoch" or "batch".
        json, parameters, train_config, master_optimizer, master_loss, master_metrics, custom_objects: as for
            SparkWorker.

    Raises:
        ValueError: another frequency.
    """

    def __init__(
        self,
        json: str,
        parameters: _Broadcast,
        client: ParameterClient,
        train_config: Mapping[str, Any],
        frequency: str,
        master_optimizer: Any,
        master_loss: Any,
        master_metrics: Any,
        custom_objects: Mapping[str, object] | None,
    ) -> None:
        self.frequency = choice("frequency", frequency, Frequency)
        if self.frequency not in (Frequency.EPOCH, Frequency.BATCH):
            raise ValueError(f"frequency must be 'epoch' or 'batch' for a worker by hand; got {frequency!r}.")
        self.json = json
        self.parameters = parameters
        self.client = client
        self.train_config = dict(train_config)
        self.master_optimizer = master_optimizer
        self.master_loss = master_loss
        self.master_metrics = master_metrics
        self.custom_objects = custom_objects
        self.model: keras.Model | None = None

    def train(self, data_iterator: Iterable[tuple[Any, Any]]) -> Iterator[list[Any]]:
        """Yield one empty list when all epochs are trained and their updates sent.

        Nothing for a partition without rows.
        """
        take_gpu()
        self.model = _compiled(self, self.parameters.value)
        data = _columns(data_iterator, self.model)
        if data is None:
            return
        settings = {"batch_size": DEFAULT_BATCH, **self.train_config}
        for _ in range(settings.pop("epochs", 1)):
            if self.frequency is Frequency.EPOCH:
                self._exchange(lambda model: model.fit(*data, **settings, epochs=1))
            else:
                for batch in _batches(data, settings["batch_size"]):
                    self._exchange(lambda model, batch=batch: model.train_on_batch(*batch))
        yield []

    def _exchange(self, step: Any) -> None:
        """Take one step from the server's weights and send the delta."""
        assert self.model is not None
        before = self.client.get_parameters()
        write_weights(self.model, before)
        step(self.model)
        self.client.update_parameters(subtract_params(before, self.model.get_weights()))


def _compiled(worker: SparkWorker | AsynchronousSparkWorker, weights: Weights) -> keras.Model:
    model = keras.models.model_from_json(worker.json, custom_objects=dict(worker.custom_objects or {}))
    with keras.saving.custom_object_scope(dict(worker.custom_objects or {})):
        optimizer = keras.optimizers.get(worker.master_optimizer)
    model.compile(optimizer=optimizer, loss=worker.master_loss, metrics=worker.master_metrics or None)
    write_weights(model, weights)
    return model


def _columns(rows: Iterable[tuple[Any, Any]], model: keras.Model) -> tuple[Any, Any] | None:
    """Return x and y of all rows, each an array or one array per input and output; None if there are no rows.

    Raises:
        DataError: a row has other parts, such as a sample weight.
    """
    pairs = list(rows)
    if not pairs:
        return None
    if (odd := next((len(row) for row in pairs if len(row) != 2), 2)) != 2:
        raise DataError(
            f"expected rows (x, y); got one of {odd} parts. Elephas' workers take no sample weights: SparkModel.fit does, of an RDD "
            "of (x, y, sample_weight)."
        )
    x, y = (np.asarray([pair[side] for pair in pairs]) for side in (0, 1))
    parts = cut(x, input_count(model), axis=1), cut(y, target_count(model), axis=1, what="outputs")
    return tuple(list(part) if isinstance(part, tuple) else part for part in parts)  # type: ignore[return-value]


def _batches(data: tuple[Any, Any], batch_size: int) -> Iterator[tuple[Any, Any]]:
    rows = len(data[0][0]) if isinstance(data[0], list) else len(data[0])
    for number in range(math.ceil(rows / batch_size)):
        part = slice(number * batch_size, (number + 1) * batch_size)
        yield tuple([array[part] for array in side] if isinstance(side, list) else side[part] for side in data)  # type: ignore[misc]
