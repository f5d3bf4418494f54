"""How a fit flows, from checked arguments to the trained state: rooms put together, nothing computed here."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from pyspark import RDD, SparkContext, StorageLevel

from elephas_like.core import rounds
from elephas_like.core.columns import blank, difference
from elephas_like.core.errors import CapacityError, DataError, ElephasError, ShardMissing, WaitError
from elephas_like.core.loop import FitPlan, FitProgress, fit_asynchronously, fit_synchronously
from elephas_like.core.schedules import Schedule
from elephas_like.core.strategies import Codec, Strategy
from elephas_like.core.strategies.registry import engines
from elephas_like.core.types import (
    EngineName,
    FitConfig,
    Frequency,
    Joined,
    Mode,
    OnNaN,
    OptimizerState,
    Order,
    ShardRef,
    Worker,
    WorkerFactory,
)
from elephas_like.core.workers import AsyncWorkers, SyncWorkers
from elephas_like.engine.in_process import InProcessAsyncWorkers, InProcessSyncWorkers
from elephas_like.engine.job_rounds import JobRounds, JobRun
from elephas_like.engine.server_rounds import ServerRun, announced
from elephas_like.exchange.address import advertised_address, bind_address
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.security import new_token
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.rows.data import Data
from elephas_like.rows.shards import SpoolOptions, pairs, pairs_with_blocks, references
from elephas_like.rows.spool import spool
from elephas_like.spark.slots import reservation, slots
from elephas_like.spark.waits import STOPPED, destroy, stopped
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.learning_rate import learning_rates
from elephas_like.trainer.worker import SharingFactory, TrainerFactory

log = logging.getLogger(__name__)
_runs = itertools.count(1)


@dataclass(frozen=True)
class Timeouts:
    """How long a fit waits, in seconds.

    join: for the last worker's first sign of life, from when the first has given one; for another one of a worker that
        has not joined yet; also for slots that other fits hold.
    round: for a worker that owes its rows written, or an answer, to move on; and for Spark to start or end a task
        before there is any worker. In the jobs engine, whose workers may have to take turns: the time in which none answers.
    """

    join: float
    round: float


@dataclass(frozen=True)
class Settings:
    """A SparkModel's constructor arguments, checked."""

    mode: Mode
    frequency: Frequency | int | Schedule
    strategy: Strategy
    codec: Codec | None
    engine: EngineName
    transport: Literal["http", "socket"]
    host: str | None
    port: int
    on_nan: OnNaN
    max_staleness: int | None
    timeouts: Timeouts


@dataclass(frozen=True)
class Fit:
    """All that one fit needs. `options` say how training rows are written; validation rows have a target if those do."""

    settings: Settings
    config: FitConfig
    factory: TrainerFactory
    hooks: DriverHooks
    progress: FitProgress
    options: SpoolOptions
    validation_freq: int | tuple[int, ...]


def run(fit: Fit, engine: EngineName, data: Data, validation: Data | None, context: SparkContext | None) -> None:
    """Trains, leaving the state of every finished round in `fit.progress`."""
    if engine is EngineName.IN_PROCESS:
        with _in_process(fit, data, validation) as workers:
            _loop(fit, workers, data.written)
        return
    assert context is not None
    number = next(_runs)
    title = f"elephas_like fit {number}: {fit.hooks.model.name}, {data.num_workers} workers"
    try:
        _on_spark(fit, engine, data, validation, context, title)
    except ShardMissing as error:
        # Before the first round nothing has happened yet, and Spark can write the rows of a ShardedDataset again.
        if data.sharded is None or fit.progress.rounds:
            raise
        log.warning("%s; the shards are written again", error.args[0].splitlines()[0])
        data.forget()
        _on_spark(fit, engine, data, validation, context, title)
    except Exception:
        if not fit.progress.rounds:
            data.forget()  # what kept rows from being written may be over at the next fit
        raise


