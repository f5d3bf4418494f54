"""Preflight check: whether a fit could start on this session and this data, without starting one.

Every step is bounded in time and reads one row of the data. What it finds is a line of the report, never an exception.
`SparkModel.check` is in the class PreflightCheck.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.errors import ElephasError
from elephas_like.core.findings import CheckReport, Finding, Level, one_line, size_text
from elephas_like.core.layout import Layout
from elephas_like.core.strategies.algebra import Context
from elephas_like.core.summing import adds_up
from elephas_like.core.types import EngineName
from elephas_like.engine.probe import ExecutorProbe, probed
from elephas_like.engine.shuffled_sums import worth_it
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.protocol import READ_AHEAD, Sizes
from elephas_like.exchange.round_store import RoundStore
from elephas_like.model.engine_choice import Choice, choose, chosen_remotely
from elephas_like.model.first_row import FirstRow, model_findings
from elephas_like.model.fit import exchanged_bytes, workers_asked
from elephas_like.model.interrupts import Interrupts
from elephas_like.model.launch import exchange_server
from elephas_like.model.options import Options
from elephas_like.model.parquet_rows import ParquetRows
from elephas_like.model.prepared import Prepared, given_for, prepared, reader
from elephas_like.model.source import Source
from elephas_like.model.sources import source_of
from elephas_like.rows.frame_plan import Choice as Columns
from elephas_like.rows.samples import PartitionSample, sampled
from elephas_like.spark.gpus import worker_slots
from elephas_like.spark.session import active_context, active_remote, check_executors, is_local, is_remote, settings_of
from elephas_like.spark.settings import executor_memory, largest_result, setting_findings
from elephas_like.spark.slots import free
from elephas_like.spark.versions import installed, minor_differences, versions
from elephas_like.spark.waits import Overdue, raise_hidden_interrupt, stopped
from elephas_like.trainer.bars import Bar

MOST_PROBES = 32
"""Tasks that look around on executors."""
MUCH_BYTES = 2**30
"""Updates of so many bytes take a server about a second over 10 Gb/s, and so do the states that it sends out."""


class PreflightCheck(ABC):
    """The method `check` of a SparkModel."""

    _model: keras.Model

    @property
    @abstractmethod
    def _options(self) -> Options:
        """The options of the next fit."""

    def check(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        features_col: Columns | None = None,
        label_col: Columns | None = None,
        sample_weight_col: str | None = None,
        column_shapes: Mapping[str, Sequence[int]] | None = None,
        column_dtypes: Mapping[str, str] | None = None,
        handle_invalid: str | None = None,
        timeout: float = 60,
        verbose: int = 1,
    ) -> CheckReport:
        """Says what a fit on this data would find, without training: a preflight check.

        It looks at versions, slots, Spark's settings, the way from executors to the driver, memory, disks, and whether the
        first row of the data fits the model. No more than the first 1000 rows of three partitions are read. Over Spark Connect
        it looks at the model and the first row: the rest is the server's.

        Args:
            x, y, sample_weight: data as for `fit`.
            features_col, label_col, sample_weight_col, column_shapes, column_dtypes, handle_invalid: of a DataFrame, as for
                `fit`.
            timeout: seconds without a task of a look at executors that starts or ends; and seconds that reading rows may take.
            verbose: 1 prints the report; 0 does not.

        Returns:
            A report: `report.ok` is False if something is in the way of a fit; `report.findings` has the lines.

        Raises:
            ValueError, TypeError: arguments that `fit` would refuse, too.
        """
        seconds = checks.positive_seconds("timeout", timeout)
        given = given_for(
            self._model,
            x,
            y,
            sample_weight,
            features_col=features_col,
            label_col=label_col,
            sample_weight_col=sample_weight_col,
            column_shapes=column_shapes,
            column_dtypes=column_dtypes,
            handle_invalid=handle_invalid,
        )
        source = source_of(given.x, given.y, given.sample_weight, given.columns, reader(self._model))
        source = prepared(source, self._model).for_model(self._model)
        options = self._options
        asked = workers_asked(options.num_workers, source)
        options.resolved(self._model, asked or 2)
        with Interrupts():
            report = report_of(_findings(self._model, options, source, asked, seconds))
        if verbose:
            Bar.write(str(report))
        return report


def report_of(findings: Iterator[Finding]) -> CheckReport:
    """Return the report of findings as they come; an error that nobody expected is the last of them."""
    found: list[Finding] = []
    try:
        found.extend(findings)
    except Exception as error:  # a check that raises would hide what it has found before
        raise_hidden_interrupt(error)
        found.append(Finding("check", Level.PROBLEM, one_line(f"it ended here, by {type(error).__name__}: {error}")))
    return CheckReport(tuple(found))


def _findings(
    model: keras.Model, options: Options, source: Source, asked: int | None, seconds: float
) -> Iterator[Finding]:
    here = installed()
    yield Finding("driver", Level.OK, ", ".join(f"{package} {held}" for package, held in here.items()))
    session = source.session or active_remote()
    if session is not None and is_remote(session):
        yield from _remote_findings(model, options, source, session, asked, seconds)
        return
    try:
        context = source.context or active_context(options.engine)
    except (ValueError, TypeError) as error:
        yield Finding("spark", Level.PROBLEM, one_line(error))
        return
    if context is not None and stopped(context):
        yield Finding(
            "spark", Level.PROBLEM, "the SparkContext was stopped. Start a new session and make the data from it."
        )
        return
    yield _spark(context)
    # How a fit would run.
    found = (
        None if context is None else worker_slots(context, min(seconds, options.join_timeout), asked, options.resources)
    )
    choice = choose(options.engine, asked, source.partitions, found, not options.runs_as_jobs())
    yield from engine_findings(options.engine, choice)
    if context is not None and found is not None:
        yield from slot_findings(choice, found, free(context, found, options.resources))
        yield from setting_findings(
            settings_of(context),
            server=choice.engine is EngineName.SERVER,
            tls=options.tls,
            allow_plain_text=options.allow_plain_text,
        )
    # What executors say.
    probes: list[ExecutorProbe] = []
    if context is not None and choice.engine is not EngineName.IN_PROCESS:
        yield from _probe_findings(context, options, choice, max(1, found or 1), seconds, probes)
    # The data and the model.
    samples: list[PartitionSample] = []
    yield from _data_findings(source, choice.workers, seconds, samples)
    first = FirstRow.of(source, samples)
    layout, lines = model_findings(model, first)
    yield from lines
    # Memory and disks.
    yield from _room_findings(context, options, model, choice, layout, samples, first.nbytes, probes)


def _remote_findings(
    model: keras.Model, options: Options, source: Source, session: SparkSession, asked: int | None, seconds: float
) -> Iterator[Finding]:
    """Yield what can be known in the client of Spark Connect: how a fit would run, and whether the model takes the first row."""
    try:
        with chosen_remotely(options, session, asked) as (engine, workers):
            yield Finding("spark", Level.OK, f"Spark {session.version} over Spark Connect")
    except ValueError as error:
        yield Finding("spark", Level.PROBLEM, one_line(error))
        return
    yield Finding("engine", Level.OK, f"{engine.value!r} with {workers} workers")
    if engine is not EngineName.IN_PROCESS:
        yield Finding("executors", Level.NOTE, "not looked at: slots, settings and disks are the server's to know")
    try:
        first = FirstRow(source.sample(keras.config.floatx(), timeout=seconds))
    except (ElephasError, ValueError) as error:  # a row that cannot be trained on, none at all, or none in time
        first = FirstRow(error=str(error).partition("--- traceback")[0])
    layout, lines = model_findings(model, first)
    yield from lines
    if layout is not None:
        moved = exchanged_bytes(layout, options, engine)["update_bytes"]
        yield from driver_memory(engine, workers, Sizes.of(layout).state(), moved, 0, _physical_memory())


def _spark(context: SparkContext | None) -> Finding:
    if context is None:
        return Finding("spark", Level.NOTE, "not used: no session is active, or engine='in_process' was asked for")
    try:
        check_executors(context)
    except ElephasError as error:
        return Finding("spark", Level.PROBLEM, one_line(error))
    return Finding("spark", Level.OK, f"Spark {context.version}, master {context.master}")


def engine_findings(asked: EngineName, choice: Choice) -> Iterator[Finding]:
    """Yield which engine a fit would take, and why."""
    why = choice.reason.format(workers=choice.workers) or "it was asked for"
    fell_back = asked is EngineName.AUTO and choice.engine is EngineName.JOBS
    text = f"{choice.engine.value!r} with {choice.workers} workers: {why}"
    yield Finding("engine", Level.NOTE if fell_back else Level.OK, text)


def slot_findings(choice: Choice, found: int, unreserved: int) -> Iterator[Finding]:
    """Yield whether the workers find slots.

    Args:
        found: tasks that Spark can run at the same time.
        unreserved: how many of them no fit of this process has reserved.
    """
    text = f"{found} found, {unreserved} not taken by other fits; a fit takes {min(choice.workers, found)}"
    if not found:
        text = "none found: no executor has registered. Look at the cluster manager, and at whether it has room."
        yield Finding("slots", Level.PROBLEM, text)
    elif choice.engine is EngineName.SERVER and choice.least > found:
        advice = f"Use num_workers={found}, give Spark more cores, or use engine='jobs' (synchronous modes)."
        text = f"{choice.least} workers must run at the same time, and Spark has {found} slots. {advice}"
        yield Finding("slots", Level.PROBLEM, text)
    elif unreserved < min(choice.workers, found):
        yield Finding("slots", Level.NOTE, f"{text} once they are free; engine='auto' takes what is left")
    else:
        yield Finding("slots", Level.OK, text)


# Executors


def _probe_findings(
    context: SparkContext, options: Options, choice: Choice, found: int, seconds: float, probes: list[ExecutorProbe]
) -> Iterator[Finding]:
    """Yield what executors say, which is left in `probes`."""
    tasks = min(choice.workers, found, MOST_PROBES)
    try:
        if choice.engine is EngineName.SERVER:
            with _listening(context, options, tasks) as connector:
                probes += probed(context, tasks, connector, versions(), seconds)
                yield server_finding(f"{connector.host}:{connector.port} ({connector.kind})", probes)
        else:
            probes += probed(context, tasks, None, versions(), seconds)
        yield from executor_findings(installed(), probes)
    except Overdue:
        text = f"no task of {tasks} started or ended within {seconds:g} s. Do other jobs hold the slots, or do executors still start?"
        yield Finding("executors", Level.PROBLEM, text)
    except (ValueError, OSError) as error:  # the server could not listen
        yield Finding("server", Level.PROBLEM, one_line(error))
    except ElephasError as error:
        yield Finding("executors", Level.PROBLEM, one_line(error))


@contextmanager
def _listening(context: SparkContext, options: Options, tasks: int) -> Iterator[ClientSettings]:
    """Start a server as a fit does, which only takes first contacts."""
    sizes = Sizes.of(Layout(()))  # no state is sent
    with exchange_server(context, options, RoundStore(tasks, ""), sizes) as settings:
        yield replace(settings, connect_timeout=3.0, request_timeout=5.0, retries=1)


def server_finding(address: str, probes: Iterable[ExecutorProbe]) -> Finding:
    """Return whether executors reach the driver's server at this address."""
    failed = {probe.host: probe.unreachable for probe in probes if probe.unreachable}
    if failed:
        host, said = next(iter(failed.items()))
        return Finding(
            "server", Level.PROBLEM, one_line(f"executors on {', '.join(failed)} do not reach it; {host}: {said}")
        )
    return Finding("server", Level.OK, f"executors reach the driver at {address}")


