"""Fits over barrier stages, on a classic session. Over Spark Connect: tests/connect; bits as other engines': integration."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from port_blocks import range_of, taken_ports
from pyspark import SparkContext
from small import digits

from elephas_like import CapacityError, DataError, ElephasError, SparkModel, WaitError, WorkerError
from elephas_like.model import gang_fit
from elephas_like.model.gang_fit import GangFit
from elephas_like.spark.session import settings_of
from elephas_like.spark.waits import cancel_and_wait
from elephas_like.strategies import Nesterov
from elephas_like.testing import fail, hang, inject, kill

X, Y = (part[:240] for part in digits())


def classifier(seed: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential([keras.Input(X.shape[1:]), *layers])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def rdd(sc):
    return sc.parallelize(list(zip(X, Y.tolist(), strict=True)), 2)


def fitted(data, *, epochs: int = 4, model: keras.Model | None = None, fit: dict | None = None, **options):
    model = model or classifier()
    spark_model = SparkModel(model, 2, seed=5, engine="gang", batch_size=16, **options)
    return model, spark_model.fit(data, epochs=epochs, verbose=0, **(fit or {}))


def same(one: keras.Model, other: keras.Model) -> bool:
    pairs = zip((*one.variables, *one.optimizer.variables), (*other.variables, *other.optimizer.variables), strict=True)
    return all(np.array_equal(np.array(a.value), np.array(b.value)) for a, b in pairs)


@pytest.fixture(scope="module")
def one_epoch(rdd) -> keras.Model:
    """What a fit of one epoch makes of the classifier."""
    return fitted(rdd, epochs=1)[0]


OWN = {"optimizer_state": "per_worker", "codec": "one_bit", "epochs": 2}
"""A fit of two epochs whose workers keep something of their own."""


@pytest.fixture(scope="module")
def two_epochs(rdd) -> tuple[keras.Model, keras.callbacks.History]:
    """What such a fit makes of the classifier, in one job."""
    return fitted(rdd, epochs_per_job=2, fit={"validation_split": 0.1}, **OWN)


class Stops(keras.callbacks.Callback):
    """Ends the program, as Ctrl-C does, before its second epoch."""

    def on_epoch_begin(self, epoch, logs=None) -> None:
        if epoch == 1:
            raise KeyboardInterrupt


class Counts(keras.callbacks.Callback):
    """Runs a Spark job at each epoch's end, and ends the training at one of them."""

    def __init__(self, rdd, last: int) -> None:
        super().__init__()
        self._rdd, self._last, self.seen = rdd, last, []

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.seen.append((epoch, self._rdd.count(), sorted(logs)))
        self.model.stop_training = epoch == self._last


def test_the_epochs_of_a_job_change_no_bit(rdd, two_epochs) -> None:
    """Also where workers keep something to themselves from job to job."""
    at_once, together = two_epochs
    one, by_one = fitted(rdd, epochs_per_job=1, fit={"validation_split": 0.1}, **OWN)
    assert same(one, at_once)
    assert by_one.history == together.history
    assert by_one.epoch == [0, 1]
    assert [record.samples for record in by_one.rounds] == [record.samples for record in together.rounds]


def test_a_state_that_spark_would_not_bring_back_is_refused_before_rows_are_written(
    sc, rdd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings_of(sc), "spark.driver.maxResultSize", "1k")
    with pytest.raises(ElephasError, match=r"the state of the model, .* is more than spark.driver.maxResultSize"):
        fitted(rdd)


@pytest.fixture(scope="module")
def ended(rdd) -> tuple[keras.Model, keras.callbacks.History, Counts]:
    """A fit that a callback has ended after two epochs."""
    callback = Counts(rdd, last=1)
    return *fitted(rdd, epochs=5, fit={"callbacks": [callback], "validation_data": (X[:40], Y[:40])}), callback


def test_callbacks_are_called_here_may_use_spark_and_end_the_training(ended) -> None:
    _, history, callback = ended
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert callback.seen == [(0, 240, names), (1, 240, names)]
    assert history.epoch == [0, 1]


def test_a_shard_that_is_not_where_it_was_written_is_looked_for_elsewhere(rdd, one_epoch, monkeypatch, caplog) -> None:
    """In one place everybody opens its own shard. If one is missing there, all agree; if it is nowhere, it is written again."""
    write, gang = GangFit._write, GangFit._gang
    shards, jobs = [], []

    def remembering(fit: GangFit, *how) -> list:
        shards.extend(refs := write(fit, *how))
        return refs

    def hiding(fit: GangFit, task, title: str, given, **how) -> list:
        jobs.append(title)
        count = jobs.count("compile the model") if title == "compile the model" else 0
        if count in (1, 3):  # the first that was written stays away, the second comes back
            os.rename(shards[-1].directory, shards[-1].directory + ".hidden")
        answers = gang(fit, task, title, given, **how)
        if count == 3:
            os.rename(shards[-1].directory + ".hidden", shards[-1].directory)
        return answers

    monkeypatch.setattr(GangFit, "_write", remembering)
    monkeypatch.setattr(GangFit, "_gang", hiding)
    with caplog.at_level(logging.WARNING):
        found, _ = fitted(rdd, epochs=1)
    assert same(one_epoch, found)
    # In its place, and elsewhere; where it was written again, in its place, and elsewhere.
    assert jobs.count("compile the model") == 4
    assert len(shards) == 4
    assert caplog.text.count("compiling the model was lost and is run again") == 1


