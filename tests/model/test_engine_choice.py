"""Which engine is taken, and why. The decision as a table; then with Spark's slots."""

from __future__ import annotations

import logging

import pytest

from elephas_like.core.errors import CapacityError, WaitError
from elephas_like.core.types import EngineName
from elephas_like.model.engine_choice import choose, chosen_engine, jobs_instead
from elephas_like.model.options import Options
from elephas_like.spark.slots import free, reservation


def options(num_workers: int | None = 2, **named: object) -> Options:
    return Options.checked(num_workers=num_workers, join_timeout=0.1, **named)


AUTO, SERVER, JOBS, HERE = EngineName.AUTO, EngineName.SERVER, EngineName.JOBS, EngineName.IN_PROCESS

# asked for, workers, partitions, slots, steady: the engine, its workers, the fewest it does with, whether it waits
CHOICES = [
    ((HERE, None, None, None, False), (HERE, 1, 1, False)),
    ((HERE, 3, 5, 2, True), (HERE, 3, 1, False)),
    ((AUTO, None, 5, None, False), (HERE, 5, 1, False)),
    ((AUTO, 2, None, None, True), (HERE, 2, 1, False)),
    ((JOBS, None, None, None, False), (JOBS, 1, 1, False)),
    ((JOBS, None, 5, None, False), (JOBS, 5, 1, False)),
    ((JOBS, 9, 5, None, True), (JOBS, 9, 1, False)),
    ((SERVER, None, None, 4, False), (SERVER, 4, 4, True)),
    ((SERVER, None, 3, 4, False), (SERVER, 3, 3, True)),
    ((SERVER, None, 9, 4, False), (SERVER, 4, 4, True)),
    ((SERVER, 9, None, 4, False), (SERVER, 9, 9, True)),  # the reservation says that there are too few
    ((SERVER, None, 3, 0, False), (SERVER, 1, 1, True)),
    ((AUTO, None, 9, 4, False), (SERVER, 4, 1, False)),
    ((AUTO, None, None, 4, False), (SERVER, 4, 1, False)),
    ((AUTO, 3, None, 4, False), (SERVER, 3, 3, False)),
    ((AUTO, 5, None, 4, False), (JOBS, 5, 1, False)),
    ((AUTO, None, 9, 0, False), (JOBS, 9, 1, False)),
    ((AUTO, None, None, 0, False), (JOBS, 1, 1, False)),
    ((AUTO, None, 9, 4, True), (SERVER, 4, 4, True)),
    ((AUTO, 5, None, 4, True), (SERVER, 5, 5, True)),
]


@pytest.mark.parametrize(("given", "expected"), CHOICES)
def test_the_choice(given: tuple, expected: tuple) -> None:
    found = choose(*given)
    assert (found.engine, found.workers, found.least, found.waits) == expected
    assert bool(found.reason) == (given[0] is AUTO)  # what was asked for needs none


def test_jobs_take_as_many_workers_as_there_are_rows_for() -> None:
    found = [
        jobs_instead(*given, "why").workers for given in ((3, 5, 2), (None, 5, 2), (None, None, 2), (None, None, 0))
    ]
    assert found == [3, 5, 2, 1]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, True),
        ({"codec": "int8"}, True),
        ({"mode": "asynchronous"}, False),
        ({"mode": "hogwild"}, False),
        ({"strategy": "easgd"}, False),
        ({"codec": "one_bit"}, False),
        ({"optimizer_state": "per_worker"}, False),
        ({"optimizer_state_every": 2}, False),
        ({"control_variates": True}, False),
    ],
)
def test_jobs_are_for_workers_that_wait_for_each_other_and_keep_nothing(named: dict, expected: bool) -> None:
    assert options(**named).runs_as_jobs() is expected


def chosen(given: Options, context, num_workers: int | None, partitions: int | None = None, **steady: bool):
    with chosen_engine(given, context, num_workers, partitions, **steady) as choice:
        return choice


def test_without_spark_it_is_this_process_and_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    assert chosen(options(), None, 2) == (EngineName.IN_PROCESS, 2)
    assert "no Spark session is active" in caplog.text


def test_what_was_asked_for_is_taken(sc) -> None:
    assert chosen(options(engine="in_process"), sc, 2) == (EngineName.IN_PROCESS, 2)
    assert chosen(options(engine="jobs"), sc, 2) == (EngineName.JOBS, 2)
    assert chosen(options(engine="server"), sc, 2) == (EngineName.SERVER, 2)
    with pytest.raises(CapacityError, match="99 workers must run at the same time, and Spark has 2 slots"):
        chosen(options(engine="server"), sc, 99)


def test_auto_follows_mode_and_slots(sc) -> None:
    assert chosen(options(), sc, 2) == (EngineName.SERVER, 2)
    assert chosen(options(), sc, 3) == (EngineName.JOBS, 3)
    with pytest.raises(CapacityError, match="3 workers must run at the same time"):
        chosen(options(mode="asynchronous"), sc, 3)


@pytest.mark.parametrize(
    ("partitions", "expected"), [(None, (2, 2, 2)), (1, (1, 1, 1)), (5, (2, 5, 5))], ids=["arrays", "one", "five"]
)
def test_workers_follow_partitions_and_slots(sc, partitions: int | None, expected: tuple[int, int, int]) -> None:
    server, in_process, jobs = expected
    assert chosen(options(), sc, None, partitions) == (EngineName.SERVER, server)
    assert chosen(options(engine="in_process"), None, None, partitions)[1] == (in_process if partitions else 1)
    assert chosen(options(engine="jobs"), sc, None, partitions)[1] == (jobs if partitions else 1)


def test_auto_takes_the_slots_that_other_fits_leave(sc, caplog: pytest.LogCaptureFixture) -> None:
    with reservation(sc, 1, 2, timeout=0):
        assert chosen(options(), sc, None, 5) == (EngineName.SERVER, 1)
        assert chosen(options(), sc, 2) == (EngineName.JOBS, 2)
    assert "other fits hold the slots; each round is a Spark job" in caplog.text
    with reservation(sc, 2, 2, timeout=0):
        assert chosen(options(), sc, None, 5) == (EngineName.JOBS, 5)
        for named, steady in (({"mode": "asynchronous"}, False), ({}, True), ({"engine": "server"}, False)):
            with pytest.raises(WaitError, match="other fits hold 2 of 2 slots"):
                chosen(options(**named), sc, 2, steady=steady)
    assert chosen(options(), sc, 2) == (EngineName.SERVER, 2)


def test_a_choice_holds_its_slots_until_its_end(sc) -> None:
    with chosen_engine(options(), sc, 2, None) as first, chosen_engine(options(), sc, 2, None) as second:
        assert (first[0], second[0]) == (EngineName.SERVER, EngineName.JOBS)
    with pytest.raises(RuntimeError, match="on the way"), chosen_engine(options(), sc, 2, None):
        raise RuntimeError("on the way")
    assert free(sc, 2) == 2
