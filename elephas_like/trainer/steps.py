"""The loop of train or test steps over batches of a shard's columns, on this process's backend of Keras.

Plain `fit` pays for a data pipeline and for a return to Python at every batch. Here a whole round is one call.

`train_step` is the model's own. Custom steps, losses, weights and metrics behave as in `fit`, with one exception: the
logs that a step returns are ignored. Logs are computed from the states of the model's metrics, which can be summed over
workers. A warning names returned keys that are no metric's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import keras

from elephas_like.core.types import Structure
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.backends.protocol import Step, Tensor
from elephas_like.trainer.graph import reachable
from elephas_like.trainer.metric_results import metrics_of

log = logging.getLogger(__name__)


_TAKE_UNKNOWN_FOR_ONE: tuple[type, ...] = tuple(
    getattr(keras.layers, name) for name in ("RandomElasticTransform",) if hasattr(keras.layers, name)
)
"""Layers that take a batch of unknown size for one of a single row, without a word (Keras 3.15): all images become the first one."""


def _keys(logs: object) -> Iterator[str]:
    """Yield the keys of a step's logs, nested ones included: a metric may return several."""
    for key, value in logs.items() if isinstance(logs, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _keys(value)
        else:
            yield key


class StepLoop:
    """Runs a model's train or test step over batches of columns; compiled unless the model runs eagerly.

    corrections: what each step adds to the trainable variables afterwards (trainer/corrections.py), or none.
    """

    def __init__(self, model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> None:
        self._model = model
        self._name = getattr(step, "__name__", "train_step")
        self._sized = any(isinstance(thing, _TAKE_UNKNOWN_FOR_ONE) for thing in reachable(model))
        self._loop = BACKEND.loop(model, step, corrections)
        self._warned = False

    @property
    def done(self) -> int:
        """Steps run so far. The current one may be included. Other threads may read it, also while `run` is under way."""
        return self._loop.done

    def run(
        self,
        columns: Sequence[Tensor],
        structure: Structure,
        order: Tensor,
        batch_size: int,
        first: int,
        last: int,
        *,
        sized: bool = False,
    ) -> None:
        """Run the steps `first` to `last` (exclusive). Step i sees the rows `order[i batch_size:][:batch_size]`.

        Args:
            columns: tensors with a leading axis of rows.
            structure: how the columns make up (x, y, sample_weight).
            order: row numbers (trainer/tensors.py); the last batch may be smaller.
            batch_size: rows per step.
            sized: whether the step must see how many rows its batch has (`x.shape[0]`), as in Keras' `fit` of arrays whose rows divide
                by the batch size. Losses of several outputs are then means over rows, else over batches: workers must agree.
        """
        if last <= first:
            return
        self._loop.run(columns, structure, order, batch_size, first, last, sized=sized or self._sized)
        self._warn_of_lost_logs()

    def _warn_of_lost_logs(self) -> None:
        """Warn once of the keys that a step returns and that no metric has."""
        if self._warned:
            return
        self._warned = True
        lost = sorted(set(_keys(self._loop.returned)) - metrics_of(self._model).keys())
        if lost:
            log.warning(
                "%s of the model %r returns %s: logs that are no metrics do not reach the history, which has metrics by their own names; "
                "keep them in keras.metrics.Mean objects of these names.",
                self._name,
                self._model.name,
                ", ".join(map(repr, lost)),
            )
