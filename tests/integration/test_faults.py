"""What goes wrong is said in the user's terms, and leaves nothing behind: conftest looks after every test."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest
from leftovers import eventually, ours, ports, threads
from port_blocks import port_of, range_of, taken_ports
from scripts import Script
from small import line, points, trained

import elephas_like
from elephas_like import DataError, ElephasError, NonFiniteError, SparkModel, WaitError, WorkerError
from elephas_like.core.errors import ConnectionLostError, Failure
from elephas_like.exchange.address import PortError
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.protocol import Sizes
from elephas_like.testing import delay, inject

both = pytest.mark.parametrize("engine", ["server", "jobs"])


@pytest.fixture
def rdd(sc):
    return sc.parallelize(points(20), 2)


def fails(kind: type[BaseException], match: str, rdd: object, engine: str, model: keras.Model | None = None, **options):
    """The error of a fit, which says what it should, shows no Java, and lets the next fit be an ordinary one."""
    with pytest.raises(kind, match=match) as caught:
        SparkModel(model or line(), 2, engine=engine, **options).fit(rdd, epochs=2, verbose=0)
    text = str(caught.value)
    assert "org.apache.spark" not in text
    assert "Py4J" not in text
    return caught.value


# Rows


@pytest.mark.fault("A row does not fit the others", "`DataError` with partition and row", "the fit")
@both
def test_a_row_of_another_shape_is_named(sc, engine: str) -> None:
    rows = [*points(5), ([1.0, 2.0, 3.0], 1.0)]
    error = fails(
        DataError, r"partition 1, row 2: feature 'x' expected shape \(2,\), got \(3,\)", sc.parallelize(rows, 2), engine
    )
    assert isinstance(error, WorkerError)
    assert error.worker == 1


@both
def test_rows_that_are_no_pairs_are_refused(sc, engine: str) -> None:
    fails(DataError, r"row 0: expected a pair \(features, label\)", sc.parallelize([1.0, 2.0, 3.0], 2), engine)


@both
def test_partitions_of_different_shapes_are_refused(sc, engine: str) -> None:
    rows = [([1.0, 2.0], 1.0), ([1.0, 2.0, 3.0], 1.0)]
    said = r"workers 0 and 1 differ|takes features of shape \(2,\), and the rows' are \(3,\)"
    fails(DataError, said, sc.parallelize(rows, 2), engine)


@both
def test_no_rows_at_all(sc, engine: str) -> None:
    fails(ValueError, "no rows to train on", sc.parallelize([], 2), engine)


@pytest.mark.fault(
    "A function of the user's RDD raises", "its own exception, with the traceback of the executor", "the fit"
)
@both
def test_a_users_map_function_that_raises(sc, engine: str) -> None:
    def broken(row: tuple) -> tuple:
        if row[0] == 7:
            raise LookupError("no label for row 7")
        return [float(row[0]), 0.0], 0.0

    error = fails(LookupError, "no label for row 7", sc.parallelize([(i,) for i in range(10)], 2).map(broken), engine)
    assert "in broken" in str(error)


# Workers


def broken_loss(y, prediction):
    """A loss that fails on the worker that has rows of label 7."""
    import tensorflow as tf

    def check(value):
        if (value == 7).any():
            raise KeyError("no such label: 7")
        return np.float32(0)

    with tf.control_dependencies([tf.numpy_function(check, [y], tf.float32)]):
        return keras.ops.mean((y - prediction) ** 2, axis=-1)


class Unfinished(keras.layers.Layer):
    """A layer that fails in Python, while the graph is traced on a worker."""

    def call(self, x):
        if os.environ.get("SPARK_LOCAL_DIRS") and x.shape[0] is None:
            raise KeyError("no such weight: 'gamma'")
        return x


@pytest.mark.fault(
    "The model raises on a worker",
    "the exception of the worker, with its type and traceback",
    "the fit; the model keeps the last finished round",
)
@both
def test_a_workers_own_exception_keeps_type_message_and_traceback(rdd, engine: str) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), Unfinished()])
    model.compile("sgd", "mse")
    error = fails(KeyError, "no such weight: 'gamma'", rdd, engine, model)
    assert isinstance(error, WorkerError)
    assert error.type_name == "KeyError"
    assert 'raise KeyError("no such weight' in str(error)
    assert "test_faults.py" in error.traceback_text


@both
def test_an_exception_inside_the_graph_names_its_worker(sc, engine: str) -> None:
    model = line(loss=broken_loss)
    rows = [([0.0, 0.0], float(label)) for label in (0, 1, 2, 3, 4, 5, 6, 7)]
    error = fails(WorkerError, "no such label: 7", sc.parallelize(rows, 2), engine, model)
    assert error.worker == 1


@pytest.mark.fault(
    "A loss becomes NaN",
    '`NonFiniteError` with worker, round and a row that holds NaN; `on_nan="drop"` leaves the update out',
    "the fit, or one update",
)
@both
def test_nan_is_an_error_that_names_worker_and_round(sc, engine: str) -> None:
    rows = [*points(10), ([float("nan"), 0.0], 1.0), *points(9)]
    found = r"worker 1 brought NaN or infinity in round 0: partition 1, row 0 has NaN or infinity in 'x'"
    fails(NonFiniteError, found, sc.parallelize(rows, 2), engine)


def test_a_fit_after_a_failed_one_is_ordinary(sc, rdd) -> None:
    for engine in ("server", "jobs"):
        model = line()
        fitted = SparkModel(model, 2, engine=engine)
        with pytest.raises(DataError):
            fitted.fit(sc.parallelize([1.0], 2), verbose=0)
        assert trained(fitted.fit(rdd, epochs=2, verbose=0)) == 40


def test_a_failure_in_mid_fit_leaves_the_last_finished_rounds_weights(rdd) -> None:
    model = line()
    kept: list[list[np.ndarray]] = []

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            kept.append(self.model.get_weights())
            if epoch == 1:
                raise RuntimeError("the disk of the driver is full")

    with pytest.raises(RuntimeError, match="the disk of the driver is full"):
        SparkModel(model, 2, engine="server").fit(rdd, epochs=5, verbose=0, callbacks=[Fails()])
    for ours_, theirs in zip(model.get_weights(), kept[-1], strict=True):
        np.testing.assert_array_equal(ours_, theirs)


# Lines and versions


def test_a_taken_port_is_named(rdd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fails(PortError, rf"127.0.0.1:{port}.*taken by another program: give port=0", rdd, "server", port=port)


def test_a_range_of_ports_has_room_for_a_fit_and_the_questions_of_its_workers(rdd) -> None:
    with taken_ports(3) as block:
        given = range_of(block)
        fails(PortError, rf"127.0.0.1:{given} .*all 3 ports of the range are taken", rdd, "server", port=given)
        wanted = {port_of(each) for each in block[1:]}
        for each in block[1:]:
            each.close()
        seen: set[int] = set()
        look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update(ports() & wanted))
        with inject(delay(0, seconds=0.01, round=0)) as faults:  # its server listens beside the fit's
            history = SparkModel(line(), 2, port=given).fit(rdd, epochs=1, verbose=0, callbacks=[look])
        assert trained(history) == 20
        assert len(faults.happened) == 1
        assert seen == wanted


@pytest.mark.fault(
    "Executors cannot reach the driver",
    "an error that names address and port, and what to set",
    "the fit, before any row is written",
)
def test_a_driver_that_cannot_be_reached_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    model = line()
    from elephas_like.trainer.state import Variables

    sizes = Sizes.of(Variables(model).layout)
    settings = ClientSettings("http", "127.0.0.1", port, "token", sizes, retries=1)
    for kind in ("http", "socket"):
        client = replace(settings, kind=kind).connect(0, 0)
        with pytest.raises(ConnectionLostError, match=rf"worker 0 cannot reach .* at 127.0.0.1:{port} after 2 tries"):
            client.fail(Failure("E", "m", "", 0))
        client.close()


@pytest.mark.fault(
    "An executor has other versions of packages", "an error that lists them", "the fit, before any row is written"
)
@both
def test_other_versions_on_an_executor_are_named(rdd, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elephas_like.model.source.versions", lambda: {"elephas-like": "9.9.9", "keras": "3.0.0"})
    fails(ElephasError, r"elephas-like is 9.9.9 on the driver and .* on executor host", rdd, engine)


# Time


class Hangs(keras.Model):
    """A model whose train step never ends on the worker that has a row with a first number above 90."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        import tensorflow as tf

        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.control_dependencies([tf.numpy_function(self.pause, [x], tf.float32)]):
            return super().train_step(data)

    def pause(self, x: np.ndarray) -> np.float32:
        if (x > 90).any():
            threading.Event().wait(600)
        return np.float32(0)


