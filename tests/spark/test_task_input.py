"""A task that is sent less than all of its rows learns of it, whatever Spark sends them by."""

from __future__ import annotations

import io
import os
import socket
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyarrow as pa
import pytest

from elephas_like.core.errors import DataError, InputCutError
from elephas_like.spark.task_input import at_once, only, said_as_utf8, whole

pytestmark = pytest.mark.classic


def test_rows_of_this_process_are_yielded() -> None:
    assert list(whole(iter([1, 2]))) == [1, 2]
    assert list(whole([])) == []


def test_the_one_row_of_a_task_that_is_ended_before_it_came() -> None:
    assert only([7]) == 7
    with pytest.raises(InputCutError):  # as Spark ends the rows of a DataFrame when another task has failed
        only([])


@pytest.mark.parametrize("name", ["pyspark.worker", "__main__"])
@pytest.mark.parametrize("left", [b"end", b""])
def test_a_process_that_spark_starts_without_its_daemon_knows_its_input(name: str, left: bytes) -> None:
    """spark.python.use.daemon=false, and Windows: Spark runs `python -m pyspark.worker`."""
    module: dict[str, object] = {"__name__": name, "__spec__": ModuleSpec("pyspark.worker", None), "whole": whole}
    exec("def main(infile): return list(whole([1, 2]))", module)
    if left:
        assert module["main"](io.BufferedReader(io.BytesIO(left))) == [1, 2]  # type: ignore[operator]
    else:
        with pytest.raises(InputCutError):
            module["main"](io.BufferedReader(io.BytesIO(left)))  # type: ignore[operator]


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has the option")
@pytest.mark.parametrize("read", [at_once, whole, only, said_as_utf8])
def test_the_rows_of_a_task_are_not_held_back_until_it_is_acknowledged(read, request) -> None:
    module: dict[str, object] = {
        "__name__": "pyspark.worker",
        "first": read if read is only else lambda rows: next(read(rows)),
    }
    exec("def main(infile): return first([7])", module)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sparks:
        task, _ = server.accept()
        with task, task.makefile("rb") as infile:
            sparks.sendall(b"end")
            task.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)  # as after an answer
            assert not task.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            request.addfinalizer(lambda: socket.setdefaulttimeout(None))
            socket.setdefaulttimeout(
                5
            )  # as a user's function may; it is not for Spark's socket, whose rows would be lost
            assert module["main"](infile) == 7  # type: ignore[operator]
            assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            assert os.get_blocking(infile.fileno())


@pytest.fixture
def ansi(spark):
    """A session in which a division by zero is an error, and batches are small."""
    settings = {"spark.sql.ansi.enabled": "true", "spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.parametrize("divisor", ["id + 1", "id - 997", "id"])
@pytest.mark.parametrize("sent", ["as rows", "in batches"])
def test_a_function_never_takes_rows_before_an_error_for_all_of_them(
    ansi, tmp_path: Path, sent: str, divisor: str
) -> None:
    believed = str(tmp_path / "believed")

    def count(rows):
        seen = sum(1 for _ in whole(rows))
        Path(believed).write_text(str(seen))
        yield pa.record_batch([pa.array([seen])], ["seen"]) if sent == "in batches" else seen

    df = ansi.range(0, 1000, 1, 1).selectExpr(f"1 / ({divisor}) AS x")
    counted = df.mapInArrow(count, "seen long").rdd if sent == "in batches" else df.rdd.mapPartitions(count)
    if divisor == "id + 1":
        counted.collect()
        assert Path(believed).read_text() == ("100" if sent == "in batches" else "1000")
    else:
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            counted.collect()
        assert not Path(believed).exists()


def test_the_error_of_a_function_in_another_process(sc, tmp_path: Path) -> None:
    believed = str(tmp_path / "believed")

    def bad(number: int) -> int:
        if number == 37:
            raise KeyError("no such number")
        return number

    def count(rows):
        seen = sum(1 for _ in whole(rows))
        Path(believed).write_text(str(seen))
        yield seen

    with pytest.raises(Exception, match="no such number"):
        sc.parallelize(range(40), 4).map(bad).coalesce(1).mapPartitions(count).collect()
    assert not Path(believed).exists()


def test_rows_that_a_function_makes_of_others_and_rows_that_are_left(sc) -> None:
    def twice(rows):
        return (value for row in rows for value in (row, row))

    assert sc.parallelize(range(10), 2).mapPartitions(twice).mapPartitions(whole).count() == 20

    def first(rows):
        yield next(iter(rows))

    assert sc.parallelize(range(10), 2).mapPartitions(first).mapPartitions(whole).collect() == [0, 5]


FOREIGN = "caf\udce9.png"
"""The name of a file that is no UTF-8, as Python has it."""


class Unsaid(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def noted() -> ValueError:
    error = ValueError("no such file")
    error.add_note(FOREIGN)
    return error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (FileNotFoundError(f"no such file: {FOREIGN}"), r"no such file: caf\udce9.png"),
        (FileNotFoundError("no such file: café.png"), None),
        (noted(), "no such file"),
        (ExceptionGroup("all", [OSError(FOREIGN)]), "all (1 sub-exception)"),
        (DataError(FOREIGN), r"caf\udce9.png"),
        (Unsaid(), None),
    ],
)
def test_an_error_that_pyspark_could_not_write_is_raised_as_text_that_it_can(
    error: Exception, shown: str | None
) -> None:
    """Spark would wait for the text of the error without end."""

    def rows():
        yield 1
        raise error

    coming = said_as_utf8(rows())
    assert next(coming) == 1
    try:
        next(coming)
    except Exception as raised:  # whose text may not be asked for
        found = raised
    written = "".join(traceback.format_exception(found)).encode()
    assert type(error).__name__.encode() in written
    assert b"raise error" in written  # the line of the user's
    if shown is None:  # any other is raised as it is
        assert found is error
    else:
        assert str(found) == shown
        assert isinstance(found, DataError) == isinstance(error, DataError)


def test_the_cause_of_an_error_may_be_what_cannot_be_written() -> None:
    def rows():
        try:
            raise OSError(FOREIGN)
        except OSError as error:
            raise ValueError("cannot read") from error
        yield 1

    with pytest.raises(Exception, match="cannot read") as caught:
        next(said_as_utf8(rows()))
    assert b"cannot read" in "".join(traceback.format_exception(caught.value)).encode()
