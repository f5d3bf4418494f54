"""The loop of a search, over trials that are plain functions of this process."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from elephas_like.core.errors import ElephasError, Failure, WorkerError
from elephas_like.core.objective import Objective
from elephas_like.core.pruning import MedianRule
from elephas_like.core.trials import Logs, Report, TrialOrder, TrialResult, TrialStatus
from elephas_like.spark.failures import GONE, SESSION_GONE
from elephas_like.tuning.log import ModelStore, SearchLog
from elephas_like.tuning.runner import Limits, PruningMonitor, Search, summary
from elephas_like.tuning.space import Sampler, Space
from elephas_like.tuning.trial_runs import TrialRuns, count_parallel, in_process

GOAL = Objective("loss")
EPOCHS = 4


def curve(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
    """A trial whose loss is x in every epoch."""
    history = []
    for epoch in range(EPOCHS):
        history.append({"loss": order.params["x"]})  # type: ignore[index]
        if not report(epoch, history[-1]):
            break
    status = TrialStatus.OK if len(history) == EPOCHS else TrialStatus.PRUNED
    return TrialResult(order.number, status, tuple(history), best_epoch=0, loss=history[0]["loss"], model=b"m")


def made(
    evaluate: Callable[..., TrialResult] = curve,
    evals: int = 12,
    rule: object = None,
    deadline: float | None = None,
    max_failures: int | None = None,
) -> tuple[Search, TrialRuns, PruningMonitor]:
    monitor = PruningMonitor(GOAL, rule, EPOCHS, deadline)  # type: ignore[arg-type]
    sampler = Sampler(Space({"x": ("uniform", 0, 1)}), "random", 0)
    search = Search(
        sampler,
        GOAL,
        monitor,
        Limits(evals, max_failures=max_failures),
        ModelStore(3),
        None,
        lambda params: 32,
        verbose=0,
    )
    return search, in_process(evaluate, (), monitor), monitor


def test_every_trial_is_recorded_once_and_the_best_models_are_kept() -> None:
    search, slots, _ = made()
    search.run(slots)
    assert list(search.records) == list(range(12))
    by_loss = sorted(search.records, key=lambda number: search.records[number].result.loss or math.inf)
    assert search._store.numbers == by_loss[:3]
    assert summary(search.records) == {"ok": 12}


def test_of_equal_trials_the_first_is_kept_in_whatever_order_they_end() -> None:
    def ties(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        model = b"m" if order.wants_model(0.5) else b""
        return TrialResult(order.number, TrialStatus.OK, ({"loss": 0.5},), best_epoch=0, loss=0.5, model=model)

    search, slots, _ = made(ties, evals=6)
    slots.parallelism = 6
    finished = slots.finished
    slots.finished = lambda timeout: slots.runs._waiting.reverse() or finished(timeout)  # 5, 0, 4, 1, ...
    search.run(slots)
    assert search._store.numbers == [0, 1, 2]


def test_bad_trials_are_stopped_by_the_rule() -> None:
    search, slots, _ = made(evals=20, rule=MedianRule(min_trials=5, warmup_epochs=1))
    search.run(slots)
    xs = [record.params["x"] for record in search.records.values()]
    trained = [len(record.result.history) for record in search.records.values()]
    expected = [EPOCHS] * 5
    for number in range(5, 20):
        epochs = 2
        while epochs < EPOCHS:
            came_so_far = [xs[n] for n in range(number) if expected[n] >= epochs]
            if xs[number] > statistics.median(came_so_far):
                break
            epochs += 1
        expected.append(epochs)
    assert trained == expected
    assert {2, 3, 4} == set(trained)
    pruned = [record.result.status is TrialStatus.PRUNED for record in search.records.values()]
    assert pruned == [epochs < EPOCHS for epochs in expected]


def test_trials_that_run_still_count_among_the_others() -> None:
    seen = []
    monitor = PruningMonitor(GOAL, lambda losses, others: bool(seen.append((losses, others))), EPOCHS, None)
    monitor(0, 0, {"loss": 3.0})
    monitor(1, 0, {"loss": 2.0})
    monitor(0, 1, {"loss": 1.0})
    monitor.ended(TrialResult(0, TrialStatus.OK, ({"loss": 3.0}, {"loss": 1.0}), best_epoch=1, loss=1.0))
    monitor(1, 1, {"loss": 4.0})
    monitor.ended(TrialResult(1, TrialStatus.FAILED))  # without a loss: nobody is measured by it
    monitor(2, 0, {"loss": 9.0})
    assert seen == [
        ((3.0,), ()),
        ((2.0,), ((3.0,),)),
        ((3.0, 1.0), ((2.0,),)),
        ((2.0, 4.0), ((3.0, 1.0),)),
        ((9.0,), ((3.0, 1.0),)),
    ]


def test_an_error_in_the_users_rule_is_raised() -> None:
    search, slots, _ = made(rule=lambda losses, others: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        search.run(slots)


def test_a_failing_trial_does_not_end_the_search_and_too_many_do() -> None:
    def fails(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        if order.number % 3 == 1:
            raise KeyError("units")
        return curve(order, shards, report)

    search, slots, _ = made(fails)
    search.run(slots)
    assert summary(search.records) == {"ok": 8, "failed": 4}
    failure = search.records[1].result.failure
    assert failure is not None
    assert (failure.type_name, failure.message) == ("KeyError", "'units'")
    assert "raise KeyError" in failure.traceback_text

    search, slots, _ = made(fails, max_failures=2)
    with pytest.raises(KeyError, match=r"(?s)3 trials failed \(max_failures=2\)\. The first, trial 1 with .*'units'"):
        search.run(slots)
    assert len(search.records) == 8


def test_all_trials_failing_raises_the_first_error() -> None:
    def fails(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        raise ValueError(f"number {order.number}")

    search, slots, _ = made(fails, evals=3)
    with pytest.raises(WorkerError, match=r"all 3 trials failed\. The first, trial 0 with .*: number 0") as raised:
        search.run(slots)
    assert isinstance(raised.value, ValueError)
    assert len(search.records) == 3


def test_when_time_is_up_running_trials_end_with_their_epoch_and_none_begins() -> None:
    search, slots, monitor = made()
    asked = iter([False] * 6 + [True] * 100)
    monitor.__class__ = type("Timed", (PruningMonitor,), {"late": property(lambda self: next(asked))})
    search.run(slots)
    statuses = [record.result.status for record in search.records.values()]
    assert statuses == [TrialStatus.OK, TrialStatus.TIMEOUT]
    assert search.records[1].result.counts


def test_ctrl_c_returns_what_is_finished() -> None:
    def interrupted(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        if order.number == 2:
            raise KeyboardInterrupt
        return curve(order, shards, report)

    search, slots, _ = made(interrupted)
    search.run(slots)
    assert search.interrupted
    assert summary(search.records) == {"ok": 2, "interrupted": 1}


def test_ctrl_c_before_anything_is_finished_leaves_no_result() -> None:
    def interrupted(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        raise KeyboardInterrupt

    search, slots, _ = made(interrupted)
    search.run(slots)
    assert search.interrupted
    assert summary(search.records) == {"interrupted": 1}


def test_a_search_that_goes_on_says_how_much_is_done_and_what_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def third_interrupts(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        if order.number == 2:
            raise KeyboardInterrupt
        return curve(order, shards, report)

    search, slots, _ = made(third_interrupts, evals=8)
    search._log = SearchLog(tmp_path)
    search._log.begin({"seed": 0}, "never")
    search.run(slots)
    again, slots, _ = made(evals=8)
    again._log, again._verbose = SearchLog(tmp_path), 2
    again.recall(again._log.begin({"seed": 0}, "auto"))
    assert "search: 2 of 8 done, 1 to retry" in capsys.readouterr().out
    again.run(slots)
    assert summary(again.records) == {"ok": 8}
    (tmp_path / "begun").write_text("")  # the driver died as it wrote
    assert SearchLog(tmp_path).begun() == 0


@pytest.mark.parametrize("end", [GONE, SESSION_GONE], ids=["context", "session"])
def test_a_search_ends_with_its_spark_context_or_session_and_goes_on_with_another(tmp_path: Path, end: str) -> None:
    tried: list[int] = []

    def without_spark(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        tried.append(order.number)
        if tried == [0, 1, 2]:
            failure = Failure.of(2, ElephasError(end))
            return TrialResult(2, TrialStatus.INTERRUPTED if end == GONE else TrialStatus.FAILED, failure=failure)
        return curve(order, shards, report)

    search, slots, _ = made(without_spark, evals=4)
    search._log = SearchLog(tmp_path)
    search._log.begin({"seed": 0}, "never")
    said = re.escape(end) + r".*Trials that had ended: 2\. They are kept, and resume='auto' goes on"
    with pytest.raises(ElephasError, match=said):
        search.run(slots)
    assert (tried, summary(search.records)) == ([0, 1, 2], {"ok": 2, "interrupted": 1})
    again, slots, _ = made(without_spark, evals=4)
    again.recall(SearchLog(tmp_path).begin({"seed": 0}, "auto"))
    again.run(slots)
    assert (tried, summary(again.records)) == ([0, 1, 2, 2, 3], {"ok": 4})


def test_an_algorithm_without_more_points_ends_the_search() -> None:
    search, slots, _ = made()
    search._sampler._algo = lambda ids, domain, trials, seed: []
    with pytest.raises(ElephasError, match="no trial has finished"):
        search.run(slots)


def test_a_search_without_more_points_says_so(caplog: pytest.LogCaptureFixture) -> None:
    search, slots, _ = made(evals=5)
    algo = search._sampler._algo
    search._sampler._algo = lambda ids, *given: algo(ids, *given) if ids[0] < 3 else []
    with caplog.at_level("INFO", "elephas_like"):
        search.run(slots)
    assert summary(search.records) == {"ok": 3}
    assert "search: the algorithm has no more points after 3 of 5 trials" in caplog.text


def test_a_trial_is_kept_before_the_algorithm_hears_of_it(tmp_path: Path) -> None:
    def fails(result: TrialResult) -> None:
        raise ZeroDivisionError

    search, slots, _ = made()
    search._log = SearchLog(tmp_path)
    search._log.begin({"seed": 0}, "never")
    search._sampler.tell = fails
    with pytest.raises(ZeroDivisionError):
        search.run(slots)
    assert list(search.records) == [0]
    assert [result.number for result, _ in SearchLog(tmp_path).begin({"seed": 0}, "auto")] == [0]


def test_recalled_trials_are_not_tried_again() -> None:
    first, slots, _ = made(evals=5)
    first.run(slots)
    tried: list[int] = []

    def watched(order: TrialOrder, shards: Sequence[object], report: Report) -> TrialResult:
        tried.append(order.number)
        return curve(order, shards, report)

    second, slots, _ = made(watched, evals=7)
    second.recall([(first.records[n].result, first.records[n].point) for n in (0, 1, 3, 4)])
    second.run(slots)
    assert tried == [2, 5, 6]
    assert second.records[2].params == first.records[2].params
    assert len(second.records) == 7


def test_an_attempt_that_begins_again_replaces_its_losses() -> None:
    seen: list[Logs] = []

    def rule(losses: Sequence[float], others: object) -> bool:
        seen.append(tuple(losses))  # type: ignore[arg-type]
        return False

    monitor = PruningMonitor(GOAL, rule, EPOCHS, None)  # type: ignore[arg-type]
    for epoch, loss in ((0, 3.0), (1, 2.0), (1, 2.0), (0, 5.0)):  # a report that came twice; another attempt
        monitor(7, epoch, {"loss": loss})
    assert seen == [(3.0,), (3.0, 2.0), (3.0, 2.0), (5.0,)]


def test_without_spark_trials_run_one_by_one() -> None:
    assert count_parallel(None, None, 1, 0.0) == 1
    with pytest.raises(ValueError, match="parallelism=2 needs Spark"):
        count_parallel(None, 2, 1, 0.0)
