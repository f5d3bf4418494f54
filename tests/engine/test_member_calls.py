from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import cloudpickle
import keras
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.engine.function_settings import FunctionSettings
from elephas_like.engine.member_calls import Call, call_in_new_process
from elephas_like.spark.gang import Member
from elephas_like.trainer.keras_settings import KerasSettings

ALONE = Member(rank=0, size=1, attempt=5, hosts=("127.0.0.1",))


def called(function, *args: object, environment: dict[str, str] | None = None):
    return call_in_new_process(Call(cloudpickle.dumps((function, args)), None), ALONE, environment or {})


def test_a_function_runs_in_another_process_with_its_environment() -> None:
    def work(member, text):
        print(text)
        return os.getpid(), os.environ["MINE"], member.rank, member.attempt, member.host

    (pid, mine, *rest), printed = called(work, "hello", environment={"MINE": "yes"})
    assert pid != os.getpid()
    assert (mine, rest, printed) == ("yes", [0, 5, "127.0.0.1"], "hello\n")
    assert "MINE" not in os.environ


def test_keras_is_imported_for_its_settings_only_where_they_are_not_its_own() -> None:
    def work(member):
        import sys

        loaded = sys.modules.get("keras")
        return loaded is not None, loaded and loaded.config.epsilon()

    pickled = cloudpickle.dumps((work, ()))
    settings = replace(KerasSettings.current(), epsilon=1e-3)
    applied = cloudpickle.dumps(settings.applied)
    for plain, expected in ((True, (False, None)), (False, (True, 1e-3))):
        found, _ = call_in_new_process(Call(pickled, None, FunctionSettings(applied, plain)), ALONE, {})
        assert found == expected
    # Here it is imported, so that even plain settings are set, over those of an earlier fit.
    here, epsilon = Call(pickled, None, FunctionSettings(applied, True))(ALONE)[0], keras.config.epsilon()
    assert (here, epsilon) == ((True, 1e-3), 1e-7)


def test_an_error_comes_back_as_it_was_with_its_traceback() -> None:
    def work(member):
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here") as raised:
        called(work)
    assert "in work" in raised.value.__notes__[0]


def test_an_error_that_cannot_be_sent_comes_back_as_text() -> None:
    def work(member):
        raise LookupError(threading.Lock())

    with pytest.raises(ElephasError, match="LookupError"):
        called(work)


def test_a_process_that_dies_is_told_from_one_that_raises() -> None:
    def work(member):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ElephasError, match="worker 0 died with exit code -9"):
        called(work)


def test_errors_of_files_and_of_strange_constructors_are_those_of_the_function() -> None:
    class Strange(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")

    def empty(member):
        raise EOFError("No data left in file")

    def strange(member):
        print("before")
        raise Strange(1, 2)

    with pytest.raises(EOFError, match="No data left"):
        called(empty)
    with pytest.raises(ElephasError, match="Strange: 1 and 2") as raised:
        called(strange)
    assert "Printed before: before" in str(raised.value)


def test_a_process_may_end_slowly_and_have_children(tmp_path) -> None:
    def work(member, place):
        import atexit
        import multiprocessing
        import pathlib

        def late():
            threading.Event().wait(1.5)
            pathlib.Path(place).touch()

        atexit.register(late)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(abs, (-3,))

    assert called(work, str(tmp_path / "written")) == (3, "")
    assert (tmp_path / "written").exists()
