"""The compiled loop of train steps: one TensorFlow graph around Keras' own `train_step`, traced once.

Plain `fit` pays for a data pipeline and for a return to Python at every batch. Here a whole round is one call: a loop
in the graph gathers its batches from columns in memory. The number of steps is a tensor, so that no round is traced
again.

`train_step` is the model's own. Custom steps, losses, weights and metrics behave as in `fit`, with one exception: the
logs that a step returns are ignored. Logs are computed from the states of the model's metrics, which can be summed over
workers. A warning names returned keys that are no metric's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from elephas_like.core.structure import unflatten
from elephas_like.core.types import Structure
from elephas_like.trainer.state import metrics_of

log = logging.getLogger(__name__)

Step = Callable[[object], object]


def _keys(logs: object) -> Iterator[str]:
    """Yield the keys of a step's logs, nested ones included: a metric may return several."""
    for key, value in logs.items() if isinstance(logs, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _keys(value)
        else:
            yield key


class StepLoop:
    """Runs a model's train or test step over batches of columns; compiled unless the model runs eagerly."""

    def __init__(self, model: keras.Model, step: Step) -> None:
        self._model = model
        self._eager = bool(model.run_eagerly)
        self._step = step
        self._name = getattr(step, "__name__", "train_step")
        self._returned: frozenset[str] | None = None
        self._warned = False
        if model.jit_compile is True and not self._eager:
            self._step = tf.function(step, jit_compile=True, autograph=False, reduce_retracing=True)
        self._compiled: dict[object, Callable[..., None]] = {}
        with tf.device("CPU:0"):
            self._done = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def done(self) -> int:
        """Steps run so far. The current one may be included. Other threads may read it, also while `run` is under way."""
        return int(self._done.numpy())

    def run(
        self,
        columns: Sequence[tf.Tensor],
        structure: Structure,
        order: tf.Tensor,
        batch_size: int,
        first: int,
        last: int,
    ) -> None:
        """Run the steps `first` to `last` (exclusive). Step i sees the rows `order[i batch_size:][:batch_size]`.

        Args:
            columns: tensors with a leading axis of rows.
            structure: how the columns make up (x, y, sample_weight).
            order: int64 row numbers; the last batch may be smaller.
            batch_size: rows per step.
        """
        if last <= first:
            return
        if self._eager:
            for step in range(first, last):
                self._run_step(columns, structure, order[step * batch_size : (step + 1) * batch_size])
                self._done.assign_add(1)
            self._warn_of_lost_logs()
            return
        key = (repr(structure), tuple((column.dtype, tuple(column.shape[1:])) for column in columns))
        if key not in self._compiled:
            self._compiled[key] = self._compile(columns, structure)
        integers = (tf.constant(value, tf.int64) for value in (batch_size, first, last))
        self._compiled[key](tuple(columns), order, *integers)
        self._warn_of_lost_logs()

    def _run_step(self, columns: Sequence[tf.Tensor], structure: Structure, rows: tf.Tensor) -> object:
        batch = unflatten(structure, [tf.gather(column, rows) for column in columns])
        assert isinstance(batch, tuple)
        logs = self._step(keras.utils.pack_x_y_sample_weight(*batch))  # x alone comes without a tuple, as in `fit`
        if self._returned is None:
            self._returned = frozenset(_keys(logs))
        return logs

    def _warn_of_lost_logs(self) -> None:
        """Warn once of the keys that a step returns and that no metric has."""
        if self._warned:
            return
        self._warned = True
        lost = sorted((self._returned or frozenset()) - metrics_of(self._model).keys())
        if lost:
            log.warning(
                "%s of the model %r returns %s: logs that are no metrics do not reach the history; keep them in "
                "keras.metrics.Mean objects.",
                self._name,
                self._model.name,
                ", ".join(map(repr, lost)),
            )

    def _compile(self, columns: Sequence[tf.Tensor], structure: Structure) -> Callable[..., None]:
        scalar = tf.TensorSpec((), tf.int64)
        signature = (
            tuple(tf.TensorSpec((None, *column.shape[1:]), column.dtype) for column in columns),
            tf.TensorSpec((None,), tf.int64),
            scalar,
            scalar,
            scalar,
        )

        def loop(
            columns: Sequence[tf.Tensor], order: tf.Tensor, batch_size: tf.Tensor, first: tf.Tensor, last: tf.Tensor
        ) -> None:
            def body(step: tf.Tensor) -> tuple[tf.Tensor]:
                self._run_step(columns, structure, order[step * batch_size : (step + 1) * batch_size])
                self._done.assign_add(1)
                return (step + 1,)

            tf.while_loop(lambda step: step < last, body, (first,), parallel_iterations=1)

        return tf.function(loop, input_signature=signature, autograph=False)
