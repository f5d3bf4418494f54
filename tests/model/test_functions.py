"""`run_on_workers`: functions on several processes at once. Over Spark Connect: tests/connect."""

from __future__ import annotations

import json
import os

import pytest

from elephas_like import CapacityError, WaitError, WorkerError, run_on_workers


def test_each_worker_returns_its_own_result(spark, capsys: pytest.CaptureFixture[str]) -> None:
    def work(member, factor):
        print("line of", member.rank)
        return os.getpid(), factor * member.rank, member.all_gather(str(member.rank)), len(member.hosts)

    found = run_on_workers(work, 2, args=(10,))
    assert [each[1:] for each in found] == [(0, ["0", "1"], 2), (10, ["0", "1"], 2)]
    assert len({each[0] for each in found} | {os.getpid()}) == 3
    assert capsys.readouterr().out == "[worker 0] line of 0\n[worker 1] line of 1\n"


def test_results_may_be_functions_and_large(spark) -> None:
    def work(member):
        return lambda: bytes(3_000_000)

    assert [len(each()) for each in run_on_workers(work, 2)] == [3_000_000, 3_000_000]


def test_tf_config_names_all_workers_and_is_gone_afterwards(spark) -> None:
    def work(member):
        return json.loads(os.environ["TF_CONFIG"])

    one, other = run_on_workers(work, 2, tf_config=True)
    assert one["cluster"] == other["cluster"]
    assert len(set(one["cluster"]["worker"])) == 2
    assert [each["task"] for each in (one, other)] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert run_on_workers(lambda member: os.environ.get("TF_CONFIG"), 2) == [None, None]


def test_one_workers_error_ends_the_others(spark) -> None:
    def work(member):
        if member.rank:
            raise LookupError("of the second")
        while True:
            member.barrier()

    with pytest.raises(WorkerError, match="of the second") as raised:
        run_on_workers(work, 2)
    assert isinstance(raised.value, LookupError)


def test_bad_arguments_and_too_few_slots(spark) -> None:
    with pytest.raises(CapacityError, match="3 workers must run at the same time, and Spark has 2 slots"):
        run_on_workers(print, 3)
    with pytest.raises(ValueError, match="num_workers"):
        run_on_workers(print, 0)
    with pytest.raises(ValueError, match="timeout"):
        run_on_workers(print, 1, timeout=-1)


def test_a_time_limit_ends_all(spark) -> None:
    def work(member):
        while True:
            member.barrier()

    with pytest.raises(WaitError, match="2 workers to end within timeout=3 s"):
        run_on_workers(work, 2, timeout=3)


def test_an_all_reduce_of_gradients_trains_as_one_process(spark) -> None:
    """Two workers that add up their gradients by `all_gather` take the steps of one that has all rows."""
    import numpy as np

    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    y = x @ np.array([1.0, -2.0, 0.5])

    def descend(x, y, reduced):
        weights = np.zeros(3)
        for _ in range(3):
            total = reduced(x.T @ (x @ weights - y))
            weights -= 0.01 * total
        return weights

    def work(member, x, y):
        def reduced(gradient):
            told = member.all_gather(json.dumps(gradient.tolist()))
            return np.sum([json.loads(text) for text in told], axis=0)

        return descend(x[member.rank :: 2], y[member.rank :: 2], reduced)

    one, other = run_on_workers(work, 2, args=(x, y))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one, descend(x, y, lambda gradient: gradient), rtol=1e-12)
