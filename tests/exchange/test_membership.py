"""Who belongs to a run: workers that announce themselves, join, fall silent, come again, or are late."""

from __future__ import annotations

import logging

import pytest
from small_world import AT_ONCE, LAYOUT, Background, joined, train_order, update
from stores import beats, let_time_pass, rounds

from elephas_like.core.errors import DataError, ElephasError, Failure, SupersededError, WaitError, WorkerError
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.round_store import RoundStore


def test_all_workers_are_returned_in_their_order() -> None:
    store, _ = rounds()
    assert store.join(joined(1)).kind == "wait"
    store.join(joined(0))
    assert [one.worker for one in store.joined()] == [0, 1]


def test_the_driver_waits_for_the_last_worker() -> None:
    store = RoundStore(2, LAYOUT.hash, waits=AT_ONCE)
    waiting = Background(store.joined)
    store.join(joined(0))
    store.join(joined(1))
    assert len(waiting.result()) == 2  # type: ignore[arg-type]


def test_who_does_not_join_is_named_and_the_others_are_stopped() -> None:
    store, _ = rounds(3, join_timeout=0.0)
    store.join(joined(1))
    with pytest.raises(
        WaitError, match=r"join within join_timeout=0 s; missing: worker 0 \(no sign of life\); worker 2"
    ):
        store.joined()
    assert store.ask(1, 100).kind == "stop"


def test_before_the_first_sign_of_life_another_limit_holds() -> None:
    store, _ = rounds(1, join_timeout=9.0, round_timeout=0.0)
    with pytest.raises(WaitError, match=r"round_timeout=0 s; missing: .* give SparkModel a longer round_timeout"):
        store.joined()


def test_a_worker_that_writes_a_large_shard_is_waited_for_as_long_as_it_lives() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(
        store,
        clock,
        (5, lambda: store.announce(0, 100, "host-0")),
        (6, lambda: store.announce(1, 100, "host-1")),
        (7, lambda: store.join(joined(0))),
        *beats(store, 0, 10, 500),
        *beats(store, 1, 11, 500),
        (500, lambda: store.join(joined(1))),
    )
    assert [one.worker for one in store.joined()] == [0, 1]


def test_a_worker_that_falls_silent_before_it_has_joined_is_named() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(
        store,
        clock,
        (5, lambda: store.join(joined(0))),
        (5, lambda: store.announce(1, 100, "host-1")),
        *beats(store, 1, 15, 300),
    )
    said = r"join_timeout=60 s; missing: worker 1 \(attempt 100 on host-1, has not joined, last heard of 60 s ago\)"
    with pytest.raises(WaitError, match=said):
        store.joined()
    assert clock.now == 1000 + 295 + 60


def test_a_worker_that_lives_and_does_not_join_ends_the_wait_too() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(
        store,
        clock,
        (0, lambda: store.join(joined(0))),
        (5, lambda: store.announce(1, 100, "host-1")),
        *beats(store, 1, 15, 3000),
    )
    with pytest.raises(WaitError, match=r"round_timeout=600 s; missing: worker 1 \(attempt 100 on host-1"):
        store.joined()
    assert clock.now == 1000 + 605


def test_earlier_stages_of_the_job_may_take_their_time() -> None:
    store, clock = rounds(1, join_timeout=60.0, round_timeout=600.0)
    stages = [(500 * number, lambda number=number: store.note_tasks(2, number)) for number in range(1, 8)]
    let_time_pass(store, clock, *stages, (4000, lambda: store.join(joined(0))))
    assert len(store.joined()) == 1
    assert not store.note_tasks(1, 9)  # nobody needs to know any more


def test_rows_that_are_made_before_their_task_can_speak_are_told_from_a_lack_of_slots() -> None:
    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    joins = [(100, lambda: store.join(joined(0))), (500, lambda: store.join(joined(1)))]
    let_time_pass(store, clock, (1, lambda: store.note_tasks(2, 0)), *joins)
    assert len(store.joined()) == 2

    store, clock = rounds(join_timeout=60.0, round_timeout=600.0)
    let_time_pass(store, clock, (1, lambda: store.note_tasks(1, 0)), (100, lambda: store.join(joined(0))))
    with pytest.raises(
        WaitError, match=r"join_timeout=60 s; missing: worker 1 \(no sign of life\).* runs 1 of 2 tasks"
    ):
        store.joined()
    assert clock.now == 1160


def test_an_attempt_that_has_lost_its_place_may_not_come_back_as_new() -> None:
    store, _ = rounds(1, lease_seconds=0.0)
    store.join(joined(0, 1))
    assert store.announce(0, 2, "host-0")
    store.join(joined(0, 2))
    with pytest.raises(SupersededError):
        store.announce(0, 1, "host-0")
    with pytest.raises(ElephasError, match="from 0 to 0 to join, got worker 1"):
        store.announce(1, 1, "host-0")
    store.stop()
    assert not store.announce(0, 2, "host-0")


