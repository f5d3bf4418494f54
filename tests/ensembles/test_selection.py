"""Members chosen by what they add."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from problems import digits
from voters import masking

from elephas_like.ensembles.selection import greedy_selection
from elephas_like.ensembles.train import train_ensemble


def test_greedy_selection_is_at_least_as_good_as_the_best_member() -> None:
    build, (x, y, x_test, y_test) = digits()
    found = train_ensemble(build, (x, y), 3, epochs=2, seed=0, engine="in_process", verbose=0)
    for model in found.models:
        model.run_eagerly = True  # trained by graphs; one more for each would cost more than their answers
    chosen = greedy_selection(found, (x_test, y_test), picks=4)
    alone = [model.evaluate(x_test, y_test, verbose=0) for model in found.models]
    losses = [loss for loss, _ in alone]
    assert chosen.path[0] == pytest.approx(min(losses), rel=1e-5)
    assert chosen.members[0] == int(np.argmin(losses))
    assert chosen.score <= min(losses)
    assert chosen.ensemble.evaluate(x_test, y_test)[0] == pytest.approx(chosen.score, rel=1e-5)
    assert sum(chosen.weights) == pytest.approx(1)
    assert len(chosen.weights) == 3
    best = greedy_selection(found.models, (x_test, y_test), metric="accuracy", picks=3)
    assert best.score >= max(accuracy for _, accuracy in alone) - 1e-6
    with pytest.raises(ValueError, match="metric must be one of 'loss', 'accuracy'; got 'auc'"):
        greedy_selection(found, (x_test, y_test), metric="auc")


def test_masked_steps_count_as_little_as_for_keras() -> None:
    x, y = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4]]), np.array([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 0]])
    models = [masking(seed) for seed in range(2)]
    losses = [model.evaluate(x, y, verbose=0)[0] for model in models]
    chosen = greedy_selection(models, (x, y), picks=1)
    assert chosen.members == (int(np.argmin(losses)),)
    assert chosen.score == pytest.approx(min(losses), rel=1e-5)


def test_a_metric_that_only_the_model_s_own_test_step_updates_is_refused() -> None:
    class Own(keras.Model):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.own = keras.metrics.MeanAbsoluteError(name="own_mae")

        def test_step(self, data):
            x, y = data
            self.own.update_state(y, self(x, training=False))
            return self.get_metrics_result()

    inputs = keras.Input((1,))
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"^metric must be one of 'loss'; got 'own_mae'"):
        greedy_selection([model], (np.zeros((4, 1)), np.zeros((4, 1))), metric="own_mae")
