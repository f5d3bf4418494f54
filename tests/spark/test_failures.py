"""Spark's errors, read for what the worker itself said."""

from __future__ import annotations

import re

import pytest

from elephas_like.core.errors import ConnectionLostError, DataError, ElephasError, WorkerError
from elephas_like.spark.failures import RefusedError, readable
from elephas_like.spark.waits import partition_count, readable_errors

SPARK = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/app/job.py", line 7, in parse
    return int(text)
ValueError: invalid literal for int() with base 10: 'x'

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
"""


def test_a_workers_exception_comes_without_the_java_stack() -> None:
    error = readable(RuntimeError(SPARK))
    assert isinstance(error, WorkerError)
    assert isinstance(error, ValueError)
    assert "invalid literal for int()" in str(error)
    assert "job.py" in error.traceback_text
    assert "scala" not in str(error)


def test_of_chained_exceptions_the_last_is_raised() -> None:
    cause = 'Traceback (most recent call last):\n  File "a.py", line 1, in open\nConnectionRefusedError: [Errno 111] refused\n'
    last = 'Traceback (most recent call last):\n  File "b.py", line 2, in call\nelephas_like.core.errors.ConnectionLostError: '
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    error = readable(
        RuntimeError(f"PythonException: {cause}{link}{last}give host=\n\n\tat org.apache.Java\nCaused by: {cause}")
    )
    assert isinstance(error, ConnectionLostError)
    assert "give host=" in str(error).splitlines()[0]
    assert "refused" in error.traceback_text
    assert "Java" not in str(error)


def test_a_missing_package_becomes_advice() -> None:
    error = readable(RuntimeError("ModuleNotFoundError: No module named 'elephas_like'"))
    assert type(error) is ElephasError
    assert "missing on the executors" in str(error)


def test_what_has_no_traceback_keeps_its_first_line() -> None:
    assert str(readable(RuntimeError("Job 3 failed\nby itself"))).endswith("ended: Job 3 failed")


def test_a_line_that_ends_amid_a_message_goes_on() -> None:
    lost = "SparkException: Job aborted: Lost task 1.0 (node7 executor 2): org.apache.spark.SparkException: "
    text = f"An error occurred while calling o1.collect.\n: {lost}\nError from python worker:\n  Fatal Python error\nmore\n\tat a.b"
    assert str(readable(RuntimeError(text))).endswith("SparkException: Error from python worker: Fatal Python error")
    alone = "An error occurred while calling z:PythonRDD.collectAndServe"
    assert str(readable(RuntimeError(alone))).endswith(f"ended: {alone}")


def test_a_python_that_prints_as_it_starts_is_said_so() -> None:
    text = "SparkException: \nBad data in pyspark.daemon's standard output. Invalid port number/socket path:\n  1936290917 (0x73697465)\n"
    error = readable(RuntimeError(text))
    assert isinstance(error, RefusedError)
    assert "prints as it starts" in str(error)
    assert "sitecustomize.py" in str(error)


def test_a_file_that_spark_cannot_read_is_named_with_the_cause() -> None:
    text = (
        ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///rows/a.b.csv.  SQLSTATE: "
        "KD001\n\tat org.apache.Java\nCaused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed "
        "records: [null,1.0]. SQLSTATE: 22023\n\tat more\nCaused by: java.lang.NumberFormatException: x"
    )
    expected = "Spark cannot read file:///rows/a.b.csv. SparkException: Malformed records: [null,1.0]."
    assert str(readable(RuntimeError(text))) == expected


@pytest.mark.parametrize("how", ["as part of cancellation of all jobs", "part of cancelled job group a", ""])
def test_a_job_that_was_cancelled_is_said_in_a_sentence(how: str) -> None:
    text = f"org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled {how} SQLSTATE: XXKDA\n\tat"
    expected = f"the Spark job was cancelled. Spark says: Job 3 cancelled {how}".strip()
    assert str(readable(RuntimeError(f"An error occurred while calling o7.collect.\n: {text}"))) == expected
    assert str(readable(RuntimeError(text.replace(" SQLSTATE: XXKDA", "")))) == expected  # Spark 3.5


def test_a_call_that_was_interrupted_is_said_to_be() -> None:
    text = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: java.lang.InterruptedException\n\tat"
    assert str(readable(RuntimeError(text))).startswith("the thread's call to Spark was interrupted")


def test_the_line_before_sparks_own_words_is_left_out() -> None:
    text = "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job 3 is none\n\tat"
    assert str(readable(RuntimeError(text))).endswith("ended: org.apache.spark.SparkException: Job 3 is none")
    assert str(readable(RuntimeError())).endswith("ended: RuntimeError")


def test_a_job_that_ended_with_its_context_says_what_to_do() -> None:
    text = "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job 6 cancelled because SparkContext was shut down"
    assert "Start a new session" in str(readable(RuntimeError(text)))


def test_our_own_errors_and_ctrl_c_pass() -> None:
    for error in (DataError("partition 1, row 2: ..."), KeyboardInterrupt()):
        assert readable(error) is error


def test_a_python_worker_that_died_is_said_with_its_host() -> None:
    text = (
        "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in "
        "stage 0.0 failed 4 times, most recent failure: Lost task 1.3 in stage 0.0 (TID 1) (10.0.0.7 executor 2): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    )
    said = str(readable(RuntimeError(f"{text}. Consider setting x\n\tat org.apache")))
    assert said.startswith("the Python worker of a task died on 10.0.0.7 executor 2, and Spark has tried it 4 times")
    assert "for want of memory" in said
    fatal = str(readable(RuntimeError(f"{text}: Fatal Python error: Segmentation fault\n\nCurrent thread 0x1")))
    assert "It said 'Fatal Python error: Segmentation fault'." in fatal


def test_an_executor_that_was_lost_is_said_with_what_spark_says_of_it() -> None:
    text = (
        "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in "
        "stage 7.0 failed 4 times, most recent failure: Lost task 0.3 in stage 7.0 (TID 12) (10.0.0.7 executor 4): "
        "ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:"
    )
    said = str(readable(RuntimeError(f"{text}\n\tat org.apache")))
    assert said.startswith(
        "the executor of a task was lost, last on 10.0.0.7 executor 4, and Spark has tried it 4 times"
    )
    assert "Spark says: Command exited with code 137. Most often" in said
    assert "\n" not in said
    assert "org.apache" not in said


@pytest.mark.parametrize("line_ends", ["\n", " "])
def test_rows_whose_shuffle_was_lost_too_often_are_said_to_be_so(line_ends: str) -> None:
    text = (
        "Job aborted due to stage failure: ResultStage 5 (collect at x.py:1) has failed the maximum allowable number of times: 4. Most "
        f"recent failure reason:{line_ends}org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for "
        f"shuffle 0 partition 1{line_ends}\tat org.apache.spark.MapOutputTracker$.validateStatus"
    )
    said = str(readable(RuntimeError(text)))
    assert said.startswith(
        "what the rows were shuffled through could not be read, and Spark has tried it 4 times (spark.stage.maxConsecutiveAttempts). "
        "Spark says: MetadataFetchFailedException: Missing an output location for shuffle 0 partition 1. Most often"
    )
    assert "org.apache" not in said


GANG = (
    "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed "
    "because barrier task ResultTask(707, 0) finished unsuccessfully.\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{GANG}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting x\n\tat org.apache",
            "the Python worker of a task died, which ends all tasks of its gang. Most often the system has killed it for want of memory",
        ),
        (
            f"{GANG}ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137\n",
            "the executor of a task was lost, which ends all tasks of its gang. Spark says: Command exited with code 137. Most often",
        ),
    ],
    ids=["worker", "executor"],
)
def test_a_member_of_a_gang_that_died_is_said_so(text: str, said: str) -> None:
    found = str(readable(RuntimeError(text)))
    assert found.startswith(said)
    assert "org.apache" not in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[NO_ACTIVE_SESSION] No active Spark session found. Please create a new one.",
            "the session of Spark Connect has ended",
        ),
        (
            "[INVALID_HANDLE.SESSION_CLOSED] The handle 1-2 is invalid. Session was closed. SQLSTATE: HY000",
            "the session of Spark Connect",
        ),
        (
            "Received incorrect server side session identifier for request. (1 != 2)",
            "the session of Spark Connect has ended",
        ),
        (
            '<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "x">',
            "the server of Spark Connect",
        ),
    ],
    ids=["stopped", "closed", "another", "unreachable"],
)
def test_a_session_of_spark_connect_that_ended_is_said_so(text: str, said: str) -> None:
    found = str(readable(RuntimeError(text)))
    assert found.startswith(said)
    assert "Start a new session" in found or "start a new session" in found


def test_a_task_that_is_too_large_to_send_is_said_with_what_to_do() -> None:
    text = (
        "Job aborted due to stage failure: Serialized task 3:0 was 147849216 bytes, which exceeds max allowed: "
        "spark.rpc.message.maxSize (134217728 bytes). Consider increasing spark.rpc.message.maxSize"
    )
    error = readable(RuntimeError(text))
    assert isinstance(error, RefusedError)
    assert "a task has 141.0 MiB of rows, and spark.rpc.message.maxSize allows 128.0 MiB" in str(error)


def test_a_worker_that_spark_kills_because_it_is_idle_names_the_setting() -> None:
    text = (
        "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in "
        "stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.7 executor driver): "
        "org.apache.spark.api.python.PythonWorkerException: Python worker process terminated due to idle timeout (timeout: 30 seconds)"
    )
    error = readable(RuntimeError(f"{text}\n\tat org.apache"))
    assert isinstance(error, RefusedError)
    assert "neither took nor gave a row for 30 s" in str(error)
    assert "Set spark.python.worker.killOnIdleTimeout to false" in str(error)


@pytest.mark.parametrize("path", ["/no/such file.csv", "/no/such*.csv"])
def test_rows_from_files_that_are_not_there(sc, path: str) -> None:
    with pytest.raises(
        RefusedError, match=rf"^Spark finds no file file:{re.escape(path)}, from which the rows are read\. "
    ):
        partition_count(sc.textFile(path))


def test_rows_of_a_barrier_stage_that_spark_does_not_read_so(sc) -> None:
    rows = sc.parallelize(range(4), 2).barrier().mapPartitions(lambda mine: mine)
    with pytest.raises(RefusedError, match=r"the rows come from rdd.barrier\(\).*rdd.repartition\(num_workers\)"):
        with readable_errors(sc):
            rows.take(1)
    assert len(rows.repartition(2).take(1)) == 1
