"""The workers of a fit, launched on the engine that was chosen, and the loop over its rounds."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.sql import SparkSession

from elephas_like.core.async_loop import fit_asynchronously
from elephas_like.core.errors import WorkerError
from elephas_like.core.loop import fit_synchronously
from elephas_like.core.quorum import Quorum
from elephas_like.core.summing import Weighing
from elephas_like.core.types import EngineName, Mode, Order, ShardRef
from elephas_like.core.workers import AsyncWorkers, SyncWorkers, Worker, WorkerFactory
from elephas_like.engine.in_process import (
    InProcessAsyncWorkers,
    InProcessQuorumWorkers,
    InProcessSyncWorkers,
    speeds_of,
)
from elephas_like.engine.job_rounds import JobRounds
from elephas_like.engine.job_tasks import JobRun
from elephas_like.engine.server_rounds import Connector, ServerRun, announced_rows
from elephas_like.exchange.address import advertised_address, bind_address
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.faulty_client import FaultySettings
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.request_handler import FitRequestHandler, Handler
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.security import new_token
from elephas_like.exchange.server import Served
from elephas_like.exchange.tls import Files, Identity, identity
from elephas_like.exchange.trial_reports import NO_STATE, TrialRequestHandler, TrialStore
from elephas_like.model.gang_fit import GangFit
from elephas_like.model.injection import injected
from elephas_like.model.options import Options
from elephas_like.model.plan import Fit, plan_of
from elephas_like.model.serving import server_kind, store_of
from elephas_like.model.source import Source
from elephas_like.model.watching import watched
from elephas_like.rows.data import Data
from elephas_like.rows.shards import VALIDATION, finished_pairs, pairs, pairs_with_blocks
from elephas_like.rows.spool import spool
from elephas_like.spark.broadcasts import ship
from elephas_like.spark.encryption import wants_tls
from elephas_like.spark.gpus import gpu_tasks
from elephas_like.spark.session import context_of, is_local, settings_of
from elephas_like.spark.waits import destroy
from elephas_like.trainer.code import broadcasts_of, pickle_by_value
from elephas_like.trainer.factories import SharingFactory, parts_of

_runs = itertools.count(1)


def run_over_gangs(
    fit: Fit, session: SparkSession, source: Source, validation: Source | None, num_workers: int
) -> None:
    """Trains by barrier stages, leaving the state of every finished epoch in `fit.progress`."""

    def serve(questions: TrialStore) -> AbstractContextManager[ClientSettings]:
        context = context_of(session)
        if context is None:
            raise ValueError(
                "inject: faults are for fits of classic sessions; over Spark Connect no worker can ask us."
            )
        return exchange_server(context, fit.options.beside(), questions, NO_STATE, TrialRequestHandler)

    with injected(fit, EngineName.GANG, num_workers, serve) as fit:
        rows = source.gang_rows(session, num_workers)
        held_out = None if validation is None else validation.gang_rows(session, num_workers)
        with GangFit(fit, session, rows, held_out) as gang:
            gang.run()


def run(fit: Fit, engine: EngineName, data: Data, validation: Data | None, context: SparkContext | None) -> None:
    """Trains, leaving the state of every finished round in `fit.progress`."""

    def serve(questions: TrialStore) -> AbstractContextManager[ClientSettings]:
        assert context is not None
        return exchange_server(context, fit.options.beside(), questions, NO_STATE, TrialRequestHandler)

    with injected(fit, engine, data.num_workers, serve) as fit:
        _run(fit, engine, data, validation, context)


def _run(fit: Fit, engine: EngineName, data: Data, validation: Data | None, context: SparkContext | None) -> None:
    if engine is EngineName.IN_PROCESS:
        with _in_process(fit, data, validation) as workers:
            _loop(fit, workers, data.written)
        return
    assert context is not None
    number = next(_runs)
    before = len(fit.progress.rounds)
    title = f"elephas_like fit {number}: {fit.hooks.model.name}, {data.num_workers} workers"
    try:
        # Before the first round nothing has happened yet, and all can begin again.
        data.rewriting(
            lambda: _on_spark(fit, engine, data, validation, context, title),
            again=lambda: len(fit.progress.rounds) == before,
        )
    except Exception as error:
        of_a_disk = isinstance(error, WorkerError) and error.type_name == "OSError"
        if len(fit.progress.rounds) == before or of_a_disk:
            data.invalidate()  # what kept rows from being written, a full disk for example, may be over at the next fit
        raise


def _on_spark(
    fit: Fit, engine: EngineName, data: Data, validation: Data | None, context: SparkContext, title: str
) -> None:
    tag = f"elephas_like-{fit.spool.dataset}"
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(fit, context, data)) if engine is EngineName.SERVER else None
        shipped = [context.broadcast(block) for block in (validation and validation.blocks) or ()]
        for broadcast in shipped:
            stack.callback(destroy, context, broadcast)

        held_rows = None if validation is None or validation.blocks is not None else validation.writing(context, stack)
        write = None
        if not data.kept:
            announced = (
                partial(announced_rows, connector=listening.connector, run=tag) if listening and not held_rows else None
            )
            write = data.writing(context, stack, announced)

        def shards(*, finished: bool = False) -> RDD:
            """The workers' shards; `finished` if they were written before, and only need to be found."""
            refs, options = data.sharded, replace(fit.spool, take_finished=finished)
            held_out = options.for_validation(f"{fit.spool.dataset}-val")
            if refs is None and finished and is_local(context):
                validated = None if validation is None else held_out.dataset
                return finished_pairs(context, options.dataset, validated, data.num_workers)
            if write is not None:
                refs = write(options)
            assert refs is not None
            if validation is None:
                return pairs(refs, None)
            if held_rows is not None:
                return pairs(refs, held_rows(held_out))
            return pairs_with_blocks(refs, shipped, held_out)

        if listening is None:
            _loop(fit, stack.enter_context(_jobs(fit, context, shards(), data, tag, title)), data.written)
        else:
            finished = None if fit.request.worker_callbacks else partial(shards, finished=True)
            stack.enter_context(_server(fit, context, shards(), finished, data, tag, title, listening))
            _loop(fit, listening.store, data.written)