def executor_findings(driver: Mapping[str, str], probes: Sequence[ExecutorProbe]) -> Iterator[Finding]:
    """Yield how executors' packages differ from the driver's."""
    hosts = sorted({probe.host for probe in probes})
    mismatches = {probe.mismatch: None for probe in probes if probe.mismatch}
    for mismatch in mismatches:
        yield Finding("executors", Level.PROBLEM, one_line(mismatch))
    differences = {
        f"{package} {probe.packages.get(package, 'none')} on {probe.host}, {driver[package]} on the driver": None
        for probe in probes
        for package in minor_differences(driver, probe.packages)
        if not probe.mismatch
    }
    for difference in differences:
        yield Finding("executors", Level.NOTE, f"{difference}: models and rows may be read differently")
    if slow := sorted({probe.host for probe in probes if probe.compiles_again}):
        text = (
            f"Python cannot keep the bytecode of Keras on {', '.join(slow)} (PYTHONDONTWRITEBYTECODE is set, or its directory is "
            "read-only), and there is none: each Python process that is started anew compiles its modules and TensorFlow's "
            "again. Build images with python -m compileall, and without pip's --no-compile."
        )
        yield Finding("executors", Level.NOTE, text)
    if not mismatches and not differences:
        yield Finding("executors", Level.OK, f"{len(probes)} tasks on {', '.join(hosts)} have the driver's versions")