@pytest.mark.fault(
    "A worker makes no progress",
    "`WaitError` after `round_timeout`, which names the worker and its host",
    "the fit; the model keeps the last finished round",
)
@pytest.mark.parametrize(
    "mode",
    # An asynchronous fit waits for a straggler where it is to evaluate; else the others do its share of the samples.
    ["synchronous", pytest.param("asynchronous", marks=pytest.mark.slow)],
)
def test_a_worker_that_hangs_is_named_and_the_others_stop(sc, mode: str) -> None:
    model = Hangs()
    model.compile("sgd", "mse")
    rows = [*points(10), *(([99.0, 0.0], 1.0) for _ in range(10))]
    began = time.monotonic()
    SparkModel(line(), 2, engine="server").fit(sc.parallelize(points(20), 2), verbose=0)  # imports TensorFlow
    said = r"round_timeout=3 s; missing: worker 1 \(attempt \d+ on .*, lease live"
    with pytest.raises(WaitError, match=said):
        SparkModel(model, 2, engine="server", mode=mode, round_timeout=3).fit(
            sc.parallelize(rows, 2), epochs=2, verbose=0, validation_split=0.2
        )
    assert time.monotonic() - began < 120  # nothing waits for the end of the hanging step, ten minutes away


@pytest.mark.slow  # tests/engine/test_job_rounds.py does the same with tasks that hang
def test_a_worker_of_the_jobs_engine_that_hangs_is_named(sc) -> None:
    model = Hangs()
    model.compile("sgd", "mse")
    rows = [*points(10), *(([99.0, 0.0], 1.0) for _ in range(10))]
    began = time.monotonic()
    SparkModel(line(), 2, engine="jobs").fit(sc.parallelize(points(20), 2), verbose=0)  # imports TensorFlow
    fitted = SparkModel(model, 2, engine="jobs", round_timeout=5)
    said = r"none did for round_timeout=5 s; missing: worker 1 \(.*epoch 1, round 1 of 1\).*give a longer round_timeout"
    with pytest.raises(WaitError, match=said):
        fitted.fit(sc.parallelize(rows, 2), epochs=2, verbose=0, validation_split=0.2)
    assert trained(fitted.fit(sc.parallelize(points(20), 2), verbose=0)) == 20
    assert time.monotonic() - began < 120


