"""When workers trained and waited, by records written by hand."""

from __future__ import annotations

from elephas_like.core.timelines import training_spans, waits
from elephas_like.core.types import RoundRecord, WorkerRecord


def record(number: int, *workers: tuple[int, float]) -> RoundRecord:
    return RoundRecord(number, 0, tuple(WorkerRecord(worker, 8, 4, seconds) for worker, seconds in workers))


def test_workers_that_wait_for_each_other_begin_together() -> None:
    spans = training_spans([record(0, (0, 1.0), (1, 3.0)), record(1, (0, 2.0), (1, 1.0))])
    assert [(span.worker, span.start, span.seconds, span.wait) for span in spans] == [
        (0, 0.0, 1.0, 2.0),
        (1, 0.0, 3.0, 0.0),
        (0, 3.0, 2.0, 0.0),
        (1, 3.0, 1.0, 1.0),
    ]
    assert sum(span.seconds + span.wait for span in spans if span.worker == 0) == 5.0  # as long as the fit, for each


def test_workers_that_go_on_alone_have_clocks_of_their_own() -> None:
    spans = training_spans([record(0, (0, 1.0)), record(1, (1, 3.0)), record(2, (0, 2.0))])
    assert [(span.worker, span.start) for span in spans] == [(0, 0.0), (1, 0.0), (0, 1.0)]
    assert {span.wait for span in spans} == {0.0}


def test_a_round_of_a_quorum_of_one_is_still_a_round_of_all() -> None:
    spans = training_spans([record(0, (0, 1.0), (1, 2.0)), record(1, (1, 1.0))])
    assert spans[-1].start == 2.0


def test_a_round_without_workers_has_no_waits() -> None:
    assert waits(record(0)) == []
    assert training_spans([]) == []
