"""Predictions of a shard's rows with a compiled model that is kept per Python process."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import keras
import numpy as np

from elephas_like.core import rounds
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, FitConfig, ShardRef, Structure
from elephas_like.trainer.batches import ShardData
from elephas_like.trainer.spec import ModelSpec

_MODELS_KEPT = 2
_models: OrderedDict[str, keras.Model] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Predictor:
    """Predicts on executors: what the driver sends them.

    key: digest of the model with its weights, by which a process recognises a model that it has.
    """

    spec: ModelSpec
    key: str
    batch_size: int

    @classmethod
    def of(cls, spec: ModelSpec, batch_size: int) -> Predictor:
        """The predictor of a model."""
        digest = hashlib.blake2b(spec.objects, digest_size=16)
        with zipfile.ZipFile(io.BytesIO(spec.archive)) as entries:
            for name in sorted(entries.namelist()):
                if name != "metadata.json":  # it holds the time of saving
                    digest.update(entries.read(name))
        return cls(spec, digest.hexdigest(), batch_size)

    def __call__(self, ref: ShardRef) -> Iterator[tuple[list[Array], Structure]]:
        """(output arrays with a leading axis of rows, their structure) of one batch after the other, in row order."""
        model = self._model()
        data = ShardData(ref, FitConfig(batch_size=self.batch_size, shuffle=False))
        for step in range(rounds.steps(ref.rows, self.batch_size)):
            rows = np.arange(step * self.batch_size, min((step + 1) * self.batch_size, ref.rows))
            batch = unflatten(data.structure, data.take(rows))
            assert isinstance(batch, tuple)
            features = batch[0]
            if isinstance(features, np.ndarray) and features.dtype == object:
                features = keras.ops.convert_to_tensor(features.tolist(), dtype="string")
            outputs, structure = flatten(_tupled(model.predict_on_batch(features)))
            yield [np.asarray(output) for output in outputs], structure

    def _model(self) -> keras.Model:
        with _lock:
            if self.key not in _models:
                _models[self.key] = self.spec.build()
                while len(_models) > _MODELS_KEPT:
                    _models.popitem(last=False)
            _models.move_to_end(self.key)
            return _models[self.key]


def _tupled(outputs: object) -> object:
    """Several outputs as a tuple, whatever kind of list Keras makes of them."""
    return tuple(outputs) if isinstance(outputs, list) else outputs
