"""AsynchronousSparkModel: SparkModel under the name and with the order of arguments that Elephas gave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from elephas_like.core.schedules import Schedule
from elephas_like.model.spark_model import SparkModel


class AsynchronousSparkModel(SparkModel):
    """SparkModel with asynchronous as its default mode, and Elephas' order of arguments."""

    _saved_as = "AsynchronousSparkModel"

    def __init__(
        self,
        model: keras.Model,
        num_workers: int | None = None,
        custom_objects: Mapping[str, object] | None = None,
        batch_size: int = 32,
        mode: str = "asynchronous",
        frequency: str | int | Schedule = "auto",
        parameter_server_mode: str = "http",
        port: int | str = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            model,
            num_workers,
            custom_objects,
            batch_size,
            mode=mode,
            frequency=frequency,
            parameter_server_mode=parameter_server_mode,
            port=port,
            **options,
        )