def test_a_newcomer_waits_for_the_lease_and_then_takes_over() -> None:
    store, clock = rounds(1, lease_seconds=10.0)
    store.join(joined(0, 100))
    store.train(train_order())
    clock.now += 9.0
    assert store.join(joined(0, 200)).kind == "wait"
    assert store.beat(0, 100)  # renews the lease
    clock.now += 9.0
    assert store.join(joined(0, 200)).kind == "wait"
    clock.now += 1.0
    order = store.join(joined(0, 200))
    assert (order.kind, order.number) == ("train", 0)  # what attempt 100 has not answered
    for request in (
        lambda: store.ask(0, 100),
        lambda: store.beat(0, 100),
        lambda: store.answer(100, update()),
        lambda: store.join(joined(0, 100)),
        lambda: store.offer(0, 100, 0, 10),
        lambda: store.report(100, Failure("ValueError", "late", "", 0)),
    ):
        with pytest.raises(SupersededError, match="attempt 100 of worker 0 has lost its place to attempt 200"):
            request()


def test_a_held_newcomer_takes_over_when_the_lease_runs_out() -> None:
    store = RoundStore(1, LAYOUT.hash, waits=Waits(lease_seconds=0.05))
    store.train(train_order())
    assert store.join(joined(0, 100)).kind == "train"
    assert Background(lambda: store.join(joined(0, 200))).result() == store.ask(0, 200)


@pytest.mark.fault(
    "A copy of a living worker holds the slot that a lost one needs",
    "the copy takes over after two leases (20 s), and the slot of the first becomes free",
    "20 s",
)
def test_a_copy_takes_over_where_another_worker_may_need_its_slot() -> None:
    store, clock = rounds(2, lease_seconds=10.0)
    store.train(train_order())
    store.join(joined(0, 100))
    store.join(joined(1, 101))
    for _ in range(3):
        assert store.join(joined(0, 200)).kind == "wait"  # both live: the copy waits
        clock.now += 9.0
        store.beat(0, 100)
        store.beat(1, 101)
    for _ in range(2):  # worker 1 is lost; its new attempt may soon come
        assert store.join(joined(0, 200)).kind == "wait"
        clock.now += 9.0
        store.beat(0, 100)
    clock.now += 2.0
    assert store.join(joined(0, 200)).number == 0
    with pytest.raises(SupersededError, match="attempt 100 of worker 0"):
        store.beat(0, 100)


def test_a_copy_waits_while_the_other_worker_writes_its_rows() -> None:
    store, clock = rounds(2, lease_seconds=10.0)
    store.train(train_order())
    store.join(joined(0, 100))
    store.announce(1, 101, "host-1")
    for _ in range(5):
        clock.now += 9.0
        store.beat(0, 100)
        store.beat(1, 101)
        assert store.join(joined(0, 200)).kind == "wait"


@pytest.mark.fault("A copy of a task fails, on a full disk for example", "its error is logged", "nothing")
def test_the_error_of_a_copy_is_not_that_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = rounds(1, lease_seconds=10.0)
    store.train(train_order())
    store.join(joined(0, 100))
    full = Failure("OSError", "no space left on device", "", 0)
    with pytest.raises(SupersededError):
        store.report(200, full)
    assert "no space left" in caplog.text
    assert store.ask(0, 100).kind == "train"
    clock.now += 10.0  # attempt 100 is gone: what attempt 200 says is what there is
    store.report(200, full)
    assert store.ask(0, 100).kind == "stop"


def test_the_errors_of_attempts_that_fail_as_often_as_spark_tries_are_raised() -> None:
    """The first attempt was killed a moment ago, so they all came too soon to be those of the run."""
    store, _ = rounds(1, lease_seconds=10.0)
    store.join(joined(0, 100))
    with pytest.raises(SupersededError) as soon:
        store.report(200, Failure("OSError", "no space left on device", "", 0))
    store.fail(WorkerError.of("SupersededError", str(soon.value), "", -1))  # what Spark says of its last try
    with pytest.raises(OSError, match="OSError on worker 0: no space left on device"):
        list(store.train(train_order()))


def test_another_layout_fails_the_run() -> None:
    store, _ = rounds()
    assert store.join(joined(1, layout_hash="other")).kind == "stop"
    with pytest.raises(ElephasError, match=rf"worker 1 on host-1 built another model: .*{LAYOUT.hash}, got other"):
        store.joined()


def test_other_rows_after_a_retry_fail_the_run_and_another_order_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store, _ = rounds(1, lease_seconds=0.0)
    store.join(joined(0, 1))
    with caplog.at_level(logging.WARNING):
        store.join(joined(0, 2, checksum=6))
    assert "no longer equal" in caplog.text
    assert store.join(joined(0, 3, rows=5)).kind == "stop"
    with pytest.raises(DataError, match=r"came back with 5 rows .* expected 4"):
        store.joined()


def test_only_workers_of_the_run_may_join_and_only_after_joining_ask() -> None:
    store, _ = rounds(2)
    with pytest.raises(ElephasError, match="from 0 to 1 to join, got worker 2"):
        store.join(joined(2))
    with pytest.raises(ElephasError, match="worker 0 to join before"):
        store.ask(0, 100)


def test_signs_of_life_say_where_how_long_ago_and_how_often_again() -> None:
    store, clock = rounds(2)
    assert store.signs() == {}
    store.announce(0, 100, "here")
    clock.now += 2.0
    assert store.signs() == {0: ("here", 2.0, 0)}
    store.join(joined(0))
    store.join(joined(1))
    clock.now += 1000.0
    store.announce(0, 101, "elsewhere")
    assert store.signs() == {0: ("elsewhere", 0.0, 0), 1: ("host-1", 1000.0, 0)}
    store.join(joined(0, 101))
    assert [store.signs()[worker].retries for worker in range(2)] == [1, 0]
