"""Translate Spark's errors: the worker's own exception without the Java stack around it."""

from __future__ import annotations

import re

from elephas_like.core.errors import ElephasError, WorkerError
from elephas_like.core.findings import size_text
from elephas_like.spark.versions import missing_package

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:.*\n)*?(?P<last>^[\w.]+(?:: .*|$))", re.M)
_CHAIN = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
_STATE = re.compile(r"\n? SQLSTATE: |\nDriver stacktrace:")
_JAVA_STACK = "\n\tat "
_TOO_LARGE = re.compile(
    r"serialized results of \d+ tasks \((?P<size>[^)]+)\) is bigger than [\w. ]+ \((?P<limit>[^)]+)\)"
)
_TASK_TOO_LARGE = re.compile(
    r"Serialized task \S+ was (?P<size>\d+) bytes, which exceeds max allowed: spark\.rpc\.message\.maxSize \((?P<limit>\d+) bytes"
)
_CANCELLED = re.compile(r"Job \d+ cancelled[^\n]*")
_DIED = re.compile(
    r"failed (?P<times>\d+) times?, most recent failure: Lost task \S+ in stage \S+ \(TID \d+\) \((?P<where>[^)]+)\): "
    r"[^\n]*Python worker exited unexpectedly"
)
_LOST = re.compile(
    r"failed (?P<times>\d+) times?, most recent failure: Lost task \S+ in stage \S+ \(TID \d+\) \((?P<where>[^)]+)\): "
    r"ExecutorLostFailure [^\n]*?Reason: (?P<why>[^\n]+)"
)
_SHUFFLE_LOST = re.compile(
    r"has (?:failed the maximum allowable number of times|(?P<total>exceeded the maximum allowable total stage attempts)): (?P<times>\d+)\. "
    r"Most recent failure reason:\s*(?:[\w$]+\.)*(?P<why>[^\n\t]+)"
)
_MEMBER_DIED = re.compile(r"barrier task [^\n]* finished unsuccessfully\.\n[^\n]*Python worker exited unexpectedly")
_MEMBER_LOST = re.compile(
    r"barrier task [^\n]* finished unsuccessfully\.\nExecutorLostFailure [^\n]*?Reason: (?P<why>[^\n]+)"
)
_IDLE = re.compile(r"Python worker process terminated due to idle timeout \(timeout: (?P<seconds>\d+) seconds\)")
_PRINTS = re.compile(r"Bad data in \S+'s standard output\. Invalid port number")
_UNREADABLE = re.compile(r"\[FAILED_READ_FILE[^]]*\] Encountered error while reading file (?P<file>.+?)\.\s")
_NO_FILE = re.compile(r"Input path does not exist: (?P<path>[^\n]+)|Input Pattern (?P<pattern>.+?) matches 0 files")
_CAUSE = re.compile(r"^Caused by: (?P<kind>[\w.$]+): (?:\[[A-Z_.]+\] )?(?P<said>[^\n]+)", re.M)
_FATAL = re.compile(r"Fatal Python error: [^\n]+")
_INTERRUPTED = re.compile(r"^: java\.lang\.InterruptedException", re.M)
_BARRIER = "SPARK-24820"
_SHUT_DOWN = "because SparkContext was shut down"
_WORKER_ADVICE = "Look at the logs there, and give it more memory, or the executor fewer slots."
_SESSION_ENDED = re.compile(r"NO_ACTIVE_SESSION|INVALID_HANDLE\.SESSION_|incorrect server side session identifier")
_UNREACHABLE = re.compile(r"StatusCode\.UNAVAILABLE|\[RETRIES_EXCEEDED\]")
GONE = (
    "the SparkContext was stopped, by stop() or because the application ended. Start a new session and make the data from "
    "it."
)

SESSION_GONE = (
    "the session of Spark Connect has ended: it was stopped, or its server closed it (by default after an hour without a call) or was "
    "started anew. Start a new session and make the data from it."
)
SERVER_GONE = "the server of Spark Connect cannot be reached, or has ended. When it runs, start a new session and make the data from it."

