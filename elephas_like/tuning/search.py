"""Distributed hyper-parameter search: `search`, and Elephas' `HyperParamModel`."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hyperopt
import keras
import numpy as np
from pyspark import SparkContext

from elephas_like.core import checks
from elephas_like.core.objective import Objective, maximizes
from elephas_like.core.pruning import MedianRule, Rule
from elephas_like.core.trials import Evaluate, TrialResult
from elephas_like.core.types import EngineName, FitConfig, ShardRef
from elephas_like.core.voting import Voting, normalized
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.model.sharding import shard
from elephas_like.model.sources import Source, column_choice
from elephas_like.rows.frames import Choice, ColumnChoice
from elephas_like.rows.shards import dealt, new_dataset, rows_of_partitions
from elephas_like.rows.spool import remove_dataset, spool
from elephas_like.spark.session import active_context
from elephas_like.spark.slots import task_cpus
from elephas_like.trainer.batches import sample_of
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.metric_names import freshly_named
from elephas_like.trainer.request import as_tuple, validation_share
from elephas_like.trainer.seeds import seeded
from elephas_like.trainer.state import build as build_model
from elephas_like.trainer.tensors import check_backend
from elephas_like.tuning.function_trial import FunctionTrial, model_of, unpacked
from elephas_like.tuning.log import SearchLog, Shelf
from elephas_like.tuning.result import SearchResult
from elephas_like.tuning.runner import Limits, Search, Watch, count_parallel, opened, wide
from elephas_like.tuning.space import Sampler, Space, described
from elephas_like.tuning.templates import from_templates, has_templates
from elephas_like.tuning.trial import KerasTrial, checked, forget_rows, restore
from elephas_like.tuning.wide_trial import WideTrial

log = logging.getLogger(__name__)

SLOTS_WAIT = 30.0
_PROBES = 3
_PROBES_NEEDED = 20


def search(
    build: Callable[[Any], keras.Model],
    space: Any,
    data: Any,
    *,
    max_evals: int,
    algo: str | Callable[..., Any] = "tpe",
    objective: str = "val_loss",
    direction: str = "auto",
    parallelism: int | None = None,
    epochs: int = 10,
    batch_size: int | Callable[[Any], int] = 32,
    validation_split: float = 0.0,
    validation_data: Any = None,
    pruning: str | Rule | None = "median",
    seed: int | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    resume: str = "never",
    timeout: float | None = None,
    max_failures: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    keep_models: int = 10,
    trial_workers: int | None = None,
    verbose: int | str = "auto",
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
) -> SearchResult:
    """Tries points of a space on Spark's slots, one trial a slot, and returns the trials and the best models.

    A trial's value is that of its best epoch, and its model has that epoch's state. Without an active Spark session trials
    run one by one in this process.

    Args:
        build: makes a compiled Keras model from one point of the space. It travels to the executors by value.
        space: hyperopt's (`{"rate": hp.loguniform("rate", -9, -2)}`), or a plain dict of `("loguniform", -9, -2)`-like
            tuples, lists of options, nested dicts and constants; both may be mixed.
        data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, a DataFrame, or a ShardedDataset. Unless
            `trial_workers` is given it goes through the driver, once, and to each executor's disk, once.
        max_evals: trials.
        algo: "tpe", "random", "anneal", or a function as `hyperopt.tpe.suggest`. It knows every trial that has ended.
        objective: a metric of the logs, such as "val_accuracy". Metric objects without a name are called as in a fresh
            process, in every trial: `AUC()` is "val_auc", and a second one "val_auc_1".
        direction: "min", "max", or "auto": read off the objective's name.
        parallelism: trials at a time. None: as many as there are slots.
        epochs: of every trial, at most.
        batch_size: rows a batch, or a function that takes it from the parameters.
        validation_split: share of the rows, drawn at random by seed, that all trials are scored on.
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, an RDD of such rows, or with a DataFrame as data one with
            its columns.
        pruning: "median" stops trials that are worse than the median (`MedianRule`); a function of (losses so far, losses of
            the other trials), all lower-is-better, that says whether to stop; None lets all trials finish.
        seed: of points, initial weights, shuffling and validation rows. With one, a random search repeats exactly, and
            any search does with parallelism=1; which trials are pruned depends on how far the others have come by then.
        checkpoint_dir: a directory of the driver's for the trials (JSON lines) and the best models (`.keras`).
        resume: "never", or "auto": go on with the search that is in `checkpoint_dir`, if there is one. Other arguments are
            refused, and so is other data, but for `trial_workers`, whose data the driver does not see.
        timeout: seconds after which no trial begins; those that run end with their epoch.
        max_failures: failed trials that are tolerated. None: any number, as long as one succeeds.
        callbacks: Keras callbacks; each trial gets copies, which see its own model and, if they ask for it, its batches.
        keep_models: the number of trained models that are kept, for `best_models` and `best_ensemble`.
        trial_workers: trains each trial with a SparkModel on so many workers; as many trials run at a time as fit in the slots.
        verbose: 0 silent, 1 or "auto" a progress bar, 2 a line per trial.
        features_col, label_col, sample_weight_col, column_shapes, column_dtypes: of a DataFrame, as for `SparkModel.fit`. They
            are read as a first model's inputs and outputs want them, so models of all points must take the same rows.

    Raises:
        ValueError, TypeError: arguments that make no sense, before anything runs; an objective that is not among the
            metrics: the message lists them.
        WorkerError: the first trial's error, where all trials failed or more than `max_failures`.
        ElephasError: the SparkContext was stopped; what `checkpoint_dir` holds is gone on with by resume="auto".
    """
    if not callable(build):
        raise TypeError(
            f"build must be a function from parameters to a compiled keras.Model; got {type(build).__name__}."
        )
    points = Space(space)
    limits = _limits(max_evals, timeout, max_failures)
    check_backend()
    epochs = checks.positive_int("epochs", epochs)
    keep = checks.positive_int("keep_models", keep_models)
    workers = None if trial_workers is None else checks.positive_int("trial_workers", trial_workers)
    asked = None if parallelism is None else checks.positive_int("parallelism", parallelism)
    sizes = batch_size if callable(batch_size) else _always(checks.positive_int("batch_size", batch_size))
    split = validation_share(validation_split, has_validation_data=validation_data is not None)
    rule = _rule(pruning)
    goal = _objective(objective, direction, bool(split) or validation_data is not None)
    own_callbacks = _callbacks(callbacks)
    shown = checks.verbosity(verbose)
    log_of_search, seed = _log(checkpoint_dir, resume, seed)
    sampler = Sampler(points, algo, seed)
    columns = column_choice(
        data,
        features_col=features_col,
        label_col=label_col,
        sample_weight_col=sample_weight_col,
        column_shapes=column_shapes,
        column_dtypes=column_dtypes,
    )
    model = None if columns is None else _probed(build, points, seed, needed=True)  # which says how columns are read
    source = _source(data, columns, model)
    held = None if validation_data is None else Source.validation(validation_data, columns, model)
    context = source.context or (None if held is None else held.context) or active_context(EngineName.AUTO)
    parallel = count_parallel(context, asked, workers or 1, SLOTS_WAIT)
    model = model or _probed(build, points, seed, needed=False)
    source, held = _read_by(model, source), None if held is None else _read_by(model, held)
    with _Data(source, held, spooled=workers is None) as rows:
        rows.open()
        if model is not None and not _may_add_logs(callbacks):
            _check_objective(goal, model, rows.sample, source, seed)
        identity = {
            "space": points.described(),
            "algo": algo if isinstance(algo, str) else described(algo),
            "seed": seed,
            "objective": [goal.name, "max" if goal.maximize else "min"],
            "epochs": epochs,
            "batch_size": None if callable(batch_size) else batch_size,
            "validation_split": split,
            "trial_workers": workers,
            "data": [[ref.rows, ref.checksum] for ref in rows.shards],
        }
        shelf, earlier = _begun(log_of_search, identity, resume, keep)
        config = FitConfig(seed=seed, split_seed=seed, validation_split=split)
        watch = Watch(goal, rule, epochs, None if timeout is None else time.monotonic() + timeout)
        running = Search(sampler, goal, watch, limits, shelf, log_of_search, sizes, shown)
        running.recall(earlier)
        with ExitStack() as stack:
            if workers is None:
                evaluate: Evaluate = KerasTrial(
                    build=pickle_by_value([build]),
                    objective=goal,
                    epochs=epochs,
                    config=config,
                    callbacks=own_callbacks,
                    cores=None if context is None else task_cpus(context),
                )
                reports = rule is not None or timeout is not None
                slots = stack.enter_context(
                    opened(context, evaluate, rows.shards, watch, parallelism=parallel, reports=reports, name=rows.name)
                )
            else:
                distributed = stack.enter_context(rows.sharded(context, workers))
                if held is not None and held.frame is not None:  # its columns were chosen here
                    validation_data = held.data(workers).rdd
                slots = wide(
                    distributed.source.context,
                    WideTrial(build, workers, distributed, goal, epochs, seed, split, validation_data, own_callbacks),
                    watch,
                    parallel,
                )
            running.run(slots)
        sample = rows.sample
    return SearchResult(
        running.records,
        goal,
        epochs,
        shelf,
        _restorer(build, sample, source, seed),
        sampler.trials,
        running.interrupted,
    )


class _Data:
    """A search's rows on the driver: written down once, for the executors to be shipped from.

    spooled: False leaves them where they are, for trials of several workers.
    """

    def __init__(self, source: Source, held: Source | None, *, spooled: bool) -> None:
        self.name = new_dataset()
        self.shards: list[ShardRef] = []
        self.sample: tuple[object, ...] | None = None
        self._source, self._held, self._spooled = source, held, spooled

    def __enter__(self) -> _Data:
        return self

    def __exit__(self, *error: object) -> None:
        forget_rows()
        for dataset in (self.name, f"{self.name}-val"):
            remove_dataset(dataset)

    def open(self) -> None:
        """Writes the rows down."""
        if not self._spooled:
            if self._source.columns is not None:
                self.sample = self._source.sample(keras.config.floatx())
            return
        sources = [(self.name, self._source)]
        if self._held is not None:
            sources.append((f"{self.name}-val", self._held))
        for dataset, source in sources:
            self.shards.append(
                spool(
                    _rows(source),
                    dataset=dataset,
                    worker=0,
                    floatx=keras.config.floatx(),
                    expect_target=source.has_target,
                    place="the data, shard",
                )
            )
        self.sample = sample_of(self.shards[0])
        if self.sample is None:
            raise ValueError("there are no rows to train on: the data is empty.")

    @contextmanager
    def sharded(self, context: SparkContext | None, workers: int) -> Iterator[Any]:
        """What SparkModels of so many workers are fitted on, written to the executors once for all trials."""
        source = self._source
        if source.dataset is not None:
            yield source.dataset
        elif context is None:
            raise ValueError("trial_workers needs Spark: start a SparkSession first.")
        else:
            with shard(source.data(workers).distributed(context), workers) as dataset:
                yield dataset


def _rows(source: Source) -> Iterator[object]:
    if source.columns is not None:
        yield from dealt(source.columns, 1)
        return
    rdd = source.rdd if source.rdd is not None else source.dataset.source  # type: ignore[union-attr]
    for rows in rows_of_partitions(rdd):
        yield from rows


def _source(data: Any, columns: ColumnChoice | None, model: keras.Model | None) -> Source:
    if columns is not None:
        return Source.of_frame(data, columns, model)
    if isinstance(data, tuple | list):
        if not 1 <= len(data) <= 3:
            raise ValueError(f"data must be (x, y) or (x, y, sample_weight); got {len(data)} parts.")
        x, y, weights = (*data, None, None)[:3]
        return Source.of(x, y, weights)
    source = Source.of(data, None, None)
    if source.columns is not None:
        raise TypeError(
            "data must be (x, y) arrays, an RDD of (x, y) rows, a DataFrame or a ShardedDataset; got "
            f"{type(data).__name__}."
        )
    return source


def _read_by(model: keras.Model | None, source: Source) -> Source:
    """The source as a first model reads it; where none could be built, arrays say whether they have a target."""
    if model is not None:
        return source.for_model(model)
    return source if source.columns is None else replace(source, has_target=len(source.columns) > 1)


def _limits(max_evals: object, timeout: object, max_failures: object) -> Limits:
    return Limits(
        checks.positive_int("max_evals", max_evals),
        None if timeout is None else checks.positive_seconds("timeout", timeout),
        None if max_failures is None else checks.positive_int("max_failures", max_failures, least=0),
    )


def _always(size: int) -> Callable[[Any], int]:
    return lambda params: size


def _rule(pruning: object) -> Rule | None:
    if pruning is None:
        return None
    if pruning == "median":
        return MedianRule()
    if callable(pruning):
        return pruning
    raise ValueError(f"pruning must be 'median', None, or a function of (losses, losses of others); got {pruning!r}.")


def _objective(name: object, direction: object, validates: bool) -> Objective:
    if not isinstance(name, str) or not name:
        raise TypeError(f"objective must be the name of a metric, such as 'val_loss'; got {name!r}.")
    if direction not in ("auto", "min", "max"):
        raise ValueError(f"direction must be one of 'auto', 'min', 'max'; got {direction!r}.")
    if name.startswith("val_") and not validates:
        raise ValueError(
            f"objective={name!r} needs rows to validate on: give validation_split=0.2, or validation_data."
        )
    known = maximizes(name)
    if direction == "auto" and known is None:
        raise ValueError(
            f"direction='auto' cannot tell whether {name!r} should be low or high: give direction='min' or direction='max'."
        )
    return Objective(name, bool(known) if direction == "auto" else direction == "max")


def _callbacks(callbacks: Any) -> bytes:
    given = list(as_tuple(callbacks))
    for callback in given:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"callbacks must be keras.callbacks.Callback objects; got {type(callback).__name__}.")
    return pickle_by_value(given) if given else b""


def _log(directory: Any, resume: str, seed: int | None) -> tuple[SearchLog | None, int]:
    """(the log of the search, if it is to have one; its seed: the given one, an earlier session's, or a fresh one)."""
    if resume not in ("never", "auto"):
        raise ValueError(f"resume must be 'never' or 'auto'; got {resume!r}.")
    if resume == "auto" and directory is None:
        raise ValueError("resume='auto' needs a checkpoint_dir to go on from.")
    found = None if directory is None else SearchLog(Path(directory))
    if seed is not None:
        return found, checks.positive_int("seed", seed, least=0)
    earlier = found.seed() if found is not None and resume == "auto" else None
    return found, int(np.random.randint(2**31 - 1)) if earlier is None else earlier


def _begun(
    found: SearchLog | None, identity: Mapping[str, object], resume: str, keep: int
) -> tuple[Shelf, list[tuple[TrialResult, Any]]]:
    if found is None:
        return Shelf(keep), []
    earlier = found.begin(identity, "auto" if resume == "auto" else "never")
    return Shelf(keep, found.models), earlier


def _probed(build: Callable[[Any], keras.Model], space: Space, seed: int, *, needed: bool) -> keras.Model | None:
    """A model of a point of the space, if one can be built here: what is wrong with all of them is said before Spark works.

    Raises:
        TypeError, ValueError: `build` returns something else than a compiled model; or no model could be built, and one is
            needed to read the columns of a DataFrame.
    """
    failure: Exception | None = None
    for attempt in range(_PROBES_NEEDED if needed else _PROBES):
        params = space.at(_point(space, np.random.default_rng([seed, attempt])))
        with seeded(seed, attempt):
            try:
                made = build(params)
            except Exception as error:  # a trial that fails is a trial's affair
                log.info("a first model with %s could not be built: %s", params, error)
                failure = error
                continue
            return checked(made)
    if needed:
        raise ValueError(
            f"the columns of a DataFrame are read as a model's inputs want them, and build(params) failed at all of "
            f"{_PROBES_NEEDED} points that were tried, at last with {type(failure).__name__}: {failure}"
        ) from failure
    return None


def _may_add_logs(callbacks: Any) -> bool:
    """Whether logs may hold more than metrics: Keras' own callbacks add the learning rate at most, but for lambdas."""
    return any(
        isinstance(one, keras.callbacks.LambdaCallback) or not type(one).__module__.startswith("keras.")
        for one in as_tuple(callbacks)
    )


def _check_objective(
    goal: Objective, model: keras.Model, sample: tuple[object, ...] | None, source: Source, seed: int
) -> None:
    """Nothing, if the objective is among the metrics of a first model.

    Args:
        sample: a batch of one row; None where the rows were never here, and one is read if the name calls for it.

    Raises:
        ValueError: it is not; the message lists them.
    """
    if goal.name in ("loss", "val_loss"):
        return
    try:
        with seeded(seed, 0):
            build_model(model, source.sample(keras.config.floatx()) if sample is None else sample)
    except Exception as error:  # of this point's model, perhaps: a trial's affair
        log.info("a first model could not take a row: %s", error)
        return
    names = list(freshly_named(model, model.get_metrics_result()))
    known = [*names, *(f"val_{name}" for name in names)]
    if goal.name not in [*known, "learning_rate"]:
        raise ValueError(
            f"objective {goal.name!r} is not among the metrics: {', '.join(map(repr, known))}.{checks.near(goal.name, known)}"
        )


def _point(space: Space, generator: np.random.Generator) -> dict[str, Any]:
    trials = hyperopt.Trials()
    (document,) = hyperopt.rand.suggest([0], space.domain, trials, int(generator.integers(2**31 - 1)))
    return {label: values[0] for label, values in document["misc"]["vals"].items() if len(values)}


def _restorer(
    build: Callable[[Any], keras.Model], sample: tuple[object, ...] | None, source: Source, seed: int
) -> Callable[[Any, bytes, str], keras.Model]:
    def restored(params: Any, content: bytes, suffix: str) -> keras.Model:
        with seeded(seed, 0), tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            path = Path(folder) / f"model{suffix}"
            path.write_bytes(content)
            model = checked(build(params))
            if sample is None:  # the rows were never here
                source.with_target(model).build(model)
            return restore(model, path, sample)

    return restored


@dataclass(frozen=True)
class _Found:
    """A HyperParamModel's search, done."""

    search: Search
    sampler: Sampler
    shelf: Shelf


class HyperParamModel:
    """Elephas' hyper-parameter search, over functions in hyperas' form.

    `model` is a function with `{{uniform(0, 1)}}` templates in its source, which takes what `data()` returns, trains a model
    and returns `{"loss": -accuracy, "status": STATUS_OK, "model": model}`. With `space=` it is a plain function instead,
    whose first argument is the parameters. `data` is called once in each Python process that trains, where there are no
    DataFrames: those go to `search`.

    Args:
        sc: the SparkContext; None runs trials one by one in this process.
        num_workers: trials at a time, at most as many as Spark has slots.
        algo: "tpe", "random", "anneal", or a function as `hyperopt.tpe.suggest`.
        seed: of points and initial weights.
        verbose: 0 silent, 1 or "auto" a progress bar, 2 a line per trial.
    """

    def __init__(
        self,
        sc: SparkContext | None,
        num_workers: int = 4,
        *,
        algo: str | Callable[..., Any] = "tpe",
        seed: int | None = None,
        verbose: int | str = "auto",
    ) -> None:
        self.spark_context = sc
        self.num_workers = checks.positive_int("num_workers", num_workers)
        self.algo = algo
        self.seed = None if seed is None else checks.positive_int("seed", seed, least=0)
        self._verbose = checks.verbosity(verbose)

    def compute_trials(
        self,
        model: Callable[..., Any],
        data: Callable[[], Any],
        max_evals: int,
        notebook_name: str | None = None,
        *,
        space: Any = None,
    ) -> list[hyperopt.Trials]:
        """A list of one hyperopt Trials with `max_evals` trials: the sampler is central, and knows all of them.

        Each result has what the function returned: loss, status, plain data of its own, and, for models, `model` (the
        architecture as JSON) and `weights` (arrays).

        Args:
            notebook_name: accepted as in hyperas; functions of a notebook's cells are found without it.
            space: of a plain function; templates have their own.
        """
        found = self._search(model, data, max_evals, max_evals, space)
        for document in found.sampler.trials.trials:
            if document["tid"] in found.shelf.numbers:
                architecture, weights = unpacked(found.shelf.read(document["tid"])[0])
                document["result"] |= {"model": architecture, "weights": weights}
        return [found.sampler.trials]

    def minimize(
        self,
        model: Callable[..., Any],
        data: Callable[[], Any],
        max_evals: int,
        notebook_name: str | None = None,
        *,
        space: Any = None,
    ) -> keras.Model:
        """The Keras model with the lowest loss. Arguments as in `compute_trials`."""
        return self.best_models(1, model, data, max_evals, notebook_name, space=space)[0]

    def best_models(
        self,
        nb_models: int,
        model: Callable[..., Any],
        data: Callable[[], Any],
        max_evals: int,
        notebook_name: str | None = None,
        *,
        space: Any = None,
    ) -> list[keras.Model]:
        """The `nb_models` Keras models with the lowest losses, the best first.

        Raises:
            ValueError: fewer trials than models, or functions that return no models.
        """
        count = checks.positive_int("nb_models", nb_models)
        if count > checks.positive_int("max_evals", max_evals):
            raise ValueError(f"nb_models={count} of max_evals={max_evals} trials: there are not as many.")
        objects = _objects_of(model)
        found = self._search(model, data, max_evals, count, space)
        numbers = found.shelf.numbers
        if len(numbers) < count:
            raise ValueError(
                f"{count} models are asked for, and {len(numbers)} trials returned one: return {{'loss': ..., 'status': "
                "STATUS_OK, 'model': model} from every trial."
            )
        return [model_of(*unpacked(found.shelf.read(number)[0]), objects) for number in numbers]

    def best_ensemble(
        self,
        nb_ensemble_models: int,
        model: Callable[..., Any],
        data: Callable[[], Any],
        max_evals: int,
        voting: str = "hard",
        weights: Any = None,
        *,
        space: Any = None,
    ) -> Any:
        """A VotingModel of the best models.

        Raises:
            ValueError: as `best_models` and VotingModel, before anything runs.
        """
        checks.choice("voting", voting, Voting)
        normalized(weights, checks.positive_int("nb_ensemble_models", nb_ensemble_models))
        models = self.best_models(nb_ensemble_models, model, data, max_evals, space=space)
        return VotingModel(models, voting=voting, weights=weights)

    def _search(
        self, model: Callable[..., Any], data: Callable[[], Any], max_evals: int, keep: int, space: Any
    ) -> _Found:
        limits = _limits(max_evals, None, None)
        for name, given in (("model", model), ("data", data)):
            if not callable(given):
                raise TypeError(f"{name} must be a function; got {type(given).__name__}.")
        if space is None:
            function, space = from_templates(model)
        elif has_templates(model):
            raise ValueError("give a function with {{...}} templates, or a plain one with space=, not both.")
        else:
            function = model
        seed = int(np.random.randint(2**31 - 1)) if self.seed is None else self.seed
        sampler = Sampler(Space(space), self.algo, seed)
        goal = Objective("loss")
        context = self.spark_context
        parallel = count_parallel(context, self.num_workers if context is not None else 1, 1, SLOTS_WAIT)
        watch = Watch(goal, None, 1, None)
        shelf = Shelf(keep)
        running = Search(sampler, goal, watch, limits, shelf, None, _always(32), self._verbose)
        name = new_dataset()
        evaluate = FunctionTrial(
            search=name,
            function=pickle_by_value([function]),
            data=pickle_by_value([data]),
            seed=seed,
            cores=None if context is None else task_cpus(context),
        )
        with opened(context, evaluate, [], watch, parallelism=parallel, reports=False, name=name) as slots:
            running.run(slots)
        return _Found(running, sampler, shelf)


def _objects_of(function: Callable[..., Any]) -> dict[str, object]:
    """Classes and functions of the user's that a function refers to: custom objects of the models that it builds.

    A partial refers to what its function does, and an object that is called to what its `__call__` does.
    """
    while isinstance(function, functools.partial):
        function = function.func
    code: Any = function if hasattr(function, "__code__") else type(function).__call__
    if not hasattr(code, "__code__"):  # compiled: there is nothing to read
        return {}
    found: dict[str, object] = {}
    for name in code.__code__.co_names:
        value = code.__globals__.get(name)
        if isinstance(value, type) or inspect.isfunction(value):
            found[name] = value
    return found | dict(inspect.getclosurevars(code).nonlocals)
