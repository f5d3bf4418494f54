"""The session or SparkContext of this process, of either kind, and the settings that it shows."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary

import pyspark
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.extras import DEFAULT_BACKEND, X64, keeps_64_bits, keras_backend
from elephas_like.core.types import EngineName
from elephas_like.spark.failures import GONE, SESSION_GONE, RefusedError, first_sentence, session_ended
from elephas_like.spark.interpreter import check_interpreter
from elephas_like.spark.versions import check_connect, check_spark
from elephas_like.spark.waits import stopped

log = logging.getLogger(__name__)
_CONNECT = "pyspark.sql.connect"
_LONGEST_JOB = 2_000_000
"""Seconds, 23 days: about the longest time-out that a socket takes. py4j knows no way to say that there is none."""


class Conf(Protocol):
    """Spark's settings, read only: by name, or what a session of Spark Connect shows of the server's."""

    def get(self, name: str, default: str, /) -> str | None:
        """Return a setting, or the default where it is not set."""
        ...


def ignores_capitals(session: SparkSession) -> bool:
    """Return whether Spark takes names of columns for one that differ in capitals alone, as it does by default."""
    return (session.conf.get("spark.sql.caseSensitive", "false") or "").lower() != "true"


def started_context() -> SparkContext | None:
    """The SparkContext of this process, if one was started: the public getOrCreate would start one."""
    return SparkContext._active_spark_context


def has_stopped() -> bool:
    """Return whether this process had a SparkContext, and has none any more."""
    return SparkContext._gateway is not None and started_context() is None


def warn_if_stopped(what: str, instead: str) -> None:
    """Warn of what runs in this process because Spark was stopped, as in a notebook whose session has ended.

    Args:
        what: runs here. instead: what to do.
    """
    if has_stopped():
        text = f"the SparkContext was stopped: {what} in this process, without Spark. {instead}"
        warnings.warn(text, ElephasWarning, stacklevel=4)


def is_local(context: SparkContext) -> bool:
    """Return whether tasks run in the driver's JVM, and so on its machine (`local`, `local[n]`, not `local-cluster`)."""
    return is_local_master(context.master)


def is_local_master(master: str) -> bool:
    """Return whether a master runs tasks in the driver's JVM: `local` or `local[n]`, not `local-cluster`."""
    return master == "local" or master.startswith("local[")


def task_tries(master: str, conf: Conf) -> int:
    """Return how often Spark tries a task: once in local mode, but `local[n, tries]` says it, as `spark.task.maxFailures` does on clusters."""
    if is_local_master(master):
        told = re.fullmatch(r"local\[[^,\]]+,\s*(\d+)\s*\]", master)
        return 1 if told is None else int(told[1])
    return int(conf.get("spark.task.maxFailures", "4") or 4)


def is_on(conf: Conf, name: str) -> bool:
    """Return whether a setting of Spark is true; False if it is not set."""
    return (conf.get(name, "false") or "").lower() == "true"


def is_remote(thing: object) -> bool:
    """Return whether a session, a DataFrame or another object is Spark Connect's.

    Raises:
        ElephasError: it is, and this pyspark is too old for that.
    """
    remote = type(thing).__module__.startswith(_CONNECT)
    if remote:
        check_connect(pyspark.__version__)
    return remote


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the SparkContext of a classic session; None for Spark Connect, whose driver is another process."""
    return None if is_remote(session) else session.sparkContext


def check_frame_runs(df: DataFrame) -> None:
    """Do nothing if the session of a DataFrame runs, as far as this process knows: Spark's own errors say nothing of it.

    Raises:
        ElephasError: its SparkContext was stopped, or its session of Spark Connect has ended.
        ValueError: over Spark Connect, which looks at a DataFrame no earlier: its file, table or column is not there.
    """
    if is_remote(df):
        _check_remote_frame(df)
        return
    context = context_of(df.sparkSession)
    if context is not None and stopped(context):
        raise ElephasError(GONE)


def _check_remote_frame(df: DataFrame) -> None:
    try:
        ignores_capitals(df.sparkSession)  # a small question: only the server knows which sessions it has closed
        _ = df.schema
    except AnalysisException as error:
        raise ValueError(f"Spark cannot make the DataFrame: {first_sentence(error)}") from None
    except Exception as error:  # Spark Connect raises many kinds
        if session_ended(str(error)):
            raise RefusedError(SESSION_GONE) from None
        raise


_settings: WeakKeyDictionary[SparkContext, Mapping[str, str]] = WeakKeyDictionary()


def settings_of(context: SparkContext) -> Mapping[str, str]:
    """Return the settings that a context was started with.

    They stay what they are while it runs (Spark SQL adds the place of its warehouse), so each context is asked once: PySpark makes
    dozens of calls to the JVM to tell them.
    """
    if context not in _settings:
        _settings[context] = dict(context.getConf().getAll())
    return _settings[context]


class RemoteConf:
    """The settings that a session of Spark Connect shows; platforms may hide some, which count as not set."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def get(self, name: str, default: str, /) -> str | None:
        """Return a setting, or the default where it is not set or not shown.

        Raises:
            RefusedError: the session has ended.
        """
        try:
            return self._session.conf.get(name, default)
        except Exception as error:  # each platform has errors of its own
            if session_ended(str(error)):
                raise RefusedError(SESSION_GONE) from None
            log.warning("the session does not show %s, which counts as not set: %s", name, str(error).splitlines()[:1])
            return default


