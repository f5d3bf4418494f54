"""The progress bar of fits, searches and ensembles."""

from __future__ import annotations

from tqdm.auto import tqdm


class Bar(tqdm):
    """A tqdm bar without tqdm's monitor thread: no thread of this package outlives a call."""

    monitor_interval = 0
