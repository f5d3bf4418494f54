from __future__ import annotations

import pickle

import pytest

from elephas_like.core import errors
from elephas_like.core.errors import (
    CapacityError,
    ConnectionLostError,
    DataError,
    ElephasError,
    Failure,
    NonFiniteError,
    ShardMissing,
    ShipmentGone,
    StoppedError,
    SupersededError,
    WaitError,
    WorkerError,
)


def raised(make: object, worker: int = 3) -> Failure:
    """The failure of an exception that a call raised."""
    try:
        make()
    except Exception as error:
        return Failure.of(worker, error)
    raise AssertionError("nothing was raised")


def test_a_workers_value_error_is_caught_as_one() -> None:
    with pytest.raises(ValueError, match="ValueError on worker 2: bad shape") as caught:
        raise WorkerError.of("ValueError", "bad shape", "Traceback: line 7", 2)
    assert isinstance(caught.value, WorkerError)
    assert isinstance(caught.value, ElephasError)
    assert (caught.value.type_name, caught.value.worker) == ("ValueError", 2)
    assert caught.value.traceback_text == "Traceback: line 7"
    assert str(caught.value) == "ValueError on worker 2: bad shape"
    assert type(caught.value).__name__ == "WorkerValueError"


@pytest.mark.parametrize("original", [TypeError, OSError, ZeroDivisionError, MemoryError, SyntaxError, UserWarning])
def test_other_builtins_too(original: type[Exception]) -> None:
    error = WorkerError.of(original.__name__, "text", "", 0)
    assert isinstance(error, original)
    assert str(error).startswith(f"{original.__name__} on worker 0: text")


OWN_LINE = '  File "/home/me/train.py", line 12, in call\n    return table[x]\n'


def test_a_key_errors_text_keeps_its_lines() -> None:
    error = WorkerError.of(
        "KeyError", "'x'", f"Traceback:\n{OWN_LINE}KeyError: 'x'\n", 1
    )  # KeyError itself shows repr(message)
    assert isinstance(error, KeyError)
    assert str(error) == f"KeyError on worker 1: 'x'\n\n--- your code on the worker ---\n{OWN_LINE.rstrip()}"


def test_the_log_has_all_of_it_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    trace = '  File "/usr/lib/python3.11/site-packages/keras/src/layers/layer.py", line 1, in __call__\n'
    with caplog.at_level("DEBUG", logger="elephas_like"):
        error = WorkerError.of("ValueError", "bad", trace, 1)
    assert "layer.py" not in str(error)
    assert (
        trace in caplog.messages[0]
    )  # its text may be PySpark's JSON, whose loggers change the handlers that pytest gives them
    assert error.traceback_text == trace


def test_errors_about_rows_name_the_place_of_the_row_alone() -> None:
    error = WorkerError.of("DataError", "label 14 in partition 0, row 3: ...", OWN_LINE, 0)
    assert isinstance(error, DataError)
    assert str(error) == "label 14 in partition 0, row 3: ..."


@pytest.mark.parametrize(
    "name",
    [
        "UnicodeDecodeError",  # takes five arguments
        "ExceptionGroup",  # takes two
        "KeyboardInterrupt",  # no Exception
        "StopIteration",  # would end a generator
        "Exception",
        "ResourceExhaustedError",  # somebody else's
        "print",  # a builtin, but no type
        "int",  # a type, but no exception
        "Failure",  # ours, but no exception
        "WorkerError",
    ],
)
def test_what_cannot_be_inherited_is_a_plain_worker_error(name: str) -> None:
    error = WorkerError.of(name, "text", "", 0)
    assert type(error) is WorkerError
    assert str(error).startswith(f"{name} on worker 0: text")
    assert error.type_name == name


def test_a_decode_error_makes_the_whole_journey() -> None:
    error = raised(lambda: b"\xff".decode("utf-8")).error()
    assert type(error) is WorkerError
    assert "UnicodeDecodeError on worker 3: 'utf-8' codec can't decode byte 0xff in position 0" in str(error)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (DataError, ValueError),
        (CapacityError, ElephasError),
        (WaitError, TimeoutError),
        (ConnectionLostError, ConnectionError),
        (SupersededError, ElephasError),
        (StoppedError, ElephasError),
        (ShardMissing, ElephasError),
        (ShipmentGone, ShardMissing),
        (NonFiniteError, FloatingPointError),
    ],
)
def test_our_own_keep_their_type(kind: type[ElephasError], builtin: type[Exception]) -> None:
    assert issubclass(kind, ElephasError)
    error = WorkerError.of(kind.__name__, "text", "", 5)
    assert isinstance(error, WorkerError)
    assert isinstance(error, kind)
    assert isinstance(error, builtin)
    names_its_place = kind in (DataError, NonFiniteError)
    assert str(error) == ("text" if names_its_place else f"{kind.__name__} on worker 5: text")


def test_every_error_of_the_module_is_an_elephas_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    kinds = [kind for kind in kinds if not issubclass(kind, Warning)]
    assert len(kinds) == 14
    assert all(issubclass(kind, ElephasError) for kind in kinds)


def test_a_worker_without_a_number() -> None:
    assert str(WorkerError.of("ValueError", "text", "", -1)).startswith("ValueError on a worker: text")


def test_a_failure_survives_pickling() -> None:
    failure = raised(lambda: int("seven"))
    there = pickle.loads(pickle.dumps(failure))  # noqa: S301 our own bytes
    assert there == failure
    assert (there.type_name, there.worker) == ("ValueError", 3)
    assert there.message == "invalid literal for int() with base 10: 'seven'"
    assert "ValueError: invalid literal" in there.traceback_text
    assert "test_errors.py" in there.traceback_text
    with pytest.raises(ValueError, match="seven"):
        raise there.error()


@pytest.mark.parametrize("text", [None, KeyError("attribute")])
def test_an_exception_whose_text_cannot_be_read_is_a_failure_as_any_other(text: object) -> None:
    """As of a class that was pickled without what its `__str__` needs: that would end the task, and what it failed by was lost."""

    class TheirsError(Exception):
        def __str__(self) -> str:
            if isinstance(text, Exception):
                raise text
            return text  # type: ignore[return-value]

    failure = Failure.of(1, TheirsError())
    kind = "KeyError" if text else "TypeError"
    assert str(failure.error()).startswith(f"TheirsError on worker 1: (its __str__ raised {kind})")


def test_a_failure_shows_its_cause() -> None:
    def fail() -> None:
        try:
            _ = {}["gone"]
        except KeyError as cause:
            raise ElephasError("no such column") from cause

    assert "KeyError: 'gone'" in raised(fail).traceback_text
