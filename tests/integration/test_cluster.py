"""Clusters whose executors die: the fit finishes, and its weights are those of an undisturbed one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from scripts import Script
from standalone import standalone

pytestmark = pytest.mark.slow


def executors(script: Script) -> list[psutil.Process]:
    """The executors' JVMs among the processes that a script has started."""
    found = []
    for process in psutil.Process(script.process.pid).children(recursive=True):
        try:
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                found.append(process)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def executor_of(script: Script, worker: int, scratch: Path) -> psutil.Process:
    """The executor in whose directories the newest shard of a worker lies. Where one was killed in an earlier fit, others may remain."""
    shard = str(max(scratch.rglob(f"elephas_like-*/worker-{worker}"), key=lambda found: found.stat().st_ctime_ns))
    (found,) = (each for each in executors(script) if shard.startswith(each.environ()["SPARK_EXECUTOR_DIRS"]))
    return found


def kill_executor(script: Script, scratch: Path) -> None:
    """Kill the executor of worker 1: where a shuffle is lost with it, Spark runs a copy of worker 0 first, which is alive."""
    assert len(executors(script)) == 2
    os.kill(executor_of(script, 1, scratch).pid, signal.SIGKILL)


def delete_shards(script: Script, scratch: Path) -> None:
    """Delete the files of worker 0, and end the processes that have them in memory and would not look for them."""
    files = [*scratch.rglob("elephas_like-*/worker-0/*")]  # of earlier fits, too, where an executor was killed
    assert files
    for file in files:
        file.unlink()
    for executor in executors(script):
        for process in executor.children(recursive=True):
            process.kill()


@pytest.mark.long
@pytest.mark.fault(
    "An executor is killed",
    "Spark runs its tasks again elsewhere, which train the same span from the same state; also behind a shuffle whose files are lost with it, of rows or of updates",
    "the rows are written again and one round is repeated; the weights are equal to the last bit",
)
@pytest.mark.fault(
    "An executor is lost before a fit begins",
    "the fit waits until Spark has replaced it, once, for up to `join_timeout`, and says so in a line of the log",
    "seconds; the weights are equal to the last bit",
)
@pytest.mark.fault(
    "Files of a shard vanish on an executor (jobs engine)",
    "the rows are written again, and the round is run again",
    "one more round; the weights are equal to the last bit",
)
def test_killed_executors_deleted_shards_and_a_callback_that_needs_slots_change_nothing(tmp_path: Path) -> None:
    """On one cluster, one after the other, which is half the work."""
    disturbed = [
        ("jobs:parallelized", kill_executor),
        ("server:shuffled", kill_executor),
        ("gang:parallelized", kill_executor),
        ("jobs:parallelized", delete_shards),
        ("server:reported", None),  # and an executor is killed before it begins
    ]
    with Script("run_cluster.py", *(fit for fit, _ in disturbed), scratch=tmp_path, plain=True) as script:
        undisturbed = script.answer()
        assert {kind: sum(fit["samples"]) for kind, fit in undisturbed.items()} == {
            "parallelized": 5 * 270,
            "shuffled": 5 * 271,
        }
        for number, (fit, disturb) in enumerate(disturbed):
            if disturb is None:
                assert script.answer() == {"rows": 300}
            else:
                assert script.answer() == {"epoch": 2}
                disturb(script, tmp_path)
                script.say("go on")
            assert script.answer() == undisturbed["shuffled" if "shuffled" in fit else "parallelized"], fit
            if disturb is None:
                assert script.answer() == {"left": []}
            if number == 0:
                assert script.answer() == {"killed": True}
        assert script.ended() == 0


@pytest.mark.fault(
    "Spark runs a copy of a slow task (speculation)",
    "the copy waits for the place of the first; each update counts once",
    "a slot, while the copy waits",
)
@pytest.mark.parametrize("engine", ["jobs", "server"])
def test_a_speculated_task_is_counted_once(tmp_path: Path, engine: str) -> None:
    with standalone(tmp_path) as url, Script("run_speculation.py", engine, url, scratch=tmp_path, plain=True) as script:
        undisturbed, disturbed = script.answer(), script.answer()
        assert script.ended() == 0
    assert disturbed["samples"] == undisturbed["samples"] == [40] * 4
    assert disturbed["weights"] == undisturbed["weights"]
    assert disturbed["optimizer"] == undisturbed["optimizer"]
    if engine == "jobs":
        assert disturbed["copied"]
    else:
        assert disturbed["attempts"] >= 4


@pytest.mark.fault(
    "The application has no executor yet (dynamic allocation)",
    "Spark starts executors for the workers that were asked for; without `num_workers`, the slots that the application starts with are taken",
    "the time until executors start",
)
def test_an_application_that_grows_has_slots_before_it_has_executors(tmp_path: Path) -> None:
    with Script("run_autoscaling.py", "10000", scratch=tmp_path, plain=True) as script:
        answer = script.answer()
        assert answer["asked"] == 10000
        assert answer["default"] == 1  # not one worker per partition
        assert answer["trained by 2"] == [2]
        assert answer["trained by None"][0] in (1, 2)  # what is there by then
        assert script.ended() == 0


@pytest.mark.fault(
    "Arrays of more than 128 MiB a worker (`spark.rpc.message.maxSize`), which Spark refuses to send with a task",
    "they are broadcast",
    "each executor receives the parts of all workers",
)
def test_arrays_that_are_too_large_for_a_task_are_trained_on(tmp_path: Path) -> None:
    with Script("run_large_arrays.py", "server", scratch=tmp_path, plain=True) as script:
        answer = script.answer()
        assert answer["arrays"] == answer["sharded"] == answer["rows"]  # all rows are alike
        assert answer["arrays"][1] == 6_000
        assert answer["left"] == 0
        assert script.ended() == 0
