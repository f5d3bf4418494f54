"""What metrics say: the results of their sums, by name and in Keras' order."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import keras
import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.building import build
from elephas_like.trainer.model_facts import overrides
from elephas_like.trainer.spec import building_as_workers_do
from elephas_like.trainer.state import metric_variables, write_metrics
from elephas_like.trainer.tensors import array_of, value_of

log = logging.getLogger(__name__)


def metric_results(
    model: keras.Model, sums: np.ndarray, sample: tuple[object, ...] | None = None, *, evaluated: bool = False
) -> dict[str, float]:
    """Return the metrics' results for summed states, by name; {} for an empty state. The model's metrics are reset.

    Args:
        sample: a batch like those behind the sums, to build metrics that are not built yet.
        evaluated: whether test steps have made the sums.

    Raises:
        ElephasError: the model has got more metrics than those of the sums.
    """
    if sums.size == 0:
        return {}
    if sample is not None:
        build_metrics(model, sample, sums.size)
    if sums.size < _size(model):
        raise ElephasError(
            f"the model {model.name!r} has more metrics than it had when the fit began ({', '.join(each.name for each in model.metrics)}): "
            "workers have counted those of then. A callback may keep metrics of its own in itself (self.metric = ...); give the model's "
            "metrics before the fit, or in on_train_begin."
        )
    write_metrics(model, sums)
    results = evaluated_metrics(model) if evaluated else metrics_of(model)
    model.reset_metrics()
    return results


def build_metrics(model: keras.Model, sample: tuple[object, ...], size: int | None = None) -> None:
    """Build the model's metrics from a batch, if they are not built yet; or if, built, they have not `size` numbers."""
    unbuilt = not all(
        getattr(metric, "built", True) for metric in model.metrics
    )  # `metrics=[]` has no variables, built or not
    if unbuilt or size not in (None, _size(model)):
        with building_as_workers_do(model, sample):
            build(model, sample)


def build_loss(model: keras.Model, sample: tuple[object, ...]) -> None:
    """Build the model's loss from a batch, if it is not built yet and takes one.

    Keras builds it when it next trains or evaluates the model. If that comes before the next fit on Spark, the workers have a compiled model
    that this one's key does not find. Code of the user's, which may leave something behind in attributes, is not run for it. Keras
    has no public name for a model's loss.
    """
    steps = any(overrides(model, name) for name in ("compute_loss", "test_step", "train_step"))
    own = steps or type(model).__module__.partition(".")[0] != "keras"
    if own or getattr(getattr(model, "_compile_loss", None), "built", True):
        return
    try:
        with building_as_workers_do(model, sample):
            build(model, sample)
    except Exception as error:  # the batch is made up, and its labels may be invalid
        log.debug("the loss of the model %r is not built yet: %s", model.name, error)


def _size(model: keras.Model) -> int:
    return sum(int(np.prod(variable.shape)) for variable in metric_variables(model))


def metrics_of(model: keras.Model) -> dict[str, float]:
    """Return the metrics' results for their current states, by name, without a loss that was not tracked.

    The user's own train step may not use Keras' loss tracker, whose result would be 0, but one of its own of the same name.
    """
    results = _plain_numbers(model.get_metrics_result())
    tracker, *others = model.metrics or [None]
    if any(metric.name == "loss" for metric in others):
        return results
    if isinstance(tracker, keras.metrics.Mean) and tracker.name == "loss" and not float(value_of(tracker.count)):
        results.pop("loss", None)
    return results


def evaluated_metrics(model: keras.Model) -> dict[str, float]:
    """Return the metrics' results after test steps, without means that a test step of the user's has left alone: 0 is no score."""
    results = metrics_of(model)
    if not overrides(model, "test_step"):
        return results
    metrics = [part for each in model.metrics for part in getattr(each, "metrics", [each])]
    names = {metric.name for metric in metrics}
    keys: dict[str, list[str]] = {name: [] for name in ("", *names)}
    for key in results:  # of several outputs, an output's name stands before the metric's
        keys[max((name for name in names if key == name or key.endswith(f"_{name}")), key=len, default="")].append(key)
    for name, found in keys.items():
        named = [metric for metric in metrics if metric.name == name]
        if len(named) == len(found):
            for key, metric in zip(found, named, strict=True):
                if isinstance(metric, keras.metrics.Mean) and not float(value_of(metric.count)):
                    results.pop(key)
    return results


def in_order(model: keras.Model, results: Mapping[str, float]) -> list[float]:
    """Return metric results in the order of Keras' `evaluate`: as in `model.metrics`, then the rest by name."""
    names = [part.name for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    listed = [results[name] for name in names if name in results]
    return listed + [results[name] for name in sorted(results) if name not in names]


def _plain_numbers(results: dict[str, object]) -> dict[str, float]:
    plain: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, dict):
            plain.update(_plain_numbers(value))
        else:
            array = array_of(value)
            plain[name] = float(array) if array.ndim == 0 else array  # type: ignore[assignment]  # per-class metrics
    return plain
