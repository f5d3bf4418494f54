"""One trial of a user's own function, which trains by itself and returns a result in hyperopt's or hyperas' form."""

from __future__ import annotations

import io
import math
import pickle
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import keras
import numpy as np

from elephas_like.core.errors import ElephasError, Failure
from elephas_like.core.trials import Report, TrialOrder, TrialResult, TrialStatus, notes_of, number_of
from elephas_like.core.types import ShardRef
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.recipe import archive, from_archive
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.serialization import write_weights
from elephas_like.trainer.tensors import limit_threads
from elephas_like.tuning.trial import tidy

PACKED = ".json+weights"
"""The suffix of `packed` models."""


@dataclass(frozen=True)
class FunctionTrial:
    """Calls the user's own `function(params, *data())`, which trains and returns a result (core.trials.Evaluate).

    search: its name; `data` is called once for it in each Python process.
    function, data: cloudpickles of lists of one.
    settings: Keras', under which both are called; those of the thread that makes this.
    """

    search: str
    function: bytes
    data: bytes
    seed: int = 0
    cores: int | None = None
    settings: KerasSettings = field(default_factory=KerasSettings.current)

    def __call__(self, order: TrialOrder, shards: Sequence[ShardRef], report: Report) -> TrialResult:
        """The result of one point, read from hyperopt's and hyperas' forms."""
        if self.cores is not None:
            limit_threads(self.cores)
        BACKEND.free_graphs_of_fits()
        started = time.perf_counter()
        function = cloudpickle.loads(self.function)[0]  # our driver's own bytes
        with self.settings.applied():
            rows = _data(self.search, self.data)
            with seeded(self.seed, order.number, tensorflow=True):  # the function may read its rows by tf.data
                found = function(order.params, *rows)
        loss, failure, model, notes = read_result(order.number, found)
        result = TrialResult(
            order.number,
            TrialStatus.OK if failure is None else TrialStatus.FAILED,
            history=() if loss is None else ({"loss": loss},),
            best_epoch=None if loss is None else 0,
            loss=loss,
            seconds=time.perf_counter() - started,
            host=platform.node(),
            failure=failure,
            model=packed(*model) if model is not None and order.wants_model(loss) else b"",
            suffix=PACKED,
            notes=notes,
        )
        del found, model
        tidy()
        return result


_made: dict[str, tuple[Any, ...]] = {}
_made_lock = threading.Lock()


def _data(search: str, function: bytes) -> tuple[Any, ...]:
    """What the user's data function gives, called once for a search in this process; one search at a time."""
    with _made_lock:
        if search not in _made:
            _made.clear()
            data = cloudpickle.loads(function)[0]()  # our driver's own bytes
            _made[search] = tuple(data) if isinstance(data, tuple | list) else (data,)
        return _made[search]


def read_result(
    number: int, found: object
) -> tuple[float | None, Failure | None, tuple[keras.Model | str, list[np.ndarray]] | None, dict[str, object]]:
    """(loss, failure, (model or its architecture as JSON, weights), the rest that is plain data) of what a function returned.

    A loss alone, or a dict with `loss` and perhaps `status`, `model` (a Keras model, or its `to_json()`) and `weights`
    (arrays, or a pickle that the function itself made of them).
    """
    if isinstance(found, int | float | np.number) and not isinstance(found, bool):
        found = {"loss": float(found)}
    if not isinstance(found, dict):
        raise TypeError(
            "the function must return a loss, or a dict as {'loss': -accuracy, 'status': STATUS_OK, 'model': model}; got "
            f"{type(found).__name__}."
        )
    notes = notes_of(found, ("loss", "status", "model", "weights"), allow_nan=True)
    status = found.get("status", "ok")
    if status != "ok":
        text = f"the function returned status {status!r}: {found.get('error', found.get('message', 'no reason given'))}"
        return None, Failure("TrialFailed", text, "", number), None, notes
    if "loss" not in found:
        raise TypeError(f"the function's dict must have a 'loss'; got {sorted(map(str, found))}.")
    loss = number_of("the function's 'loss'", found["loss"])
    if not math.isfinite(loss):
        return None, Failure("TrialFailed", f"the loss is {loss}.", "", number), None, notes
    return loss, None, _model_in(found.get("model"), found.get("weights")), notes


def _model_in(model: object, weights: Any) -> tuple[keras.Model | str, list[np.ndarray]] | None:
    if isinstance(weights, bytes):
        weights = pickle.loads(weights)  # noqa: S301  made a moment ago by the user's function, in this very process
    if isinstance(model, keras.Model):
        return model, model.get_weights() if weights is None else [np.asarray(one) for one in weights]
    if isinstance(model, str):
        if weights is None:
            raise TypeError("a result whose 'model' is text needs 'weights' too: model.get_weights().")
        return model, [np.asarray(one) for one in weights]
    if model is not None:
        raise TypeError(f"a result's 'model' must be a Keras model or its to_json(); got {type(model).__name__}.")
    return None


def packed(model: keras.Model | str, weights: Sequence[np.ndarray]) -> bytes:
    """Architecture and weights as one NumPy archive, which is read without unpickling anything.

    A model with layers that keep more than weights, as the vocabulary that `adapt` has counted, is in it as a file of Keras', too.
    """
    buffer = io.BytesIO()
    file = b""
    if not isinstance(model, str) and any(map(_was_adapted, layers_of(model))):
        with suppress(ElephasError, ValueError):  # Keras cannot save it: architecture and weights are what there is
            file = archive(model)
    text, whole = (np.frombuffer(part, np.uint8) for part in (_architecture(model).encode(), file))
    # NumPy before 2.2 would take allow_pickle=False for one more array. The driver loads no pickles in any case.
    arrays: dict[str, Any] = {f"w{i}": weight for i, weight in enumerate(weights)}
    np.savez(buffer, architecture=text, whole=whole, **arrays)
    return buffer.getvalue()


def _was_adapted(layer: keras.layers.Layer) -> bool:
    """Whether a layer has a vocabulary that is not among its arguments."""
    return hasattr(layer, "save_assets") and layer.get_config().get("vocabulary") is None


def _architecture(model: keras.Model | str) -> str:
    return model if isinstance(model, str) else model.to_json()


def unpacked(content: bytes) -> tuple[str, list[np.ndarray], bytes]:
    """(architecture as JSON, weights, Keras' file or b"") that `packed` packed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        weights = [arrays[f"w{i}"] for i in range(len(arrays.files) - 2)]
        return arrays["architecture"].tobytes().decode(), weights, arrays["whole"].tobytes()


def model_of(
    architecture: str, weights: Sequence[np.ndarray], file: bytes, custom_objects: Mapping[str, object]
) -> keras.Model:
    """The Keras model of an architecture, or of a file where there is one, compiled if that says how, with its weights."""
    objects = dict(custom_objects)
    model = from_archive(file, objects) if file else keras.models.model_from_json(architecture, custom_objects=objects)
    write_weights(model, weights)
    return model
