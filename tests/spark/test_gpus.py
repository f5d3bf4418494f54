from __future__ import annotations

import os
import subprocess
import sys
import threading

import pyarrow as pa
import pytest
from pyspark import SparkConf

from elephas_like.core.errors import CapacityError
from elephas_like.spark import gpus
from elephas_like.spark.gpus import (
    Claims,
    GpuTasks,
    check_host,
    gpu_tasks,
    host_gpus,
    map_on_gpus,
    offered_gpus,
    on_gpus,
    show,
    take_gpu,
    task_profile,
    worker_slots,
)
from elephas_like.spark.slots import slots


@pytest.fixture
def process(tmp_path):
    """Makes Claims that hold locks of their own, as those of processes do. A number is that of their pool."""
    return lambda pool=0: Claims(tmp_path / f"pool-{pool}", tmp_path / "host", patience=0)


def died(claims: Claims) -> None:
    for lock in claims._locks.values():
        os.close(lock)


def test_a_process_keeps_the_card_that_it_was_offered_first(process) -> None:
    one = process()
    assert one.take(["0"]) == ("0",)
    assert one.take(["1"]) == ("0",)
    assert one.take([]) == ("0",)


def test_cards_are_exchanged_where_spark_offers_a_process_another_than_its_own(process) -> None:
    one, two = process(), process()
    assert (one.take(["0"]), two.take(["1"])) == (("0",), ("1",))
    died(two)
    assert one.take(["1"]) == ("0",)
    assert process().take(["0"]) == ("1",)


def test_an_exchange_passes_through_several_processes(process) -> None:
    zero, one, two = process(), process(), process()
    zero.take(["0"]), one.take(["1"]), two.take(["2"])
    died(two)
    assert zero.take(["1"]) == ("0",)
    assert one.take(["2"]) == ("1",)
    assert process().take(["0"]) == ("2",)


def test_a_card_that_is_offered_to_two_is_shared(process) -> None:
    one, two = process(), process()
    assert one.take(["0"]) == two.take(["0"]) == ("0",)


def test_a_task_of_two_cards_has_both(process) -> None:
    assert process().take(["2", "3"]) == ("2", "3")
    assert process().take(["3", "2"]) == ("3", "2")


def test_a_note_that_comes_late_is_waited_for(tmp_path) -> None:
    """Both tasks begin at once: the process of card 0 is offered 1, and the new one, which is offered 0, looks first."""
    one, two = (Claims(tmp_path / "pool", tmp_path / "host") for _ in range(2))
    one.take(["0"])
    found: list[tuple[str, ...]] = []
    looking = threading.Thread(target=lambda: found.append(two.take(["0"])))
    looking.start()
    one.take(["1"])
    looking.join()
    assert found == [("1",)]


def test_a_task_of_two_cards_never_has_one_twice(process) -> None:
    one = process()
    one.take(["0"]), one.take(["1"])
    assert process().take(["0", "1"]) == ("1",)  # 0 is the first process's, which was offered 1 last


def test_a_directory_of_somebody_else_is_not_written_to(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "0").symlink_to(precious)
    assert Claims(locks, tmp_path / "host").take(["0"]) == ("0",)
    (tmp_path / "elsewhere").symlink_to(locks)
    assert Claims(tmp_path / "pool", tmp_path / "elsewhere").take([], ["3", "4"]) == ("3",)
    assert precious.read_text() == "precious"
    assert len([line for line in caplog.messages if "not claimed" in line]) == 2


def test_without_an_offer_processes_spread_over_the_cards_of_the_host(process) -> None:
    one, two, three = process(), process(), process()
    assert one.take([], ["0", "1"]) == ("0",)
    assert two.take([], ["0", "1"]) == ("1",)
    assert three.take([], ["0", "1"]) == (str(os.getpid() % 2),)
    assert process().take([]) == ()


def test_a_pool_has_all_cards_that_processes_of_others_hold_idle(process) -> None:
    """Spark gives no card to two tasks: who has one and is not of the daemon whose process is given it now, waits for a task."""
    idle = [process(pool=0) for _ in range(2)]
    assert [one.take([card]) for one, card in zip(idle, "01", strict=True)] == [("0",), ("1",)]
    zero, one = process(pool=1), process(pool=1)
    assert (zero.take(["1"]), one.take(["0"])) == (("1",), ("0",))
    died(one)
    assert zero.take(["0"]) == ("1",)
    assert process(pool=1).take(["1"]) == ("0",)


def test_without_an_offer_a_pool_spreads_over_cards_that_others_hold(process) -> None:
    first = [process(pool=0) for _ in range(3)]
    assert [one.take([], ["0", "1", "2", "3"]) for one in first] == [("0",), ("1",), ("2",)]
    second = [process(pool=1) for _ in range(4)]
    assert [one.take([], ["0", "1", "2", "3"]) for one in second] == [("3",), ("0",), ("1",), ("2",)]


def test_who_is_offered_none_chooses_what_nobody_was_offered(process) -> None:
    assert process(pool=0).take(["0"]) == ("0",)
    assert process(pool=1).take([], ["0", "1"]) == ("1",)


