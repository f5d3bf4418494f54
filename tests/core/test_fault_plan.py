"""Where faults are placed, how often they happen, and which fits refuse them."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from elephas_like.core.fault_plan import Fault, FaultPlan, Injection, check_faults, delay, drop, fail, hang, kill
from elephas_like.core.types import EngineName, Span


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: kill(1), "kill: expected round or epoch to say when it happens, got none"),
        (lambda: drop(1), "drop: expected round, epoch or every_round to say when"),
        (lambda: delay(1, 2, seconds=1, every_round=True), "delay: .* got both"),
        (lambda: hang(-1, 0), "hang: expected worker to be a whole number from 0, got -1"),
        (lambda: kill(0, True), "kill: expected round to be a whole number from 0, got True"),
        (lambda: fail(0, 1, step=0.5), "fail: expected step to be a whole number"),
        (lambda: fail(0, 1, error="text"), "fail: expected an exception, got 'text'"),
        (lambda: kill(0, 1, attempts=()), r"kill: expected attempts to be whole numbers from 0, got \[\]"),
        (lambda: kill(0, 1, attempts=-1), "kill: expected attempts"),
        (lambda: delay(0, 1, seconds=-1), "delay: expected seconds to be at least 0, got -1"),
        (lambda: drop(0, 1, when="never"), "drop: expected when to be 'sending' or 'reply', got 'never'"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(make: Callable[[], Fault], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_what_is_left_out() -> None:
    assert kill(1, 3) == Fault("kill", 1, 3, signal=signal.SIGKILL)
    assert kill(1, 3, signal=signal.SIGTERM).signal == signal.SIGTERM
    assert isinstance(fail(1, 3).error, RuntimeError)
    assert isinstance(fail(1, 3, error=KeyError("k")).error, KeyError)
    assert kill(1, epoch=2).round == 0  # the first of that epoch
    assert drop(1, 0, when="reply").reply


@pytest.mark.parametrize(
    ("fault", "round", "span", "meant"),
    [
        (kill(0, 3), 3, Span(1), True),
        (kill(0, 3), 2, Span(3), False),
        (kill(0, epoch=1), 4, Span(1, 0, 1, 3), True),
        (kill(0, epoch=1), 5, Span(1, 1, 2, 3), False),
        (kill(0, 1, epoch=1), 5, Span(1, 1, 2, 3), True),
        (kill(0, 1, epoch=1), 1, Span(0, 1, 2, 3), False),
        (kill(0, 1, epoch=1), 1, None, False),
        (delay(0, seconds=1, every_round=True), 17, Span(4), True),
    ],
)
def test_a_round_is_met_by_its_number_or_by_its_place_in_an_epoch(
    fault: Fault, round: int, span: Span | None, meant: bool
) -> None:
    assert fault.meets(round, span) is meant


@pytest.mark.parametrize(("synchronous", "round"), [(True, 5), (False, 3)])
def test_rounds_of_synchronous_fits_are_exchanges_and_of_others_orders(synchronous: bool, round: int) -> None:
    plan = FaultPlan((), synchronous, lambda *_: True)
    assert plan.round_of(number=3, version=5) == round


def test_only_faults_of_this_worker_kind_and_round_are_asked_for() -> None:
    asked = []

    def ask(*question: int) -> bool:
        asked.append(question)
        return question[0] != 3

    faults = (kill(1, 0), kill(0, 0), delay(0, 0, seconds=1), hang(0, 0), fail(0, 1))
    plan = FaultPlan(faults, True, ask)
    assert list(plan.due(0, 77, 0, Span(0), "fail", "kill", "hang")) == [(1, faults[1])]
    assert asked == [(1, 0, 77, 0), (3, 0, 77, 0)]


def test_a_fault_happens_to_the_attempts_it_is_meant_for_and_is_counted_once() -> None:
    faults = Injection((kill(1, 3, attempts=(0, 2)),))
    assert [faults.ask(0, 1, attempt, 3) for attempt in (40, 40, 55, 55, 61, 40, 70)] == [
        *(True, True, False, False, True, True, False)
    ]
    assert [(each.round, each.attempt) for each in faults.happened] == [(3, 0), (3, 2)]


def test_a_fault_of_every_round_happens_once_in_each() -> None:
    faults = Injection((delay(0, seconds=0, every_round=True),))
    assert [faults.ask(0, 0, attempt, round) for attempt, round in ((5, 0), (6, 0), (6, 1), (6, 1))] == [
        *(True, False, True, True)
    ]
    assert [each.round for each in faults.happened] == [0, 1]


def test_a_question_over_the_network_names_fault_and_worker_by_numbers() -> None:
    faults = Injection((kill(1, 3), hang(0, 1)))
    assert faults.judge(9, 1, {"fault": 1.0, "worker": 0.0})
    assert not faults.judge(9, 1, {"fault": 2.0, "worker": 0.0})
    assert [each.fault.kind for each in faults.happened] == ["hang"]


def test_workers_are_told_of_no_exception_objects() -> None:
    plan = Injection((fail(0, 1, error=KeyError("k")),)).plan(True, lambda *_: True, b"pickled")
    assert plan.faults[0].error is None
    assert plan.errors == b"pickled"


@pytest.mark.parametrize(
    ("fault", "engines"),
    [
        (fail(1, 0), "server jobs in_process"),
        (delay(1, 0, seconds=1), "server jobs in_process"),
        (kill(1, 0), "server jobs"),
        (hang(1, 0), "server jobs"),
        (drop(1, 0), "server"),
    ],
)
def test_what_an_engine_cannot_have_is_refused(fault: Fault, engines: str) -> None:
    for engine in ("server", "jobs", "in_process"):
        if engine in engines.split():
            check_faults([fault], EngineName(engine), 2)
        else:
            with pytest.raises(ValueError, match=f"{fault.kind} cannot be done with engine='{engine}'; it can with"):
                check_faults([fault], EngineName(engine), 2)


def test_a_worker_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="kill: expected a worker below 2, got worker 2"):
        check_faults([kill(2, 0)], EngineName.SERVER, 2)