def _on_spark(
    fit: Fit, engine: EngineName, data: Data, validation: Data | None, context: SparkContext, title: str
) -> None:
    group = f"elephas_like-{fit.options.dataset}"
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(fit, context, data)) if engine is EngineName.SERVER else None
        refs = data.sharded
        if refs is None:
            rows = data.distributed(context)
            if listening is not None and (validation is None or validation.blocks is not None):
                rows = announced(rows, listening.connector, group)
            refs = references(rows, fit.options)
        options = replace(fit.options, dataset=f"{fit.options.dataset}-val")
        if validation is None:
            both = pairs(refs, None)
        elif validation.blocks is None:
            both = pairs(refs, references(validation.distributed(context), options))
        else:
            shipped = [context.broadcast(block) for block in validation.blocks]
            for broadcast in shipped:
                stack.callback(destroy, context, broadcast)
            both = pairs_with_blocks(refs, shipped, options)
        if listening is None:
            _loop(fit, stack.enter_context(_jobs(fit, context, both, data, group, title)), data.written)
        else:
            stack.enter_context(_server(fit, context, both, data, group, title, listening))
            _loop(fit, listening.store, data.written)


def _datasets(fit: Fit, data: Data) -> list[str]:
    """Ids of the shards that go with the fit."""
    own = [f"{fit.options.dataset}-val"]
    return own if data.sharded is not None else [fit.options.dataset, *own]


@contextmanager
def chosen_engine(
    settings: Settings,
    context: SparkContext | None,
    num_workers: int | None,
    partitions: int | None,
    *,
    steady: bool = False,
) -> Iterator[tuple[EngineName, int]]:
    """(the engine, its workers): what was asked for, or for "auto" what fits, with the reason logged.

    The server engine's slots are held until the end: whoever chooses at the same time sees what is left.

    Args:
        num_workers: workers that were asked for; None takes one per partition, the server engine at most one per slot.
        partitions: of the data; None where it has none yet.
        steady: whether workers must live through the whole fit, so that "auto" waits for slots rather than take jobs.

    Raises:
        CapacityError: the server engine, and fewer slots than workers.
        WaitError: the server engine, and other fits hold the slots for longer than `join_timeout`.
    """
    if settings.engine is EngineName.IN_PROCESS or context is None:
        if settings.engine is EngineName.AUTO:
            log.info("engine='in_process': no Spark session is active")
        yield EngineName.IN_PROCESS, num_workers or partitions or 1
        return
    if stopped(context):
        raise ElephasError(STOPPED)
    if settings.engine is EngineName.JOBS:
        yield EngineName.JOBS, num_workers or partitions or 1
        return
    available = slots(context, settings.timeouts.join, num_workers)
    wanted = num_workers or max(1, min(partitions or available, available))
    auto = settings.engine is EngineName.AUTO
    # Whose workers go on alone, or keep something between rounds, has no other engine to go to.
    waits = not auto or steady or EngineName.JOBS not in engines(settings.strategy, settings.mode, settings.codec)
    timeout, least = (settings.timeouts.join, wanted) if waits else (0.0, num_workers or 1)
    with ExitStack() as held:
        engine = EngineName.SERVER
        try:
            taken = held.enter_context(reservation(context, wanted, available, timeout, at_least=least))
        except (CapacityError, WaitError) as error:
            if waits:
                raise
            engine, taken = EngineName.JOBS, num_workers or partitions or max(1, available)
            why = f"Spark has {available} slots" if isinstance(error, CapacityError) else "other fits hold the slots"
            log.warning("engine='jobs': %d workers would run at once, and %s; each round is a Spark job", taken, why)
        if auto and waits:
            log.info("engine='server': %d workers that go on alone, or keep something between rounds", taken)
        elif auto and engine is EngineName.SERVER:
            log.info("engine='server': %d workers fit in the free ones of Spark's %d slots", taken, available)
        yield engine, taken


@contextmanager
def _in_process(fit: Fit, data: Data, validation: Data | None) -> Iterator[SyncWorkers]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="elephas_like-"))
        factory = stack.enter_context(SharingFactory(fit.factory))
        held = None if validation is None else list(_spooled(fit, validation, folder, "validation"))
        workers = []
        for index, shard in enumerate(_spooled(fit, data, folder, "training")):
            worker = factory(index, shard, None if held is None else held[index])
            stack.callback(worker.close)
            workers.append(worker)
        if fit.settings.mode is Mode.SYNCHRONOUS:
            yield InProcessSyncWorkers(workers)
        else:
            yield InProcessAsyncWorkers(workers, fit.config.seed)


