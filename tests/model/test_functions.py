"""`run_on_workers`: functions on several processes at once. Over Spark Connect: tests/connect."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os

import keras
import pytest

from elephas_like import CapacityError, ElephasError, WaitError, WorkerError, run_on_workers
from elephas_like.model import functions
from elephas_like.trainer.keras_settings import KerasSettings


def test_each_worker_returns_its_own_result(spark, capsys: pytest.CaptureFixture[str]) -> None:
    def work(member, factor):
        print("line of", member.rank)
        return os.getpid(), factor * member.rank, member.all_gather(str(member.rank)), len(member.hosts)

    found = run_on_workers(work, 2, args=(10,))
    assert [each[1:] for each in found] == [(0, ["0", "1"], 2), (10, ["0", "1"], 2)]
    assert len({each[0] for each in found} | {os.getpid()}) == 3
    assert sorted(capsys.readouterr().out.splitlines()) == ["[worker 0] line of 0", "[worker 1] line of 1"]


def test_what_workers_print_is_shown_while_they_run(spark, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends when the driver has shown its line, and not before."""
    seen = tmp_path / "seen"

    class Stdout(io.StringIO):
        def write(self, text: str) -> int:
            if "hello" in text:
                seen.touch()
            return super().write(text)

    def work(member):
        print("hello")
        while not seen.exists():
            member.barrier()
        print("no end of line", end="")

    stdout = Stdout()
    monkeypatch.setattr("sys.stdout", stdout)
    run_on_workers(work, 1, timeout=60)
    assert stdout.getvalue() == "[worker 0] hello\n[worker 0] no end of line\n"


def test_without_a_way_to_the_driver_it_is_shown_at_the_end(
    spark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = contextlib.nullcontext()
    monkeypatch.setattr(functions, "_listening", lambda session, size: nowhere)
    run_on_workers(lambda member: print("at last"), 1)
    assert capsys.readouterr().out == "[worker 0] at last\n"
    run_on_workers(lambda member: print("unheard"), 1, verbose=False)
    assert capsys.readouterr().out == ""


def test_keras_has_the_drivers_settings_and_none_of_an_earlier_run(spark) -> None:
    def work(member):
        found = keras.config.epsilon(), keras.config.image_data_format(), keras.config.dtype_policy().name
        keras.config.set_epsilon(0.5)
        return found

    plain = (1e-7, "channels_last", "float32")
    before = KerasSettings.current()
    try:
        keras.config.set_epsilon(1e-3)
        keras.config.set_image_data_format("channels_first")
        keras.config.set_dtype_policy("mixed_bfloat16")
        assert run_on_workers(work, 1) == [(1e-3, "channels_first", "mixed_bfloat16")]
    finally:
        before.apply()
        keras.config.set_dtype_policy("float32")
    assert run_on_workers(work, 1) == [plain]
    assert run_on_workers(work, 2) == [plain, plain]


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

    for tf_config in (False, True):
        with pytest.raises(WorkerError, match="of the second") as raised:
            run_on_workers(work, 2, tf_config=tf_config)
        assert isinstance(raised.value, LookupError)


def test_a_function_of_a_file_that_workers_have_not_is_sent_and_one_that_refers_to_spark_is_named(
    spark, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_script.py").write_text("def doubled(member, number):\n    return 2 * number\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_on_workers(importlib.import_module("beside_the_script").doubled, 1, args=(4,)) == [8]

    # By name where it cannot be pickled by value, and workers have it.
    locked = tmp_path / "with_a_lock.py"
    locked.write_text("import threading\nLOCK = threading.Lock()\ndef two(member):\n    with LOCK:\n        return 2\n")
    spark.sparkContext.addPyFile(str(locked))
    assert run_on_workers(importlib.import_module("with_a_lock").two, 1) == [2]

    def counts(member: object) -> int:
        return spark.range(3).count()

    with pytest.raises(ElephasError, match=r"^counts refers to Spark"):
        run_on_workers(counts, 1)


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

    with pytest.raises(WaitError, match="2 workers to end within timeout=1 s"):
        run_on_workers(work, 2, timeout=1)


def test_an_all_reduce_of_gradients_trains_as_one_process(spark) -> None:
    """Two workers that add up their gradients by `all_gather` take the steps of one that has all rows."""
    import numpy as np

    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    y = x @ np.array([1.0, -2.0, 0.5])

    def descend(x, y, reduced):
        weights = np.zeros(3)
        for _ in range(2):
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


@pytest.mark.slow
def test_tensorflow_s_own_strategy_trains_as_one_process(spark) -> None:
    """It needs processes in which TensorFlow has not computed yet: Spark's, which are used again, would do once."""
    import numpy as np

    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 2)).astype("float32")
    y = x @ np.array([1.0, -2.0], "float32")

    def work(member, x, y):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            weights = tf.Variable([0.0, 0.0])

        @tf.function
        def step(x, y):
            def descend(x, y):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((tf.linalg.matvec(x, weights) - y) ** 2)
                gradient = tape.gradient(loss, weights)
                total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
                weights.assign_sub(0.005 * total)

            strategy.run(descend, (x, y))

        for _ in range(3):
            step(tf.constant(x[member.rank :: member.size]), tf.constant(y[member.rank :: member.size]))
        return strategy.num_replicas_in_sync, weights.numpy()

    expected = np.zeros(2)
    for _ in range(3):
        expected -= 0.005 * 2 * x.T @ (x @ expected - y)
    for replicas, weights in run_on_workers(work, 2, args=(x, y), tf_config=True):
        assert replicas == 2
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_a_console_without_a_letter_costs_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr("sys.stdout", narrow)
    functions._show(1, "\u2501 \ud800 caf\u00e9")
    assert narrow.buffer.getvalue() == "[worker 1] ? ? caf\u00e9\n".encode("cp1252")
    narrow.close()
    functions._show(1, "nobody reads this")
