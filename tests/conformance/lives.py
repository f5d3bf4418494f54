"""What is done with a drawn model: fits with any arguments, evaluations, and changes in between, drawn by the same seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from conformance.compare import SEED, flat, parts
from conformance.drawn import Draw, drawn
from elephas_like import SparkModel

C = keras.callbacks
CALLBACKS: Sequence[Callable[[], list[keras.callbacks.Callback]]] = (
    lambda: [],
    lambda: [C.EarlyStopping("loss", patience=1, restore_best_weights=True, min_delta=0.05)],
    lambda: [C.EarlyStopping("loss", mode="max", patience=0, restore_best_weights=True, start_from_epoch=1)],
    lambda: [C.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)],
    lambda: [C.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.7)],
    lambda: [C.TerminateOnNaN(), C.LambdaCallback(on_epoch_end=lambda epoch, logs: None)],
)
ACTS = ("fit", "fit", "fit", "evaluate", "learning rate", "weights", "compile")
HELD_OUT = 9


def lived(seed: int, *, with_spark_model: bool) -> tuple[dict[str, Any], list[Any], str]:
    """(the parts of the model's state, what the calls returned, what was drawn in words) of Keras, or of one worker.

    A fit that raises is the last call, and the state after it is not told: Keras has trained some batches by then.
    """
    keras.utils.set_random_seed(SEED)
    model, (x, y, *weights), words = drawn(seed)
    draw, found = Draw(np.random.default_rng([seed, 1])), []
    trainer: Any = _spark(model) if with_spark_model else model
    for _ in range(int(draw.random.integers(2, 5))):
        act = draw.one("act", ACTS)
        if act == "fit":
            given = _arguments(draw, model, x, y, weights)
            try:
                history = trainer.fit(x, y, shuffle=False, verbose=0, **given)
            except Exception:  # indexed slices added up, which Keras on TensorFlow does not do eagerly
                return {}, [*found, "raised"], f"{words}; {', '.join(draw.noted)}"
            found.append((history.epoch, flat(history.history)))
        elif act == "evaluate":
            result = trainer.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
            found.append({name: float(value) for name, value in result.items()})
        elif act == "learning rate" and not _scheduled(model):
            model.optimizer.learning_rate = 0.003
        elif act == "weights":
            model.set_weights([each * 0.9 if each.dtype.kind == "f" else each for each in model.get_weights()])
        elif act == "compile":
            model.compile(keras.optimizers.Adam(0.02), model.loss, run_eagerly=model.run_eagerly)
            trainer = _spark(model) if with_spark_model else model
    return parts(model), found, f"{words}; {', '.join(draw.noted)}"


def _spark(model: keras.Model) -> SparkModel:
    return SparkModel(model, num_workers=1, engine="in_process", seed=SEED)


def _arguments(
    draw: Draw, model: keras.Model, x: np.ndarray, y: np.ndarray, weights: Sequence[np.ndarray]
) -> dict[str, Any]:
    """The arguments of a fit."""
    begin = draw.one("initial epoch", (0, 0, 1))
    given: dict[str, Any] = {"initial_epoch": begin, "epochs": begin + draw.one("epochs", (1, 2, 3))}
    given["batch_size"] = draw.one("batch", (None, 4, 8, 21, 50))
    held_out = draw.one("validation", ("none", "rows", "weighted rows"))
    if held_out != "none":
        weighed = (np.linspace(0, 1, HELD_OUT, dtype="float32"),) if held_out == "weighted rows" else ()
        given["validation_data"] = (x[:HELD_OUT], y[:HELD_OUT], *weighed)
        given["validation_freq"] = draw.one("validated", (1, 2, [1, 3]))
    if draw.one("class weights", (False, True)) and y.ndim == 1:
        given["class_weight"] = {0: 0.5, 1: 2.0, 2: 1.0}
    elif weights and draw.one("weights", (False, True)):
        given["sample_weight"] = weights[0]
    callbacks = draw.one("callbacks", CALLBACKS)()
    sets_rate = any(isinstance(each, C.ReduceLROnPlateau | C.LearningRateScheduler) for each in callbacks)
    given["callbacks"] = [] if sets_rate and _scheduled(model) else callbacks
    return given


def _scheduled(model: keras.Model) -> bool:
    return isinstance(model.optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
