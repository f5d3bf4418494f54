"""The Params of the Spark ML stages in one table: names, checks of values, documentation, defaults, mixins.

Params have names in camelCase, as Spark's have. `stages/params.py` makes the other spellings: `batch_size` for `batchSize`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.ml.param import shared

from elephas_like.core import checks
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies.codecs import resolve_codec
from elephas_like.core.strategies.registry import resolve
from elephas_like.core.types import EngineName, Mode, OnNaN, OptimizerState, RateScale, Resources
from elephas_like.core.voting import normalized
from elephas_like.trainer.request import class_weights

UNSET: Any = object()
"""Marks a Param without default: reading it before it is set is an error."""

Check = Callable[[str, Any], object]


@dataclass(frozen=True)
class Mixin:
    """One of Elephas' mixins: its name, the suffix of its setter and getter, and its own default."""

    name: str
    verb: str
    default: object = UNSET


@dataclass(frozen=True)
class Entry:
    """One Param: its name, check, documentation, the stage's default, and Elephas' mixin if there is one.

    aliases: other names. kinds: Spark's mixins for it, by which tools of Spark find a stage that has it.
    """

    name: str
    check: Check
    doc: str
    default: object = None
    mixin: Mixin | None = None
    aliases: tuple[str, ...] = ()
    kinds: tuple[type, ...] = ()

    def converted(self, name: str, value: Any) -> Any:
        """Return the value as the Param holds it; None stays None where it is the default or there is no default.

        Raises:
            TypeError, ValueError: what was expected, and what came. `name` is how the Param was called.
        """
        optional = self.default is None or self.default is UNSET
        return None if value is None and optional else self.check(name, value)


class _HasSeed(shared.HasSeed):
    """Spark's mixin without its default, a number that differs from process to process: here None, a seed drawn anew."""

    def __init__(self) -> None:
        super(shared.HasSeed, self).__init__()


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text that is not empty; got {value!r}.")
    return value


def _column(name: str, value: Any) -> str:
    """Check the name of a column that is added; "" adds none, as in Spark."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be the name of a column to add, or '' for none; got {value!r}.")
    return value


def _added(name: str, value: Any) -> str:
    return _column(name, "" if value is None else value)


def _optional_column(name: str, value: Any) -> str | None:
    return _column(name, value) or None


def _thresholds(name: str, value: Any) -> list[float]:
    given = _list(name, value.tolist() if hasattr(value, "tolist") else value)
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in given):
        raise TypeError(f"{name} must be a list of numbers, one per class; got {value!r}.")
    if len(given) < 2 or not all(0 <= one < math.inf for one in given) or given.count(0) > 1:
        raise ValueError(
            f"{name} must have a number from 0 for each of at least two classes, with at most one 0; got {value!r}."
        )
    return [float(one) for one in given]


# By name, not as closures: stages can be pickled.


def _whole(least: int) -> Check:
    return partial(_at_least, least)


def _at_least(least: int, name: str, value: Any) -> int:
    return checks.positive_int(name, value, least)


def _one_of(kind: Any) -> Check:
    return partial(_member, kind)


def _member(kind: Any, name: str, value: Any) -> str:
    return str(checks.choice(name, value, kind).value)


def _among(*values: str) -> Check:
    return partial(_known, values)


def _known(values: tuple[str, ...], name: str, value: Any) -> str:
    if value not in values:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, values))}; got {value!r}.")
    return str(value)


def _frequency(name: str, value: Any) -> str | int | Schedule:
    if isinstance(value, Schedule):
        return value
    found = checks.frequency(value)
    return int(found) if isinstance(found, int) else found.value


def _strategy(name: str, value: Any) -> object:
    resolve(value, Mode.SYNCHRONOUS, 2)  # raises if invalid; a name stays a name, so that it is saved as one
    return value


def _codec(name: str, value: Any) -> object:
    resolve_codec(value, name)
    return value


def _compiled_part(name: str, value: Any) -> object:
    """Check an argument of `compile`: a name, a function, a Keras object or its configuration, or those by output."""
    if isinstance(value, str | list | tuple | Mapping) or callable(value) or hasattr(value, "get_config"):
        return value
    raise TypeError(f"{name} must be a name, a function, or a Keras object or its configuration; got {value!r}.")


def _columns(name: str, value: Any) -> object:
    """Check one column's name, a list of names, or a mapping to those."""
    if isinstance(value, Mapping):
        return {_text(name, key): _columns(name, columns) for key, columns in value.items()}
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, Iterable) and type(value).__name__ != "Column":  # Spark's, which cannot be iterated over
        return [_text(name, column) for column in value]
    raise TypeError(f"{name} must be a column's name, a list of names, or a dict of those; got {value!r}.")


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict; got {value!r}.")
    return dict(value)


