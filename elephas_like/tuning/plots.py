"""A search as a picture. matplotlib is an extra: it is asked for when a picture is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

_COLORS = {"ok": "tab:blue", "pruned": "tab:orange", "timeout": "tab:green"}


def figure(trials: pd.DataFrame, objective: str, maximize: bool) -> Any:
    """Objective over trials, parallel coordinates, and each parameter against the objective.

    Trials without an objective are left out, and so are parameters that only those had.

    Args:
        trials: `SearchResult.trials`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise ImportError("plot() needs matplotlib: pip install matplotlib, or elephas-like[plots].") from cause
    known = trials[trials[objective].notna()]
    parameters = [name for name in trials.columns if name.startswith("param_") and known[name].notna().any()]
    across = max(1, min(4, len(parameters)))
    down = -(-len(parameters) // across)
    made = Figure(figsize=(max(9.0, 3.0 * across), 6.0 + 2.6 * down), layout="constrained")
    grid = made.add_gridspec(2 + down, across)
    _over_trials(made.add_subplot(grid[0, :]), known, objective, maximize)
    _parallel(made, made.add_subplot(grid[1, :]), known, parameters, objective, maximize)
    for place, name in enumerate(parameters):
        axes = made.add_subplot(grid[2 + place // across, place % across])
        _against(axes, known, name, objective)
    return made


def _over_trials(axes: Any, trials: pd.DataFrame, objective: str, maximize: bool) -> None:
    for status, rows in trials.groupby("status", sort=True):
        axes.scatter(rows["trial"], rows[objective], s=18, color=_COLORS.get(status, "tab:gray"), label=status)
    done = trials[trials["status"].isin(["ok", "timeout"])]
    best = done[objective].cummax() if maximize else done[objective].cummin()
    axes.step(done["trial"], best, where="post", color="black", linewidth=1, label="best so far")
    axes.set(xlabel="trial", ylabel=objective)
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize="small")


def _parallel(made: Any, axes: Any, trials: pd.DataFrame, names: list[str], objective: str, maximize: bool) -> None:
    """One line a trial through all parameters to the objective, the better the darker."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    columns = [*names, objective]
    heights = [_heights(trials[name])[0] for name in columns]
    values = trials[objective].to_numpy(float)
    scale = Normalize(values.min(), values.max()) if len(values) else Normalize()
    colors = colormaps["viridis" if not maximize else "viridis_r"]
    for row in range(len(trials)):
        axes.plot(range(len(columns)), [height[row] for height in heights], color=colors(scale(values[row])), alpha=0.7)
    axes.set_xticks(range(len(columns)), [name.removeprefix("param_") for name in columns])
    axes.set_yticks([])
    axes.set_ylim(-0.05, 1.05)
    for place, name in enumerate(columns):
        axes.axvline(place, color="lightgray", zorder=0)
        for height, text in _heights(trials[name])[1]:
            axes.text(place, height, f" {text}", fontsize="x-small", va="center")


def _against(axes: Any, trials: pd.DataFrame, name: str, objective: str) -> None:
    values = trials[name]
    if _is_numeric(values):
        places = values.to_numpy(float)
        if (places > 0).all() and places.max() > 30 * places.min():
            axes.set_xscale("log")
            axes.tick_params(axis="x", which="minor", labelbottom=False)
        else:
            axes.locator_params(axis="x", nbins=5)
    else:
        options = sorted(values.map(str).unique())
        places = values.map(str).map(options.index).to_numpy(float)
        axes.set_xticks(range(len(options)), options, fontsize="x-small")
    colors = [_COLORS.get(status, "tab:gray") for status in trials["status"]]
    axes.scatter(places, trials[objective], s=14, c=colors)
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
    return [options.index(str(one)) * step for one in values], [(i * step, text) for i, text in enumerate(options)]