def _memory(fit: Fit) -> str:
    """Id of the dataset in which suspended workers save what they remember."""
    return f"{fit.spool.dataset}-memory"


def _datasets(fit: Fit, data: Data) -> list[str]:
    """Ids of the shards that go with the fit."""
    own = [f"{fit.spool.dataset}-val", _memory(fit)]
    return own if data.kept else [fit.spool.dataset, *own]


@contextmanager
def _in_process(fit: Fit, data: Data, validation: Data | None) -> Iterator[SyncWorkers]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="elephas_like-"))
        factory = stack.enter_context(SharingFactory(fit.factory))
        held = None if validation is None else list(_spooled(fit, validation, folder, "validation", VALIDATION))
        workers = []
        for index, shard in enumerate(_spooled(fit, data, folder, "training")):
            worker = factory(index, shard, None if held is None else held[index])
            stack.callback(worker.close)
            workers.append(worker)
        if fit.options.quorum is not None:
            quorum = Quorum.of(fit.options.quorum, fit.options.quorum_grace, len(workers))
            yield InProcessQuorumWorkers(workers, quorum, speeds_of(len(workers), fit.config.seed).tolist())
        elif fit.options.mode is Mode.SYNCHRONOUS:
            yield InProcessSyncWorkers(workers)
        else:
            yield InProcessAsyncWorkers(workers, fit.config.seed)


def _spooled(fit: Fit, data: Data, folder: str, name: str, place: str = "partition") -> Iterator[ShardRef]:
    for index, rows in enumerate(data.partitions()):
        yield spool(
            rows,
            dataset=name,
            worker=index,
            base=folder,
            floatx=fit.spool.floatx,
            expect_target=fit.spool.expect_target,
            place=place,
            prepare=fit.spool.prepare,
        )


@contextmanager
def _jobs(fit: Fit, context: SparkContext, refs: RDD, data: Data, tag: str, title: str) -> Iterator[JobRounds]:
    shipped = ship(context, fit.factory)
    sent = (shipped, *broadcasts_of(fit.factory))  # PySpark ships the broadcasts that a function names

    def make() -> WorkerFactory:
        return SharingFactory(sent[0].value)

    def describe(order: Order | None) -> str:
        if order is None:
            return f"{title}: write shards"
        if order.span is None:
            return f"{title}: evaluate"
        return f"{title}: epoch {order.span.epoch + 1}, round {order.span.end} of {order.span.of}"

    try:
        with JobRounds(
            context,
            # The default level keeps references in memory only: one that is evicted would be written down again.
            refs.persist(StorageLevel.MEMORY_AND_DISK),
            JobRun(tag, make),
            tag,
            describe,
            data.kept,
            datasets=_datasets(fit, data),
            round_timeout=fit.options.round_timeout,
            gpus=gpu_tasks(context, fit.options.resources),
            invalidate=data.invalidate,
            packed=_by_value,
        ) as workers:
            yield workers
    finally:
        destroy(context, shipped)


def _by_value(weighing: Weighing) -> bytes:
    """Pickle how updates are weighed, with the code of a user's own strategy and codec."""
    return pickle_by_value([weighing, weighing.strategy, weighing.codec, *parts_of(weighing.strategy)])