@pytest.mark.fault(
    "A worker of a gang is killed (Spark Connect)",
    "Spark ends the barrier stage; its epochs are trained again from the progress before them",
    "those epochs and their job; the weights are equal to the last bit. What the killed worker remembered (an optimizer of its own, what "
    "a codec left out) may begin anew",
)
def test_a_killed_worker_costs_a_job_and_no_bit(rdd, ended, caplog: pytest.LogCaptureFixture) -> None:
    with inject(kill(1, epoch=1, signal=signal.SIGKILL)) as faults, caplog.at_level(logging.WARNING):
        survived, history = fitted(rdd, epochs=2, epochs_per_job=1)
    assert len(faults.happened) == 1
    assert "epoch 2 was lost and is run again" in caplog.text
    assert same(ended[0], survived)
    assert history.epoch == [0, 1]


def test_a_workers_error_comes_with_its_type_and_leaves_the_last_epochs_state(rdd, one_epoch) -> None:
    model = classifier()
    with inject(fail(0, epoch=1, error=LookupError("gone"))), pytest.raises(WorkerError, match="gone") as raised:
        fitted(rdd, model=model, epochs_per_job=1)
    assert isinstance(raised.value, LookupError)
    np.testing.assert_array_equal(one_epoch.get_weights()[0], model.get_weights()[0])


@pytest.fixture(scope="module")
def frame(spark):
    """The same rows in columns."""
    rows = [(row, int(label)) for row, label in zip(X.tolist(), Y, strict=True)]
    return spark.createDataFrame(rows, "features array<double>, label long")


def test_asynchronous_workers_train_every_row_of_an_rdd_or_a_dataframe(rdd, frame) -> None:
    for mode, data in (("asynchronous", rdd), ("hogwild", frame)):
        _, history = fitted(data, epochs=3, mode=mode, epochs_per_job=2)
        assert history.epoch == [0, 1, 2]
        assert history.history["loss"][-1] < history.history["loss"][0]
        assert sum(record.samples for record in history.rounds) >= 3 * 240


def test_arrays_are_trained_on_in_one_round_for_the_whole_fit(sc) -> None:
    spark_model = SparkModel(classifier(), 2, seed=5, engine="gang", batch_size=16, strategy="one_shot")
    history = spark_model.fit(X, Y, epochs=3, verbose=0)
    assert [record.samples for record in history.rounds] == [3 * 240]


def test_the_leader_takes_the_first_free_port_of_a_range_with_both_transports_and_tls(rdd, one_epoch) -> None:
    with taken_ports(2) as block:
        given = range_of(block)
        with pytest.raises(
            ElephasError, match=rf"cannot listen on 127.0.0.1:{given} .* all 2 ports of the range"
        ) as caught:
            fitted(rdd, epochs=1, port=given)
        assert "org.apache.spark" not in str(caught.value)
        block[1].close()
        over_tcp, _ = fitted(rdd, epochs=1, port=given, parameter_server_mode="socket", tls=True)
    assert same(one_epoch, over_tcp)


def test_what_cannot_be_is_said_before_any_job(rdd) -> None:
    with pytest.raises(ValueError, match="quorum needs"):
        fitted(rdd, quorum=1)
    with pytest.raises(ValueError, match="worker_callbacks need"):
        fitted(rdd, fit={"worker_callbacks": [keras.callbacks.Callback()]})


def test_what_callbacks_would_not_see_is_refused(rdd, tmp_path) -> None:
    for given in ({"callbacks": [keras.callbacks.Callback()]}, {"checkpoint_dir": str(tmp_path)}):
        with pytest.raises(ValueError, match="needs every epoch, and epochs_per_job=2"):
            fitted(rdd, epochs_per_job=2, fit=given)
        with pytest.raises(ValueError, match="needs mode='synchronous' with engine='gang'"):
            fitted(rdd, mode="asynchronous", fit=given)
    with pytest.raises(ValueError, match="no files of the driver's: use tls=True"):
        fitted(rdd, tls=("a.pem", "b.pem"))