def _spooled(fit: Fit, data: Data, folder: str, name: str) -> Iterator[ShardRef]:
    for index, rows in enumerate(data.partitions()):
        yield spool(
            rows,
            dataset=name,
            worker=index,
            base=folder,
            floatx=fit.options.floatx,
            expect_target=fit.options.expect_target,
        )


@contextmanager
def _jobs(fit: Fit, context: SparkContext, refs: RDD, data: Data, group: str, title: str) -> Iterator[JobRounds]:
    # The default level keeps references in memory only: one that is evicted would be written down again.
    refs = refs.persist(StorageLevel.MEMORY_AND_DISK)
    shipped = context.broadcast(fit.factory)

    def make() -> WorkerFactory:
        return SharingFactory(shipped.value)

    def describe(order: Order | None) -> str:
        if order is None:
            return f"{title}: write shards"
        if order.span is None:
            return f"{title}: evaluate"
        return f"{title}: epoch {order.span.epoch + 1}, round {order.span.end} of {order.span.of}"

    try:
        with JobRounds(
            context,
            refs,
            JobRun(group, make),
            group,
            describe,
            data.sharded is not None,
            datasets=_datasets(fit, data),
            round_timeout=fit.settings.timeouts.round,
            invalidate=data.forget,
        ) as workers:
            yield workers
    finally:
        destroy(context, shipped)


@dataclass(frozen=True)
class Listening:
    """A server that runs: where its workers' answers are, and how they reach it."""

    store: RoundStore | CenterStore
    connector: ClientSettings


def server_addresses(context: SparkContext, host: str | None = None) -> tuple[str, str]:
    """(the address to listen on, the one that workers are told), from `host` and from what Spark's driver uses."""
    spark = context.getConf()
    driver_host = spark.get("spark.driver.host")
    bound = bind_address(
        host,
        spark_bind_address=spark.get("spark.driver.bindAddress"),
        spark_driver_host=driver_host,
        spark_local_ip=os.environ.get("SPARK_LOCAL_IP"),
    )
    return bound, advertised_address(host, bound=bound, spark_driver_host=driver_host)


@contextmanager
def _listening(fit: Fit, context: SparkContext, data: Data) -> Iterator[Listening]:
    settings, num_workers = fit.settings, data.num_workers
    sizes = Sizes.of(fit.hooks.variables.layout, settings.codec)
    waits = Waits(join_timeout=settings.timeouts.join, round_timeout=settings.timeouts.round)
    with ExitStack() as stack:
        store: RoundStore | CenterStore
        layout_hash = fit.hooks.variables.layout.hash
        if settings.mode is Mode.SYNCHRONOUS:
            store = RoundStore(num_workers, layout_hash, waits=waits)
        else:
            store = CenterStore(num_workers, layout_hash, waits=waits, lock_free=settings.mode is Mode.HOGWILD)
        token = new_token()
        bound, advertised = server_addresses(context, settings.host)
        server_kind = HttpExchangeServer if settings.transport == "http" else TcpExchangeServer
        server = stack.enter_context(server_kind(store, token, sizes, bound, settings.port))
        connector = ClientSettings(
            kind=settings.transport,
            host=advertised,
            port=server.address[1],
            token=token,
            sizes=sizes,
        )
        yield Listening(store, connector)


@contextmanager
def _server(
    fit: Fit, context: SparkContext, refs: RDD, data: Data, group: str, title: str, listening: Listening
) -> Iterator[None]:
    with ExitStack() as stack:
        shipped = context.broadcast(fit.factory)
        stack.callback(destroy, context, shipped)

        def factory(worker: int, shard: ShardRef, validation: ShardRef | None) -> Worker:
            made: Worker = shipped.value(worker, shard, validation)
            return made

        stack.enter_context(
            ServerRun(
                context,
                refs,
                factory,
                listening.connector,
                listening.store,
                group=group,
                description=f"{title}, {fit.settings.mode.value}",
                keep=data.sharded is not None,
                datasets=_datasets(fit, data),
            )
        )
        yield


