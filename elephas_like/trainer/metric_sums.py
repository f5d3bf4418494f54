"""Find a user's metrics that cannot be summed over workers: a running maximum, a moving mean, the last value seen.

Workers' metric states are summed, and `result()` is computed from the sum. That is exact for metrics that keep sums and
counts, as all of Keras' own do. A state is such a sum if it begins at zero and the same batch twice makes it twice as
large.
"""

from __future__ import annotations

import logging

import keras
import numpy as np

from elephas_like.core.types import Array
from elephas_like.trainer.building import measured

log = logging.getLogger(__name__)


def own_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics of a compiled model whose classes are not Keras'."""
    found = [part for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    return [metric for metric in found if not type(metric).__module__.startswith("keras.")]


def not_summable(model: keras.Model, sample: tuple[object, ...]) -> list[str]:
    """Return the names of the user's metrics whose states cannot be summed. The model is left as it was.

    Args:
        sample: a batch of rows, (x,), (x, y) or (x, y, sample_weight). Metrics whose state it does not change are not
            named, and no metric is if the model cannot be evaluated on it.
    """
    metrics = own_metrics(model)
    if not metrics:
        return []

    def states() -> list[list[Array]]:
        return [[np.asarray(variable.numpy()) for variable in metric.variables] for metric in metrics]

    try:
        start, once, twice = measured(model, sample, states)
    except Exception as error:  # a model may have no test step that works
        log.debug("the metrics of %r were not looked at: %s", model.name, error)
        return []
    named = []
    for metric, before, one, two in zip(metrics, start, once, twice, strict=True):
        moved = any(not np.array_equal(a, b) for a, b in zip(before, one, strict=True))
        sums = all(not a.any() for a in before) and all(
            np.allclose(2 * b, c, rtol=1e-3, atol=1e-6) for b, c in zip(one, two, strict=True)
        )
        if moved and not sums:
            named.append(metric.name)
    return named