def test_a_claim_ends_with_its_process(process, tmp_path) -> None:
    code = f"""
from pathlib import Path
from elephas_like.spark.gpus import Claims
claims = Claims(Path({str(tmp_path / "pool-1")!r}), Path({str(tmp_path / "host")!r}))
print(claims.take([], ["0", "1"]), flush=True)
input()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    with other:
        assert other.stdout.readline() == "('0',)\n"
        assert process().take([], ["0", "1"]) == ("1",)
        other.kill()
    assert process().take(["0"]) == ("0",)


def test_addresses_may_be_names(process) -> None:
    assert process().take(["MIG-GPU-8f/1/0"]) == ("MIG-GPU-8f/1/0",)


@pytest.mark.parametrize(
    ("shown", "cards"),
    [
        ("0,1", ("0", "1")),
        ("3", ("3",)),
        ("", ()),
        ("-1", ()),
        ("2,-1,0", ("2",)),
        ("GPU-a, GPU-b", ("GPU-a", "GPU-b")),
    ],
)
def test_the_cards_of_a_host_are_those_that_cuda_would_show(tmp_path, shown: str, cards: tuple[str, ...]) -> None:
    (tmp_path / "nvidia0").touch()
    assert host_gpus({"CUDA_VISIBLE_DEVICES": shown}, tmp_path) == cards


def test_without_the_variable_device_files_are_counted(tmp_path) -> None:
    assert host_gpus({}, tmp_path) == ()
    for name in ("nvidia3", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / name).touch()
    assert host_gpus({}, tmp_path) == ("0", "1")


def test_memory_is_taken_as_it_is_needed_unless_the_user_says_otherwise() -> None:
    mine: dict[str, str] = {}
    show(("1",), mine)
    assert mine == {
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    mine = {"TF_FORCE_GPU_ALLOW_GROWTH": "false", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    show(("0", "2"), mine)
    assert mine == {
        "CUDA_VISIBLE_DEVICES": "0,2",
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


@pytest.mark.parametrize(
    ("backend", "name", "value"),
    [
        ("tensorflow", "TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        ("jax", "XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
        ("torch", "", ""),
    ],
)
def test_a_driver_that_would_hold_the_memory_of_all_cards_is_warned(
    request, monkeypatch, caplog, backend: str, name: str, value: str
) -> None:
    request.addfinalizer(gpus._warn_of_memory.cache_clear)
    monkeypatch.setattr(gpus, "chosen_backend", lambda: backend)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for each in ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(each, raising=False)
    gpus._warn_of_memory.cache_clear()
    check_host()
    check_host()
    assert [name in text and f"Set it to {value!r}" in text for text in caplog.messages] == [True] * bool(name)
    caplog.clear()
    gpus._warn_of_memory.cache_clear()
    if name:
        monkeypatch.setenv(name, value)
    check_host()
    assert not caplog.messages


def test_nothing_is_offered_outside_of_tasks() -> None:
    assert offered_gpus() == ()


def test_the_driver_keeps_the_cards_that_it_sees(monkeypatch) -> None:
    """Rows that are predicted or read without Spark go through what tasks call."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert take_gpu() == ()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_tasks_of_a_cluster_are_given_a_card_each() -> None:
    gpus = SparkConf(False).set("spark.executor.resource.gpu.amount", "2").set("spark.task.cpus", "3")
    wanted = task_profile(gpus).taskResources
    assert {name: request.amount for name, request in wanted.items()} == {"cpus": 3, "gpu": 1}
    assert task_profile(gpus.set("spark.task.resource.gpu.amount", "0.5")) is None
    with pytest.raises(CapacityError, match=r"spark\.executor\.resource\.gpu\.amount"):
        task_profile(SparkConf(False))


def test_an_application_has_one_profile() -> None:
    conf = SparkConf(False).set("spark.executor.resource.gpu.amount", "2").set("spark.app.id", "one")
    first = task_profile(conf)
    assert task_profile(conf) is first
    assert task_profile(conf.set("spark.app.id", "other")) is not first


def test_in_local_mode_the_machine_s_cards_count(spark, monkeypatch) -> None:
    context = spark.sparkContext
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpu_tasks(context, None) is None
    assert worker_slots(context) == slots(context)
    for session in (spark, context):
        with pytest.raises(CapacityError, match=r"CUDA_VISIBLE_DEVICES is '-1'"):
            gpu_tasks(session, "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu_tasks(context, "gpu") == GpuTasks(None)
    assert gpu_tasks(context, "gpu", limited=False) is None
    assert worker_slots(context, resources="gpu") == 1


def test_tasks_that_have_cards_run_in_processes_of_their_own(spark) -> None:
    """Spark keeps its Python processes by daemon: a parent's number tells which."""

    def parent(rows) -> list[int]:
        return [*rows, os.getppid()][-1:]

    def batch_of_parent(batches):
        yield pa.record_batch([parent(batches)], names=["parent"])

    context, tasks = spark.sparkContext, GpuTasks(None)
    before = dict(context.environment)
    rdds = [on_gpus(context.parallelize([0], 1).mapPartitions(parent), given) for given in (None, tasks, None, tasks)]
    frames = [map_on_gpus(spark.range(1), given, batch_of_parent, "parent long") for given in (None, tasks)]
    assert context.environment == before
    plain, mine, plain_again, mine_again = (rdd.first() for rdd in rdds)
    assert plain == plain_again != mine == mine_again
    other, own = (frame.first().parent for frame in frames)
    assert other != own
