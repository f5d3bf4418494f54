"""One trial, in this process: what it trains, reports and brings back."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from trainer.small import operations

from elephas_like.core.errors import ElephasError, NonFiniteError
from elephas_like.core.extras import older
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialOrder, TrialStatus
from elephas_like.core.types import FitConfig, ShardRef
from elephas_like.rows.spool import Block, spool
from elephas_like.trainer import kept
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.batches import sample_of
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.own_optimizers import own_optimizers
from elephas_like.tuning.trial import KerasTrial, checked, file_of, forget_rows, restore

LOSS = Objective("loss")


def line(params: dict) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(params.get("rate", 0.1), momentum=0.5), "mse", metrics=["mae"])
    return model


def shard(folder: Path, rows: int = 20, name: str = "rows") -> ShardRef:
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype("float32")
    block = Block((x, x.sum(axis=1)), rows)
    return spool([block], dataset=name, worker=0, base=str(folder))


def trial(
    objective: Objective = LOSS, epochs: int = 3, callbacks: list | None = None, build=line, **config
) -> KerasTrial:
    shipped = pickle_by_value(callbacks) if callbacks else b""
    return KerasTrial(pickle_by_value([build]), objective, epochs, FitConfig(seed=1, **config), shipped)


def go_on(epoch: int, logs: object) -> bool:
    return True


@pytest.fixture(autouse=True)
def no_rows_left():
    yield
    forget_rows()


def test_a_trial_is_what_keras_would_have_trained(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    result = trial(shuffle=False)(TrialOrder(4, {"rate": 0.05}, batch_size=8), [ref], go_on)

    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    keras.utils.set_random_seed(int(np.random.SeedSequence([1, 4]).generate_state(1)[0]))
    plain = line({"rate": 0.05})
    history = plain.fit(x, x.sum(axis=1), epochs=3, batch_size=8, shuffle=False, verbose=0).history

    assert result.status is TrialStatus.OK
    for name in ("loss", "mae"):
        np.testing.assert_allclose([logs[name] for logs in result.history], history[name], rtol=1e-5)
    assert result.best_epoch == 2
    assert result.loss == result.history[2]["loss"]
    path = tmp_path / "model.keras"
    path.write_bytes(result.model)
    mine = restore(line({"rate": 0.05}), path, sample_of(ref))
    for one, other in zip(mine.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert int(mine.optimizer.iterations) == 9  # 3 batches, 3 epochs: the optimizer's state came too
    assert float(np.abs(mine.optimizer.variables[2]).sum()) > 0


def test_the_graphs_of_a_trial_go_with_it(tmp_path: Path) -> None:
    """Keras' optimizers register gradients with TensorFlow for good, and so does `silu`."""

    def curved(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "silu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    refs, evaluate = [shard(tmp_path)], trial(build=curved, validation_split=0.2)

    def ran(number: int) -> int:
        assert evaluate(TrialOrder(number, {}, batch_size=8), refs, go_on).status is TrialStatus.OK
        return operations()

    before = ran(0)  # of what is traced once for all
    assert ran(1) <= before


def test_a_large_model_of_a_trial_is_freed_before_the_next_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_WORTH_FREEING", 1)
    there = []

    def looking(params: dict) -> keras.Model:
        models = [thing for thing in gc.get_objects() if isinstance(thing, keras.Model) and thing.name == "tried"]
        there.append(len(models))
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="tried")
        model.compile("sgd", "mse")
        return model

    evaluate = replace(trial(), build=b"")
    monkeypatch.setattr("elephas_like.tuning.trial.cloudpickle.loads", lambda build: [looking])
    gc.collect()
    gc.disable()  # Python would free them some time
    try:
        for number in range(2):
            evaluate(TrialOrder(number, {}, batch_size=8), [shard(tmp_path, name=f"rows{number}")], go_on)
    finally:
        gc.enable()
    assert there == [0, 0]


def test_models_are_built_under_the_settings_of_whoever_searches(tmp_path: Path) -> None:
    """Keras keeps the policy for each thread, and trials run in other threads and processes."""

    def mixed(params: dict) -> keras.Model:
        model = line(params)
        assert model.layers[0].compute_dtype == "bfloat16"
        return model

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        evaluate = trial(build=mixed)
    finally:
        keras.config.set_dtype_policy("float32")
    result = evaluate(TrialOrder(0, {}, batch_size=8), [shard(tmp_path)], go_on)
    assert result.status is TrialStatus.OK
    assert keras.config.dtype_policy().name == "float32"


