"""LocalTrainer: a state goes in, an update comes out, worked out against Keras and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import keras
import numpy as np
import pytest
from keras.src.random.seed_generator import global_seed_generator

from elephas_like.core.errors import ElephasError
from elephas_like.core.loop import FitPlan, fit_synchronously
from elephas_like.core.progress import FitProgress
from elephas_like.core.strategies import EASGD, Average, Int8, TopK
from elephas_like.core.types import (
    ASIDE,
    FitConfig,
    Mode,
    OptimizerState,
    Order,
    PackedStep,
    Recollection,
    ShardRef,
    Span,
    TrainState,
    Update,
    nothing,
)
from elephas_like.engine.in_process import InProcessSyncWorkers
from elephas_like.rows.spool import spool
from elephas_like.trainer.building import build
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.factories import TrainerFactory
from elephas_like.trainer.metric_results import metric_results
from elephas_like.trainer.programs import PROGRAMS
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.state import Variables
from elephas_like.trainer.worker import LocalTrainer
from trainer.small import config, mlp, rows, shard

X, Y = rows(22)


def prepared(optimizer: object = "adam", **compiled: object) -> keras.Model:
    model = mlp(optimizer, **compiled)
    build(model, (X[:1], Y[:1]))
    return model


def worker(
    model: keras.Model, ref: ShardRef, settings: FitConfig | None = None, validation: ShardRef | None = None
) -> LocalTrainer:
    factory = TrainerFactory(ModelSpec.from_model(model), settings or config(), Average(), Variables(model).layout.hash)
    return factory(ref.worker, ref, validation)


def train(trainer: LocalTrainer, state: TrainState, span: Span = Span(0), number: int = 0) -> Update:  # noqa: B008
    return trainer.train(Order("train", number, 0, span, state))


def test_an_update_is_the_way_that_keras_fit_goes(tmp_path: Path) -> None:
    model = prepared(metrics=["mae"])
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y), config(fused_optimizer=False))
    update = train(trainer, start)
    trainer.close()
    history = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
    end = Variables(model).read()
    np.testing.assert_array_equal(update.delta, end.weights - start.weights)
    np.testing.assert_array_equal(update.slots, end.slots)
    np.testing.assert_array_equal(update.counters, end.counters)
    assert (update.worker, update.number, update.samples, update.steps) == (0, 0, 22, 6)
    assert metric_results(model, update.metrics) == pytest.approx({k: v[0] for k, v in history.items()}, abs=1e-6)


@pytest.mark.parametrize("feeding", [{"resident_bytes": 0, "chunk_bytes": 1}, {"resident_bytes": 0}])
def test_rows_read_chunk_by_chunk_give_the_same_bits_as_rows_in_memory(tmp_path: Path, feeding: dict) -> None:
    model = prepared()
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    settings = config(shuffle=True, seed=3, validation_split=0.25)
    resident, chunked = worker(model, ref, settings), worker(model, ref, replace(settings, **feeding))
    for span in (Span(0, 0, 1, 3), Span(0, 1, 3, 3), Span(1)):
        one, other = train(resident, start, span), train(chunked, start, span)
        for name, array in one.arrays().items():
            np.testing.assert_array_equal(other.arrays()[name], array, err_msg=name)
    resident.close()
    chunked.close()


def test_spans_of_an_epoch_train_every_row_once(tmp_path: Path) -> None:
    model = prepared(keras.optimizers.SGD(0.0))
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y), config(shuffle=True))
    updates = [train(trainer, start, Span(0, part, part + 1, 4)) for part in range(4)]
    assert [update.steps for update in updates] == [1, 2, 1, 2]
    assert [update.samples for update in updates] == [4, 8, 4, 6]
    loss = sum(update.metrics[0] for update in updates) / 22
    assert loss == pytest.approx(model.evaluate(X, Y, verbose=0), abs=1e-6)
    trainer.close()


def test_a_span_of_several_epochs_is_their_sequence(tmp_path: Path) -> None:
    model = prepared()
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y), config(shuffle=True))
    both = train(trainer, start, Span(2, epochs=2))
    first = train(trainer, start, Span(2))
    between = start.but(weights=start.weights + first.delta, slots=first.slots, counters=first.counters)
    second = train(trainer, between, Span(3))
    assert both.samples == 44
    assert both.steps == trainer.steps_of(Span(2, epochs=2)) == 12
    np.testing.assert_allclose(both.delta, first.delta + second.delta, atol=1e-6)
    np.testing.assert_allclose(both.metrics, first.metrics + second.metrics, rtol=1e-5)
    trainer.close()


@pytest.mark.parametrize("scaled", [False, True])
def test_rounds_end_on_multiples_of_accumulated_gradients(tmp_path: Path, scaled: bool) -> None:
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=4)
    model = prepared(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    trainer = worker(model, shard(tmp_path, X, Y))
    assert trainer.joined(0, "here").accumulation == 4
    assert [trainer.steps_of(Span(0, part, part + 1, 3)) for part in range(3)] == [0, 4, 2]
    update = train(trainer, Variables(model).read(), Span(0, 0, 1, 3))
    assert (update.samples, update.steps, np.abs(update.delta).max()) == (0, 0, 0.0)
    trainer.close()


@pytest.mark.parametrize("treatment", OptimizerState)
def test_optimizer_slots_are_sent_kept_or_left(tmp_path: Path, treatment: OptimizerState) -> None:
    """Two rounds from the same state: only a worker that keeps its own momenta goes another way the second time."""
    model = prepared(keras.optimizers.SGD(0.01, momentum=0.9))
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y), config(optimizer_state=treatment))
    first, second = train(trainer, start), train(trainer, start)
    assert first.slots.size == (start.slots.size if treatment is OptimizerState.AVERAGE else 0)
    assert np.array_equal(first.delta, second.delta) == (treatment is not OptimizerState.PER_WORKER)
    trainer.close()


tensorflow_form = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="its train_step has TensorFlow's form: make test runs it"
)


class Follower(keras.Model):
    """A frozen base, and a target that follows the trained layer where it is told to."""

    def __init__(self, follows: bool) -> None:
        super().__init__()
        self.base, self.online, self.target = (keras.layers.Dense(4) for _ in range(3))
        self.base.trainable = self.target.trainable = False
        self.follows = follows

    def call(self, x):
        return keras.ops.sum(self.online(self.base(x)) - self.target(x), axis=-1, keepdims=True)

    def train_step(self, data):
        logs = super().train_step(data)
        if self.follows:
            for mine, theirs in zip(self.target.weights, self.online.weights, strict=True):
                mine.assign(0.9 * mine + 0.1 * theirs)
        return logs


@tensorflow_form
@pytest.mark.parametrize("follows", [False, True])
def test_what_frozen_layers_hold_is_brought_where_training_changed_it(tmp_path: Path, follows: bool) -> None:
    model = Follower(follows)
    model.compile("sgd", "mse")
    build(model, (X[:1], Y[:1]))
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    trainer, other = worker(model, ref), worker(model, ref)
    first = train(trainer, start)
    assert first.frozen.size == (start.frozen.size if follows else 0)
    train(other, start.but(weights=start.weights + 1, frozen=start.frozen + 1))  # the same program, another state
    again = train(trainer, start.but(frozen=nothing()))
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array, err_msg=name)
    trainer.close()
    other.close()


@tensorflow_form
def test_a_worker_keeps_what_frozen_layers_hold_of_orders_in_which_it_has_nothing_to_do(tmp_path: Path) -> None:
    model = Follower(False)
    model.compile("sgd", "mse")
    build(model, (X[:1], Y[:1]))
    start = Variables(model).read()
    one, other = worker(model, shard(tmp_path, X, Y)), worker(model, shard(tmp_path, X, Y))
    one.evaluate(Order("evaluate", 0, 0, state=start))
    assert train(one, start, Span(0, 0, 1, 100), 1).samples == 0
    left_out, whole = train(one, start.but(frozen=nothing()), number=2), train(other, start, number=2)
    np.testing.assert_array_equal(left_out.delta, whole.delta)
    one.close()
    other.close()


def dropped(seed: int | None = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5, seed=seed), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    build(model, (X[:1], Y[:1]))
    return model


class Noise(keras.layers.Layer):
    """Adds noise, and names no seed."""

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


def noisy() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    build(model, (X[:1], Y[:1]))
    return model


@pytest.mark.parametrize("made", [dropped, noisy])
def test_seeds_are_folded_from_seed_worker_and_round(made, tmp_path: Path) -> None:
    if made is noisy and keras.backend.backend() == "jax":
        pytest.skip("Keras refuses draws without a seed in compiled steps of JAX")
    model = made()
    start = Variables(model).read()

    def delta(seed: int = 1, index: int = 0, version: int = 0, number: int = 0, *, in_rounds: bool = True) -> bytes:
        ref = shard(tmp_path, X, Y, worker=index)
        trainer = worker(model, ref, config(num_workers=2, seed=seed, in_rounds=in_rounds))
        update = trainer.train(Order("train", number, version, Span(0), start))
        trainer.close()
        return update.delta.tobytes()

    assert delta() == delta()
    assert len({delta(), delta(seed=2), delta(index=1), delta(version=1)}) == 4
    assert delta(number=1) == delta()  # an order to evaluate came before
    assert delta(number=1, in_rounds=False) != delta()
    expected = delta()
    keras.utils.set_random_seed(9)  # as another model does that is made in this process
    assert delta() == expected


def test_layers_with_one_seed_draw_equally_on_each_of_several_workers(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4)(inputs)
    first, second, other = (keras.layers.Dropout(0.5, seed=seed) for seed in (3, 3, 4))
    # Zero where both keep the same, whatever the weights; the third is there so that not all seeds are one.
    unlike = keras.layers.Subtract()([first(hidden), second(hidden)])
    model = keras.Model(inputs, [unlike, other(hidden)])
    model.compile("sgd", ["mse", "mse"], loss_weights=[1.0, 0.0])
    zeros = np.zeros((len(X), 4), "float32")
    build(model, (X[:1], (zeros[:1], zeros[:1])))
    state = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, (zeros, zeros)), config(num_workers=2))
    for version in range(2):  # the second round goes on from the generators of the first
        update = trainer.train(Order("train", version, version, Span(0), state))
        assert metric_results(model, update.metrics)["loss"] == 0
        np.testing.assert_array_equal(update.seeds[:2], update.seeds[2:4])
        assert not np.array_equal(update.seeds[:2], update.seeds[4:6])
        state = state.but(seeds=update.seeds)
    trainer.close()


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="Keras refuses draws without a seed in compiled steps of JAX"
)
def test_a_worker_leaves_the_generator_of_draws_without_a_seed_as_it_was(tmp_path: Path) -> None:
    model = noisy()
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y))

    def drawn_after(trained: bool) -> np.ndarray:
        global_seed_generator().state.assign([7, 0])
        if trained:
            train(trainer, start)
        return keras.ops.convert_to_numpy(keras.random.normal((3,)))

    np.testing.assert_array_equal(drawn_after(True), drawn_after(False))
    trainer.close()


def test_one_worker_alone_carries_seeds_on_as_keras_does(tmp_path: Path) -> None:
    # Keras on PyTorch draws without a seed from the process' generator, and so does Keras' loader of rows there.
    on_torch = keras.backend.backend() == "torch"
    model = dropped(seed=3 if on_torch else None)
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y))
    update = train(trainer, start)
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    end = Variables(model).read()
    np.testing.assert_array_equal(update.seeds[:2], end.seeds[:2])
    np.testing.assert_array_equal(update.delta, end.weights - start.weights)
    assert not np.array_equal(update.seeds[:2], start.seeds[:2])
    trainer.close()


def test_rows_held_out_are_scored_without_class_weights_and_given_rows_instead_of_them(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    labels = (Y > 0).astype("int64")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy", "auc"])
    build(model, (X[:1], labels[:1]))
    state = Variables(model).read()
    settings = config(validation_split=0.5, class_weight={0: 7.0})
    split = worker(model, shard(tmp_path, X, labels), settings)
    given = worker(model, shard(tmp_path, X, labels), config(), shard(tmp_path, X[:5], labels[:5], name="held"))
    held_out = split._shard.validation_rows
    for trainer, x, y in ((split, X[held_out], labels[held_out]), (given, X[:5], labels[:5])):
        evaluation = trainer.evaluate(Order("evaluate", 3, state=state))
        assert evaluation.samples == trainer.joined(0, "here").validation_rows == len(x)
        expected = model.evaluate(x, y, return_dict=True, verbose=0)
        assert metric_results(model, evaluation.metrics) == pytest.approx(expected, abs=1e-6)
        trainer.close()


def test_evaluation_does_not_need_the_slots(tmp_path: Path) -> None:
    model = prepared()
    start = Variables(model).read()
    assert start.slots.size > start.weights.size
    trainer = worker(model, shard(tmp_path, X, Y), config(validation_split=0.5))
    state = train(trainer, start).delta + start.weights
    whole = trainer.evaluate(Order("evaluate", state=start.but(weights=state)))
    without = trainer.evaluate(Order.to_evaluate(start.but(weights=state)))
    np.testing.assert_array_equal(without.metrics, whole.metrics)
    trainer.close()


def test_evaluation_changes_nothing_of_the_training_that_follows(tmp_path: Path) -> None:
    model = prepared()
    start = Variables(model).read()
    trainer = worker(model, shard(tmp_path, X, Y), config(validation_split=0.5))
    before = train(trainer, start)
    trainer.evaluate(Order("evaluate", state=start.but(weights=start.weights * 2)))
    np.testing.assert_array_equal(train(trainer, start).delta, before.delta)
    trainer.close()


def test_a_worker_without_rows_says_so_and_answers_with_no_weight(tmp_path: Path) -> None:
    model = prepared()
    start = Variables(model).read()
    trainer = worker(model, spool([], dataset="none", worker=5, base=str(tmp_path)))
    joined = trainer.joined(3, "here")
    assert (joined.worker, joined.attempt, joined.host, joined.rows, joined.validation_rows) == (5, 3, "here", 0, 0)
    assert joined.layout_hash == Variables(model).layout.hash
    update = train(trainer, start)
    assert (update.samples, update.steps, update.metrics.size) == (0, 0, 0)
    assert not update.delta.any()
    assert trainer.evaluate(Order("evaluate", state=start)).samples == 0
    trainer.close()


def test_a_batch_larger_than_the_shard_is_one_step_of_its_rows(tmp_path: Path) -> None:
    model = prepared()
    trainer = worker(model, shard(tmp_path, X[:1], Y[:1]), config(batch_size=64))
    update = train(trainer, Variables(model).read())
    assert (update.samples, update.steps) == (1, 1)
    trainer.close()


class Diary(keras.callbacks.Callback):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def note(self, text: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def on_train_begin(self, logs=None) -> None:
        self.note(f"train of {self.params['steps']} steps")

    def on_train_end(self, logs=None) -> None:
        self.note("end")

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.note(f"epoch {epoch}")

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.note(f"epoch {epoch} over")

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self.note(f"batch {batch}")

    def on_train_batch_end(self, batch, logs=None) -> None:
        assert logs["loss"] > 0
        self.note(f"iteration {int(self.model.optimizer.iterations)}")


def test_worker_callbacks_are_called_around_the_worker_s_own_batches(tmp_path: Path) -> None:
    model = prepared()
    path = tmp_path / "diary"
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    factory = TrainerFactory(
        ModelSpec.from_model(model), config(), Average(), "", cloudpickle.dumps([Diary(str(path))])
    )
    trainer, plain = factory(0, ref, None), worker(model, ref)
    for span in (Span(4, 0, 1, 2), Span(4, 1, 2, 2)):
        np.testing.assert_array_equal(train(trainer, start, span).delta, train(plain, start, span).delta)
    trainer.close()
    plain.close()
    assert path.read_text().splitlines() == [
        "train of 3 steps",
        "epoch 4",
        "batch 0",
        "iteration 1",
        "batch 1",
        "iteration 1",
        "batch 2",
        "iteration 2",
        "epoch 4 over",
        "end",
    ]


class EpochLoss(keras.callbacks.Callback):
    def __init__(self, path: str, stop_after: int = -1) -> None:
        super().__init__()
        self.path, self.stop_after = path, stop_after

    def on_epoch_end(self, epoch, logs=None) -> None:
        Path(self.path).write_text(str(float(logs["loss"])))
        self.model.stop_training = epoch == self.stop_after


def test_a_worker_callback_sees_the_metrics_of_its_whole_epoch_and_the_update_those_of_its_span(tmp_path: Path) -> None:
    model = prepared()
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    pickled = cloudpickle.dumps([EpochLoss(str(tmp_path / "loss"))])
    trainer = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", pickled)(0, ref, None)
    first, second = (train(trainer, start, span).metrics for span in (Span(0, 0, 1, 2), Span(0, 1, 2, 2)))
    trainer.close()
    whole = first + second  # the loss tracker comes first, as (total, count)
    assert first[1] + second[1] == 10
    assert float((tmp_path / "loss").read_text()) == pytest.approx(whole[0] / whole[1], rel=1e-6)


class EpochLosses(keras.callbacks.Callback):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{float(logs['loss'])}\n")


def test_a_worker_callback_sees_each_epoch_of_a_long_span_and_the_update_has_all_of_them(tmp_path: Path) -> None:
    model = prepared()
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    pickled = cloudpickle.dumps([EpochLosses(str(tmp_path / "losses"))])
    trainer = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", pickled)(0, ref, None)
    update = train(trainer, start, Span(0, epochs=3))
    trainer.close()
    expected = model.fit(X[:10], Y[:10], batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
    seen = [float(line) for line in (tmp_path / "losses").read_text().split()]
    assert seen == pytest.approx(expected, rel=1e-5)
    assert update.metrics[:2] == pytest.approx([10 * sum(expected), 30], rel=1e-5)


def test_a_worker_callback_that_stops_is_told_that_it_cannot(tmp_path: Path) -> None:
    model = prepared()
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    pickled = cloudpickle.dumps([EpochLoss(str(tmp_path / "loss"), stop_after=0)])
    trainer = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", pickled)(0, ref, None)
    with pytest.raises(ElephasError, match=r"stop_training.*callbacks=\["):
        train(trainer, start, Span(0))
    trainer.close()


def test_a_worker_callback_that_compiles_anew_is_refused(tmp_path: Path) -> None:
    def compile_anew(*_: object) -> None:
        anew.model.compile("sgd", "mse")

    anew = keras.callbacks.LambdaCallback(on_epoch_begin=compile_anew)
    model = prepared()
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    trainer = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", cloudpickle.dumps([anew]))(
        0, ref, None
    )
    with pytest.raises(ElephasError, match="worker callback has compiled the model anew"):
        train(trainer, start, Span(0))
    trainer.close()


class StopsItself(keras.Sequential):
    def train_step(self, *arguments):
        self.stop_training = True
        return super().train_step(*arguments)


def test_a_train_step_that_stops_is_told_that_it_cannot(tmp_path: Path) -> None:
    model = StopsItself([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    build(model, (X[:1], Y[:1]))
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    trainer = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "")(0, ref, None)
    with pytest.raises(ElephasError, match=r"train step.*stop_training.*callbacks=\["):
        train(trainer, start, Span(0))
    trainer.close()


def test_epochs_of_a_straggler_begin_and_end_and_have_metrics_of_their_own(tmp_path: Path) -> None:
    # with a quorum it misses rounds: here the last two of one epoch, and the first of the next
    model = prepared()
    ref, start = shard(tmp_path, X[:10], Y[:10]), Variables(model).read()
    diary, losses = tmp_path / "diary", tmp_path / "losses"
    pickled = cloudpickle.dumps([Diary(str(diary)), EpochLosses(str(losses))])
    trainer = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", pickled)(0, ref, None)
    spans = (Span(0, 0, 1, 3), Span(1, 1, 2, 3), Span(1, 2, 3, 3))
    first, second, third = (train(trainer, start, span).metrics for span in spans)
    trainer.close()
    hooks = [line for line in diary.read_text().splitlines() if not line.startswith("iteration")]
    assert hooks == [
        "train of 3 steps",
        *("epoch 0", "batch 0", "epoch 0 over"),
        *("epoch 1", "batch 1", "batch 2", "epoch 1 over"),
        "end",
    ]
    assert [first[1], second[1], third[1]] == [4, 4, 2]  # rows, in the loss tracker's (total, count)
    both = second + third
    seen = [float(line) for line in losses.read_text().split()]
    assert seen == pytest.approx([first[0] / first[1], both[0] / both[1]], rel=1e-6)


class EndsBadly(keras.callbacks.Callback):
    def on_train_end(self, logs=None) -> None:
        raise OSError("the disk is full")


def test_a_worker_callback_that_fails_at_the_end_is_heard_and_keeps_no_model(tmp_path: Path) -> None:
    model = prepared()
    spec, pickled = ModelSpec.from_model(model), cloudpickle.dumps([EndsBadly()])
    trainer = TrainerFactory(spec, config(), Average(), "", pickled)(0, shard(tmp_path, X, Y), None)
    program = trainer._program
    with pytest.raises(OSError, match="the disk is full"):
        trainer.close()
    assert PROGRAMS.borrow(spec, (X[:1], Y[:1]), 0) is not program
    trainer.close()  # nothing is called twice


def test_an_elastic_worker_trains_on_from_its_own_weights(tmp_path: Path) -> None:
    # one worker, beta 1/2: it sends half of the way, and goes on from the other half, whatever it is served
    model = prepared(keras.optimizers.SGD(0.0625))
    start = Variables(model).read()
    factory = TrainerFactory(ModelSpec.from_model(model), config(), EASGD(beta=0.5), "")
    trainer, plain = factory(0, shard(tmp_path, X, Y), None), worker(model, shard(tmp_path, X, Y))
    way = train(plain, start)
    first = train(trainer, start)
    np.testing.assert_allclose(first.delta, way.delta / 2, atol=1e-7)
    moved = start.but(weights=start.weights + 100)
    second = train(trainer, moved)
    on = train(plain, start.but(weights=start.weights + way.delta - first.delta))
    own = start.weights + way.delta - first.delta + on.delta
    np.testing.assert_allclose(second.delta, (own - moved.weights) / 2, atol=1e-4)
    trainer.close()
    plain.close()


def test_a_packed_update_is_the_plain_one_packed(tmp_path: Path) -> None:
    model = prepared()
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    factory = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", codec=Int8())
    trainer, plain = factory(0, ref, None), worker(model, ref)
    packed, delta = train(trainer, start).delta, train(plain, start).delta
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, Int8().pack(delta))
    empty = train(trainer, start, Span(0, 0, 0, 1))
    assert (empty.samples, empty.delta.size) == (0, 0)
    trainer.close()
    plain.close()


def test_weights_that_an_order_leaves_out_are_those_before_and_a_packed_step(tmp_path: Path) -> None:
    model = prepared()
    start, ref, codec = Variables(model).read(), shard(tmp_path, X, Y), Int8()
    factory = TrainerFactory(ModelSpec.from_model(model), config(), Average(), "", codec=Int8(), state_codec=codec)
    told_whole, told_steps = factory(0, ref, None), factory(0, ref, None)
    weights, step = start.weights, PackedStep()
    for number, span in enumerate((Span(0, 0, 0, 1), Span(0), Span(1))):  # nothing to train in the first
        order = Order("train", number, 0, span, start.but(weights=weights), step=step)
        brief = order if number == 0 else replace(order, state=start.but(weights=nothing()))
        expected, found = told_whole.train(order), told_steps.train(brief)
        np.testing.assert_array_equal(found.delta, expected.delta)
        told_steps.evaluate(Order.to_evaluate(start, 9))  # which changes nothing of it
        packed = codec.pack(np.linspace(-1, 1 + number, weights.size, dtype=np.float32))
        weights, step = weights + codec.unpack(packed, weights.size), PackedStep(number, packed)
    with pytest.raises(
        ElephasError, match=r"worker 0 has the weights of order 2, and got the step from those of order 7"
    ):
        told_steps.train(replace(order, number=3, state=brief.state, step=PackedStep(7, packed)))
    for trainer in (told_whole, told_steps):
        trainer.close()


def test_weights_near_the_drivers_obey_constraints(tmp_path: Path) -> None:
    """A packed step may lead to -0.5 where the driver has 0. The loss of the first step is that of weights that obey."""
    model = mlp(keras.optimizers.SGD(0.0))
    model.layers[0].kernel_constraint = model.layers[0].kernel.constraint = keras.constraints.NonNeg()
    build(model, (X[:1], Y[:1]))
    start = Variables(model).read()
    factory = TrainerFactory(ModelSpec.from_model(model), config(batch_size=len(X)), Average(), "", state_codec=Int8())
    trainer = factory(0, shard(tmp_path, X, Y), None)
    near = np.full(start.weights.size, -0.5, np.float32)
    update = trainer.train(Order("train", 0, 0, Span(0), start.but(weights=near), step=PackedStep()))
    trainer.close()
    kernel, *others = (np.full(weight.shape, -0.5, np.float32) for weight in model.get_weights())
    losses = []
    for first in (kernel, np.maximum(kernel, 0)):
        model.set_weights([first, *others])
        losses.append(model.evaluate(X, Y, batch_size=len(X), verbose=0))
    assert update.metrics[0] / len(X) == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer_state": "per_worker"},
        {"optimizer_state": "reset"},
        {"optimizer_state_every": 9},
        {"optimizer_state_every": 3},  # all updates of the round that averages were dropped: they had NaN
    ],
    ids=str,
)
def test_slots_that_an_order_leaves_out_are_those_that_the_worker_has(tmp_path: Path, settings: dict) -> None:
    model = prepared()
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    start = start.but(slots=np.linspace(0, 1, start.slots.size, dtype=np.float32))
    told_always, told_once = (worker(model, ref, config(**settings)) for _ in range(2))
    for number, span in enumerate((Span(0, 0, 0, 1), Span(0), Span(1), Span(2))):  # nothing to train in the first
        order = Order("train", number, number, span, start)
        brief = order if number == 0 else replace(order, state=start.but(slots=nothing()))
        expected, found = told_always.train(order), told_once.train(brief)
        np.testing.assert_array_equal(found.delta, expected.delta)
    for trainer in (told_always, told_once):
        trainer.close()


class Told(InProcessSyncWorkers):
    """Notes the slots of each order, of its updates, and what workers remember after it."""

    def __init__(self, workers: list[LocalTrainer]) -> None:
        super().__init__(workers)
        self.served: list[float] = []
        self.sent: list[list[float]] = []
        self.kept: list[list[float]] = []

    def train(self, order: Order) -> Iterator[Update]:
        assert order.state is not None
        updates = list(super().train(order))
        memories = [recollection.memory for recollection in self.recall(order.number)]
        self.served += order.state.slots.tolist()
        self.sent.append([float(slot) for update in updates for slot in update.slots])
        self.kept.append([float(slot) for memory in memories for slot in memory.get("slots", ())])
        return iter(updates)


def test_slots_that_are_averaged_every_second_round_by_hand(tmp_path: Path) -> None:
    """The loss y w x has a gradient g of 1 on worker 0 and 3 on worker 1, whatever w is: m <- m/2 - g/2, w <- w + m, a step a round.

    Worker 1 has three rows, and no step in rounds 1 and 3. m begins at 0, then it is, on worker 0 and worker 1:
    round 1: -1/2, none; round 2: -1/4 - 1/2 = -3/4, -3/2, mean -9/8;
    round 3: -9/16 - 1/2 = -17/16, none; round 4: -17/32 - 1/2 = -33/32, -9/16 - 3/2 = -33/16, mean -99/64;
    round 5: -99/128 - 1/2 = -163/128, -99/128 - 3/2 = -291/128, mean -227/128: since round 4 each has trained one row.
    """
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), lambda y, p: y * p)
    build(model, (np.ones((1, 1), np.float32),) * 2)
    variables, x = Variables(model), np.ones((5, 1), np.float32)
    factory = TrainerFactory(
        ModelSpec.from_model(model), config(batch_size=1, optimizer_state_every=2), Average(), variables.layout.hash
    )
    shards = [shard(tmp_path, x, x), shard(tmp_path, x[:3], 3 * x[:3], worker=1)]
    workers = Told([factory(index, ref, None) for index, ref in enumerate(shards)])
    plan = FitPlan(
        layout=variables.layout,
        mode=Mode.SYNCHRONOUS,
        strategy=Average(),
        frequency=1,
        rounds_per_epoch=5,
        worker_rounds=(5, 5),
        num_workers=2,
        rows=8,
        initial_epoch=0,
        epochs=1,
        validates=False,
        keeps_slots=True,
        slots_every=2,
    )
    hooks = DriverHooks(model, [], epochs=1, verbose=0)
    start, _ = hooks.train_begin(0)
    end = fit_synchronously(workers, plan, hooks, FitProgress(start), hooks.loss_of)
    assert workers.served == [0, 0, -9 / 8, -9 / 8, -99 / 64]
    assert workers.sent == [[], [-3 / 4, -3 / 2], [], [-33 / 32, -33 / 16], []]
    assert workers.kept == [[-1 / 2], [], [-17 / 16], [], [-163 / 128, -291 / 128]]
    assert end.slots.tolist() == [-227 / 128]
    assert end.weights.tolist() == [-(1 / 2 + 9 / 8 + 17 / 16 + 99 / 64 + 227 / 128)]


def test_control_variates_by_hand(tmp_path: Path) -> None:
    """The loss (w - y)^2 / 2 with a rate of 1/2: w <- w/2 + y/2, where y is 0 on worker 0 and 4 on worker 1, two steps a round.

    round 1, from 0: worker 0 stays, its mean step is 0; worker 1: 2, 3, and its mean step is 3/2; mean 3/2, a mean step of 3/4.
    round 2, from 3/2, each step with 3/4 more on worker 0 and 3/4 less on worker 1:
        worker 0: 3/4 + 3/4 = 3/2, 3/2 again; less 2 x 3/4: its own way is -3/2, its mean step -3/4;
        worker 1: 3/4 + 2 - 3/4 = 2, 1 + 2 - 3/4 = 9/4; its own way is 9/4 - 3/2 + 3/2 = 9/4, its mean step 9/8;
        mean (-3/2 + 9/4) / 2 = 3/8: w = 15/8, a mean step of 3/16.
    """
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.5), lambda y, p: (p - y) ** 2 / 2)
    build(model, (np.ones((1, 1), np.float32),) * 2)
    variables, x = Variables(model), np.ones((4, 1), np.float32)
    settings = config(batch_size=1, control_variates=True, num_workers=2)
    factory = TrainerFactory(ModelSpec.from_model(model), settings, Average(), variables.layout.hash)
    shards = [shard(tmp_path, x, 0 * x), shard(tmp_path, x, 4 * x, worker=1)]
    workers = InProcessSyncWorkers([factory(index, ref, None) for index, ref in enumerate(shards)])
    plan = FitPlan(
        layout=variables.layout,
        mode=Mode.SYNCHRONOUS,
        strategy=Average(),
        frequency=2,
        rounds_per_epoch=2,
        worker_rounds=(2, 2),
        num_workers=2,
        rows=8,
        initial_epoch=0,
        epochs=1,
        validates=False,
        control_variates=True,
    )
    hooks = DriverHooks(model, [], epochs=1, verbose=0)
    start, _ = hooks.train_begin(0)
    progress = FitProgress(start)
    end = fit_synchronously(workers, plan, hooks, progress, hooks.loss_of)
    assert end.weights.tolist() == [15 / 8]
    # Both are kept in units of the learning rate.
    assert progress.mean_step.tolist() == [3 / 16 / 0.5]
    kept = [one.memory["variate"].tolist() for one in workers.recall(progress.orders - 1)]
    assert kept == [[-3 / 4 / 0.5], [9 / 8 / 0.5]]


def test_a_worker_that_missed_an_average_goes_on_with_it_and_not_with_slots_from_before(tmp_path: Path) -> None:
    """As a straggler does that trained in round 1, and then again in round 4; also if a checkpoint was written in between."""
    model = prepared()
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    late, resumed, fresh = (worker(model, ref, config(optimizer_state_every=3)) for _ in range(3))
    third = Order("train", 4, 4, Span(1), start.but(slots=np.ones_like(start.slots)))
    for version in (3, 4):
        order = Order("train", version, version, Span(0), start)
        late.train(order)
    for version, kept in ((5, True), (6, False)):
        memory = late.recall(Order("recall", ASIDE, 4)).memory
        assert memory["slots_since"].tolist() == [3]
        resumed.remind(Order("remind", ASIDE, 4, memory=memory))
        order = replace(third, number=version, version=version)
        expected = fresh.train(order).delta.tobytes()
        assert (resumed.train(order).delta.tobytes() != expected) is kept
    assert late.train(order).delta.tobytes() == expected
    for trainer in (late, resumed, fresh):
        trainer.close()


@pytest.mark.parametrize("out_of_date", [False, True])
def test_what_a_worker_saves_counts_for_the_next_order_only(tmp_path: Path, out_of_date: bool) -> None:
    """A worker whose optimizer slots stay with it is suspended after order 4, and resumed with order 5 or 6."""
    model = prepared()
    start, ref, file = Variables(model).read(), shard(tmp_path, X, Y), str(tmp_path / "saved" / "worker-0.npz")
    settings = config(optimizer_state="per_worker")
    stays, goes, comes, fresh = (worker(model, ref, settings) for _ in range(4))
    for trainer in (stays, goes):
        train(trainer, start, number=4)
    goes.save(file)
    comes.restore(file)
    assert not (tmp_path / "saved").exists()
    number = 6 if out_of_date else 5
    expected = train(fresh if out_of_date else stays, start, Span(1), number).delta
    np.testing.assert_array_equal(train(comes, start, Span(1), number).delta, expected)
    for trainer in (stays, goes, comes, fresh):
        trainer.close()


def remembering(model: keras.Model, ref: ShardRef, **settings: object) -> LocalTrainer:
    """A worker that keeps weights, slots and what its codec lost to itself."""
    settings = {"optimizer_state": "per_worker", "keeps_before": True} | settings
    factory = TrainerFactory(ModelSpec.from_model(model), config(**settings), EASGD(), "", codec=TopK(0.5))
    return factory(0, ref, None)


def told(recollection: Recollection) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in recollection.memory.items()}


def test_what_a_worker_remembers_is_told_and_taken_over(tmp_path: Path) -> None:
    model = prepared()
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    stays, comes, fresh = (remembering(model, ref) for _ in range(3))
    assert stays.recall(Order("recall", ASIDE, 0)) == Recollection(0, ASIDE)
    train(stays, start, number=4)
    kept = stays.recall(Order("recall", ASIDE + 1, 4))
    assert {name: array.size for name, array in kept.memory.items()} == {
        "slots": start.slots.size,
        "residual": start.weights.size,
        "memory.own": start.weights.size,
    }
    reminder = Order("remind", ASIDE, 4, memory=kept.memory)
    assert comes.remind(reminder) == Recollection(0, ASIDE)
    assert told(comes.recall(Order("recall", ASIDE + 1, 4))) == told(kept)
    # it may be suspended before its first order
    comes.save(str(tmp_path / "saved" / "worker-0.npz"))
    comes.close()
    comes = remembering(model, ref)
    comes.restore(str(tmp_path / "saved" / "worker-0.npz"))
    expected = train(stays, start, Span(1), number=5).delta.tobytes()
    assert train(comes, start, Span(1), number=5).delta.tobytes() == expected
    assert train(fresh, start, Span(1), number=5).delta.tobytes() != expected
    for trainer in (stays, comes, fresh):
        trainer.close()


def test_a_worker_that_is_ahead_tells_what_it_remembered_before(tmp_path: Path) -> None:
    model = prepared()
    start, ref = Variables(model).read(), shard(tmp_path, X, Y)
    trainer, forgets = remembering(model, ref), remembering(model, ref, keeps_before=False)
    for each in (trainer, forgets):
        train(each, start, number=4)
    before = told(trainer.recall(Order("recall", 5, 4)))
    for each in (trainer, forgets):
        train(each, start, Span(1), number=6)
    after = told(trainer.recall(Order("recall", 7, 6)))
    assert before.keys() == after.keys()
    assert before["memory.own"] != after["memory.own"]
    assert told(trainer.recall(Order("recall", 8, 4))) == told(trainer.recall(Order("recall", 9, 5))) == before
    assert told(forgets.recall(Order("recall", 7, 6))) == after
    assert told(forgets.recall(Order("recall", 8, 4))) == {}
    trainer.close()
    forgets.close()


@pytest.mark.parametrize("out_of_date", [False, True])
def test_a_recall_after_a_suspension_is_answered_with_what_was_saved_if_it_is_the_latest(
    tmp_path: Path, out_of_date: bool
) -> None:
    model = prepared()
    start, ref, file = Variables(model).read(), shard(tmp_path, X, Y), str(tmp_path / "saved" / "worker-0.npz")
    goes, comes = remembering(model, ref), remembering(model, ref)
    train(goes, start, number=4)
    kept = told(goes.recall(Order("recall", ASIDE, 4)))
    goes.save(file)
    comes.restore(file)
    told_now = told(comes.recall(Order("recall", ASIDE + 1, 5 if out_of_date else 4)))
    assert told_now == ({} if out_of_date else kept)
    goes.close()
    comes.close()