# Data


def _data_findings(source: Source, workers: int, seconds: float, samples: list[PartitionSample]) -> Iterator[Finding]:
    """Yield how the rows are divided. What was read of them is left in `samples`."""
    source = source.given if isinstance(source, Prepared) else source
    files = source.table if isinstance(source, ParquetRows) else None
    divided = source.data(workers) if files else source  # a fit deals files out
    rdd = None if source.context is None else getattr(divided, "rdd", None)
    if rdd is None:
        if files:
            rows = [part.rows for part in files.dealt(workers)]
        else:
            rows = [block.rows for block in source.data(workers).blocks or ()]
        samples += [PartitionSample(index, number, True, None) for index, number in enumerate(rows)]
        yield from partition_findings(len(samples), workers, samples)
        return
    number = workers if files else source.partitions or 0
    try:
        samples += sampled(rdd, sorted({0, number // 2, number - 1}), seconds) if number else []
    except Overdue:
        text = (
            f"no rows came within {seconds:g} s. Rows behind a shuffle need all rows before it: cache them, or give a longer "
            "timeout. Or do other jobs hold the slots?"
        )
        yield Finding("rows", Level.NOTE, text)
    except ElephasError as error:
        yield Finding(
            "rows", Level.PROBLEM, one_line(f"reading them raised {str(error).partition('--- traceback')[0]}")
        )
    else:
        yield from partition_findings(number, workers, samples)


def partition_findings(partitions: int, workers: int, samples: Sequence[PartitionSample]) -> Iterator[Finding]:
    """Yield what the partitions that were looked at hold.

    Args:
        partitions: how many there are.
    """
    read = ", ".join(f"{sample.rows}{'' if sample.complete else ' or more'}" for sample in samples)
    text = f"{partitions} partitions for {workers} workers; rows in {len(samples)} of them: {read or 'none'}"
    if not any(sample.rows for sample in samples):
        level = Level.PROBLEM if len(samples) == partitions else Level.NOTE
        yield Finding("rows", level, f"{text}. A fit needs rows.")
        return
    empty = [str(sample.partition) for sample in samples if not sample.rows]
    advice = (
        f". Partition {', '.join(empty)} is empty: repartition the data, so that each worker has rows" if empty else ""
    )
    split = "; rows are split among the workers by a shuffle" if partitions < workers else ""
    yield Finding("rows", Level.NOTE if empty else Level.OK, f"{text}{split}{advice}")


# Memory and disks


def _room_findings(
    context: SparkContext | None,
    options: Options,
    model: keras.Model,
    choice: Choice,
    layout: Layout | None,
    samples: Sequence[PartitionSample],
    row_bytes: int | None,
    probes: Sequence[ExecutorProbe],
) -> Iterator[Finding]:
    if layout is not None:
        limit = 0 if context is None else largest_result(settings_of(context))
        state_bytes = Sizes.of(layout).state()
        moved = exchanged_bytes(layout, options, choice.engine)["update_bytes"]
        sums = context is not None and adds_them_up(context, options, model, choice, moved, limit)
        yield from driver_memory(
            choice.engine, choice.workers, state_bytes, moved, limit, _physical_memory(), sums=sums
        )
        if sums and choice.engine is EngineName.SERVER:
            yield from exchange_findings(choice.workers, moved)
        if context is not None and choice.engine is not EngineName.IN_PROCESS:
            yield executor_memory(settings_of(context), context.master, state_bytes)
    if row_bytes and samples and probes:
        yield disk_finding(samples, row_bytes, probes)


def adds_them_up(
    context: SparkContext, options: Options, model: keras.Model, choice: Choice, nbytes: int, limit: int
) -> bool:
    """Return whether Spark adds up a round's updates, of `nbytes` each, before the driver has them, if rounds are jobs."""
    strategy, _ = options.resolved(model, choice.workers, choice.engine)
    return (
        options.runs_as_jobs()
        and adds_up(strategy, Context(0, choice.workers))
        and worth_it(choice.workers, choice.workers * nbytes, limit, local=is_local(context))
    )


def exchange_findings(workers: int, update_bytes: int) -> Iterator[Finding]:
    """Yield that a server has much to take in, where the jobs engine would leave adding to the executors."""
    if (nbytes := workers * update_bytes) >= MUCH_BYTES:
        text = f"each takes {size_text(nbytes)} of updates to the driver, and as much from it. With engine='jobs' Spark adds updates up first"
        yield Finding("exchanges", Level.NOTE, text)


def driver_memory(
    engine: EngineName,
    workers: int,
    state_bytes: int,
    update_bytes: int,
    result_limit: int,
    physical: int | None,
    *,
    sums: bool = False,
) -> Iterator[Finding]:
    """Yield whether the driver has room for the copies of the state that an engine holds.

    Args:
        update_bytes: of what a worker sends in a round: a state, less what stays with workers and what a codec saves.
        result_limit: bytes of spark.driver.maxResultSize; 0 for none.
        physical: bytes of the driver's memory; None if unknown.
        sums: whether Spark adds up a round's updates (jobs engine).
    """
    # The model's own, the state and the strategy's momentum, both before and after a round, and the sum of the updates.
    name, copies, updates = "memory of the driver", 6, max(READ_AHEAD, update_bytes)
    if engine is EngineName.JOBS:
        workers = 1 if sums else workers
        copies, updates = 5, workers * update_bytes  # Spark collects all updates of a round, or their sum
    elif engine is EngineName.IN_PROCESS:
        copies, updates = 5 + workers, workers * update_bytes
    needed = copies * state_bytes + updates
    text = f"the model's state is {size_text(state_bytes)}; {copies} copies and the updates of a round are {size_text(needed)}"
    if engine is EngineName.JOBS and result_limit and updates > result_limit:
        advice = f"Raise spark.driver.maxResultSize ({size_text(result_limit)}), or use engine='server'."
        yield Finding(name, Level.PROBLEM, f"{text}; the updates alone are {size_text(updates)}. {advice}")
    elif physical is not None and needed > physical:
        yield Finding(
            name,
            Level.PROBLEM,
            f"{text}, and the machine has {size_text(physical)}. Use fewer workers, or more memory.",
        )
    else:
        yield Finding(name, Level.OK, text)


def disk_finding(samples: Sequence[PartitionSample], row_bytes: int, probes: Sequence[ExecutorProbe]) -> Finding:
    """Return whether shards have room on the executors' disks, as far as it is known how many rows there are.

    Args:
        row_bytes: of one row in a shard.
    """
    tightest = min(probes, key=lambda probe: probe.free_bytes)
    where = f"{tightest.directory} on {tightest.host} has {size_text(tightest.free_bytes)} free"
    largest = max(sample.rows for sample in samples) * row_bytes
    if largest > tightest.free_bytes:
        text = f"a shard takes {size_text(largest)} at least, and {where}. Set spark.local.dir to a larger disk."
        return Finding("disk", Level.PROBLEM, text)
    rows = tightest.free_bytes // row_bytes
    return Finding("disk", Level.OK, f"a row takes {size_text(row_bytes)} in a shard; {where}, room for {rows:,} rows")


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