ENDS = (GONE, SESSION_GONE, SERVER_GONE)
"""What says that no other job can run either."""


class RefusedError(ElephasError):
    """Spark refuses a job for a reason that is the same for each attempt: its settings, how the rows are made, an ended session."""


def readable(error: BaseException) -> BaseException:
    """Return the error to raise in place of one that Spark raised: a WorkerError if it contains a Python traceback."""
    if isinstance(error, ElephasError | KeyboardInterrupt):
        return error
    text = str(error)
    advice = missing_package(text)
    if advice is not None:
        return ElephasError(advice)
    if _SHUT_DOWN in text:
        return ElephasError(GONE)
    refused = _refusal(text)
    if refused is not None:
        return RefusedError(refused)
    found = _TRACEBACK.search(text)
    if found is None:
        if session_ended(text):
            return RefusedError(SESSION_GONE)
        if _UNREACHABLE.search(text):
            return RefusedError(SERVER_GONE)
        died = _DIED.search(text)
        if died is not None:
            times = f"{died['times']} time{'s' * (died['times'] != '1')}"
            return ElephasError(
                f"the Python worker of a task died on {died['where']}, and Spark has tried it {times} "
                f"(spark.task.maxFailures). {_why_died(text)} {_WORKER_ADVICE}"
            )
        lost = _LOST.search(text)
        if lost is not None:
            return ElephasError(
                f"the executor of a task was lost, last on {lost['where']}, and Spark has tried it {lost['times']} "
                f"time{'s' * (lost['times'] != '1')} (spark.task.maxFailures). {_why_lost(lost)}"
            )
        lost = _SHUFFLE_LOST.search(text)
        if lost is not None:
            setting = "spark.stage.maxAttempts" if lost["total"] else "spark.stage.maxConsecutiveAttempts"
            return ElephasError(
                f"what the rows were shuffled through could not be read, and Spark has tried it {lost['times']} "
                f"time{'s' * (lost['times'] != '1')} ({setting}). Spark says: {lost['why'].rstrip(': .')}. Most often an executor that held "
                "it was killed for want of memory (spark.executor.memoryOverhead), or cannot be reached: look at the logs of the executors, "
                "and give them more memory or fewer slots. Or write the shuffled rows down (Parquet) and fit those."
            )
        if _MEMBER_DIED.search(text):
            return ElephasError(
                f"the Python worker of a task died, which ends all tasks of its gang. {_why_died(text)} {_WORKER_ADVICE}"
            )
        lost = _MEMBER_LOST.search(text)
        if lost is not None:
            return ElephasError(f"the executor of a task was lost, which ends all tasks of its gang. {_why_lost(lost)}")
        cancelled = _CANCELLED.search(text)
        if cancelled is not None:
            return ElephasError(f"the Spark job was cancelled. Spark says: {_STATE.split(cancelled[0])[0].strip()}")
        unreadable = _UNREADABLE.search(text)
        if unreadable is not None:
            cause = _CAUSE.search(text)
            why = (
                ""
                if cause is None
                else f" {cause['kind'].rsplit('.', 1)[-1]}: {_STATE.split(cause['said'])[0].strip()}"
            )
            return ElephasError(f"Spark cannot read {unreadable['file']}.{why}")
        if _INTERRUPTED.search(text):
            return ElephasError(
                "the thread's call to Spark was interrupted, as by a streaming query or a notebook's cell that is stopped."
            )
        return ElephasError(f"the Spark job ended: {informative_line(text) or type(error).__name__}")
    # Of exceptions that caused one another the last was raised.
    python = text.partition(_JAVA_STACK)[0][found.start() :]
    raised = _TRACEBACK.search(python, [0, *(link.end() for link in _CHAIN.finditer(python))][-1]) or found
    type_name, _, message = (raised.group("last") + _more_lines(python[raised.end() :])).partition(": ")
    shown = python[: raised.end()] if raised is not found else found.group(0)
    return WorkerError.of(type_name.rsplit(".", 1)[-1], message, shown, -1)