def _shapes(name: str, value: Any) -> dict[str, list[int]]:
    return {key: [checks.positive_int(name, axis) for axis in shape] for key, shape in _mapping(name, value).items()}


def _weights_of_classes(name: str, value: Any) -> dict[int, float]:
    return class_weights(value) or {}


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be a list; got {value!r}.")
    return list(value)


def _shares(name: str, value: Any) -> list[float]:
    shares = [float(share) for share in _list(name, value.tolist() if hasattr(value, "tolist") else value)]
    normalized(shares, len(shares))
    return shares


def _verbosity(name: str, value: Any) -> int:
    return checks.verbosity(value)


def _page(name: str, value: Any) -> bool | int | str:
    port = checks.monitor(name, value)
    return False if port is None else value  # True stays True


def _function(name: str, value: Any) -> object:
    if not callable(value) or hasattr(value, "get_config"):
        raise TypeError(f"{name} must be a function that returns a compiled model; got {type(value).__name__}.")
    return value


def _epochs_between(name: str, value: Any) -> int | list[int]:
    if isinstance(value, list | tuple):
        return [checks.positive_int(name, epoch) for epoch in value]
    return checks.positive_int(name, value)


def _model_json(name: str, value: Any) -> str:
    try:
        if isinstance(json.loads(_text(name, value)), dict):
            return str(value)
    except json.JSONDecodeError:
        pass
    raise ValueError(f"{name} must be what model.to_json() gives; got {value[:60]!r}. YAML is not read any more.")


COLUMNS = (
    Entry(
        "featuresCol",
        _columns,
        "column of features, or several, or a dict by the model's inputs",
        "features",
        kinds=(shared.HasFeaturesCol,),
    ),
    Entry(
        "labelCol",
        _columns,
        "column of labels, or several, or a dict by the model's outputs",
        "label",
        kinds=(shared.HasLabelCol,),
    ),
    Entry(
        "predictionCol",
        _column,
        "column of predictions; '' leaves it out",
        "prediction",
        None,
        ("outputCol",),
        (shared.HasPredictionCol, shared.HasOutputCol),
    ),
    Entry(
        "probabilityCol",
        _added,
        "column of a classifier's class probabilities, a Vector; '' leaves it out",
        "probability",
        kinds=(shared.HasProbabilityCol,),
    ),
    Entry(
        "rawPredictionCol",
        _added,
        "column of a classifier's logits, a Vector; '' leaves it out",
        "rawPrediction",
        kinds=(shared.HasRawPredictionCol,),
    ),
    Entry(
        "thresholds",
        _thresholds,
        "one number from 0 per class: the class with the largest probability / threshold is predicted",
        UNSET,
        kinds=(shared.HasThresholds,),
    ),
    Entry(
        "handleInvalid",
        _among("error", "skip", "keep"),
        "rows with null, NaN or features of a wrong length: error, skip (leaves them out), or keep (predicts null)",
        "error",
        kinds=(shared.HasHandleInvalid,),
    ),
    Entry("columnShapes", _shapes, "shapes of values, by column"),
    Entry("columnDtypes", _mapping, "dtypes of the bytes in binary columns, by column"),
    Entry("modelType", _among("classification", "regression"), "how the output is read; None: by loss and activation"),
    Entry(
        "predictClasses",
        checks.flag,
        "whether a classifier's prediction is the class; False: what the model puts out, an array",
        True,
        Mixin("HasPredictClasses", "predict_classes", True),
    ),
    Entry(
        "inferenceBatchSize",
        _whole(1),
        "rows that are predicted at once; None: 1024",
        None,
        Mixin("HasInferenceBatchSize", "inference_batch_size", None),
    ),
    Entry(
        "kerasModelConfig",
        _model_json,
        "the model's architecture, as model.to_json() gives it",
        UNSET,
        Mixin("HasKerasModelConfig", "keras_model_config"),
    ),
    Entry(
        "customObjects",
        _mapping,
        "classes and functions that the model refers to, by name",
        {},
        Mixin("HasCustomObjects", "custom_objects", {}),
    ),
)
"""Params that estimator and transformer share."""

