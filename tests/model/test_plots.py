"""Pictures of fits and of searches: what is drawn, and that labels are not drawn over each other."""

from __future__ import annotations

import io
from itertools import combinations

import keras
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from elephas_like import plot_history
from elephas_like.core.types import RoundRecord, WorkerRecord
from elephas_like.model.plots import plot_search


def texts_over_each_other(made) -> list[tuple[str, str]]:
    """Pairs of texts that are drawn over each other, of all that a figure draws."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(made)
    canvas.draw()  # places the axes
    renderer, drawn = canvas.get_renderer(), []
    plain = renderer.draw_text

    def noting(*arguments, mtext=None, **named) -> None:
        if mtext is not None:
            drawn.append(mtext)
        plain(*arguments, mtext=mtext, **named)

    renderer.draw_text = noting
    made.draw(renderer)
    assert drawn
    boxes = [(text.get_text(), text.get_window_extent(renderer).padded(-1)) for text in drawn]
    return [(one, other) for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]


def table(**columns: list) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    return pd.DataFrame({"trial": range(count), "status": ["ok"] * count, **columns})


@pytest.mark.parametrize("maximize", [True, False])
def test_numbers_words_and_missing_values_are_drawn(maximize: bool) -> None:
    trials = table(
        acc=[0.5, np.nan, 0.9, 0.7],
        param_rate=[1e-5, 1e-3, 1e-1, 1e-2],
        param_kind=["relu", None, "tanh", "relu"],
        param_depth=[1.0, 2.0, np.nan, 3.0],
        param_always=[7, 7, 7, 7],
    )
    trials["status"] = ["ok", "failed", "ok", "pruned"]
    made = plot_search(trials, "acc", maximize)
    over, parallel, rate, kind, *_ = made.axes
    best = next(line for line in over.get_lines() if line.get_label() == "best so far")
    assert list(best.get_ydata()) == ([0.5, 0.9] if maximize else [0.5, 0.5])
    assert rate.get_xscale() == "log"
    assert [label.get_text() for label in kind.get_xticklabels()] == ["relu", "tanh"]
    assert len([line for line in parallel.get_lines() if len(line.get_xdata()) == 5]) == 3  # the failed one has no line
    made.savefig(io.BytesIO())


def test_a_parameter_of_failed_trials_alone_is_left_out() -> None:
    trials = table(loss=[0.5, np.nan, 0.7], param_x=[1.0, 2.0, 3.0], param_deep=[np.nan, 4.0, np.nan])
    trials["param_kind"] = pd.Series([None, "relu", None], dtype=object)
    trials["status"] = ["ok", "failed", "ok"]
    made = plot_search(trials, "loss", False)
    assert [axes.get_xlabel() for axes in made.axes] == ["trial", "", "x"]
    made.savefig(io.BytesIO())


def test_one_trial_is_enough() -> None:
    made = plot_search(table(loss=[0.5], param_x=[1.0]), "loss", False)
    made.savefig(io.BytesIO())
    best = next(line for line in made.axes[0].get_lines() if line.get_label() == "best so far")
    assert list(best.get_ydata()) == [0.5]


def test_the_best_trial_is_marked_in_every_picture() -> None:
    trials = table(acc=[0.5, 0.9, 0.95], param_x=[1.0, 2.0, 3.0])
    trials["status"] = ["ok", "ok", "pruned"]  # a pruned one is not the best, whatever it reached
    over, parallel, against = plot_search(trials, "acc", True).axes
    stars = [line for axes in (over, against) for line in axes.get_lines() if line.get_marker() == "*"]
    assert [(list(star.get_xdata()), list(star.get_ydata())) for star in stars] == [([1], [0.9]), ([2.0], [0.9])]
    assert stars[0].get_label() == "best: trial 1, 0.9"
    (thick,) = [line for line in parallel.get_lines() if line.get_linewidth() > 2]
    np.testing.assert_allclose(thick.get_ydata(), [0.5, (0.9 - 0.5) / 0.45])


def test_labels_are_not_drawn_over_each_other() -> None:
    count = 40
    names = [f"an option with a long name {number}" for number in range(30)]
    trials = table(
        val_accuracy=list(np.linspace(0.1, 0.9, count)),
        param_an_activation_of_layers=[names[number % 30] for number in range(count)],
        param_kind=["relu", "tanh", "gelu", "swish"] * 10,
        param_rate=list(np.logspace(-6, -1, count)),
        param_units=list(np.linspace(10_000_000, 90_000_000, count)),
        param_a_learning_rate_of_the_optimizer=list(np.linspace(0, 1, count)),
        param_depth=[1, 2, 3, 4] * 10,
    )
    assert texts_over_each_other(plot_search(trials, "val_accuracy", True)) == []


# Fits


def record(number: int, epoch: int, *seconds: float, drift: float | None = None, dropped: int = 0) -> RoundRecord:
    workers = tuple(WorkerRecord(worker, 10, 5, each, 0, dropped) for worker, each in enumerate(seconds))
    return RoundRecord(number, epoch, workers, loss=1.0, drift=drift)


def history(**values: list) -> keras.callbacks.History:
    made = keras.callbacks.History()
    made.history, made.epoch = values, list(range(max(map(len, values.values()), default=0)))
    return made


def test_a_fit_has_curves_a_timeline_and_the_drift() -> None:
    fit = history(
        loss=[0.9, 0.5, 0.6], val_loss=[1.0, 0.7, 0.8], accuracy=[0.1, 0.2, 0.3], val_accuracy=[0.3, 0.2, 0.1]
    )
    fit.rounds = [record(0, 0, 1.0, 2.0), record(1, 0, 2.0, 1.0, drift=0.1), record(2, 1, 1.0, 1.0, drift=0.6)]
    made = plot_history(fit)
    loss, accuracy, timeline, drift = made.axes
    assert [list(line.get_xdata()) for line in loss.get_lines()][:2] == [[1, 2, 3], [1, 2, 3]]
    best = [line for axes in (loss, accuracy) for line in axes.get_lines() if line.get_label().startswith("best")]
    assert [line.get_label() for line in best] == [
        "best 0.7",
        "best 0.3",
    ]  # of the validation: least loss, most accuracy
    assert [int(line.get_xdata()[0]) for line in best] == [2, 1]
    bars = [path.vertices[:, 0] for each in timeline.collections for path in each.get_paths()]
    assert [(min(bar), max(bar)) for bar in bars] == [(0, 1), (2, 4), (4, 5), (0, 2), (2, 3), (4, 5)]
    assert timeline.get_title(loc="left").startswith("3 rounds, shades by epoch; 20 % waiting")  # 2 of 10 seconds
    assert list(drift.get_lines()[0].get_ydata()) == [0.1, 0.6]
    assert texts_over_each_other(made) == []


def test_what_a_history_may_lack() -> None:
    plain = plot_history(history(loss=[1.0]))  # Keras' own has no rounds
    assert [axes.get_ylabel() for axes in plain.axes] == ["loss"]
    rare = plot_history(history(loss=[1.0] * 4, val_loss=[0.5, 0.4]))  # validation_freq=2
    assert list(rare.axes[0].get_lines()[1].get_xdata()) == [1, 4]
    nan = plot_history(history(loss=[float("nan")] * 2))
    assert all(not line.get_label().startswith("best") for line in nan.axes[0].get_lines())
    one = history(loss=[1.0], f1=[[0.1, 0.2]])  # a metric of several numbers is no curve
    one.rounds = [record(0, 0, 1.0)]
    assert [axes.get_ylabel() for axes in plot_history(one).axes] == ["loss", "worker", "drift"]


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="no epochs"):
        plot_history(history())
    with pytest.raises(ValueError, match="the history has no 'acc'; it has 'loss'"):
        plot_history(history(loss=[1.0], val_loss=[1.0]), metrics=["acc"])


def test_many_workers_are_not_all_drawn() -> None:
    fit = history(loss=[1.0])
    fit.rounds = [record(0, 0, *[1.0] * 40, dropped=1)]
    made = plot_history(fit, metrics=["loss"])
    timeline = made.axes[1]
    assert timeline.get_ylabel() == "worker (the first 32 of 40)"
    assert "red: updates that were dropped" in timeline.get_title(loc="left")
    assert texts_over_each_other(made) == []
