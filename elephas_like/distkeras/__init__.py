"""dist-keras' trainers under their names; its import path `distkeras.trainers` is `elephas_like.distkeras.trainers`."""

from elephas_like.core.extras import keras_backend, require

require("pyspark", keras_backend())

from elephas_like.distkeras.trainers import (  # noqa: E402
    ADAG,
    AEASGD,
    DOWNPOUR,
    EAMSGD,
    AveragingTrainer,
    DynSGD,
    EnsembleTrainer,
    SingleTrainer,
    Trainer,
)

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
