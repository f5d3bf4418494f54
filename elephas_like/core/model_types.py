"""Whether a model classifies or regresses, judged by its loss."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import ClassVar


class ModelType(Enum):
    """What kind of model a loss trains."""

    CLASSIFICATION = 1
    REGRESSION = 2


_REGRESSION = [
    "mean_squared_error",
    "mse",
    "mean_absolute_error",
    "mae",
    "mean_absolute_percentage_error",
    "mape",
    "mean_squared_logarithmic_error",
    "msle",
    "cosine_proximity",
    "cosine_similarity",
    "logcosh",
    "log_cosh",
    "huber",
    "poisson",
    "kl_divergence",
    "tversky",
    "dice",
    "circle",
]
_CLASSIFICATION = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "sparse_categorical_crossentropy",
    "binary_focal_crossentropy",
    "categorical_focal_crossentropy",
    "sparse_categorical_focal_crossentropy",
    "hinge",
    "squared_hinge",
    "categorical_hinge",
    "ctc",
    "categorical_generalized_cross_entropy",
]
_KNOWN = dict.fromkeys(_REGRESSION, ModelType.REGRESSION) | dict.fromkeys(_CLASSIFICATION, ModelType.CLASSIFICATION)


class LossModelTypeMapper:
    """Table of losses and the type of model that each trains.

    All instances share the losses registered in this process.
    """

    _registered: ClassVar[dict[str, ModelType]] = {}

    def get_model_type(self, loss: object) -> ModelType | None:
        """Return the type of model that a loss trains, or None for an unknown loss.

        Args:
            loss: a name, a function, a `keras.losses.Loss` or its class. Objects are looked up by the name of their
                class.
        """
        for name in _names(loss):
            found = self._registered.get(name) or _KNOWN.get(name)
            if found is not None:
                return found
        return None

    def register_loss(self, loss: object, model_type: ModelType) -> None:
        """Register the type of model that a user's own loss trains.

        Raises:
            TypeError: `model_type` is no ModelType, or `loss` has no name.
        """
        if not isinstance(model_type, ModelType):
            raise TypeError(f"model_type must be a ModelType; got {model_type!r}.")
        names = _names(loss)
        if not names:
            raise TypeError(f"loss must be a name, a function or a Loss; got {loss!r}.")
        self._registered[names[0]] = model_type


class ModelTypeEncoder(json.JSONEncoder):
    """Writes a ModelType as {"__enum__": "ModelType.REGRESSION"}; `as_enum` reads it."""

    def default(self, o: object) -> object:
        """Return what JSON holds for a value that it has no form for."""
        return {"__enum__": str(o)} if isinstance(o, ModelType) else super().default(o)


def as_enum(values: dict[str, object]) -> object:
    """Return the ModelType that `ModelTypeEncoder` wrote, or the dict unchanged; for `json.loads(object_hook=as_enum)`."""
    written = values.get("__enum__")
    return values if written is None else ModelType[str(written).split(".")[-1]]


def _names(loss: object) -> list[str]:
    """Return the names of a loss, its own first: `MeanSquaredError` is also `mean_squared_error`."""
    if isinstance(loss, str):
        found = [loss]
    else:
        kind = loss if hasattr(loss, "__name__") else type(loss)
        # A Loss object's name can be given by the user; its class then still says what it is.
        found = (
            [name for name in (getattr(kind, "__name__", None),) if isinstance(name, str)] if loss is not None else []
        )
    return [*found, *map(snake_case, found)]


def snake_case(name: str) -> str:
    """Return a class's name as functions are named: "MeanSquaredError" becomes "mean_squared_error"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
