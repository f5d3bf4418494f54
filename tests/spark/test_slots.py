"""Slots are counted and reserved before long tasks start."""

from __future__ import annotations

import logging
import math
import threading

import pytest

from elephas_like.core.errors import CapacityError, WaitError
from elephas_like.spark import slots as counting
from elephas_like.spark.slots import free, reservation, slots, slots_asked_for, task_cpus

pytestmark = pytest.mark.spark


def test_a_local_session_has_its_cores(sc) -> None:
    assert slots(sc) == 2
    assert task_cpus(sc.getConf()) == 1


@pytest.mark.parametrize(("wanted", "lines"), [(None, 1), (3, 1), (2, 0), (4, 0)])
def test_slots_that_were_there_before_are_waited_for_once(sc, monkeypatch, caplog, wanted: int, lines: int) -> None:
    """As after the loss of an executor; not where the rest is enough, or more is wanted than there ever was."""
    monkeypatch.setitem(counting._known, (sc.applicationId, None), 3)
    assert slots(sc, 0.0, wanted) == 2  # who does not wait changes nothing for others
    with caplog.at_level(logging.WARNING, "elephas_like.spark.slots"):
        assert slots(sc, 0.2, wanted) == slots(sc, 0.2, wanted) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Spark had 3 slots and has 2 now, as after the loss of an executor: waiting up to 0 s for another one."
    ] * lines


@pytest.mark.parametrize(
    ("master", "settings", "asked"),
    [
        ("yarn", {"spark.executor.instances": "3", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 6),
        ("k8s://https://here", {"spark.executor.instances": "3"}, 3),
        (
            "yarn",
            {
                "spark.executor.instances": "2",
                "spark.executor.cores": "8",
                "spark.executor.resource.gpu.amount": "2",
                "spark.task.resource.gpu.amount": "0.4",
            },
            8,
        ),
        ("yarn", {}, 0),
        ("spark://here:7077", {"spark.executor.instances": "2"}, 0),
        ("local-cluster[2, 3,1024]", {}, 6),
    ],
)
def test_the_slots_that_an_application_asks_for(master: str, settings: dict[str, str], asked: int) -> None:
    """A new cluster context waits for them: the second executor may take long to start."""
    assert slots_asked_for(settings, master) == asked


def test_more_than_there_are_is_said_at_once(sc) -> None:
    with pytest.raises(
        CapacityError, match=r"3 workers must run at the same time, and Spark has 2 slots.*num_workers=2"
    ):
        with reservation(sc, 3, 2, timeout=60):
            pass


def test_what_others_hold_is_waited_for(sc) -> None:
    with reservation(sc, 2, 2, timeout=1):
        assert free(sc, 2) == 0
        with pytest.raises(WaitError, match="other fits hold 2 of 2 slots"), reservation(sc, 1, 2, timeout=0.01):
            pass
    assert free(sc, 2) == 2


@pytest.mark.parametrize("timeout", [60, math.inf])
def test_whoever_waits_is_let_in_when_the_holder_leaves(sc, timeout: float) -> None:
    entered = threading.Event()

    def second() -> None:
        with reservation(sc, 2, 2, timeout=timeout):
            entered.set()

    with reservation(sc, 1, 2, timeout=1):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.is_set()
    thread.join(60)
    assert entered.is_set()
    assert free(sc, 2) == 2


def test_what_others_leave_will_do_where_that_is_said(sc) -> None:
    with reservation(sc, 2, 5, timeout=0) as held:
        assert held == 2
        with reservation(sc, 4, 5, timeout=0, at_least=1) as rest:
            assert rest == 3
            with pytest.raises(WaitError), reservation(sc, 4, 5, timeout=0, at_least=1):
                pass
        assert free(sc, 5) == 3
    assert free(sc, 5) == 5


def test_whoever_takes_slots_at_the_same_time_never_takes_the_same(sc) -> None:
    meeting, taken = threading.Barrier(8), []

    def take() -> None:
        meeting.wait(60)
        try:
            with reservation(sc, 2, 2, timeout=0):
                taken.append(2)
                meeting.wait(60)
        except WaitError:
            taken.append(0)
            meeting.wait(60)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == [0] * 7 + [2]


def test_fits_without_gpus_leave_the_gpus_and_those_with_them_take_slots_of_all(sc) -> None:
    """Eight slots, two of them with a GPU."""
    with reservation(sc, 6, 8, timeout=0):
        assert (free(sc, 8), free(sc, 2, "gpu")) == (2, 2)
        with reservation(sc, 2, 2, timeout=0, kind="gpu", of_all=8) as held:
            assert held == 2
            assert (free(sc, 8), free(sc, 2, "gpu")) == (0, 0)
    with reservation(sc, 7, 8, timeout=0):
        with pytest.raises(WaitError), reservation(sc, 2, 2, timeout=0, kind="gpu", of_all=8):
            pass
    assert (free(sc, 8), free(sc, 2, "gpu")) == (8, 2)
