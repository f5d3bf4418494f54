"""The compiled loop of train steps: one TensorFlow graph around Keras' own `train_step`, traced once.

Plain `fit` pays for a data pipeline and for a return to Python at every batch. Here a whole round is one call: a loop
in the graph gathers its batches from columns in memory. The number of steps is a tensor, so that no round is traced
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import keras
import tensorflow as tf

from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, Structure
from elephas_like.trainer.backends.protocol import Step
from elephas_like.trainer.backends.tensorflow_gradients import CustomGradients


@contextmanager
def many_graphs() -> Iterator[None]:
    """Suppress TensorFlow's warning about retracing, where every model is a new graph."""
    logger = tf.get_logger()

    def keep(record: logging.LogRecord) -> bool:
        return "tf.function retracing" not in str(record.msg)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


class TensorFlowLoop:
    """Runs a model's train or test step over batches of columns; compiled unless the model runs eagerly."""

    def __init__(self, model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> None:
        self._eager = bool(model.run_eagerly)
        self._step = CustomGradients(self).noted(step)
        self._corrected = list(zip(model.trainable_variables, corrections, strict=True)) if corrections else []
        self.returned: object = None
        if model.jit_compile is True and not self._eager:
            self._step = tf.function(self._step, jit_compile=True, autograph=False)
        self._compiled: dict[object, Callable[..., None]] = {}
        self._needs_size: set[object] = set()
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
        *,
        sized: bool = False,
    ) -> None:
        """Run the steps `first` to `last` (exclusive). Step i sees the rows `order[i batch_size:][:batch_size]`.

        Args:
            columns: tensors with a leading axis of rows.
            structure: how the columns make up (x, y, sample_weight).
            order: int64 row numbers; the last batch may be smaller.
            batch_size: rows per step.
            sized: whether the step must see how many rows its batch has, though it does not fail without.
        """
        if self._eager:
            for step in range(first, last):
                self._run_step(columns, structure, order[step * batch_size : (step + 1) * batch_size])
                self._done.assign_add(1)
            return
        key = (repr(structure), tuple((column.dtype, tuple(column.shape[1:])) for column in columns))
        run_sized = partial(self._run_sized, key, columns, structure, order, batch_size, first, last)
        if sized or key in self._needs_size:
            run_sized()
            return
        fresh = key not in self._compiled
        try:
            self._run_compiled(key, None, columns, structure, order, batch_size, first, last)
        except (TypeError, ValueError) as error:  # of the trace: those of steps that run are TensorFlow's
            if not fresh:
                raise
            del self._compiled[key]
            done = self.done
            try:
                run_sized()
            except (TypeError, ValueError) as later:  # of the last batch, if the others were trained
                raise (later if self.done > done else error) from None
            self._needs_size.add(key)

    def _run_sized(
        self,
        key: object,
        columns: Sequence[tf.Tensor],
        structure: Structure,
        order: tf.Tensor,
        batch_size: int,
        first: int,
        last: int,
    ) -> None:
        """Run the same steps with batches whose size the step may read (`x.shape[0]`), traced once for each size."""
        rows = order[first * batch_size : last * batch_size]
        whole, rest = divmod(len(rows), batch_size)
        if whole:
            self._run_compiled((key, batch_size), batch_size, columns, structure, rows, batch_size, 0, whole)
        if rest:
            self._run_compiled((key, rest), rest, columns, structure, rows[whole * batch_size :], rest, 0, 1)

    def _run_compiled(
        self,
        key: object,
        size: int | None,
        columns: Sequence[tf.Tensor],
        structure: Structure,
        order: tf.Tensor,
        batch_size: int,
        first: int,
        last: int,
    ) -> None:
        first_time = key not in self._compiled
        if first_time:
            self._compiled[key] = self._compile(columns, structure, size)
        integers = (tf.constant(value, tf.int64) for value in (batch_size, first, last))
        # Each model has a loop of its own, traced once; TensorFlow counts all of them as one that is traced again.
        with many_graphs() if first_time else nullcontext():
            self._compiled[key](tuple(columns), order, *integers)

    def _run_step(self, columns: Sequence[tf.Tensor], structure: Structure, rows: tf.Tensor) -> object:
        batch = unflatten(structure, [tf.gather(column, rows) for column in columns])
        assert isinstance(batch, tuple)
        logs = self._step(keras.utils.pack_x_y_sample_weight(*batch))  # x alone comes without a tuple, as in `fit`
        for weight, correction in self._corrected:
            weight.assign_add(correction)
        if self.returned is None:
            self.returned = keras.tree.map_structure(lambda _: None, logs)  # which names no tensor of a graph
        return logs

    def _compile(self, columns: Sequence[tf.Tensor], structure: Structure, size: int | None) -> Callable[..., None]:
        """Return the compiled loop over batches of `size` rows, which the step is told; None for any number of rows, as of a last batch."""
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
                rows = order[step * batch_size : (step + 1) * batch_size]
                self._run_step(columns, structure, rows if size is None else tf.ensure_shape(rows, (size,)))
                self._done.assign_add(1)
                return (step + 1,)

            tf.while_loop(lambda step: step < last, body, (first,), parallel_iterations=1)

        return tf.function(loop, input_signature=signature, autograph=False)


