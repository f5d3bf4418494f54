"""Elephas' hyper-parameter search, over functions in hyperas' form."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from pyspark import SparkContext

from elephas_like.core import checks
from elephas_like.core.objective import Objective
from elephas_like.core.voting import Voting, normalized
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.rows.shards import new_dataset
from elephas_like.spark.session import settings_of
from elephas_like.spark.slots import task_cpus
from elephas_like.trainer.code import is_foreign, is_in_users_file, pickle_by_value
from elephas_like.trainer.graph import names_in
from elephas_like.tuning.function_trial import FunctionTrial, model_of, unpacked
from elephas_like.tuning.log import ModelStore
from elephas_like.tuning.runner import Limits, PruningMonitor, Search
from elephas_like.tuning.samplers import PointSource, sampler_of
from elephas_like.tuning.space import Space, Trials
from elephas_like.tuning.templates import from_templates, has_templates
from elephas_like.tuning.trial_runs import count_parallel, opened


@dataclass(frozen=True)
class _Found:
    """A HyperParamModel's search, done."""

    search: Search
    sampler: PointSource
    store: ModelStore


class HyperParamModel:
    """Elephas' hyper-parameter search, over functions in hyperas' form.

    `model` is a function with `{{uniform(0, 1)}}` templates in its source, which takes what `data()` returns, trains a model
    and returns `{"loss": -accuracy, "status": STATUS_OK, "model": model}`. With `space=` it is a plain function instead,
    whose first argument is the parameters. `data` is called once in each Python process that trains, where there are no
    DataFrames: those go to `search`.

    Args:
        sc: the SparkContext; None runs trials one by one in this process.
        num_workers: trials at a time, at most as many as Spark has slots.
        algo: as for `search`.
        seed: of points and initial weights.
        verbose: 0 silent, 1 or "auto" a progress bar, 2 a line per trial.

    Attributes:
        best_params, best_loss: of the best trial of the last `minimize`, `best_models`, `best_ensemble` or `compute_trials`.
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
        self.best_params: Any = None
        self.best_loss: float | None = None

    def compute_trials(
        self,
        model: Callable[..., Any],
        data: Callable[[], Any],
        max_evals: int,
        notebook_name: str | None = None,
        *,
        space: Any = None,
    ) -> list[Trials]:
        """A list of one hyperopt Trials with `max_evals` trials: the sampler is central, and knows all of them.

        Each result has what the function returned: loss, status, plain data of its own, and, for models, `model` (the
        architecture as JSON) and `weights` (arrays).

        Args:
            notebook_name: accepted as in hyperas; functions of a notebook's cells are found without it.
            space: of a plain function; templates have their own.
        """
        found = self._search(model, data, max_evals, max_evals, space)
        trials = found.sampler.trials
        for document in trials.trials:
            if document["tid"] in found.store.numbers:
                architecture, weights, _ = unpacked(found.store.read(document["tid"])[0])
                document["result"] |= {"model": architecture, "weights": weights}
        return [trials]

    def minimize(
        self,
        model: Callable[..., Any],
        data: Callable[[], Any],
        max_evals: int,
        notebook_name: str | None = None,
        *,
        space: Any = None,
    ) -> keras.Model:
        """The Keras model with the lowest loss; `best_params` has its parameters then. Arguments as in `compute_trials`."""
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
        numbers = found.store.numbers
        if len(numbers) < count:
            raise ValueError(
                f"{count} models are asked for, and {len(numbers)} trials returned one: return {{'loss': ..., 'status': "
                "STATUS_OK, 'model': model} from every trial."
            )
        return [model_of(*unpacked(found.store.read(number)[0]), objects) for number in numbers]

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
        limits = Limits(checks.positive_int("max_evals", max_evals))
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
        goal = Objective("loss")
        sampler = sampler_of(Space(space), self.algo, seed, goal)
        context = self.spark_context
        parallel = count_parallel(context, self.num_workers if context is not None else 1, 1)
        monitor = PruningMonitor(goal, None, 1, None)
        store = ModelStore(keep)
        running = Search(sampler, goal, monitor, limits, store, None, lambda params: 32, self._verbose)
        name = new_dataset()
        evaluate = FunctionTrial(
            search=name,
            function=pickle_by_value([function]),
            data=pickle_by_value([data]),
            seed=seed,
            cores=None if context is None else task_cpus(settings_of(context)),
        )
        with opened(context, evaluate, [], monitor, parallelism=parallel, reports=False, name=name) as slots:
            running.run(slots)
        done = [record for record in running.records.values() if record.result.counts]
        if running.interrupted and not done:  # Elephas' methods return models, of which there are none
            raise KeyboardInterrupt
        best = min(done, key=lambda record: (record.result.loss, record.result.number))
        self.best_params, self.best_loss = best.params, best.result.loss
        return _Found(running, sampler, store)


def _objects_of(function: Callable[..., Any]) -> dict[str, object]:
    """Classes and functions of the user's that a function refers to: custom objects of the models that it builds.

    So do those that these refer to, and so on. A partial refers to what its function does, and an object that is called to what its
    `__call__` does.
    """
    while isinstance(function, functools.partial):
        function = function.func
    code: Any = function if hasattr(function, "__code__") else type(function).__call__
    if not hasattr(code, "__code__"):  # compiled: there is nothing to read
        return {}
    first = getattr(code, "__func__", code)
    found: dict[str, object] = {}
    queue, seen = [first], {id(first)}
    while queue:
        place = queue.pop()
        for name, value in _named_in(place):
            if not isinstance(value, type | types.FunctionType):
                continue
            # Only what the function itself names may stand for a function of Keras.
            direct = place is first and first.__globals__.get(name) is value and name in first.__code__.co_names
            for called in dict.fromkeys((name, value.__name__)):
                keras_s = is_foreign(value) or (inspect.isfunction(value) and _is_keras_name(called))
                if (direct and called == name) or not keras_s:
                    found.setdefault(called, value)
            if id(value) not in seen and is_in_users_file(value):
                seen.add(id(value))
                queue.append(value)
    return found | dict(inspect.getclosurevars(code).nonlocals)


def _is_keras_name(name: str) -> bool:
    """Whether Keras has a function of that name, which a helper's of the user's is not to stand for: "softmax" of arrays, say."""
    places = (keras.activations, keras.losses, keras.metrics, keras.initializers, keras.regularizers, keras.constraints)
    return any(hasattr(place, name) for place in places)


def _named_in(thing: Any) -> Iterator[tuple[str, object]]:
    """Yield by name what a class has, and what a function's code refers to, also in modules."""
    if isinstance(thing, type):
        yield from ((name, getattr(value, "__func__", value)) for name, value in list(vars(thing).items()))
        return
    names, places = list(names_in(thing.__code__)), [thing.__globals__]
    places += [vars(module) for name in names if isinstance(module := thing.__globals__.get(name), types.ModuleType)]
    yield from ((name, place[name]) for place in places for name in names if name in place)
    for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