FITTING = (
    Entry(
        "optimizerConfig",
        _compiled_part,
        "an optimizer: its name, or what keras.optimizers.serialize gives",
        None,
        Mixin("HasKerasOptimizerConfig", "optimizer_config", None),
    ),
    Entry("loss", _compiled_part, "the loss: a name, a function, or a keras Loss", UNSET, Mixin("HasLoss", "loss")),
    Entry("metrics", _list, "metrics, for a model from its JSON", ["acc"], Mixin("HasMetrics", "metrics", ["acc"])),
    Entry(
        "mode",
        _one_of(Mode),
        "how workers exchange: synchronous (in rounds), asynchronous, or hogwild (without a lock)",
        "synchronous",
        Mixin("HasMode", "mode", "asynchronous"),
    ),
    Entry("frequency", _frequency, "when rounds end", "auto", Mixin("HasFrequency", "frequency", "epoch")),
    Entry(
        "nbClasses",
        _whole(1),
        "classes; None: what the model puts out",
        None,
        Mixin("HasNumberOfClasses", "nb_classes", 10),
    ),
    Entry(
        "categorical",
        checks.flag,
        "whether class indices become one-hot labels where the loss wants those",
        True,
        Mixin("HasCategoricalLabels", "categorical_labels", True),
    ),
    Entry("epochs", _whole(1), "passes over the rows", 10, Mixin("HasEpochs", "epochs", 10)),
    Entry("batchSize", _whole(1), "rows a batch on each worker", 32, Mixin("HasBatchSize", "batch_size", 32)),
    Entry("verbose", _verbosity, "0 silent, 1 a bar, 2 a line per epoch", 0, Mixin("HasVerbosity", "verbosity", 0)),
    Entry(
        "validationSplit",
        checks.share,
        "share of the rows held out",
        0.1,
        Mixin("HasValidationSplit", "validation_split", 0.1),
    ),
    Entry(
        "numWorkers",
        _whole(1),
        "workers; None: one per partition, at most Spark's slots",
        None,
        Mixin("HasNumberOfWorkers", "num_workers", 8),
    ),
    Entry(
        "weightCol",
        _optional_column,
        "column of sample weights",
        aliases=("sampleWeightCol",),
        kinds=(shared.HasWeightCol,),
    ),
    Entry(
        "validationIndicatorCol",
        _optional_column,
        "boolean column: rows for validation instead of training",
        aliases=("validationCol",),
        kinds=(shared.HasValidationIndicatorCol,),
    ),
    Entry("strategy", _strategy, "how updates are averaged: a name or a Strategy"),
    Entry("codec", _codec, "compression of updates: a name or a Codec; None: no compression"),
    Entry("stateCodec", _codec, "compression of steps of the weights that workers receive, likewise"),
    Entry("maxStaleness", _whole(0), "age at which asynchronous updates are dropped; None: never"),
    Entry("quorum", checks.quorum, "workers, or share of them, that end a round with their answers; None: all"),
    Entry(
        "resources",
        _one_of(Resources),
        "what each worker's task needs besides cores: gpu; None: what Spark gives to every task",
    ),
    Entry("epochsPerJob", checks.positive_int, "epochs of a job of the gang engine; None: it is chosen"),
    Entry("quorumGrace", checks.from_zero, "time that the others have then, as a share of what those took", 0.1),
    Entry(
        "engine",
        _one_of(EngineName),
        "how rounds are run: auto, server (long tasks), jobs (one Spark job a round), gang (barrier stages) or in_process",
        "auto",
    ),
    Entry("parameterServerMode", _among("http", "socket"), "the server's transport", "http"),
    Entry("host", _text, "address that the server binds"),
    Entry("port", checks.port, "the server's port, or a range such as 40000:40100; 0: any free one", 0),
    Entry(
        "tls",
        checks.tls,
        "whether the server speaks TLS, or the paths of its certificate and key; None: where Spark encrypts",
    ),
    Entry("allowPlainText", checks.flag, "whether to leave in plain text what Spark's settings encrypt", False),
    Entry(
        "optimizerState",
        _one_of(OptimizerState),
        "what happens to optimizer slots at an exchange: average, per_worker or reset",
        "average",
    ),
    Entry("optimizerStateEvery", _whole(1), "rounds from one average of optimizer slots to the next", 1),
    Entry("controlVariates", checks.flag, "whether workers correct their steps by those of all workers", False),
    Entry("onNan", _one_of(OnNaN), "what happens to an update with NaN: raise or drop", "raise"),
    Entry("fusedOptimizer", checks.flag, "whether optimizers may take TensorFlow's fused kernels", False),
    Entry("scaleLearningRate", _one_of(RateScale), "how the learning rate grows with the workers: linear or sqrt"),
    Entry("seed", _whole(0), "of shuffling, validation rows and dropout", kinds=(_HasSeed,)),
    Entry("joinTimeout", checks.positive_seconds, "seconds to wait for the last worker", 60),
    Entry(
        "roundTimeout", checks.positive_seconds, "seconds without progress of a worker after which the fit fails", 600
    ),
    Entry("globalBatchSize", _whole(1), "rows a batch over all workers together"),
    Entry("validationFreq", _epochs_between, "epochs between validations, or a list of epochs", 1),
    Entry("classWeight", _weights_of_classes, "weight of a row by its class"),
    Entry("shuffle", checks.flag, "whether each worker sees its rows in a new order each epoch", True),
    Entry("initialEpoch", _whole(0), "the epoch to begin with", 0),
    Entry("checkpointDir", checks.directory, "directory or URL from which a fit goes on whose driver has died"),
    Entry("checkpointFreq", checks.checkpoint_freq, "epoch, or the least seconds between two checkpoints", "epoch"),
    Entry("resume", checks.resume, "auto, True to insist on a checkpoint, or False to begin anew", "auto"),
    Entry(
        "monitor", _page, "whether the driver serves a page that shows the fit while it runs, or the page's port", False
    ),
)
"""Further Params of the estimator: the arguments of SparkModel and of its `fit`."""