def test_ctrl_c_pressed_twice_leaves_no_rows_and_a_checkpoint_with_what_workers_keep(
    rdd, two_epochs, scratch: Path, tmp_path: Path
) -> None:
    """Each epoch is a job then, and all are one where no progress is kept."""
    presses = iter([True])

    def pressed(context: SparkContext, tag: str) -> None:
        if next(presses, False):
            raise KeyboardInterrupt
        cancel_and_wait(context, tag)

    kept = {"checkpoint_dir": str(tmp_path), "validation_split": 0.1}
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(gang_fit, "cancel_and_wait", pressed)
        fitted(rdd, fit={**kept, "callbacks": [Stops()]}, **OWN)
    assert next(presses, None) is None
    assert not list(scratch.rglob("elephas_like-*"))

    resumed, history = fitted(rdd, fit=kept, **OWN)
    assert same(two_epochs[0], resumed)
    assert history.epoch == [0, 1]


@pytest.mark.fault(
    "Too few slots for a gang",
    "a CapacityError before any row is read; on a remote cluster a WaitError after join_timeout",
    "nothing is trained",
)
def test_too_few_slots_are_said(rdd) -> None:
    with pytest.raises(CapacityError, match="3 workers"):
        SparkModel(classifier(), 3, engine="gang").fit(rdd, verbose=0)


def test_no_rows_are_said(spark, rdd, frame) -> None:
    with pytest.raises(ValueError, match="no rows to train on"):
        fitted(spark.createDataFrame([], frame.schema))
    with pytest.raises(ValueError, match="no rows"):
        fitted(frame, epochs=1, fit={"validation_data": frame.filter("label > 10")})
    with pytest.raises(ValueError, match="no rows to train on"):
        fitted(rdd.filter(lambda row: False))


def test_an_error_that_cannot_be_pickled_keeps_its_words(rdd) -> None:
    class Odd(Nesterov):
        def step(self, weights, direction, outer, context):
            class Unfit(Exception):
                def __init__(self, one, other) -> None:
                    super().__init__(f"{one} and {other}")

            raise Unfit("this", "that")

    with pytest.raises(ElephasError, match=r"Unfit .*this and that"):
        fitted(rdd, strategy=Odd())


def test_bad_rows_are_named(sc) -> None:
    rows = [(row, int(label)) for row, label in zip(X, Y, strict=True)]
    rows[200] = (rows[200][0][:3], 1)
    with pytest.raises(DataError, match=r"partition 1, row 80: .*expected shape"):
        fitted(sc.parallelize(rows, 2))


@pytest.mark.fault(
    "Rows that a gang writes never come (Spark Connect)",
    "`WaitError` after `round_timeout`; tasks and files are gone",
    "the fit, before any training",
)
def test_rows_that_never_come_end_the_fit(sc) -> None:
    def rows(index, _):
        if index:
            threading.Event().wait()
        return [(row, int(label)) for row, label in zip(X, Y, strict=True)]

    assert sc.parallelize(range(2), 2).map(abs).sum() == 1  # Spark's Python processes are there
    never = sc.parallelize(range(2), 2).mapPartitionsWithIndex(rows)
    with pytest.raises(WaitError, match=r"2 workers to write their rows, .*round_timeout=1 s.*longer round_timeout"):
        fitted(never, epochs=1, round_timeout=1)
    assert sc.parallelize(range(2), 2).sum() == 1  # both slots are free


def test_workers_that_never_compile_end_the_fit(rdd, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = GangFit._gang

    def hang(member, batches):
        threading.Event().wait()

    def hanging(fit: GangFit, task, title: str, given, **how) -> list:
        if title != "compile the model":
            return gang(fit, task, title, given, **how)
        assert how["seconds"] == 60
        return gang(fit, hang, title, given, **(how | {"seconds": 1}))

    monkeypatch.setattr(GangFit, "_gang", hanging)
    with pytest.raises(WaitError, match=r"2 workers to compile the model, .*round_timeout=60 s"):
        fitted(rdd, epochs=1, round_timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1], ids=["leader", "another"])
def test_a_worker_that_hangs_is_named_and_ends_the_fit(sc, rdd, worker: int) -> None:
    fitted(rdd, epochs=1)  # processes that begin, and models that are compiled, take longer
    with inject(hang(worker, 1)), pytest.raises(WaitError, match=rf"round_timeout=6 s; missing: worker {worker}"):
        fitted(rdd, epochs=3, round_timeout=6)
    assert sc.parallelize(range(2), 2).sum() == 1  # both slots are free


@pytest.mark.slow
def test_a_member_that_never_comes_ends_the_fit(sc, rdd, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(rdd, epochs=1)
    gang = GangFit._gang

    def missing(fit: GangFit, task, title: str, given, **how) -> list:
        def one(member, batches):
            if member.rank == 1:
                threading.Event().wait()
            yield from task(member, batches)

        return gang(fit, one if title.startswith("epoch") else task, title, given, **how)

    monkeypatch.setattr(GangFit, "_gang", missing)
    with pytest.raises(WaitError, match=r"expected 2 workers to join within round_timeout=6 s"):
        fitted(rdd, epochs=1, round_timeout=6)
    assert sc.parallelize(range(2), 2).sum() == 1