def test_a_fused_optimizer_is_that_of_trials_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order: nearly the same losses. The file is one of Keras' own optimizer."""
    fused, fuse = [], BACKEND.fuse
    monkeypatch.setattr(BACKEND, "fuse", lambda optimizers: fused.append(fuse(optimizers)))

    def adam(params: dict) -> keras.Model:
        model = line(params)
        model.compile("adam", "mse", metrics=["mae"])
        return model

    ref = shard(tmp_path)
    results = [
        trial(epochs=3, build=adam, fused_optimizer=chosen)(TrialOrder(0, {}, batch_size=8), [ref], go_on)
        for chosen in (False, True)
    ]
    assert fused == [fuse(own_optimizers(adam({})))]
    assert [r.history[2]["loss"] for r in results] == pytest.approx([results[0].history[2]["loss"]] * 2, rel=1e-5)
    path = tmp_path / "model.keras"
    path.write_bytes(results[1].model)
    assert int(restore(adam({}), path, sample_of(ref)).optimizer.iterations) == 9


def test_the_model_has_the_state_of_the_best_epoch(tmp_path: Path) -> None:
    ref = shard(tmp_path)

    class Diverges(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.optimizer.learning_rate = 30.0

    result = trial(Objective("val_loss"), 4, [Diverges()], validation_split=0.5)(TrialOrder(0, {}), [ref], go_on)
    assert result.best_epoch == 1
    assert result.loss == min(logs["val_loss"] for logs in result.history)
    path = tmp_path / "model.keras"
    path.write_bytes(result.model)
    mine = restore(line({}), path, sample_of(ref))
    assert int(mine.optimizer.iterations) == 2


def test_the_same_number_gives_the_same_trial_and_another_another(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    one, again, other = (trial()(TrialOrder(number, {}), [ref], go_on) for number in (0, 0, 1))
    assert one.history == again.history
    assert one.history != other.history
    before = np.random.get_state()[1].tolist()
    trial()(TrialOrder(0, {}), [ref], go_on)
    assert np.random.get_state()[1].tolist() == before


def test_rows_beyond_memory_are_read_in_chunks_and_change_nothing(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    resident, chunked = (
        trial(resident_bytes=size, chunk_bytes=100)(TrialOrder(0, {}, batch_size=4), [ref], go_on)
        for size in (2**20, 1)
    )
    assert resident.history == chunked.history


def test_a_trial_ends_when_told_to_and_when_a_callback_wants(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    reported: list[int] = []

    def report(epoch: int, logs: object) -> bool:
        reported.append(epoch)
        return epoch < 1

    stopped = trial(epochs=10)(TrialOrder(0, {}), [ref], report)
    assert (stopped.status, len(stopped.history), reported) == (TrialStatus.PRUNED, 2, [0, 1])
    patient = trial(epochs=10, callbacks=[keras.callbacks.EarlyStopping("loss", patience=1, min_delta=100.0)])
    early = patient(TrialOrder(0, {}), [ref], go_on)
    assert (early.status, len(early.history)) == (TrialStatus.OK, 2)
    assert len(patient(TrialOrder(1, {}), [ref], go_on).history) == 2  # a copy of the callback's own


def test_callbacks_that_ask_for_batches_get_them(tmp_path: Path) -> None:
    class Counts(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1

        def on_epoch_end(self, epoch, logs):
            assert self.params == {"verbose": 0, "epochs": 3, "steps": 3}
            logs |= {"batches": float(self.batches), "at": "noon", "none": None}  # what are no numbers stay out

    ref, seen = shard(tmp_path), tmp_path / "seen"

    def note(batch, logs):
        with seen.open("a") as file:  # this function is copied for the trial
            file.write(f"{batch} {sorted(logs)};")

    with_hooks = trial(callbacks=[Counts()])(TrialOrder(0, {}, batch_size=8), [ref], go_on)
    assert [logs["batches"] for logs in with_hooks.history] == [3.0, 6.0, 9.0]
    assert set(with_hooks.history[0]) == {"loss", "mae", "batches"}
    noted = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    trial(epochs=1, callbacks=[noted])(TrialOrder(0, {}, batch_size=8), [ref], go_on)
    assert seen.read_text() == "0 ['loss', 'mae'];1 ['loss', 'mae'];2 ['loss', 'mae'];"
    without = trial()(TrialOrder(0, {}, batch_size=8), [ref], go_on)
    np.testing.assert_allclose([h["loss"] for h in with_hooks.history], [h["loss"] for h in without.history], rtol=1e-6)


def test_callbacks_see_the_validation_begin_and_end(tmp_path: Path) -> None:
    class Biased(keras.callbacks.Callback):
        """Scores another model than the one that is trained, as SwapEMAWeights does."""

        def on_test_begin(self, logs=None):
            self.own = self.model.get_weights()
            self.model.set_weights([weight + 10 for weight in self.own])

        def on_test_end(self, logs=None):
            self.seen = logs["mae"]
            self.model.set_weights(self.own)

        def on_epoch_end(self, epoch, logs):
            assert logs["val_mae"] == self.seen

    ref, held = shard(tmp_path), shard(tmp_path, rows=7, name="held")
    plain, biased = (trial(callbacks=own)(TrialOrder(0, {}), [ref, held], go_on).history for own in ([], [Biased()]))
    assert [logs["loss"] for logs in biased] == [logs["loss"] for logs in plain]
    assert all(one["val_loss"] > other["val_loss"] + 1 for one, other in zip(biased, plain, strict=True))


def test_validation_rows_given_apart_are_scored(tmp_path: Path) -> None:
    rows, held = shard(tmp_path), shard(tmp_path, rows=7, name="held")
    result = trial(Objective("val_loss"), 1)(TrialOrder(0, {}), [rows, held], go_on)
    path = tmp_path / "model.keras"
    path.write_bytes(result.model)
    x = np.random.default_rng(0).normal(size=(7, 2)).astype("float32")
    scored = restore(line({}), path, sample_of(rows)).evaluate(x, x.sum(axis=1), verbose=0)
    assert result.loss == pytest.approx(scored[0], rel=1e-5)


def test_a_model_that_cannot_win_stays_where_it_is(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    assert trial()(TrialOrder(0, {}, keep_below=1e-9), [ref], go_on).model == b""
    result = trial()(TrialOrder(0, {}, keep_below=1e9), [ref], go_on)
    assert result.model
    assert trial()(TrialOrder(0, {}, keep_below=result.loss), [ref], go_on).model  # as good as the worst that is kept


def test_a_model_that_spark_would_not_bring_back_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    """Weights, bias, their momenta and the learning rate are 7 numbers of 4 bytes; the steps have 8."""
    epochs = []
    small, large = (replace(trial(), largest_result=limit) for limit in (35, 36))
    with pytest.raises(ElephasError, match=r"the trial's model .* is more than spark.driver.maxResultSize"):
        small(TrialOrder(0, {}), [shard(tmp_path)], lambda epoch, logs: bool(epochs.append(epoch)))
    assert not epochs
    assert large(TrialOrder(0, {}), [shard(tmp_path)], go_on).status is TrialStatus.OK


def test_what_is_no_trial_is_an_error(tmp_path: Path) -> None:
    ref = shard(tmp_path)
    with pytest.raises(
        ElephasError, match=r"'val_loss' was never a finite number; it was not among the logs \(loss, mae\)"
    ):
        trial(Objective("val_loss"))(TrialOrder(0, {}), [ref], go_on)
    with pytest.raises(ElephasError, match=r"'loss' was never a finite number; it was \[(nan|inf)"):
        trial(epochs=1)(TrialOrder(0, {"rate": math.inf}, batch_size=4), [ref], go_on)
    with pytest.raises(ValueError, match="no rows to train on"):
        trial()(TrialOrder(0, {}), [shard(tmp_path, rows=0, name="none")], go_on)
    with pytest.raises(TypeError, match=r"must return a compiled keras.Model; got int"):
        checked(3)
    with pytest.raises(ValueError, match=r"is not\. Call model.compile"):
        checked(keras.Sequential([keras.layers.Dense(1)]))


def guessing(params: dict) -> keras.Model:
    """A classifier that always says the first class once its weights are NaN."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2, "softmax")])
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(keras.optimizers.SGD(params["rate"]), loss, metrics=["accuracy"])
    return model


def test_the_accuracy_of_a_model_of_nan_is_none(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype("float32")
    ref = spool([Block((x, np.zeros(40)), 40)], dataset="one class", worker=0, base=str(tmp_path), expect_target=True)
    reports: list[dict] = []

    def report(epoch: int, logs: dict) -> bool:
        reports.append(logs)
        return True

    run = trial(Objective("accuracy", maximize=True), build=guessing)
    with pytest.raises(
        NonFiniteError, match=r"weights are NaN or infinity after epoch 1\. .*learning rate that is too high"
    ):
        run(TrialOrder(0, {"rate": 1e38}), [ref], report)
    assert all(math.isnan(logs["accuracy"]) for logs in reports)
    assert run(TrialOrder(1, {"rate": 0.01}), [ref], report).status is TrialStatus.OK


class Own(keras.Model):
    """A model that Keras cannot save whole."""

    def __init__(self, layer):
        super().__init__()
        self.dense = layer

    def call(self, x):
        return self.dense(x)


def test_a_model_that_keras_cannot_save_brings_its_weights(tmp_path: Path) -> None:
    def own(params):
        model = Own(keras.layers.Dense(1))
        model.compile("sgd", "mse")
        return model

    ref = shard(tmp_path)
    result = trial(build=own)(TrialOrder(0, {}), [ref], go_on)
    suffix = ".keras" if older(keras.__version__, "3.9") else ".weights.h5"  # Keras 3.8 saves it
    assert result.suffix == suffix
    path = tmp_path / f"model{suffix}"
    path.write_bytes(result.model)
    mine = restore(own({}), path, sample_of(ref))
    assert file_of(mine)[1] == suffix
    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    assert mine.evaluate(x, x.sum(axis=1), verbose=0) < result.history[0]["loss"]


def test_a_restored_model_trains_its_lora_on(tmp_path: Path) -> None:
    """Keras loads zeros for both factors of an update, neither of which a step moves then."""

    def adapted(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.layers[0].enable_lora(2)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    ref = shard(tmp_path)
    result = trial(build=adapted)(TrialOrder(0, {}, batch_size=20), [ref], go_on)
    path = tmp_path / "model.keras"
    path.write_bytes(result.model)
    mine = restore(adapted({}), path, sample_of(ref))
    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    y = x.sum(axis=1)
    before, factors = mine.evaluate(x, y, verbose=0), mine.layers[0].lora_kernel_b
    assert before < result.loss  # the update is part of the kernel
    mine.layers[1].trainable = False
    mine.compile(keras.optimizers.SGD(0.05), "mse")
    mine.fit(x, y, batch_size=20, epochs=3, verbose=0)
    assert np.abs(keras.ops.convert_to_numpy(factors)).max() > 0
    assert mine.evaluate(x, y, verbose=0) < before


def test_a_function_may_compile_all_its_models_with_one_optimizer(tmp_path: Path) -> None:
    optimizer = keras.optimizers.Adam(0.03)

    def build(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        return model

    ref = shard(tmp_path)
    result = trial(build=build)(TrialOrder(0, {}, batch_size=20), [ref], go_on)
    path = tmp_path / "model.keras"
    path.write_bytes(result.model)
    for _ in range(2):
        assert int(restore(checked(build({})), path, sample_of(ref)).optimizer.iterations) == 3


def test_callbacks_see_the_batches_of_the_validation_and_the_last_logs(tmp_path: Path) -> None:
    noted = tmp_path / "noted"

    class Notes(keras.callbacks.Callback):
        def note(self, what):
            with noted.open("a") as file:
                file.write(f"{what};")

        def on_test_batch_begin(self, batch, logs=None):
            self.note(f"begin {batch}")

        def on_test_batch_end(self, batch, logs=None):
            self.note(f"end {batch} {sorted(logs)}")

        def on_train_end(self, logs=None):
            self.note(sorted(logs))

    ref, held = shard(tmp_path), shard(tmp_path, rows=10, name="held")
    hooked, plain = (
        trial(epochs=1, callbacks=own)(TrialOrder(0, {}, batch_size=8), [ref, held], go_on).history
        for own in ([Notes()], [])
    )
    said = "begin 0;end 0 ['loss', 'mae'];begin 1;end 1 ['loss', 'mae'];['loss', 'mae', 'val_loss', 'val_mae'];"
    assert noted.read_text() == said
    assert hooked[0].keys() == plain[0].keys()
    np.testing.assert_allclose(list(hooked[0].values()), list(plain[0].values()), rtol=1e-6)


@pytest.mark.parametrize("on_epoch", [False, True])
def test_the_averages_that_were_scored_are_the_model_s_weights(tmp_path: Path, on_epoch: bool) -> None:
    def averaged(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
        return model

    ref, held = shard(tmp_path), shard(tmp_path, rows=10, name="held")
    x = np.random.default_rng(0).normal(size=(10, 2)).astype("float32")  # the rows of the second shard
    swaps = trial(Objective("val_loss"), 3, [keras.callbacks.SwapEMAWeights(on_epoch)], averaged)
    result = swaps(TrialOrder(0, {}, batch_size=8), [ref, held], go_on)
    path = tmp_path / f"best{result.suffix}"
    path.write_bytes(result.model)
    found = restore(averaged({}), path, None)
    assert found.evaluate(x, x.sum(axis=1), verbose=0) == pytest.approx(result.loss, rel=1e-4)


def test_without_validation_rows_nobody_scored_the_averages(tmp_path: Path) -> None:
    def averaged(params: dict) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
        return model

    ref, results = shard(tmp_path), []
    for callbacks in ([], [keras.callbacks.SwapEMAWeights()]):
        result = trial(callbacks=callbacks, build=averaged)(TrialOrder(0, {}, batch_size=8), [ref], go_on)
        path = tmp_path / f"best{result.suffix}"
        path.write_bytes(result.model)
        results.append(restore(averaged({}), path, None).get_weights())
    for plain, swapped in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, swapped)
