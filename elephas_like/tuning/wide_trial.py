"""A trial that is itself distributed: a SparkModel fit on several workers, for data that no single worker holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import keras

from elephas_like.core.objective import Objective
from elephas_like.core.trials import Report, TrialOrder, TrialResult
from elephas_like.core.types import ShardRef
from elephas_like.model.spark_model import SparkModel
from elephas_like.trainer.copies import with_own_variables
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.metric_names import FreshNames
from elephas_like.trainer.recipe import keras_lock
from elephas_like.trainer.seeds import seeded
from elephas_like.tuning.keras_options import with_own_objects
from elephas_like.tuning.trial import TrialCallback, checked


@dataclass(frozen=True)
class WideTrial:
    """Fits what `build(params)` returns on `workers` workers (core.trials.Evaluate); it runs on the driver.

    data, y: what `SparkModel.fit` takes. callbacks: a cloudpickle of Keras callbacks, of which each trial gets its own.
    tls, allow_plain_text, fused_optimizer: as for SparkModel. settings: Keras', those of the thread that makes this.
    """

    build: Callable[[Any], keras.Model]
    workers: int
    data: Any
    objective: Objective
    epochs: int
    seed: int
    validation_split: float
    validation_data: Any
    callbacks: bytes = b""
    tls: bool | tuple[str, str] | None = None
    allow_plain_text: bool = False
    fused_optimizer: bool = False
    settings: KerasSettings = field(default_factory=KerasSettings.current)

    def __call__(self, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        """The result of one fit; its model has the state of the epoch with the lowest loss."""
        with self.settings.applied():
            return self._result(order, report)

    def _model(self, order: TrialOrder) -> keras.Model:
        """What `build` makes, or a copy if it makes its models on a base of the user's: no trial begins with what others have learned."""

        def made() -> keras.Model:
            with seeded(self.seed, order.number):
                return checked(self.build(with_own_objects(order.params)))

        (model,) = with_own_variables([made()], share_frozen=False, besides=[made()])
        return model

    def _result(self, order: TrialOrder, report: Report) -> TrialResult:
        started = time.perf_counter()
        with keras_lock:
            model = self._model(order)
        own = cloudpickle.loads(self.callbacks) if self.callbacks else []  # this process made them
        reporter = TrialCallback(self.objective, report, own)
        fitted = SparkModel(
            model,
            num_workers=self.workers,
            batch_size=order.batch_size,
            seed=self.seed,
            tls=self.tls,
            allow_plain_text=self.allow_plain_text,
            fused_optimizer=self.fused_optimizer,
        )
        fitted.fit(
            self.data,
            epochs=self.epochs,
            validation_split=self.validation_split,
            validation_data=self.validation_data,
            callbacks=[FreshNames(), *own, reporter],
            verbose=0,
        )
        return reporter.result(order, model, started, f"{self.workers} workers")
