"""dist-keras' trainers: thin classes over SparkModel and ensembles, for code that comes from there.

A trainer takes a model, the workers' optimizer and a loss, and `train` returns a trained copy; the given model is not
changed. Names and arguments are those of dist-keras 0.2. Each method keeps its formula, not its defects
(docs/migration.md has the differences).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import keras
from pyspark import RDD
from pyspark.sql import DataFrame, functions

from elephas_like.core import checks, strategies
from elephas_like.core.strategies import Strategy
from elephas_like.ensembles.train import train_ensemble
from elephas_like.model.sharding import shard
from elephas_like.model.spark_model import SparkModel
from elephas_like.rows.mixing import Mixing
from elephas_like.rows.shards import partitioned
from elephas_like.trainer.recipe import copy_of

__all__ = [
    "ADAG",
    "AEASGD",
    "DOWNPOUR",
    "EAMSGD",
    "AveragingTrainer",
    "DynSGD",
    "EnsembleTrainer",
    "SingleTrainer",
    "Trainer",
]


@dataclass
class Trainer:
    """Base class of all trainers; not to be used itself.

    Args:
        keras_model: a model, compiled or not; it is copied.
        worker_optimizer: the optimizer of each worker, a name or a Keras optimizer.
        loss: a name or a Keras loss.
        metrics, loss_weights: as for `compile`; metrics default to accuracy.
        features_col, label_col: columns of a DataFrame; default "features" and "label".
        batch_size: rows per batch of each worker; default 32.
        num_epoch: passes over the data; default 1.
        seed: of shuffling, dropout and sampled rows; None draws one.
    """

    keras_model: keras.Model
    worker_optimizer: str | keras.optimizers.Optimizer
    loss: Any
    _: KW_ONLY
    metrics: Sequence[Any] = ("accuracy",)
    loss_weights: Any = None
    features_col: str | Sequence[str] = "features"
    label_col: str | Sequence[str] = "label"
    batch_size: int = 32
    num_epoch: int = 1
    seed: int | None = None

    history: list[dict[str, list[float]]] = field(default_factory=list, init=False)
    training_time: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Check the arguments."""
        self.batch_size = checks.positive_int("batch_size", self.batch_size)
        self.num_epoch = checks.positive_int("num_epoch", self.num_epoch)

    def get_history(self) -> list[dict[str, list[float]]]:
        """Return the histories of the trained models: values per epoch by name."""
        return self.history

    def has_history(self) -> bool:
        """Return whether anything was trained yet."""
        return bool(self.history)

    def get_training_time(self) -> float:
        """Return the seconds that the last `train` took."""
        return self.training_time

    def train(self, dataframe: Any, shuffle: bool = False) -> Any:
        """Train and return a copy of the model.

        Args:
            dataframe: a DataFrame with the columns, or an RDD of (x, y) rows.
            shuffle: whether rows are shuffled across workers once, before training.

        Raises:
            TypeError: data of another kind.
        """
        if not isinstance(dataframe, RDD | DataFrame):
            raise TypeError(
                f"trainers take a DataFrame or an RDD of (x, y) rows; got {type(dataframe).__name__}. SparkModel takes arrays."
            )
        started = time.perf_counter()
        try:
            return self._train(dataframe, shuffle)
        finally:
            self.training_time = time.perf_counter() - started

    def _train(self, data: Any, shuffle: bool) -> Any:
        raise NotImplementedError

    def _compiled(self) -> keras.Model:
        """Return a compiled copy of the model, weights included, with an optimizer of its own."""
        # Keras' own clone of a built model forgets what `adapt` left in its layers.
        model = copy_of(self.keras_model) if self.keras_model.built else keras.models.clone_model(self.keras_model)
        model.compile(self._optimizer(), self.loss, metrics=list(self.metrics), loss_weights=self.loss_weights)
        return model

    def _optimizer(self) -> keras.optimizers.Optimizer:
        optimizer = keras.optimizers.get(self.worker_optimizer)
        return type(optimizer).from_config(optimizer.get_config())

    def _fitted(self, spark_model: SparkModel, data: Any, shuffle: bool) -> keras.Model:
        options: dict[str, Any] = {"epochs": self.num_epoch, "verbose": 0}
        if not isinstance(data, RDD):
            options |= {"features_col": self.features_col, "label_col": self.label_col}
        elif shuffle:
            with shard(
                data, spark_model.num_workers or data.getNumPartitions(), shuffle=True, seed=self.seed or 0
            ) as rows:
                self.history.append(spark_model.fit(rows, **options).history)
            return spark_model.master_network
        self.history.append(spark_model.fit(_shuffled_rows(data, self.seed) if shuffle else data, **options).history)
        return spark_model.master_network