@pytest.mark.fault("Other jobs hold all slots", "`WaitError` after `round_timeout`", "the fit")
def test_jobs_that_wait_for_slots_for_too_long_are_named(
    rdd, no_free_slot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even their shards are written; nor can be swept on executors, which is said, and does not take long."""
    monkeypatch.setattr("elephas_like.rows.shards.TIDY_SECONDS", 1.0)
    with no_free_slot():
        fails(
            WaitError,
            r"none did for round_timeout=2 s; missing: worker 0, 1 \(.*write shards\)",
            rdd,
            "jobs",
            round_timeout=2,
        )
    assert "cancelled after 1 s). Directories called elephas_like-" in caplog.text
    assert trained(SparkModel(line(), 2, engine="jobs").fit(rdd, verbose=0)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["server", "jobs"])
def test_a_process_that_dies_as_it_writes_rows_leaves_none_of_them(tmp_path: Path, engine: str) -> None:
    with Script("run_died.py", engine, scratch=tmp_path) as script:
        assert script.answer() == {"died": True, "samples": 20, "files": []}
        assert script.ended() == 0


@pytest.mark.fault(
    "The SparkContext is stopped during a fit",
    "`ElephasError` at once",
    "the fit; the model keeps the last finished round",
)
@pytest.mark.parametrize("how", ["python", pytest.param("jvm", marks=pytest.mark.slow)])
def test_a_context_that_is_stopped_in_mid_fit_is_said(tmp_path: Path, how: str) -> None:
    with Script("run_stopped.py", how, scratch=tmp_path) as script:
        answer = script.answer()
        assert script.ended() == 0
        log = script.log.read_text()
    assert answer["type"] == "ElephasError"
    assert answer["said"].startswith("the SparkContext was stopped")
    columns = ("fit of columns", "columns of predictions", "stage")
    for use in ("again", "predict", "validation rows", "search of its rows", "ensemble", *columns):
        assert answer[use].startswith("the SparkContext was stopped"), use
    assert answer["weights_of_the_last_round"]
    search = answer["search"]
    assert search["said"].startswith("the SparkContext was stopped")
    assert search["said"].endswith("Trials that had ended: 1. They are kept, and resume='auto' goes on after them.")
    assert search["trials"] == {"ok": 1, "interrupted": 2}
    assert search["kept"] == 1
    assert answer["files"] == answer["threads"] == []
    assert "NoneType" not in log
    assert "Traceback" not in log
    assert "not deleted everywhere" not in log  # Spark has ended the executors, with all they held
    assert answer["warned before"] == []
    assert [one.partition(" in this process, without Spark. Start a new session")[0] for one in answer["warned"]] == [
        "the SparkContext was stopped: this fit trains",
        "the SparkContext was stopped: trials run one by one",
        "the SparkContext was stopped: trials run one by one",
        "the SparkContext was stopped: members are trained one by one",
    ]


class Paced(Hangs):
    """A model whose train step takes as many seconds as the first number of its rows says."""

    def pause(self, x: np.ndarray) -> np.float32:
        threading.Event().wait(float(x[:, 0].max()))
        return np.float32(0)


@pytest.mark.slow
def test_a_round_that_takes_longer_than_the_time_out_goes_on_while_its_worker_does(sc) -> None:
    model = Paced()
    model.compile("sgd", "mse")
    quick = SparkModel(model, 2, batch_size=1, engine="server", frequency="epoch", round_timeout=60)
    quick.fit(sc.parallelize([([0.0, 0.0], 1.0)] * 4, 2), verbose=0)  # imports TensorFlow and traces the step
    patient = SparkModel(model, 2, batch_size=1, engine="server", frequency="epoch", round_timeout=5)
    rows = [([seconds, 0.0], 1.0) for seconds in (0.0, 0.8) for _ in range(10)]
    history = patient.fit(sc.parallelize(rows, 2), verbose=0)
    assert trained(history) == 20
    assert max(worker.seconds for worker in history.rounds[0].workers) > 5


def test_a_server_on_all_addresses_is_reached_by_sparks_own(rdd, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def watched(**settings) -> ClientSettings:
        told.append(settings["host"])
        return ClientSettings(**settings)

    monkeypatch.setattr("elephas_like.model.launch.ClientSettings", watched)
    assert trained(SparkModel(line(), 2, engine="server", host="0.0.0.0").fit(rdd, verbose=0)) == 20
    assert told == ["127.0.0.1"]  # spark.driver.host of the tests' session


# Several fits


@pytest.mark.fault(
    "Two fits at once on the slots of one", "the second runs as jobs, in the slots that the first leaves", "time"
)
@pytest.mark.parametrize("workers", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_two_fits_that_are_started_at_the_same_moment_under_auto_both_finish(rdd, workers: int | None) -> None:
    meeting = threading.Barrier(2)
    ended: dict[int, object] = {}

    def fit(number: int) -> None:
        model = line()
        meeting.wait(60)
        try:
            ended[number] = trained(SparkModel(model, workers, seed=number).fit(rdd, epochs=3, verbose=0))
        except Exception as error:
            ended[number] = error

    runs = [threading.Thread(target=fit, args=(number,)) for number in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(120)
    assert ended == {0: 60, 1: 60}


def test_two_fits_at_once_on_two_slots_both_finish(rdd) -> None:
    histories: dict[int, object] = {}

    def fit(number: int) -> None:
        try:
            histories[number] = SparkModel(line(), 2, engine="server", seed=number).fit(rdd, epochs=3, verbose=0)
        except Exception as error:
            histories[number] = error

    runs = [threading.Thread(target=fit, args=(number,)) for number in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(120)
    assert not any(run.is_alive() for run in runs)
    assert [trained(histories[number]) for number in range(2)] == [60, 60]


def fit_often(sc, scratch: Path, times: int) -> None:
    """Fits, and counts what is there after each."""
    process = psutil.Process()
    rdd = sc.parallelize(points(20), 2)
    persisted = set(sc._jsc.getPersistentRDDs())  # other tests' own
    counts = []
    for number in range(times):
        engine, mode = (("server", "synchronous"), ("jobs", "synchronous"), ("server", "asynchronous"))[number % 3]
        SparkModel(line(), 2, engine=engine, mode=mode).fit(rdd, verbose=0)
        assert eventually(lambda: not threads())
        counts.append((len(ports()), len(ours(scratch)), threading.active_count(), len(process.open_files())))
    # The first three open what stays: py4j's connections and TensorFlow's threads.
    assert all(later <= first for later, first in zip(counts[-1], counts[2], strict=True)), counts
    assert set(sc._jsc.getPersistentRDDs()) <= persisted


def test_five_fits_leave_nothing(sc, scratch: Path) -> None:
    fit_often(sc, scratch, 5)


@pytest.mark.slow
def test_twenty_fits_leave_nothing(sc, scratch: Path) -> None:
    fit_often(sc, scratch, 20)


# Ctrl-C


@pytest.mark.parametrize(
    ("engine", "mode"), [("server", "synchronous"), ("server", "asynchronous"), ("jobs", "synchronous")]
)
def test_ctrl_c_leaves_the_last_finished_rounds_weights(rdd, engine: str, mode: str) -> None:
    model = line()
    kept: list[list[np.ndarray]] = []

    class CtrlC(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            kept.append(self.model.get_weights())
            if epoch == 1:
                raise KeyboardInterrupt

    start = model.get_weights()[0].copy()
    fitted = SparkModel(model, 2, engine=engine, mode=mode)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(rdd, epochs=50, verbose=0, callbacks=[CtrlC()])
    for ours_, theirs in zip(model.get_weights(), kept[-1], strict=True):
        if mode == "synchronous":
            np.testing.assert_array_equal(ours_, theirs)
        else:  # the workers have gone on meanwhile
            assert np.isfinite(ours_).all()
            assert ours_.size == 1 or (ours_ != start).any()
    assert trained(fitted.fit(rdd, epochs=1, verbose=0)) >= 20


def answer_to_sigint(script: Script) -> dict:
    """What a script says to Ctrl-C.

    Python drops a KeyboardInterrupt that is raised in the callback of a weak reference, of which py4j has one for each Java
    object, and says so; whoever sits there presses Ctrl-C again.
    """
    os.kill(script.process.pid, signal.SIGINT)
    try:
        return script.answer(60)
    except AssertionError:
        said = script.log.read_text()
        dropped = said.find("Exception ignored in")
        if dropped < 0 or "KeyboardInterrupt" not in said[dropped:]:
            raise
    os.kill(script.process.pid, signal.SIGINT)
    return script.answer()


@pytest.mark.fault(
    "Ctrl-C", "`KeyboardInterrupt`; tasks, files and ports are gone", "the model keeps the last finished round"
)
def test_a_real_sigint_ends_a_fit_in_order(tmp_path: Path) -> None:
    """Three fits of one process, which must be fit for the next one after each; the first is without Spark."""
    fits = ("in_process-ready", "server-busy", "jobs-busy")
    with Script("run_interrupted.py", *fits, scratch=tmp_path) as script:
        for fit in fits:
            assert script.answer() == {"epoch": 2}
            if fit.endswith("busy"):  # both workers are in a step that would take ten minutes
                assert eventually(lambda: len(list(tmp_path.glob("busy-*"))) == 2, 60)
            answer = answer_to_sigint(script)
            assert answer["interrupted"], fit
            assert answer["weights_of_a_finished_round"], fit
            assert answer["threads"] == [], fit
            assert answer["ports"] == 0, fit
            assert answer["files"] == [], fit
            assert answer["fits_again"] == 20, fit
        assert script.ended() == 0
    assert not list(tmp_path.rglob("elephas_like-*"))


# Shards that are gone


def changing(sc, place: Path):
    """20 rows in 2 partitions; once a file of that name is there, the last one is another row, or comes twice."""
    folder = str(place)
    last = points(20)[-1]

    def part(index: int, rows: Iterator[object]) -> Iterator[object]:
        yield from list(rows)[: 9 if index else 10]
        if index:
            yield (last[0], 7.0) if Path(folder, "another row").exists() else last
        if index and Path(folder, "one more row").exists():
            yield last

    return sc.parallelize(points(20), 2).mapPartitionsWithIndex(part)


@pytest.mark.slow  # tests/engine/test_job_rounds.py does the same with references that change
@pytest.mark.parametrize("change", ["another row", "one more row"])
def test_rows_that_come_back_differently_are_said(
    sc, scratch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    class Changes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            if epoch == 0:
                (tmp_path / change).touch()
                for file in scratch.rglob("elephas_like-*/worker-1/*"):
                    file.unlink()
                end_python_workers(sc)

    fitted = SparkModel(line(), 2, engine="jobs", seed=1)
    rows = changing(sc, tmp_path)
    if change == "one more row":
        with pytest.raises(DataError, match="worker 1 came back with 11 rows; expected 10 as before"):
            fitted.fit(rows, epochs=3, verbose=0, callbacks=[Changes()])
    else:
        assert trained(fitted.fit(rows, epochs=3, verbose=0, callbacks=[Changes()])) == 60
        assert "worker 1 came back with other rows" in caplog.text


@pytest.mark.fault(
    "Files of a `ShardedDataset` vanish, or are cut short",
    "Spark writes them again before the first round",
    "the time to write them",
)
@both
def test_a_sharded_dataset_whose_files_are_gone_is_written_again(sc, scratch: Path, engine: str) -> None:
    with elephas_like.shard(sc.parallelize(points(20), 2), 2) as dataset:
        weights = []
        for damage in (None, os.unlink, cut_in_half):
            if damage is not None:
                victim = max(scratch.rglob("elephas_like-*/worker-1*"), key=lambda path: path.stat().st_mtime_ns)
                for file in victim.iterdir():
                    damage(file)
            model = line()
            SparkModel(model, 2, engine=engine, seed=1).fit(dataset, epochs=2, verbose=0)
            weights.append(model.get_weights())
    for one, *others in zip(*weights, strict=True):
        for other in others:
            np.testing.assert_array_equal(one, other)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.fault(
    "The disk is full while rows are written",
    "the system's own error, with the directory; nothing is left there",
    "the fit, before its first round",
)
@both
def test_a_disk_that_takes_no_more_is_named_and_nothing_is_left_on_it(sc, scratch: Path, engine: str) -> None:
    def on_a_full_disk(rows: Iterator[object]) -> Iterator[object]:
        """The system refuses what a file would have beyond 4 kB, in this process and while these rows are read."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            yield from rows
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    model = line()
    before = model.get_weights()
    many = sc.parallelize(points(20), 2).flatMap(lambda row: [row] * 5000).mapPartitions(on_a_full_disk)
    with pytest.raises(
        Exception, match=r"File too large in .*elephas_like-.* GiB free\)\. Expected room for all of its rows"
    ) as raised:
        SparkModel(model, 2, engine=engine).fit(many, verbose=0)
    assert len(str(raised.value)) < 1500
    assert all((one == other).all() for one, other in zip(before, model.get_weights(), strict=True))
    assert not list(scratch.rglob("elephas_like-*/*"))


def test_rows_that_found_no_room_in_mid_fit_are_written_by_the_next_fit(sc, scratch: Path) -> None:
    """Spark keeps what became of writing them."""
    full = scratch / "full"

    def on_a_disk(rows: Iterator[object]) -> Iterator[object]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if full.exists() else limits[0], limits[1]))
        try:
            yield from rows
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    class Deletes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            full.touch()
            for file in scratch.rglob("elephas_like-*/worker-1/*"):
                file.unlink()
            end_python_workers(sc)

    many = sc.parallelize(points(20), 2).flatMap(lambda row: [row] * 5000).mapPartitions(on_a_disk)
    fitted = SparkModel(line(), 2, engine="jobs", batch_size=5000)
    with elephas_like.shard(many, 2) as dataset:
        with pytest.raises(OSError, match="Expected room for all of its rows"):
            fitted.fit(dataset, epochs=2, verbose=0, callbacks=[Deletes()])
        full.unlink()
        assert trained(fitted.fit(dataset, verbose=0)) == 100_000


