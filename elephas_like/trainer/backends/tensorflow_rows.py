"""A function that pipelines of tf.data map over batches of rows: traced once for each kind of rows, not in each pipeline.

KerasHub makes a pipeline for each call. To trace a preprocessor of thousands of operations, as a byte-pair tokenizer is, takes seconds, and
milliseconds to prepare some rows by it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elephas_like.core.structure import flatten, unflatten
from elephas_like.trainer.backends.protocol import RowsFunction


class TracedRows:
    """Calls a function of (x, y, sample_weight) by its trace, in pipelines and without one.

    A function that draws is traced anew in each pipeline: what Python draws is a part of its graph, and TensorFlow's draws begin anew.
    """

    def __init__(self, function: RowsFunction) -> None:
        self._function = function
        self._traces: dict[object, Any] = {}

    @tf.autograph.experimental.do_not_convert
    def __call__(self, x: object, y: object = None, sample_weight: object = None) -> object:
        """Call the function, by its trace where a pipeline's graph is made."""
        if not tf.inside_function():  # Grain's pipelines are of Python
            return self._function(x, y, sample_weight)
        leaves, structure = flatten((x, y, sample_weight))
        kind = _kind(structure, leaves)
        if kind not in self._traces:
            specs = [tf.type_spec_from_value(leaf) for leaf in leaves]
            self._traces[kind] = self._traced(structure, specs)
        trace = self._traces[kind]
        return self._function(x, y, sample_weight) if trace is None else trace(*leaves)

    def step(self, columns: Sequence[object]) -> RowsFunction | None:
        """Return the function for batches of arrays, without a pipeline; None for rows of a kind that no pipeline has had, or where it draws.

        Args:
            columns: (x, y, sample_weight), None for what there is not.
        """
        leaves, structure = flatten(tuple(columns))
        arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.ndim]
        if len(arrays) < len(leaves) or len(set(map(len, arrays))) != 1:  # of a pipeline's errors, too
            return None
        trace = self._traces.get(_kind(structure, [tf.constant(array[:1]) for array in arrays]))
        if trace is None:
            return None

        def call(x: object, y: object = None, sample_weight: object = None) -> object:
            return trace(*(tf.constant(part) for part in flatten((x, y, sample_weight))[0]))

        return call

    def _traced(self, structure: Any, specs: Sequence[tf.TypeSpec]) -> Any:
        """Return the trace for rows of a kind; None where the function draws."""

        def flat(*leaves: object) -> object:
            parts = unflatten(structure, leaves)
            assert isinstance(parts, tuple)
            return self._function(*parts)

        pythons, numpys = random.getstate(), np.random.get_state()
        with tf.init_scope():  # of no pipeline's own graph
            trace = tf.function(flat).get_concrete_function(*specs)
        drawn = random.getstate() != pythons or pickle.dumps(np.random.get_state()) != pickle.dumps(numpys)
        random.setstate(pythons)  # as pipelines trace it themselves then
        np.random.set_state(numpys)
        graph = trace.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        draws = drawn or any("seed" in node.attr or "Random" in node.op for node in nodes)
        return None if draws else trace


def _kind(structure: object, leaves: Sequence[Any]) -> object:
    """Return a key of rows; ragged and sparse tensors are of other kinds than arrays."""
    kinds = ("" if isinstance(leaf, tf.Tensor) else type(leaf).__name__ for leaf in leaves)
    return repr(structure), *(
        (kind, leaf.dtype, tuple(leaf.shape[1:])) for kind, leaf in zip(kinds, leaves, strict=True)
    )
