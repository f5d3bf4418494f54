"""Searches over any Python function: its trials bring their own data and their own way to learn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import Signature
from typing import Any

import cloudpickle
from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.described import without_addresses
from elephas_like.core.objective import Objective, objective_of
from elephas_like.core.pruning import NumberedRule, Rule, rule_of
from elephas_like.core.types import EngineName
from elephas_like.engine.function_settings import FunctionSettings
from elephas_like.engine.function_trials import ObjectiveTrial, takes_trial
from elephas_like.model.launch import server_identity
from elephas_like.model.training_page import PageRequest, page_request, training_page
from elephas_like.rows.shards import new_dataset
from elephas_like.spark.session import context_for, remote_session
from elephas_like.trainer.code import RefersToSparkError, UnsendableError, pickle_by_value
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.tuning.log import Kept, identity_of, kept_of
from elephas_like.tuning.result import SearchResult
from elephas_like.tuning.runner import Limits, PruningMonitor, Search, WatchedTrials, limits_of, search_monitor
from elephas_like.tuning.samplers import PointSource, name_of, sampler_of
from elephas_like.tuning.space import Space
from elephas_like.tuning.trial_runs import count_parallel, in_process, opened, possible_pruning

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FunctionRequest:
    """The arguments of a search over a function, checked.

    epochs: reports of a whole trial; None where nobody knows. remote: the session whose tasks run the trials, if it is Spark Connect's.
    """

    function: Callable[..., Any]
    sampler: PointSource
    identity: Mapping[str, object]
    kept: Kept
    limits: Limits
    objective: Objective
    rule: Rule | NumberedRule | None
    epochs: int | None
    parallelism: int | None
    tls: bool | tuple[str, str] | None
    allow_plain_text: bool
    verbose: int
    page: PageRequest
    remote: SparkSession | None

    @classmethod
    def checked(cls, given: Mapping[str, Any], signature: Signature) -> FunctionRequest:
        """The arguments of `search`, checked.

        Args:
            given: all of them, by name. signature: of `search`, which has their defaults.

        Raises:
            ValueError, TypeError: arguments that make no sense, or that only Keras models have a use for.
        """
        for name in _FOR_MODELS:
            if given[name] is not None and given[name] != signature.parameters[name].default:
                raise ValueError(
                    f"{name} is for Keras models and their data, and search was given no data: leave it out, or give "
                    "search(build, space, data, ...)."
                )
        function, first = given["build"], given["first_points"]
        if not callable(function):
            raise TypeError(
                f"without data, search needs a function from parameters to a loss; got {type(function).__name__}."
            )
        kept = kept_of(given["checkpoint_dir"], given["resume"], given["seed"])
        goal = objective_of("loss" if given["objective"] is None else given["objective"], given["direction"])
        epochs = None if given["epochs"] is None else checks.positive_int("epochs", given["epochs"])
        remote = remote_session(None)
        rule = rule_of(possible_pruning(given["pruning"], remote), epochs, len(goal.all))
        space = Space(given["space"])
        parallelism = given["parallelism"]
        return cls(
            function=function,
            sampler=sampler_of(space, given["algo"], kept.seed, goal, first),
            identity={
                "space": space.described(),
                "algo": name_of(given["algo"]),
                "first_points": without_addresses(list(first)) if first else None,
                "seed": kept.seed,
                **identity_of(goal),
                "epochs": epochs,
                "data": "the function's own",
            },
            kept=kept,
            limits=limits_of(given["max_evals"], given["timeout"], given["max_failures"]),
            objective=goal,
            rule=rule if takes_trial(function) else None,
            epochs=epochs,
            parallelism=None if parallelism is None else checks.positive_int("parallelism", parallelism),
            tls=None if given["tls"] is None else checks.tls("tls", given["tls"]),
            allow_plain_text=checks.flag("allow_plain_text", given["allow_plain_text"]),
            verbose=checks.verbosity(given["verbose"]),
            page=page_request(given["monitor"], given["tls"], given["allow_plain_text"], given["verbose"]),
            remote=remote,
        )


_FOR_MODELS = (
    "batch_size",
    "validation_split",
    "validation_data",
    "callbacks",
    "keep_models",
    "trial_workers",
    "fused_optimizer",
    "features_col",
    "label_col",
    "sample_weight_col",
    "column_shapes",
    "column_dtypes",
)


def search_function(asked: FunctionRequest) -> SearchResult:
    """Tries points of a space with a function, on Spark's slots or in this process."""
    with asked.kept.alone():
        return _searched(asked)


def _searched(asked: FunctionRequest) -> SearchResult:
    context = context_for(None, EngineName.AUTO)
    here = context is None and asked.remote is None
    function = _sent(asked.function, here=here)
    uses_spark = callable(function) and not here
    with_trial = takes_trial(asked.function)
    reports = with_trial and (asked.rule is not None or asked.limits.timeout is not None)
    own = None
    if context is not None and reports and not uses_spark:
        own = server_identity(context, asked.tls, allow_plain_text=asked.allow_plain_text)
    parallelism = 1 if uses_spark else count_parallel(context, asked.parallelism, 1, remote=asked.remote)
    store, earlier = asked.kept.begin(asked.identity, 1)
    deadline = None if asked.limits.timeout is None else time.monotonic() + asked.limits.timeout
    monitor = PruningMonitor(asked.objective, asked.rule, asked.epochs, deadline)
    page = search_monitor(
        asked.objective, asked.limits.max_evals, algorithm=asked.identity["algo"], parallel=parallelism
    )
    running = Search(
        asked.sampler,
        asked.objective,
        monitor,
        asked.limits,
        store,
        asked.kept.log,
        lambda params: 32,
        asked.verbose,
        page,
    )
    running.recall(earlier)
    settings = KerasSettings.current()
    trial = ObjectiveTrial(
        function,
        asked.objective,
        asked.kept.seed,
        with_trial,
        FunctionSettings(cloudpickle.dumps(settings.applied), settings.plain),
    )
    shown = training_page(asked.page, page, context, asked.remote)
    judge = WatchedTrials(monitor, page, asked.objective)
    slots_of_trials = (
        nullcontext(in_process(trial, [], judge, context))
        if uses_spark
        else opened(
            context,
            trial,
            [],
            judge,
            parallelism=parallelism,
            reports=reports,
            name=new_dataset(),
            identity=own,
            allow_plain_text=asked.allow_plain_text,
            remote=asked.remote,
        )
    )
    with shown, slots_of_trials as slots:
        running.run(slots)
    most = max((len(record.result.history) for record in running.records.values()), default=0)
    return SearchResult(
        running.records, asked.objective, asked.epochs or most, store, None, asked.sampler, running.interrupted
    )


def _sent(function: Callable[..., Any], *, here: bool) -> bytes | Callable[..., Any]:
    """Return a function as tasks get it; or itself if it refers to Spark, which only the driver has.

    Args:
        here: whether all trials are in this process, where a function may refer to what lives in it.

    Raises:
        UnsendableError: it does, and they are not.
    """
    try:
        return pickle_by_value([function])
    except UnsendableError:
        if not here:
            raise
        return function
    except RefersToSparkError:
        pass
    log.warning(
        "%s refers to Spark (a session, a DataFrame or an RDD), which only the driver has: its trials run there, one at a time. What they do "
        "with Spark takes its slots.",
        getattr(function, "__name__", "the function"),
    )
    return function
