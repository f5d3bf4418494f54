"""BatchNorm statistics made anew for averaged weights: one pass over data in training mode.

The mean of several models' weights has statistics that none of its members had, and that no mean of theirs is (Izmailov et
al.: Averaging weights leads to wider optima and better generalization, UAI 2018, section 3.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import keras
import numpy as np

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.merging import StatisticsMean
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, FitConfig, Role, ShardRef, Vector
from elephas_like.trainer.batches import ShardData
from elephas_like.trainer.building import state_restored
from elephas_like.trainer.graph import layers_of
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.tensors import compiled, tensor_tree


@dataclass(frozen=True)
class Moments:
    """Statistics of all BatchNorm layers over some rows: (mean, variance) of each layer, one flat vector."""

    rows: int
    statistics: Vector


class BatchNorms:
    """The BatchNorm layers of a model whose statistics training would change; frozen ones stay as they are.

    Raises:
        ValueError: batch renormalization, whose training pass needs the statistics that are to be made.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        found = [layer for layer in layers_of(model) if isinstance(layer, keras.layers.BatchNormalization)]
        self.layers = [layer for layer in found if layer.trainable and layer.built]
        for layer in self.layers:
            if getattr(layer, "renorm", False):
                raise ValueError(f"the statistics of {layer.name!r} cannot be recomputed: it has renorm=True.")
        entries: list[LayoutEntry] = []
        for layer in self.layers:
            shape = tuple(layer.moving_mean.shape)
            entries.append(LayoutEntry(layer.name, Role.STATISTIC, shape, "float32"))
            entries.append(LayoutEntry(layer.name, Role.STATISTIC, shape, "float32", variance_of=len(entries) - 1))
        self.layout = Layout(tuple(entries))

    def pool(self, parts: Iterable[Moments]) -> Moments:
        """The statistics of all rows together: means weighted by rows, variances by the law of total variance."""
        mean, rows = StatisticsMean(self.layout), 0
        for part in parts:
            mean.add(part.statistics, part.rows)
            rows += part.rows
        result = mean.result()
        return Moments(rows, np.zeros(0, np.float32) if result is None else result)

    def moments(self, batches: Iterable[tuple[object, int]]) -> Moments:
        """The statistics over batches of features, with how many rows each has, pooled; the model is left as it was.

        Each batch passes through the model in training mode, as in `fit`: a layer sees what the layers before it make of
        the batch with the batch's own statistics, and dropout drops.
        """

        def step(features: object) -> None:
            self._model(features, training=True)

        if not getattr(self._model, "run_eagerly", False):
            step = compiled(step)
        with self._single_batches():
            return self.pool(self._of_batch(step, features, rows) for features, rows in batches)

    def _of_batch(self, step: Callable[[object], None], features: object, rows: int) -> Moments:
        step(tensor_tree(features))
        values = [v for layer in self.layers for v in (layer.moving_mean, layer.moving_variance)]
        return Moments(rows, np.concatenate([keras.ops.convert_to_numpy(v).astype(np.float32) for v in values]))

    def write(self, moments: Moments) -> None:
        """Gives the layers these statistics."""
        views = self.layout.views(moments.statistics, Role.STATISTIC)
        for number, layer in enumerate(self.layers):
            layer.moving_mean.assign(views[2 * number])
            layer.moving_variance.assign(views[2 * number + 1])

    @contextmanager
    def _single_batches(self) -> Iterator[None]:
        """With momentum 0 a layer's moving statistics are those of the last batch. All state is put back at the end."""
        momenta = [layer.momentum for layer in self.layers]
        # All of it: SpectralNormalization divides its kernel in the forward pass, and PyTorch's modules have buffers.
        with state_restored(self._model):
            try:
                for layer in self.layers:
                    layer.momentum = 0.0
                    # NaN in the statistics that are to be replaced would survive the product with 0.
                    layer.moving_mean.assign(keras.ops.zeros_like(layer.moving_mean))
                    layer.moving_variance.assign(keras.ops.ones_like(layer.moving_variance))
                yield
            finally:
                for layer, momentum in zip(self.layers, momenta, strict=True):
                    layer.momentum = momentum


def even_batches(rows: int, batch_size: int) -> Iterator[slice]:
    """Slices of at most `batch_size` rows whose lengths differ by one at most: the variance of a last batch of one is 0."""
    count = -(-rows // batch_size)
    ends = [rows * number // max(1, count) for number in range(count + 1)]
    return (slice(begin, end) for begin, end in itertools.pairwise(ends))


def array_batches(features: object, batch_size: int) -> Iterator[tuple[object, int]]:
    """Batches of arrays with a leading axis of rows, or trees of them, with how many rows each has."""
    leaves, structure = flatten(features)
    arrays: Sequence[Array] = [np.asarray(leaf) for leaf in leaves]
    for rows in even_batches(len(arrays[0]), batch_size):
        yield unflatten(structure, [array[rows] for array in arrays]), rows.stop - rows.start


@dataclass(frozen=True)
class MomentsOfShard:
    """Computes the moments of one shard's rows on an executor: what the driver sends there."""

    predictor: Predictor

    def __call__(self, ref: ShardRef) -> Moments:
        """The pooled statistics of the shard's rows."""
        data = ShardData(ref, FitConfig(shuffle=False))

        def batches() -> Iterator[tuple[object, int]]:
            for rows in even_batches(ref.rows, self.predictor.batch_size):
                batch = unflatten(data.structure, data.take(np.arange(rows.start, rows.stop)))
                assert isinstance(batch, tuple)
                yield batch[0], rows.stop - rows.start

        with self.predictor.model() as model:
            return BatchNorms(model).moments(batches())