def _loop(fit: Fit, workers: SyncWorkers | AsyncWorkers, written: Callable[[], None]) -> None:
    joined = workers.joined()
    written()
    plan = _plan(fit, joined)
    if isinstance(workers, AsyncWorkers):
        fit_asynchronously(workers, plan, fit.hooks, fit.progress, fit.hooks.loss_of)
    else:
        fit_synchronously(workers, plan, fit.hooks, fit.progress, fit.hooks.loss_of)


def _keeps_to_itself(fit: Fit) -> bool:
    """Whether workers keep weights or slots of their own.

    Then their updates resemble their last ones whatever their rows, and no drift says whether rounds must be short.
    """
    return fit.settings.strategy.remembers or fit.config.optimizer_state is OptimizerState.PER_WORKER


def _plan(fit: Fit, joined: Sequence[Joined]) -> FitPlan:
    """The schedule, once all workers have said how many rows they have."""
    layout = fit.hooks.variables.layout
    for worker in joined:
        if worker.layout_hash != layout.hash:
            raise ElephasError(
                f"worker {worker.worker} built another model than the driver's: layouts {worker.layout_hash} and "
                f"{layout.hash} differ. Does the model's code depend on the machine it runs on?"
            )
    looks = [worker for worker in joined if worker.signature]
    for worker in looks[1:]:
        differ = difference(looks[0].signature, worker.signature)
        if differ:
            raise DataError(
                f"the rows of workers {looks[0].worker} and {worker.worker} differ: {differ}. All rows of an RDD must "
                "have one shape."
            )
    rows = sum(worker.rows for worker in joined)
    held_out = sum(worker.validation_rows for worker in joined)
    if rows == 0:
        raise ValueError("there are no rows to train on: every partition is empty (or all held out for validation).")
    if fit.config.validation_split and held_out == 0:
        raise ValueError(
            f"validation_split={fit.config.validation_split} leaves no validation rows: the largest shard has "
            f"{max(worker.rows for worker in joined)} rows. Use fewer workers, or give validation_data."
        )
    worker_steps = [rounds.steps(worker.rows, fit.config.batch_size_of(worker.worker)) for worker in joined]
    accumulation = max(worker.accumulation for worker in joined)
    fit.hooks.planned(rows, max(worker_steps), blank(looks[0].signature, fit.config.batch_size) if looks else None)
    frequency = fit.settings.frequency
    if isinstance(frequency, Schedule):
        rounds_per_epoch = finest_rounds = 1
        worker_rounds = worker_finest = (1,) * len(joined)
    else:
        auto = rounds.auto_rounds(fit.settings.mode, worker_steps)
        rounds_per_epoch = rounds.rounds_per_epoch(worker_steps, frequency, accumulation, auto)
        worker_rounds = rounds.rounds_of_workers(worker_steps, rounds_per_epoch)
        finest_rounds = rounds.finest(worker_steps, rounds_per_epoch, frequency, accumulation)
        worker_finest = tuple(
            rounds.finest([steps], own, frequency, accumulation)
            for steps, own in zip(worker_steps, worker_rounds, strict=True)
        )
        if _keeps_to_itself(fit):
            rounds_per_epoch, worker_rounds = finest_rounds, worker_finest
    return FitPlan(
        layout=layout,
        mode=fit.settings.mode,
        strategy=fit.settings.strategy,
        frequency=frequency,
        rounds_per_epoch=rounds_per_epoch,
        finest_rounds=finest_rounds,
        worker_rounds=worker_rounds,
        worker_finest=worker_finest,
        num_workers=sum(worker.rows > 0 for worker in joined),
        rows=rows,
        initial_epoch=fit.config.initial_epoch,
        epochs=fit.config.epochs,
        validates=held_out > 0,
        validation_freq=fit.validation_freq,
        max_staleness=fit.settings.max_staleness,
        on_nan=OnNaN.DROP if fit.hooks.terminates_on_nan else fit.settings.on_nan,
        codec=fit.settings.codec,
        epoch_steps=max(worker_steps),
        accumulation=accumulation,
        learning_rate=learning_rates(fit.hooks.model),
    )