@dataclass
class SingleTrainer(Trainer):
    """One worker that trains on all rows."""

    def _train(self, data: Any, shuffle: bool) -> keras.Model:
        return self._fitted(SparkModel(self._compiled(), 1, batch_size=self.batch_size, seed=self.seed), data, shuffle)


@dataclass
class AveragingTrainer(Trainer):
    """Workers whose weights are averaged after every epoch: strategy `average`, frequency "epoch"."""

    _: KW_ONLY
    num_workers: int = 2

    def _train(self, data: Any, shuffle: bool) -> keras.Model:
        model = SparkModel(
            self._compiled(),
            self.num_workers,
            batch_size=self.batch_size,
            frequency="epoch",
            strategy=strategies.Average(),
            seed=self.seed,
        )
        return self._fitted(model, data, shuffle)


@dataclass
class EnsembleTrainer(Trainer):
    """Trains several models in parallel, each on its own part of the rows; `train` returns a list of them.

    num_ensembles: number of models; default 2.
    """

    _: KW_ONLY
    num_ensembles: int = 2

    def _train(self, data: Any, shuffle: bool) -> list[keras.Model]:
        count = self.num_ensembles
        frame = not isinstance(data, RDD)
        if isinstance(data, RDD):
            rows = Mixing(self.seed or 0).of(data, count) if shuffle else partitioned(data, count)
        else:
            rows = (_shuffled_rows(data, self.seed) if shuffle else data).repartition(count)
        ensemble = train_ensemble(
            self._compiled(),
            rows,
            count,
            bagging="partition",
            seed=self.seed,
            epochs=self.num_epoch,
            batch_size=self.batch_size,
            verbose=0,
            features_col=self.features_col if frame else None,
            label_col=self.label_col if frame else None,
        )
        self.history.extend(ensemble.histories)
        return list(ensemble.models)


@dataclass
class _Asynchronous(Trainer):
    """Workers exchange with a parameter server after every window of batches; none waits for another.

    num_workers: workers that train at the same time; default 2.
    communication_window: batches between two exchanges of a worker; default 5.
    master_port: the server's port, or a range such as "40000:40100"; 0 takes a free one.
    """

    _: KW_ONLY
    num_workers: int = 2
    communication_window: int = 5
    master_port: int | str = 0
    parallelism_factor: int = field(default=1, init=False)
    num_updates: int = field(default=0, init=False)

    optimizer_state: ClassVar[str] = "average"

    def set_parallelism_factor(self, factor: int) -> None:
        """Train `factor * num_workers` workers."""
        self.parallelism_factor = checks.positive_int("factor", factor)

    def get_parallelism_factor(self) -> int:
        """Return the number of workers for each of `num_workers`."""
        return self.parallelism_factor

    def _strategy(self, workers: int) -> Strategy:
        raise NotImplementedError

    def _train(self, data: Any, shuffle: bool) -> keras.Model:
        workers = self.num_workers * self.parallelism_factor
        model = SparkModel(
            self._compiled(),
            workers,
            batch_size=self.batch_size,
            mode="asynchronous",
            frequency=self.communication_window,
            strategy=self._strategy(workers),
            optimizer_state=self.optimizer_state,
            port=self.master_port,
            seed=self.seed,
        )
        return self._fitted(model, data, shuffle)


