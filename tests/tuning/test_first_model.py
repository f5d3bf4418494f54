"""A search's objective is looked for in a first model, before a trial runs."""

from __future__ import annotations

import keras
import pytest
from small_search import small


def test_an_objective_is_checked_beside_keras_own_callbacks_and_left_to_those_that_may_add_it() -> None:
    keras_own = [keras.callbacks.ReduceLROnPlateau()]
    with pytest.raises(ValueError, match="not among the metrics: 'loss', 'accuracy'"):
        small(callbacks=keras_own, objective="val_f1_score")
    small(callbacks=keras_own, objective="learning_rate", direction="min", max_evals=1, epochs=1)

    adds = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_f1_score=0.25))
    assert small(callbacks=adds, objective="val_f1_score", max_evals=1, epochs=1).best_value == 0.25

    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["val_f1_score"] = 0.5

    assert small(callbacks=[Adds()], objective="val_f1_score", max_evals=1, epochs=1).best_value == 0.5
