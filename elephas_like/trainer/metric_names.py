"""Names of metrics as in a fresh process. Keras numbers unnamed metrics through a process: auc, auc_1, auc_2."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import keras


def freshly_named(model: keras.Model, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs in which unnamed metrics have the names of a process that has made no others.

    Processes are reused from trial to trial: the second trial's `AUC()` is auc_1, and `val_auc` would not be found. A
    name counts as Keras' own if it fits the metric's class: auc_3 of an AUC. Other names stay; logs whose names would
    collide are returned unchanged.
    """
    fresh = _fresh_names(model)
    renamed = {_renamed(key, fresh): value for key, value in logs.items()}
    return renamed if len(renamed) == len(logs) else dict(logs)


class FreshNames(keras.callbacks.Callback):
    """Renames the metrics in the logs of an epoch, for all callbacks after it."""

    def on_epoch_end(self, epoch: int, logs: MutableMapping[str, Any] | None = None) -> None:
        """Rename in place: all callbacks share the logs."""
        if logs:
            fresh = freshly_named(self.model, logs)
            logs.clear()
            logs.update(fresh)


def _fresh_names(model: keras.Model) -> dict[str, str]:
    """Return the fresh name of each metric. Numbers of a class count from its first one in the model."""
    found = [metric for one in model.metrics for metric in getattr(one, "metrics", None) or [one]]
    fresh = {metric.name: metric.name for metric in found}
    groups: dict[str, dict[int, list[str]]] = {}
    for metric in {id(metric): metric for metric in found}.values():
        base, number = _base_and_number(metric.name)
        if base.replace("_", "").lower() == type(metric).__name__.replace("_", "").lower():
            groups.setdefault(base, {}).setdefault(number, []).append(metric.name)
    for base, numbered in groups.items():
        if all(len(names) == 1 for names in numbered.values()):
            for place, number in enumerate(sorted(numbered)):
                fresh[numbered[number][0]] = f"{base}_{place}" if place else base
    return fresh


def _base_and_number(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+)_(\d+)", name)
    return (found[1], int(found[2])) if found else (name, 0)


def _renamed(key: str, fresh: Mapping[str, str]) -> str:
    """Return a key of the logs with the metric's fresh name; `val_` and an output's name may come before it."""
    bare = key.removeprefix("val_")
    name = max((name for name in fresh if bare == name or bare.endswith(f"_{name}")), key=len, default="")
    return key.removesuffix(name) + fresh.get(name, "")
