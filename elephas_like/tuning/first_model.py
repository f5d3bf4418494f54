"""A first model of a search, built on the driver: what is wrong with every point is said before Spark works."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from elephas_like.core import checks
from elephas_like.core.errors import DataError
from elephas_like.core.objective import Objective
from elephas_like.core.types import ShardRef
from elephas_like.model.source import Source
from elephas_like.trainer.building import build as build_model
from elephas_like.trainer.metric_names import freshly_named
from elephas_like.trainer.preparing import preparer_of
from elephas_like.trainer.seeds import seeded
from elephas_like.tuning.keras_options import with_own_objects
from elephas_like.tuning.prepared_rows import prepared_sample
from elephas_like.tuning.space import Space
from elephas_like.tuning.trial import check_labels, checked

log = logging.getLogger(__name__)

_PROBES = 3
_PROBES_NEEDED = 20


def first_model(build: Callable[[Any], keras.Model], space: Space, seed: int, *, needed: bool) -> keras.Model | None:
    """A model of a point of the space, if one can be built here: what is wrong with all of them is said before Spark works.

    Raises:
        TypeError, ValueError: `build` returns something else than a compiled model; or no model could be built, and one is
            needed to read the columns of a DataFrame.
    """
    failure: Exception | None = None
    for attempt in range(_PROBES_NEEDED if needed else _PROBES):
        params = _params(space, seed, attempt)
        with seeded(seed, attempt):
            try:
                made = build(params)
            except Exception as error:  # a trial that fails is a trial's affair
                log.info("a first model with %s could not be built: %s", params, error)
                failure = error
                continue
            return checked(made)
    if needed:
        raise ValueError(
            f"the columns of a DataFrame are read as a model's inputs want them, and build(params) failed at all of "
            f"{_PROBES_NEEDED} points that were tried, at last with {type(failure).__name__}: {failure}"
        ) from failure
    return None


def check_labels_of_space(
    build: Callable[[Any], keras.Model], space: Space, seed: int, model: keras.Model, shards: Sequence[ShardRef]
) -> None:
    """Nothing, if some model of the space takes the labels; a model that does not is its trial's affair, and so are labels that it prepares.

    Args:
        model: the first one.

    Raises:
        DataError: it does not, and none of `_PROBES_NEEDED` others does.
    """
    if preparer_of(model) is not None:
        return
    try:
        check_labels(model, shards)
        return
    except DataError as error:
        refused = error
    for attempt in range(_PROBES_NEEDED):
        try:
            with seeded(seed, attempt):
                check_labels(build(_params(space, seed, attempt)), shards)
            return
        except Exception as error:  # of this point's model, again
            log.info("a model of the space does not take the labels: %s", error)
    raise refused


def _params(space: Space, seed: int, attempt: int) -> Any:
    point = space.drawn(int(np.random.default_rng([seed, attempt]).integers(2**31 - 1)))
    return with_own_objects(space.at(point))


def check_objective(
    goal: Objective, model: keras.Model, sample: tuple[object, ...] | None, source: Source, seed: int
) -> None:
    """Nothing, if the objective is among the metrics of a first model.

    Args:
        sample: a batch of one row; None where the rows were never here, and one is read if the name calls for it.

    Raises:
        ValueError: it is not; the message lists them.
    """
    if goal.name in ("loss", "val_loss"):
        return
    try:
        with seeded(seed, 0):
            row = source.sample(keras.config.floatx()) if sample is None else sample
            build_model(model, prepared_sample(model, row))
    except Exception as error:  # of this point's model, perhaps: a trial's affair
        log.info("a first model could not take a row: %s", error)
        return
    names = sorted(
        freshly_named(model, model.get_metrics_result()), key=lambda name: name != "loss"
    )  # first in any Keras
    known = [*names, *(f"val_{name}" for name in names)]
    if goal.name not in [*known, "learning_rate"]:
        raise ValueError(
            f"objective {goal.name!r} is not among the metrics: {', '.join(map(repr, known))}.{checks.did_you_mean(goal.name, known)}"
        )