ENSEMBLE = (
    Entry("numMembers", _whole(1), "models in the ensemble", 5),
    Entry(
        "bagging",
        checks.bagging,
        "which rows a member sees: True, as many as there are, drawn with replacement; False, all; 'partition', one of the "
        "partitions",
        True,
    ),
    Entry(
        "voting",
        _among("auto", "hard", "soft", "mean"),
        "how members vote; auto: soft for a crossentropy, mean for regression",
        "auto",
    ),
    Entry("weights", _shares, "the members' votes, one number each; None: all equal"),
    Entry("workersPerMember", _whole(1), "1: a Spark task trains a member; k: a fit of k workers does", 1),
    Entry("maxFailures", _whole(0), "members that may fail; the ensemble is the others", 0),
    Entry(
        "build", _function, "a function that returns a compiled model, called once per member; None: a model is copied"
    ),
)
"""Further Params of ensembles: arguments of `train_ensemble`."""


def entries_of(table: Iterable[Entry], names: str) -> tuple[Entry, ...]:
    """Return the entries with the given names, which are separated by blanks, in that order."""
    by_name = {entry.name: entry for entry in table}
    return tuple(by_name[name] for name in names.split())


IMAGES = (
    Entry(
        "inputCol",
        _text,
        "column of images: files in bytes, or structs of Spark's image source",
        "content",
        aliases=("imageCol",),
        kinds=(shared.HasInputCol,),
    ),
    Entry("outputCol", _text, "column of vectors to add", "features", kinds=(shared.HasOutputCol,)),
    *entries_of(COLUMNS, "handleInvalid inferenceBatchSize customObjects"),
)
"""Params of the image featurizer. By default it predicts 32 images at once."""
