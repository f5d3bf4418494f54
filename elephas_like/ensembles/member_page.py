"""The training page of an ensemble: its members while they are trained, and afterwards in a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from elephas_like.core.monitoring import Snapshot
from elephas_like.core.runs_monitor import RunsMonitor

History = Mapping[str, Sequence[float]]


def members_monitor(members: int, about: Mapping[str, object], *, validates: bool) -> RunsMonitor:
    """Return what people are told of an ensemble: its members, compared by their loss, on held-out rows if there are any."""
    objective = "val_loss" if validates else "loss"
    return RunsMonitor("ensemble", objective, members, time.perf_counter, time.time, about=about)


def show_member(page: RunsMonitor, number: int, history: History, seconds: float | None = None) -> None:
    """Show a member that is trained, with its loss by epoch: that of held-out rows, if there are any."""
    values = list(history.get("val_loss") or history.get("loss") or [])
    last = {f"last {name}": each[-1] for name, each in history.items() if np.ndim(each[-1]) == 0}
    page.end(number, "ok", float(values[-1]) if values else None, params=last, values=values, seconds=seconds)


def show_failure(page: RunsMonitor, number: int, error: BaseException) -> None:
    """Show a member that has failed."""
    page.end(number, "failed", error=f"{type(error).__name__}: {error}")


def report_of(
    histories: Sequence[History], failures: Sequence[tuple[int, BaseException]], about: Mapping[str, object]
) -> Snapshot:
    """Return what the training page shows at the end of an ensemble's training.

    Args:
        histories: of the members that were trained, in order, without those of `failures`: (number, error).

    Raises:
        ValueError: there are no histories.
    """
    if not histories:
        raise ValueError(
            "nothing is known of the members' training: save_report is for ensembles of train_ensemble, also of a file."
        )
    failed = dict(failures)
    members = len(histories) + len(failed)
    page = members_monitor(members, about, validates="val_loss" in histories[0])
    trained = (number for number in range(members) if number not in failed)
    for number, history in zip(trained, histories, strict=True):
        show_member(page, number, history)
    for number, error in failed.items():
        show_failure(page, number, error)
    page.ended("finished")
    return page.snapshot() | {"elapsed": None, "began_at": None}  # when it was is not kept
