"""Trains one entry with Keras and with SparkModel, and says how far they are apart."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from elephas_like import SparkModel
from elephas_like.engine.map_shards import joined_chunks, predicted
from elephas_like.model.predict import evaluate_rows
from elephas_like.model.sources import Arrays
from elephas_like.trainer.building import state_restored
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import generators, name_of, value_of

BATCH, EPOCHS, SEED = 12, 2, 11  # two steps an epoch, of 24 rows


def by_keras(make: Callable[[], tuple[keras.Model, tuple[Any, ...]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the parts of the state, the history) after plain `fit`."""
    keras.utils.set_random_seed(SEED)
    model, rows = make()
    x, y, sample_weight = (*map(tensors, rows), None, None)[:3]
    history = model.fit(
        x, y, sample_weight=sample_weight, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    ).history
    return parts(model), history


def by_spark_model(
    make: Callable[[], tuple[keras.Model, tuple[Any, ...]]], context: Any = None, engine: str = "in_process"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same after `SparkModel.fit` with one worker."""
    keras.utils.set_random_seed(SEED)
    model, rows = make()
    if context is not None:
        leaves = [keras.tree.flatten(part) for part in rows]
        pairs = [
            tuple(
                keras.tree.pack_sequence_as(part, [leaf[row] for leaf in own])
                for part, own in zip(rows, leaves, strict=True)
            )
            for row in range(len(leaves[0][0]))
        ]
        data: tuple[Any, ...] = (context.parallelize([pair if len(pair) > 1 else pair[0] for pair in pairs], 1), None)
        sample_weight = None
    else:
        x, y, sample_weight = (*rows, None, None)[:3]
        data = (x, y)
    trained = SparkModel(model, num_workers=1, engine=engine, seed=SEED)
    history = trained.fit(
        *data, sample_weight=sample_weight, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    ).history
    return parts(model), history


def applied_by_keras(model: keras.Model, rows: tuple[Any, ...]) -> tuple[dict[str, float], Any]:
    """What Keras' `evaluate` and `predict` return of a model, each as if the other had not been called."""
    x, y, sample_weight = (*map(tensors, rows), None, None)[:3]
    with state_restored(model):
        metrics = model.evaluate(x, y, sample_weight=sample_weight, batch_size=BATCH, verbose=0, return_dict=True)
    return metrics, model.predict(x, batch_size=BATCH, verbose=0)


def applied_as_on_executors(model: keras.Model, rows: tuple[Any, ...]) -> tuple[dict[str, float], Any]:
    """The same by a model that was pickled, of rows that pass through files."""
    features, labelled = Arrays(rows[:1]), Arrays(rows)
    metrics = evaluate_rows(model, labelled, BATCH)  # which builds a model that is not
    predictor = pickle.loads(pickle.dumps(Predictor.of(model, BATCH)))  # noqa: S301  # our own
    chunks = list(predicted(0, features.rows(), lambda: predictor, BATCH, features.spool_options()))
    return metrics, joined_chunks(chunks, list)


def parts(model: keras.Model) -> dict[str, Any]:
    """The parts of the state, without PyTorch's own generator, from which Keras' loader of rows draws, too."""
    variables, own = Variables(model), [id(generator) for generator in generators()]
    seeds = [value_of(each).ravel() for each in variables if "seed_generator" in name_of(each) and id(each) not in own]
    return variables.read().parts() | {"seeds": np.concatenate([np.zeros(0, np.int64), *seeds])}


@contextmanager
def graphs_as_written() -> Iterator[None]:
    """Have TensorFlow run graphs as they are: what its optimizer of graphs makes of a step is rounded otherwise within a loop. Others have none."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


def difference(
    one: tuple[dict[str, Any], dict[str, Any]], other: tuple[dict[str, Any], dict[str, Any]], *, exact: bool = False
) -> str:
    """What differs by more than 1e-5, of float64 by more than 1e-12, in a line; "" for nothing. `exact`: what differs at all."""
    for name, expected in one[0].items():
        found = other[0][name]
        if expected.shape != found.shape:
            return f"{name}: shapes {expected.shape} and {found.shape}"
        most = 0 if exact else 1e-12 if expected.dtype == np.float64 else 1e-5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not np.allclose(found, expected, rtol=most, atol=most):
                return f"{name}: {found[~np.isclose(found, expected, most, most)][:4]} where Keras has {expected[:4]}"
    histories = [flat(each[1]) for each in (one, other)]
    if histories[0].keys() != histories[1].keys():
        return f"history: {sorted(histories[1])} where Keras has {sorted(histories[0])}"
    for name, values in histories[0].items():
        if not np.allclose(histories[1][name], values, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5):
            return f"history of {name}: {histories[1][name]} where Keras has {values}"
    return ""


def flat(history: dict[str, Any]) -> dict[str, list[float]]:
    """A history with a metric of several numbers as several metrics."""
    flat: dict[str, list[float]] = {}
    for name, values in history.items():
        if values and isinstance(values[0], dict):
            flat |= {key: [float(value[key]) for value in values] for key in values[0]}
        else:
            flat[name] = [float(value) for value in values]  # tensors of bfloat16 are no arrays
    return flat


def tensors(part: Any) -> Any:
    """Text as Keras takes it."""
    return keras.tree.map_structure(
        lambda leaf: keras.ops.convert_to_tensor(leaf.tolist(), "string") if leaf.dtype == object else leaf, part
    )
