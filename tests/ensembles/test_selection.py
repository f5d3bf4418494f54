"""Members chosen by what they add."""

from __future__ import annotations

import numpy as np
import pytest
from problems import digits

from elephas_like.ensembles.selection import greedy_selection
from elephas_like.ensembles.train import train_ensemble


def test_greedy_selection_is_at_least_as_good_as_the_best_member() -> None:
    build, (x, y, x_test, y_test) = digits()
    found = train_ensemble(build, (x, y), 4, epochs=3, seed=0, engine="in_process", verbose=0)
    chosen = greedy_selection(found, (x_test, y_test), picks=6)
    losses = [model.evaluate(x_test, y_test, verbose=0)[0] for model in found.models]
    assert chosen.path[0] == pytest.approx(min(losses), rel=1e-5)
    assert chosen.members[0] == int(np.argmin(losses))
    assert chosen.score <= min(losses)
    assert chosen.ensemble.evaluate(x_test, y_test)[0] == pytest.approx(chosen.score, rel=1e-5)
    assert sum(chosen.weights) == pytest.approx(1)
    assert len(chosen.weights) == 4
    best = greedy_selection(found.models, (x_test, y_test), metric="accuracy", picks=3)
    assert best.score >= max(model.evaluate(x_test, y_test, verbose=0)[1] for model in found.models) - 1e-6
    with pytest.raises(ValueError, match="metric must be one of 'loss', 'accuracy'; got 'auc'"):
        greedy_selection(found, (x_test, y_test), metric="auc")