def end_python_workers(sc) -> None:
    """A raising task costs its Python process: the next round finds no rows in memory and looks for the files."""

    def ends(_: object) -> None:
        raise RuntimeError("expected: this ends a Python worker")

    with pytest.raises(Exception, match="this ends a Python worker"):
        sc.parallelize(range(2), 2).foreach(ends)


def test_shards_that_are_deleted_between_two_rounds_are_written_again(
    sc, rdd, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = []
    for lost in (False, True):
        model = line()

        class Deletes(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: dict) -> None:
                if epoch == 0:
                    for file in scratch.rglob("elephas_like-*/worker-1/*"):
                        file.unlink()
                    end_python_workers(sc)

        callbacks = [Deletes()] if lost else []
        history = SparkModel(model, 2, engine="jobs", seed=1).fit(rdd, epochs=3, verbose=0, callbacks=callbacks)
        assert trained(history) == 60
        assert ("the shards are written again" in caplog.text) == lost
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.fault(
    "A worker is much slower than the others, and the fit has a `quorum`",
    "rounds do not wait for it; its updates count in the rounds in which they come",
    "some of its rows: `history.rounds` tells how many it trained",
)
@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_quorum_does_not_wait_for_a_straggler(sc, transport: str) -> None:
    data = sc.parallelize(points(40), 2)
    spark_model = SparkModel(
        line(),
        2,
        engine="server",
        quorum=1,
        quorum_grace=0.0,
        frequency=1,
        parameter_server_mode=transport,
        batch_size=2,
    )
    held = (
        np.zeros((2, 2)),
        np.zeros(2),
    )  # an evaluation waits for all: what is late then is in the next epoch's first round
    with inject(delay(worker=1, seconds=0.3, every_round=True)):
        history = spark_model.fit(data, epochs=2, verbose=0, validation_data=held)
    done = [[record.worker for record in each.workers] for each in history.rounds]
    assert len(done) == 20
    assert all(done)
    assert [0] in done  # a round without the slow one
    assert any(record.staleness for each in history.rounds for record in each.workers)
    assert trained(history) < 80


def test_empty_partitions_make_no_quorum(sc) -> None:
    # one of two has no rows, and answers before the other one has trained
    data = sc.parallelize([points(40), []], 2).flatMap(lambda rows: rows)
    model = line()
    before = model.get_weights()
    history = SparkModel(model, 2, engine="server", quorum=1, frequency=1, batch_size=2).fit(data, epochs=2, verbose=0)
    assert trained(history) == 80
    assert any((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))