@dataclass(frozen=True)
class Listening:
    """A server that runs: where its workers' answers are, and how they reach it."""

    store: RoundStore | CenterStore
    connector: Connector


def server_addresses(context: SparkContext, host: str | None = None) -> tuple[str, str]:
    """(the address to listen on, the one that workers are told), from `host` and from what Spark's driver uses.

    In local mode workers are on this machine, and are told where the server listens.
    """
    spark = settings_of(context)
    driver_host = spark.get("spark.driver.host")
    bound = bind_address(
        host,
        spark_bind_address=spark.get("spark.driver.bindAddress"),
        spark_driver_host=driver_host,
        spark_local_ip=os.environ.get("SPARK_LOCAL_IP"),
    )
    told = None if is_local(context) else driver_host
    return bound, advertised_address(host, bound=bound, spark_driver_host=told)


def server_identity(
    context: SparkContext, tls: bool | Files | None, *, allow_plain_text: bool = False
) -> Identity | None:
    """The certificate and key that a server on the driver uses; None serves in plain text.

    Raises:
        PlainTextError: tls=False, and Spark's own network is encrypted.
        ValueError: files that cannot serve.
    """
    if not wants_tls(settings_of(context), tls, allow_plain_text=allow_plain_text):
        return None
    return identity(tls if isinstance(tls, tuple) else None)


@contextmanager
def _listening(fit: Fit, context: SparkContext, data: Data) -> Iterator[Listening]:
    options, num_workers = fit.options, data.num_workers
    remember = options.workers_remember(fit.strategy)
    layout = fit.hooks.variables.layout
    sizes = Sizes.of(
        layout,
        options.codec,
        state_codec=options.state_codec,
        workers_remember=remember,
        control_variates=fit.config.control_variates,
    )
    store = store_of(options, num_workers, fit.hooks.variables.layout.hash, sizes)
    with exchange_server(context, options, store, sizes) as settings:
        yield Listening(store, settings if fit.faults is None else FaultySettings(settings, fit.faults))


@contextmanager
def exchange_server(
    context: SparkContext,
    options: Options,
    store: Served,
    sizes: Sizes,
    handler: Callable[[Any, Sizes], Handler] = FitRequestHandler,
) -> Iterator[ClientSettings]:
    """Serve a store as the options say. Yield what its clients need."""
    token = new_token()
    bound, advertised = server_addresses(context, options.host)
    own = server_identity(context, options.tls, allow_plain_text=options.allow_plain_text)
    with server_kind(options)(store, token, sizes, bound, options.port, handler=handler, identity=own) as server:
        yield ClientSettings(
            kind=options.parameter_server_mode,
            host=advertised,
            port=server.address[1],
            token=token,
            sizes=sizes,
            fingerprint=None if own is None else own.fingerprint,
        )


@contextmanager
def _server(
    fit: Fit,
    context: SparkContext,
    refs: RDD,
    finished: Callable[[], RDD] | None,
    data: Data,
    tag: str,
    title: str,
    listening: Listening,
) -> Iterator[None]:
    with ExitStack() as stack:
        shipped = ship(context, fit.factory)
        stack.callback(destroy, context, shipped)
        sent = (shipped, *broadcasts_of(fit.factory))  # PySpark ships the broadcasts that a function names

        def factory(worker: int, shard: ShardRef, validation: ShardRef | None) -> Worker:
            made: Worker = sent[0].value(worker, shard, validation)
            return made

        stack.enter_context(
            ServerRun(
                context,
                refs,
                finished,
                factory,
                listening.connector,
                listening.store,
                tag=tag,
                description=f"{title}, {fit.options.mode.value}",
                keep=data.kept,
                datasets=_datasets(fit, data),
                memory=_memory(fit),
                gpus=gpu_tasks(context, fit.options.resources),
                invalidate=data.invalidate,
                round_timeout=fit.options.round_timeout,
            )
        )
        yield


def _loop(fit: Fit, workers: SyncWorkers | AsyncWorkers, written: Callable[[], None]) -> None:
    workers = watched(workers, fit.hooks.monitor)
    joined = workers.joined()
    written()
    plan = plan_of(fit, joined)
    if fit.checkpoints is not None:
        fit.checkpoints.workers_joined(joined, fit.progress)
    with np.errstate(under="ignore"):  # momenta end at nothing by way of it, whatever a program says of its own numbers
        if isinstance(workers, AsyncWorkers):
            fit_asynchronously(workers, plan, fit.hooks, fit.progress, fit.hooks.loss_of, fit.checkpoints)
        else:
            fit_synchronously(workers, plan, fit.hooks, fit.progress, fit.hooks.loss_of, fit.checkpoints)