class TensorFlowPredictions:
    """Runs a model's predict step over successive batches in one graph, traced once for each kind of batch."""

    def __init__(self, model: keras.Model) -> None:
        self._step = model.predict_step
        if model.jit_compile is True:
            self._step = tf.function(self._step, jit_compile=True, autograph=False, reduce_retracing=True)
        self._compiled: dict[object, Callable[..., list[tf.Tensor]]] = {}

    def run(self, features: object, steps: int, batch_size: int, like: Sequence[Array]) -> list[Array]:
        """Return the outputs of `steps` batches, rows first.

        Args:
            features: of `steps` times `batch_size` rows at least.
            like: the outputs of one batch.
        """
        leaves, structure = flatten(features)
        columns = [tf.convert_to_tensor(leaf) for leaf in leaves]
        outputs = [tf.as_dtype(output.dtype) for output in like]
        kinds = tuple((column.dtype, tuple(column.shape[1:])) for column in columns)
        key = (repr(structure), kinds, tuple(outputs), batch_size)
        first_time = key not in self._compiled
        if first_time:
            self._compiled[key] = self._compile(columns, structure, batch_size, outputs)
        with many_graphs() if first_time else nullcontext():
            return [found.numpy() for found in self._compiled[key](columns, tf.constant(steps, tf.int32))]

    def _compile(
        self, columns: Sequence[tf.Tensor], structure: Structure, batch_size: int, outputs: Sequence[tf.DType]
    ) -> Callable[..., list[tf.Tensor]]:
        specs = [tf.TensorSpec((None, *column.shape[1:]), column.dtype) for column in columns]

        def loop(columns: Sequence[tf.Tensor], steps: tf.Tensor) -> list[tf.Tensor]:
            def body(step: tf.Tensor, found: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
                batch = [column[step * batch_size : (step + 1) * batch_size] for column in columns]
                for part, column in zip(batch, columns, strict=True):
                    part.set_shape((batch_size, *column.shape[1:]))
                # As Keras' predict hands it over: x itself, where it is no tuple.
                outputs = self._step(keras.utils.pack_x_y_sample_weight(unflatten(structure, batch)))
                leaves, _ = flatten(tuple(outputs) if isinstance(outputs, list) else outputs)
                return step + 1, [array.write(step, leaf) for array, leaf in zip(found, leaves, strict=True)]

            arrays = [tf.TensorArray(dtype, size=steps) for dtype in outputs]
            _, found = tf.while_loop(lambda step, _: step < steps, body, (0, arrays), parallel_iterations=1)
            return [array.concat() for array in found]

        return tf.function(loop, input_signature=(specs, tf.TensorSpec((), tf.int32)), autograph=False)
