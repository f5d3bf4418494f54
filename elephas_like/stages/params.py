"""Spark ML Params from the table of param_table.py: Elephas' `Has*` mixins, and a class of Params for each stage.

Mixins that are used alone accept any value and have Elephas' defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark.ml.param import Param, Params

from elephas_like.core import checks
from elephas_like.stages.param_table import COLUMNS, FITTING, UNSET, Entry


def snake(name: str) -> str:
    """Return "features_col" for "FeaturesCol"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def camel(name: str) -> str:
    """Return "batchSize" for "batch_size"."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


@dataclass(frozen=True)
class Converter:
    """Spark's `typeConverter` of a Param: whatever way a value comes, it is checked as the table says."""

    entry: Entry

    def __call__(self, value: Any) -> Any:
        """Return the value as the Param holds it, or raise."""
        return self.entry.converted(self.entry.name, value)


def _spellings(entry: Entry) -> dict[str, None]:
    """Return the names by which a Param may be given, in both styles."""
    return {spelled: None for name in (entry.name, *entry.aliases) for spelled in (name, snake(name), camel(name))}


def _accessor(name: str, doc: str) -> tuple[Any, Any, Any]:
    """Return a setter, a getter and a property of a Param."""

    def setter(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def getter(self: Any) -> Any:
        return self.getOrDefault(name)

    def param(self: Any) -> Any:
        return getattr(self, name)

    setter.__doc__, getter.__doc__, param.__doc__ = f"Sets {name}: {doc}.", f"{name}: {doc}.", f"The Param {name}."
    return setter, getter, property(param)


def _accessors(entry: Entry) -> dict[str, object]:
    """Return set_x, get_x, setX and getX of a Param under all of its names, and properties for its other spellings."""
    setter, getter, param = _accessor(entry.name, entry.doc)
    members: dict[str, object] = {}
    for name in _spellings(entry):
        ending = name[:1].upper() + name[1:]
        members |= {f"set_{snake(name)}": setter, f"get_{snake(name)}": getter, f"set{camel(ending)}": setter}
        members[f"get{camel(ending)}"] = getter
        if name != entry.name:
            members[name] = param  # Params does not count properties
    return members


def _mixin(entry: Entry) -> Any:
    """Return Elephas' mixin, whose Param has Elephas' name. It can be instantiated alone; its setter accepts anything."""
    assert entry.mixin is not None
    name, verb, default = entry.mixin.name, entry.mixin.verb, entry.mixin.default
    own = snake(entry.name)

    def initialize(self: Any) -> None:
        super(kind, self).__init__()
        if default is not UNSET:
            self._setDefault(**{own: _copied(default)})

    setter, getter, _ = _accessor(own, entry.doc)
    members = {
        "__init__": initialize,
        "__module__": __name__,
        "__doc__": f"The Param {own}: {entry.doc}.",
        own: Param(Params._dummy(), own, entry.doc),
        f"set_{verb}": setter,
        f"get_{verb}": getter,
    }
    kind = type(Params)(name, (Params,), members)
    return kind


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list) else value


MIXINS: dict[str, Any] = {entry.mixin.name: _mixin(entry) for entry in (*COLUMNS, *FITTING) if entry.mixin is not None}

HasBatchSize = MIXINS["HasBatchSize"]
HasCategoricalLabels = MIXINS["HasCategoricalLabels"]
HasCustomObjects = MIXINS["HasCustomObjects"]
HasEpochs = MIXINS["HasEpochs"]
HasFrequency = MIXINS["HasFrequency"]
HasInferenceBatchSize = MIXINS["HasInferenceBatchSize"]
HasKerasModelConfig = MIXINS["HasKerasModelConfig"]
HasKerasOptimizerConfig = MIXINS["HasKerasOptimizerConfig"]
HasLoss = MIXINS["HasLoss"]
HasMetrics = MIXINS["HasMetrics"]
HasMode = MIXINS["HasMode"]
HasNumberOfClasses = MIXINS["HasNumberOfClasses"]
HasNumberOfWorkers = MIXINS["HasNumberOfWorkers"]
HasPredictClasses = MIXINS["HasPredictClasses"]
HasValidationSplit = MIXINS["HasValidationSplit"]
HasVerbosity = MIXINS["HasVerbosity"]


def stage_params(name: str, entries: tuple[Entry, ...]) -> Any:
    """Return a base class of stages with the Params of a table, checked when they are set, in both styles of names.

    It derives from the mixins of Elephas and of Spark that the table names.
    """
    by_name = {entry.name: entry for entry in entries}
    spelled = {spelling: entry.name for entry in entries for spelling in _spellings(entry)}

    def initialize(self: Any) -> None:
        super(kind, self).__init__()
        self._setDefault(**{entry.name: _copied(entry.default) for entry in entries if entry.default is not UNSET})

    def checked_set(self: Any, **given: Any) -> Any:
        values = {}
        for key, value in given.items():
            if key not in spelled:
                raise TypeError(f"{type(self).__name__} has no parameter {key!r}.{checks.did_you_mean(key, spelled)}")
            if spelled[key] in values:
                raise TypeError(f"{spelled[key]} is given twice.")
            entry = by_name[spelled[key]]
            values[entry.name] = entry.converted(key, value)
        return super(kind, self)._set(**values)

    def given(self: Any, name: str) -> Any:
        """Return the value of a Param, None where there is none."""
        return self.getOrDefault(name) if self.isDefined(name) else None

    members: dict[str, object] = {"__init__": initialize, "__module__": __name__, "_set": checked_set, "given": given}
    bases = [MIXINS[entry.mixin.name] for entry in entries if entry.mixin is not None]
    bases += [base for entry in entries for base in entry.kinds]
    for entry in entries:
        members |= _accessors(entry)
        members[entry.name] = Param(Params._dummy(), entry.name, entry.doc, Converter(entry))
    kind = type(Params)(name, tuple(bases) or (Params,), members)
    return kind