def session_ended(text: str) -> bool:
    """Return whether an error of Spark Connect says that its session is no more."""
    return _SESSION_ENDED.search(text) is not None


def first_sentence(error: BaseException) -> str:
    """Return what Spark says in the first line of its own error, without the number of its SQL state."""
    return _STATE.split(str(error))[0].splitlines()[0].strip()


def _why_died(text: str) -> str:
    """Return why a Python worker died, as far as Spark's error says: with spark.python.worker.faulthandler.enabled."""
    fatal = _FATAL.search(text)
    return f"It said {fatal[0]!r}." if fatal else "Most often the system has killed it for want of memory."


def _why_lost(lost: re.Match[str]) -> str:
    """Return what Spark says of an executor that was lost, and what to do."""
    return (
        f"Spark says: {lost['why'].strip().rstrip('.')}. Most often the system or the cluster's manager has killed it for want of "
        "memory: Python's lies beside Java's, in spark.executor.memoryOverhead. Look at its logs, and give it more memory or fewer slots."
    )


def _refusal(text: str) -> str | None:
    """Return why Spark refuses a job, and what to do; None if the text says something else."""
    large = _TOO_LARGE.search(text)
    if large is not None:
        return (
            f"tasks have {large['size']} of results for the driver, and spark.driver.maxResultSize allows {large['limit']}. "
            "Set it higher before the session starts (0 is no limit). Or let less come to the driver by Spark: "
            "predict(..., collect=False) leaves predictions on the executors, and a fit with engine='server' sends its states itself."
        )
    task = _TASK_TOO_LARGE.search(text)
    if task is not None:
        return (
            f"a task has {size_text(int(task['size']))} of rows, and spark.rpc.message.maxSize allows {size_text(int(task['limit']))}: rows "
            "that sc.parallelize was given travel with their tasks. Give it more partitions, or the arrays themselves to fit; write the rows "
            "down (Parquet), or set it higher, in MiB, before the session starts."
        )
    idle = _IDLE.search(text)
    if idle is not None:
        return (
            f"Spark has killed a Python worker that neither took nor gave a row for {idle['seconds']} s, as one does not while it trains, "
            "predicts a batch, or imports Keras. Set spark.python.worker.killOnIdleTimeout to false before the session starts (for columns of "
            "DataFrames spark.sql.execution.pyspark.udf.killOnIdleTimeout), or the idleTimeoutSeconds beside it higher than that takes."
        )
    missing = _NO_FILE.search(text)
    if missing is not None:
        return (
            f"Spark finds no file {(missing['path'] or missing['pattern']).rstrip()}, from which the rows are read. A path without a scheme is one of "
            "the cluster's default filesystem, which file:// in front of it changes."
        )
    if _PRINTS.search(text):
        return (
            "the executors' Python prints as it starts, where Spark waits for its port number: most often in a sitecustomize.py, a .pth file, or "
            "a module on PYTHONPATH that has the name of one of Python's own. Have it print to sys.stderr, or take it out."
        )
    if _BARRIER in text:
        return (
            "the rows come from rdd.barrier(), and Spark runs all tasks of such a stage or none: it takes neither the first row "
            "of it nor fewer partitions. Begin a new stage behind it: rdd.repartition(num_workers)."
        )
    return None


def _more_lines(text: str) -> str:
    """Return the lines of a message after its first one: up to a traceback that follows, or Spark's own code of the error."""
    return _CHAIN.split(_STATE.split(text)[0])[0].rstrip()


def informative_line(text: str) -> str:
    """Return the first informative line. py4j's own first line only says that there was an error, and one of Spark's may end amid a message."""
    lines = [line.strip() for line in text.partition(_JAVA_STACK)[0].splitlines() if line.strip()] or [""]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    said = next((number for number, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)
    return " ".join(lines[: said + 1])
