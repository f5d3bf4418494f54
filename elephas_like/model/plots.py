"""Pictures of fits and searches: the one file that knows matplotlib, which is an extra and asked for when a picture is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pandas as pd

from elephas_like.core.drift import DRIFT_HIGH
from elephas_like.core.errors import MissingExtraError
from elephas_like.core.timelines import training_spans
from elephas_like.core.types import RoundRecord

_COLORS = {"ok": "tab:blue", "pruned": "tab:orange", "timeout": "tab:green"}
_EPOCHS = ("tab:blue", "lightskyblue")
MOST_WORKERS = 32
"""Workers that a timeline shows."""
MOST_OPTIONS = 12
"""Options of a choice whose names are written."""
_LETTERS = 12


def plot_history(history: keras.callbacks.History, metrics: Sequence[str] | None = None) -> Any:
    """Draw a fit: loss and metrics by epoch, and below who trained when and how far the workers' updates drift apart.

    A solid line is of training rows, a dashed one of validation rows; a ring marks the best epoch. The timeline has a bar for each
    worker and round, in turns dark and light by epoch; gaps are waits for slower workers. It counts training alone, no exchanges.

    Args:
        history: what `SparkModel.fit` returns. A History of Keras' own has the curves alone.
        metrics: names of the curves, such as ["loss", "accuracy"]; all if left out.

    Returns:
        A matplotlib Figure: `plot_history(history).savefig("fit.png")`; a notebook shows it.

    Raises:
        ValueError: no epoch was trained, or a metric is not in the history.
        MissingExtraError: matplotlib is not installed.
    """
    curves = {name: values for name, values in history.history.items() if _is_curve(values)}
    known = [name for name in curves if not (name.startswith("val_") and name[4:] in curves)]
    names = known if metrics is None else list(metrics)
    if not curves:
        raise ValueError("the history has no epochs: plot it after a fit of one epoch or more.")
    unknown = [name for name in names if name not in curves]
    if unknown:
        raise ValueError(f"the history has no {', '.join(map(repr, unknown))}; it has {', '.join(map(repr, known))}.")
    rounds: Sequence[RoundRecord] = getattr(history, "rounds", ())
    across = max(1, min(3, len(names)))
    down = -(-len(names) // across)
    workers = {worker.worker for record in rounds for worker in record.workers}
    tall = 0.8 + 0.22 * min(len(workers), MOST_WORKERS)
    heights = [*[2.8] * down, *([tall, 1.6] if rounds else [])]
    made = _new_figure(max(6.0, 4.0 * across), sum(heights) + 0.6)
    grid = made.add_gridspec(len(heights), across, height_ratios=heights)
    first = min(history.epoch, default=0) + 1
    for place, name in enumerate(names):
        _curves(made.add_subplot(grid[place // across, place % across]), curves, name, first)
    if rounds:
        timeline = made.add_subplot(grid[down, :])
        _timeline(timeline, rounds)
        _drift(made.add_subplot(grid[down + 1, :]), rounds)
    return made


def plot_search(
    trials: pd.DataFrame,
    objective: str,
    maximize: bool,
    front: pd.DataFrame | None = None,
    more: Sequence[str] = (),
    candidates: Sequence[int] | None = None,
) -> Any:
    """Draw objective over trials, parallel coordinates, each parameter against the objective, and objectives against each other.

    The best trial is marked in each. Trials without an objective are left out, and so are parameters that only those had.

    Args:
        trials: `SearchResult.trials`. front: `SearchResult.pareto_front`. more: further objectives.
        candidates: numbers of the trials that may be the best; None for those that finished.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    known = trials[trials[objective].notna()].reset_index(drop=True)
    best = _best_of(known, objective, maximize, candidates)
    parameters = [name for name in trials.columns if name.startswith("param_") and known[name].notna().any()]
    across = max(1, min(4, len(parameters)))
    down = -(-(len(parameters) + len(more)) // across)
    made = _new_figure(max(9.0, 3.0 * across), 6.0 + 2.6 * down)
    grid = made.add_gridspec(2 + down, across)
    _over_trials(made.add_subplot(grid[0, :]), known, objective, maximize, best)
    _parallel(made.add_subplot(grid[1, :]), known, parameters, objective, maximize, best)
    for place, name in enumerate(parameters):
        axes = made.add_subplot(grid[2 + place // across, place % across])
        _against(axes, known, name, objective, best)
    for place, name in enumerate(more, len(parameters)):
        axes = made.add_subplot(grid[2 + place // across, place % across])
        axes.scatter(known[objective], known[name], s=14, color="lightgray")
        if front is not None:
            axes.plot(front[objective], front[name], marker="o", markersize=4, color="black", label="Pareto front")
            axes.legend(fontsize="small")
        axes.set(xlabel=objective, ylabel=name)
    return made


def _new_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as cause:
        raise MissingExtraError(
            "pictures need matplotlib: pip install 'elephas-like[plots]'.", name="matplotlib"
        ) from cause
    return Figure(figsize=(width, height), layout="constrained")


# Fits


def _is_curve(values: Sequence[object]) -> bool:
    return len(values) > 0 and all(isinstance(value, int | float | np.number) for value in values)


def _curves(axes: Any, curves: Mapping[str, Sequence[float]], name: str, first: int) -> None:
    """One metric, of training and validation rows, by epoch."""
    held = curves.get(f"val_{name}")
    epochs = np.arange(first, first + len(curves[name]))
    axes.plot(epochs, curves[name], color="tab:blue", marker=".", label="training")
    judged, at = curves[name], epochs
    if held is not None:
        # A validation that is not after every epoch has fewer values: they are spread over the epochs.
        at = epochs if len(held) == len(epochs) else np.linspace(epochs[0], epochs[-1], len(held))
        axes.plot(at, held, color="tab:orange", marker=".", linestyle="--", label="validation")
        judged = held
    if np.isfinite(judged).any():
        values = np.asarray(judged, float)
        best = int(np.nanargmin(values) if _falls(name) else np.nanargmax(values))
        label = f"best {values[best]:.4g}"
        axes.plot(at[best], values[best], "o", markersize=10, fillstyle="none", color="black", label=label)
    axes.set(xlabel="epoch", ylabel=name)
    axes.locator_params(axis="x", integer=True)
    axes.margins(y=0.12)
    axes.legend(fontsize="small")


def _falls(metric: str) -> bool:
    """Return whether less of a metric is better, as far as its name says."""
    words = ("loss", "error", "mae", "mse", "mape", "msle", "perplexity", "divergence", "crossentropy", "poisson")
    return any(word in metric.lower() for word in words)


def _timeline(axes: Any, rounds: Sequence[RoundRecord]) -> None:
    """A bar for each worker and round; the bars of an epoch have one shade."""
    spans = training_spans(rounds)
    workers = sorted({span.worker for span in spans})
    shown = workers[:MOST_WORKERS]
    for place, worker in enumerate(shown):
        own = [span for span in spans if span.worker == worker]
        bars = [(span.start, span.seconds) for span in own]
        colors = ["tab:red" if span.dropped else _EPOCHS[span.epoch % 2] for span in own]
        axes.broken_barh(bars, (place - 0.4, 0.8), facecolors=colors, edgecolor="white", linewidth=0.4)
    axes.set_yticks(range(len(shown)), map(str, shown), fontsize="small")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    left = "" if len(shown) == len(workers) else f" (the first {len(shown)} of {len(workers)})"
    dropped = "; red: updates that were dropped" if any(span.dropped for span in spans) else ""
    waited = sum(span.wait for span in spans)
    total = sum(span.seconds for span in spans) + waited
    share = f"; {100 * waited / total:.0f} % waiting" if total and waited else ""
    axes.set(xlabel="seconds of training", ylabel=f"worker{left}")
    axes.set_title(f"{len(rounds)} rounds, shades by epoch{share}{dropped}", fontsize="small", loc="left")


def _drift(axes: Any, rounds: Sequence[RoundRecord]) -> None:
    """How far updates drift apart by round, and from where on automatic rounds become shorter."""
    known = [(record.round, record.drift) for record in rounds if record.drift is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color="tab:purple", marker=".", linewidth=1)
    else:
        axes.text(
            0.5, 0.7, "no drift was measured: one worker, or a single round", ha="center", transform=axes.transAxes
        )
    axes.axhline(DRIFT_HIGH, color="gray", linestyle=":", label=f"above {DRIFT_HIGH}: automatic rounds become shorter")
    axes.set(xlabel="round", ylabel="drift")
    axes.set_ylim(min(-0.1, *(drift for _, drift in known), 0.0), max(0.35, *(drift for _, drift in known), 0.0) * 1.3)
    axes.set_xlim(-0.5, max(1, len(rounds)) - 0.5)
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize="x-small", loc="upper right")


# Searches


def _best_of(trials: pd.DataFrame, objective: str, maximize: bool, candidates: Sequence[int] | None) -> int | None:
    """Return the place of the best of the candidates, or of the trials that finished; None where there are none."""
    may_be = trials["status"].isin(["ok", "timeout"]) if candidates is None else trials["trial"].isin(candidates)
    done = trials[may_be]
    if not len(done):
        return None
    return int(done[objective].idxmax() if maximize else done[objective].idxmin())


def _mark(axes: Any, x: float, y: float, label: str | None = None) -> None:
    axes.plot(
        x, y, marker="*", markersize=15, color="gold", markeredgecolor="black", linestyle="", zorder=5, label=label
    )


def _over_trials(axes: Any, trials: pd.DataFrame, objective: str, maximize: bool, best: int | None) -> None:
    for status, rows in trials.groupby("status", sort=True):
        axes.scatter(rows["trial"], rows[objective], s=18, color=_COLORS.get(status, "tab:gray"), label=status)
    done = trials[trials["status"].isin(["ok", "timeout"])]
    so_far = done[objective].cummax() if maximize else done[objective].cummin()
    axes.step(done["trial"], so_far, where="post", color="black", linewidth=1, label="best so far")
    if best is not None:
        row = trials.iloc[best]
        _mark(axes, row["trial"], row[objective], f"best: trial {row['trial']}, {row[objective]:.4g}")
    axes.set(xlabel="trial", ylabel=objective)
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize="small")


def _parallel(
    axes: Any, trials: pd.DataFrame, names: list[str], objective: str, maximize: bool, best: int | None
) -> None:
    """One line a trial through all parameters to the objective: the better the darker, the best one thick and black."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    columns = [*names, objective]
    heights = [_heights(trials[name])[0] for name in columns]
    values = trials[objective].to_numpy(float)
    scale = Normalize(values.min(), values.max()) if len(values) else Normalize()
    colors = colormaps["viridis" if not maximize else "viridis_r"]
    for row in range(len(trials)):
        style = (
            {"color": "black", "linewidth": 2.5, "zorder": 3} if row == best else {"color": colors(scale(values[row]))}
        )
        axes.plot(range(len(columns)), [height[row] for height in heights], alpha=0.7, **style)
    axes.set_xticks(range(len(columns)), [_short(name, _letters(len(columns))) for name in columns])
    axes.set_yticks([])
    axes.set_ylim(-0.08, 1.08)
    axes.set_xlim(-0.1, len(columns) - 1 + 0.5)
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    for place, name in enumerate(columns):
        axes.axvline(place, color="lightgray", zorder=0)
        for height, text in _heights(trials[name])[1]:
            shown = _short(text, _letters(len(columns)))
            axes.text(place + 0.02, height, shown, fontsize="x-small", va="center", zorder=4, bbox=behind)


def _letters(columns: int) -> int:
    """Letters of a label that fit between two of so many columns."""
    return max(4, min(_LETTERS, 90 // columns))


def _short(name: str, letters: int = _LETTERS) -> str:
    """Return a name, its middle left out if it is too long: options often differ at their ends."""
    text = name.removeprefix("param_")
    return text if len(text) <= letters else f"{text[: letters // 2]}…{text[len(text) - (letters - 1) // 2 :]}"


def _against(axes: Any, trials: pd.DataFrame, name: str, objective: str, best: int | None) -> None:
    values = trials[name]
    if _is_numeric(values):
        places = values.to_numpy(float)
        if (places > 0).all() and places.max() > 30 * places.min():
            axes.set_xscale("log")
            axes.tick_params(axis="x", which="minor", labelbottom=False)
        else:
            axes.locator_params(axis="x", nbins=4)
    else:
        options = sorted(values.map(str).unique())
        places = values.map(str).map(options.index).to_numpy(float)
        every = max(1, -(-len(options) // MOST_OPTIONS))
        shown = [_short(option) for option in options[::every]]
        upright = sum(map(len, shown)) > 24  # side by side they would overlap
        axes.set_xticks(range(0, len(options), every), shown, fontsize="x-small", rotation=90 if upright else 0)
    colors = [_COLORS.get(status, "tab:gray") for status in trials["status"]]
    axes.scatter(places, trials[objective], s=14, c=colors)
    if best is not None and np.isfinite(places[best]):
        _mark(axes, places[best], trials[objective].iloc[best])
    axes.set(xlabel=name.removeprefix("param_"), ylabel=objective)


def _is_numeric(values: pd.Series) -> bool:
    plain = all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)
    return plain and len(values) > 0


def _heights(values: pd.Series) -> tuple[list[float], list[tuple[float, str]]]:
    """(place of each value between 0 and 1, marks with their texts) on one axis of parallel coordinates."""
    if _is_numeric(values):
        numbers = values.to_numpy(float)
        finite = numbers[np.isfinite(numbers)]
        log = bool(finite.size) and bool((finite > 0).all()) and finite.max() > 30 * finite.min()
        scaled = np.log(numbers) if log else numbers
        low, high = float(np.nanmin(scaled)), float(np.nanmax(scaled))
        span = high - low or 1.0
        heights = [float((one - low) / span) if np.isfinite(one) else 0.5 for one in scaled]
        ends = [(0.0, f"{finite.min():.3g}"), (1.0, f"{finite.max():.3g}")]
        return heights, ends if high > low else ends[:1]
    options = sorted(values.map(str).unique())
    step = 1.0 / max(1, len(options) - 1)
    every = max(1, -(-len(options) // MOST_OPTIONS))
    return [options.index(str(one)) * step for one in values], [
        (i * step, options[i]) for i in range(0, len(options), every)
    ]