def conf_of(session: SparkSession) -> Conf:
    """Return the settings that a session's jobs run with."""
    context = context_of(session)
    return RemoteConf(session) if context is None else settings_of(context)


def active_session() -> SparkSession | None:
    """Return the session that is active in this thread, or else the default one, of either kind; None if there is none.

    A thread that Spark did not make has no active one.
    """
    if started_context() is None and f"{_CONNECT}.session" not in sys.modules:
        return None  # the question itself would start a process, or import what not every installation has
    try:
        return SparkSession.active()
    except PySparkRuntimeError:  # there is neither
        return None


def active_remote() -> SparkSession | None:
    """Return the session of `active_session` if it is Spark Connect's; None if there is none, or a classic one.

    A session of `remote("local")` is one, although its server's SparkContext is in this process: elsewhere there is none.
    """
    if f"{_CONNECT}.session" not in sys.modules:
        return None
    session = active_session()
    return session if session is not None and is_remote(session) else None


def remote_session(data: object) -> SparkSession | None:
    """Return the session of Spark Connect that work on some data runs on: that of a DataFrame, or else the active one, if any."""
    return data.sparkSession if is_remote(data) else active_remote()  # type: ignore[attr-defined]  # a DataFrame


def active_context(engine: EngineName) -> SparkContext | None:
    """The SparkContext that is active, for an engine that would use one.

    Raises:
        ValueError: an engine that needs Spark, and none is active; or one that needs a classic session.
    """
    if engine is EngineName.IN_PROCESS:
        return None
    if active_remote() is not None:
        if engine in (EngineName.AUTO, EngineName.GANG):
            return None
        raise ValueError(f"engine={engine.value!r} needs a classic session; over Spark Connect use engine='gang'.")
    context = started_context()
    if context is None and engine is not EngineName.AUTO:
        raise ValueError(f"engine={engine.value!r} needs a SparkContext; start a SparkSession first.")
    return context


def check_executors(context: SparkContext) -> None:
    """Do nothing if what the executors run goes with what this process runs, as far as it is known without a job.

    Raises:
        ElephasError: the SparkContext was stopped, pyspark and Spark are of different versions, or the executors' Python cannot
            run tasks.
    """
    if stopped(context):
        raise ElephasError(GONE)
    _wait_for_jobs(context)
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        warnings.warn(
            "PYSPARK_PIN_THREAD=false: threads share Spark's job tags, so jobs may not be cancelled by time limits, Ctrl-C or a "
            "fit's end. Take it out of the environment before Spark starts.",
            ElephasWarning,
            stacklevel=2,
        )
    check_spark(context.version)
    check_interpreter(context, local=is_local(context))
    share_backend(context)


def _wait_for_jobs(context: SparkContext) -> None:
    """Have this process wait for the JVM's answers as long as jobs take, also after `socket.setdefaulttimeout`.

    That holds for py4j's connections, too, which has no other time-out by default. Each thread opens its own with its first call: so a
    job of a new thread would be given up after that time, and would run on, where the user's own jobs wait. Spark has no
    public name for its gateway.
    """
    if socket.getdefaulttimeout() is None:
        return
    gateway = context._gateway
    gateway.gateway_parameters.read_timeout = gateway.gateway_parameters.read_timeout or _LONGEST_JOB
    for connection in gateway._gateway_client.deque.copy():  # those that no thread is using
        with suppress(OSError, AttributeError):  # one that is closed
            connection.socket.settimeout(gateway.gateway_parameters.read_timeout)


def share_backend(context: SparkContext) -> None:
    """Have Python processes that run tasks from now on import Keras on the backend of this one, and JAX with its numbers of 64 bits.

    Nothing is said where Keras takes TensorFlow because nobody chose: Spark starts new processes for a new environment.
    """
    name = keras_backend()
    theirs = settings_of(context).get("spark.executorEnv.KERAS_BACKEND", name)
    if name != DEFAULT_BACKEND or "KERAS_BACKEND" in os.environ or theirs != name:
        context.environment["KERAS_BACKEND"] = name
    wide = keeps_64_bits()
    if wide or X64 in context.environment:
        context.environment[X64] = str(int(wide))


def context_for(data: SparkContext | None, engine: EngineName) -> SparkContext | None:
    """The SparkContext of a fit: that of its data, else the active one, for an engine that would use one.

    Args:
        data: the context of the data; None if it is not in Spark.
        engine: the engine that was asked for.

    Raises:
        ElephasError: as `check_executors`.
        ValueError: an engine that needs Spark, and none is active; or one that needs a classic session.
    """
    context = data or active_context(engine)
    if context is not None and not stopped(
        context
    ):  # one that was stopped has its own error, when its slots are counted
        check_executors(context)
    return context