@dataclass
class DOWNPOUR(_Asynchronous):
    """Adds every delta as it arrives (Dean et al., NIPS 2012): strategy `downpour`."""

    def _strategy(self, workers: int) -> Strategy:
        return strategies.DownPour()


@dataclass
class ADAG(_Asynchronous):
    """Divides deltas by their number of batches (Hermans et al., arXiv:1710.02368): strategy `adag`."""

    _: KW_ONLY
    communication_window: int = 12

    def _strategy(self, workers: int) -> Strategy:
        return strategies.ADAG()


@dataclass
class DynSGD(_Asynchronous):
    """Divides deltas by their staleness + 1 (Jiang et al., SIGMOD 2017): strategy `dynsgd`."""

    def _strategy(self, workers: int) -> Strategy:
        return strategies.DynSGD()


@dataclass
class AEASGD(_Asynchronous):
    """Elastic averaging, asynchronous (Zhang et al., NIPS 2015): strategy `aeasgd`.

    rho, learning_rate: the force between worker and center is alpha = rho * learning_rate. Both None: alpha = 0.9 /
        workers, as in the paper. An alpha above 1 / workers makes the center unstable; it is lowered to 0.9 / workers
        with a warning.
    """

    _: KW_ONLY
    communication_window: int = 32
    rho: float | None = None
    learning_rate: float | None = None

    optimizer_state: ClassVar[str] = "per_worker"
    kind: ClassVar[type[strategies.AEASGD]] = strategies.AEASGD

    def __post_init__(self) -> None:
        """Check that both factors of alpha are given, or none."""
        super().__post_init__()
        if self.rho is not None and self.learning_rate is None:
            raise ValueError("alpha is rho * learning_rate: give both, or none of them for 0.9 / workers.")

    def _strategy(self, workers: int) -> Strategy:
        if self.rho is None or self.learning_rate is None:
            return self.kind()
        beta = self.rho * self.learning_rate * workers
        if beta > 1:
            warnings.warn(
                f"rho={self.rho} and learning_rate={self.learning_rate} pull by alpha={self.rho * self.learning_rate:g}, "
                f"at which the center of {workers} workers is unstable; alpha is {0.9 / workers:g} instead.",
                UserWarning,
                stacklevel=5,
            )
            return self.kind()
        return self.kind(beta=beta)


@dataclass
class EAMSGD(AEASGD):
    """`AEASGD` whose workers train with Nesterov momentum: strategy `eamsgd`.

    worker_optimizer: "sgd", which becomes SGD(learning_rate, momentum, nesterov=True), or an SGD of your own.
    learning_rate: 0.1 if it is not given.
    momentum: default 0.9.
    """

    _: KW_ONLY
    momentum: float = 0.9

    kind: ClassVar[type[strategies.AEASGD]] = strategies.EAMSGD

    def _optimizer(self) -> keras.optimizers.Optimizer:
        if isinstance(self.worker_optimizer, str) and self.worker_optimizer.lower() == "sgd":
            return keras.optimizers.SGD(self.learning_rate or 0.1, momentum=self.momentum, nesterov=True)
        if isinstance(self.worker_optimizer, keras.optimizers.SGD):
            return super()._optimizer()
        raise ValueError(
            f"EAMSGD's workers train with Nesterov's momentum: give worker_optimizer='sgd' and momentum=, or an SGD; got "
            f"{self.worker_optimizer!r}. AEASGD takes any optimizer."
        )


def _shuffled_rows(data: Any, seed: int | None) -> Any:
    """Return a DataFrame with its rows shuffled, in the same order whenever they are computed."""
    return data.orderBy(functions.rand(seed if seed is not None else 0))
