"""Fits that end amid their epochs and go on from a checkpoint: with the same bits, or with an error that says why not."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mortal import Killed, Mortal, MortalElastic, bits

from elephas_like import ElephasError, SparkModel
from elephas_like.core.errors import ElephasWarning
from elephas_like.model import one_at_a_time
from elephas_like.model.checkpoints import Checkpoints, Found
from elephas_like.rows.spool import Block
from elephas_like.spark import files

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RANDOM.normal(0, 0.1, (48, 1))).astype("float32")
HELD = (X[:16], Y[:16])


def regression(optimizer: Callable[[], object] = lambda: "adam") -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer(), "mse", metrics=["mae"])
    return model


def small(optimizer: str | keras.optimizers.Optimizer = "adam") -> keras.Model:
    """One layer, for what does not hang on the model."""
    return stacked(optimizer=optimizer)


def stacked(*layers: keras.layers.Layer, optimizer: str | keras.optimizers.Optimizer = "adam") -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def decaying() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 40), use_ema=True)


def callbacks() -> list[keras.callbacks.Callback]:
    return [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.2),
        keras.callbacks.EarlyStopping("val_loss", patience=4, min_delta=10, restore_best_weights=True),
    ]


def fit(
    model: keras.Model,
    checkpoint_dir: Path | str | None = None,
    *,
    workers: int = 2,
    dies_at: int | None = None,
    options: dict | None = None,
    **given: object,
) -> keras.callbacks.History | None:
    """One fit of four epochs of three rounds, without validation; None if it died."""
    Mortal.dies_at = dies_at
    chosen = {"engine": "in_process", "batch_size": 8, "seed": 5, "strategy": Mortal(), "frequency": 1}
    spark_model = SparkModel(model, workers, **(chosen | (options or {})))
    arguments = {"epochs": 4, "verbose": 0, "checkpoint_dir": checkpoint_dir}
    try:
        return spark_model.fit(X, Y, **(arguments | given))
    except Killed:
        return None


def told(history: keras.callbacks.History) -> tuple:
    """What a History says, but for times."""
    rounds = [(r.round, r.epoch, r.of, r.loss, r.cosine, r.drift, r.samples) for r in history.rounds]
    return history.history, history.epoch, rounds, len(history.epoch_seconds)


@pytest.fixture(scope="module")
def whole() -> tuple[list[bytes], tuple]:
    """The bits and the History of a fit that never died. It is stopped early, after five epochs."""
    model = regression()
    history = fit(model, callbacks=callbacks(), validation_data=HELD, epochs=6)
    assert len(history.rounds) == 15
    return bits(model), told(history)


@pytest.mark.parametrize(("freq", "deaths"), [("epoch", [14]), (1e-9, [0, 1, 4, 10])], ids=["epoch", "always"])
def test_a_fit_that_died_goes_on_with_the_same_bits(
    tmp_path: Path, whole: tuple[list[bytes], tuple], freq: str | float, deaths: list[int]
) -> None:
    """It may die again and again: before its first round, amid an epoch, and at its end."""
    given = {"validation_data": HELD, "checkpoint_freq": freq, "epochs": 6}
    for dies_at in deaths:
        assert fit(regression(), tmp_path, dies_at=dies_at, callbacks=callbacks(), **given) is None
    again = regression()  # a new program: nothing is left but the files
    history = fit(again, tmp_path, callbacks=callbacks(), **given)
    assert (bits(again), told(history)) == whole
    assert list(tmp_path.iterdir()) == []  # the fit is over


@pytest.mark.parametrize(
    ("optimizer", "options", "given"),
    [
        (decaying, {"frequency": "auto", "codec": "int8"}, {}),
        (lambda: "adam", {"state_codec": "int4"}, {"checkpoint_freq": 1e-9, "initial_epoch": 1, "shuffle": False}),
        (
            lambda: keras.optimizers.SGD(0.01, momentum=0.9),
            {"optimizer_state": "reset", "frequency": "epoch"},
            {"global_batch_size": 15, "validation_split": 0.25},
        ),
    ],
)
def test_all_kinds_of_fits(tmp_path: Path, optimizer: Callable[[], object], options: dict, given: dict) -> None:
    given = ({} if "validation_split" in given else {"validation_data": HELD}) | given
    whole, again = regression(optimizer), regression(optimizer)
    expected = fit(whole, options=options, **given)
    last = expected.rounds[-1].round
    assert fit(again, tmp_path, dies_at=last, options=options, **given) is None
    history = fit(again, tmp_path, options=options, **given)
    assert bits(again) == bits(whole)
    assert told(history) == told(expected)


def test_a_relative_directory_stays_where_it_was_when_the_fit_began(tmp_path: Path, monkeypatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    moves = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: os.chdir(elsewhere))
    assert fit(small(), "relative", dies_at=8, callbacks=[moves]) is None
    marker = json.loads(newest(tmp_path / "relative").read_text())
    assert marker["history"]["epoch"] == [0, 1]
    assert list(elsewhere.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    fit(small(), "relative", callbacks=[moves])
    assert list((tmp_path / "relative").iterdir()) == []  # the fit is over


def test_a_notebooks_cell_that_is_run_again_goes_on(tmp_path: Path) -> None:
    """One SparkModel, whose fits have seeds that follow from how many it has begun; a file of the form with that seed, too."""

    def cells() -> tuple[keras.Model, Callable[..., object]]:
        model = regression()
        spark_model = SparkModel(model, 2, engine="in_process", batch_size=8, seed=5, strategy=Mortal(), frequency=1)
        Mortal.dies_at = None
        spark_model.fit(X, Y, epochs=1, verbose=0)
        return model, partial(spark_model.fit, X, Y, epochs=3, verbose=0, checkpoint_dir=tmp_path)

    expected, cell = cells()
    cell()
    again, cell = cells()
    Mortal.dies_at = 7
    with pytest.raises(Killed):
        cell()
    for path in tmp_path.glob("*.json"):
        marker = json.loads(path.read_text())
        marker["described"]["seed"].insert(0, 1234)
        path.write_text(json.dumps(marker))
    Mortal.dies_at = None
    cell()
    assert bits(again) == bits(expected)


def test_a_scaled_learning_rate_goes_on_with_as_many_workers(tmp_path: Path) -> None:
    """The rate of a checkpoint is that of its workers, and the model has its own again after either fit."""
    scaled = {"scale_learning_rate": "sqrt"}
    whole, again = (regression(lambda: keras.optimizers.SGD(0.015625, momentum=0.5)) for _ in range(2))
    fit(whole, options=scaled, epochs=3)
    fit(again, tmp_path, dies_at=7, options=scaled, epochs=3)
    with pytest.raises(ElephasError, match=r"scale_learning_rate was 'sqrt, 2 workers', and is 'sqrt, 4 workers'"):
        fit(
            regression(lambda: keras.optimizers.SGD(0.015625, momentum=0.5)),
            tmp_path,
            workers=4,
            options=scaled,
            epochs=3,
        )
    fit(again, tmp_path, options=scaled, epochs=3)
    assert bits(again) == bits(whole)
    assert float(again.optimizer.learning_rate) == 0.015625


def test_one_worker_carries_its_seeds_on(tmp_path: Path) -> None:
    whole, again = regression(), regression()
    fit(whole, workers=1, epochs=3)
    fit(again, tmp_path, workers=1, dies_at=10, epochs=3)
    fit(again, tmp_path, workers=1, epochs=3)
    assert bits(again) == bits(whole)


class Dies(keras.callbacks.Callback):
    """Ends the program at the end of the third epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            raise Killed


def test_asynchronous_fits_go_on_at_an_epoch(tmp_path: Path) -> None:
    options = {"mode": "asynchronous", "strategy": None}
    model = regression()
    assert fit(model, tmp_path, options=options, callbacks=[Dies()]) is None
    again = regression()
    history = fit(again, tmp_path, options=options)
    assert history.epoch == [0, 1, 2, 3]
    assert len(history.history["loss"]) == 4
    for epoch in range(4):  # every epoch has its rows, up to an update that is in the next one
        assert sum(r.samples for r in history.rounds if r.epoch == epoch) == pytest.approx(len(X), abs=16)
    assert history.history["loss"][-1] < history.history["loss"][0]


@keras.saving.register_keras_serializable("test_checkpoints")
class Drawing(keras.layers.Layer):
    """Draws as Dropout does; the mean of what it draws is a metric."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.seeds, self.drawn = keras.random.SeedGenerator(3), keras.metrics.Mean(name="drawn")

    def call(self, x, training=False):
        if training:
            self.drawn.update_state(keras.random.uniform((16,), seed=self.seeds))
        return x


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "hogwild"])
def test_a_fit_that_goes_on_does_not_draw_again_what_it_drew_before(tmp_path: Path, mode: str) -> None:
    """Asynchronous orders are numbered from 0 again, and their seeds were those of the first epochs."""

    def drawn(*callbacks: keras.callbacks.Callback) -> list[float] | None:
        model = keras.Sequential([keras.Input((4,)), Drawing(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        options = {"mode": mode, "strategy": None, "frequency": "epoch"}
        history = fit(model, tmp_path, options=options, callbacks=list(callbacks))
        return None if history is None else history.history["drawn"]

    assert drawn(Dies()) is None
    found = drawn()
    assert found is not None
    assert len(set(found)) == len(found) == 4


def test_callbacks_of_the_user_are_restored_where_they_are_plain(tmp_path: Path) -> None:
    class Counts(keras.callbacks.Callback):
        def __init__(self, limit: int) -> None:
            super().__init__()
            self.limit, self.begun, self.seen, self.file = limit, 0, {"losses": [], "best": (None, np.float32(9))}, open

        def on_epoch_begin(self, epoch, logs=None):
            self.begun += 1

        def on_epoch_end(self, epoch, logs=None):
            self.seen["losses"].append(logs["loss"])
            self.seen["best"] = (epoch, np.float32(min(self.seen["losses"])))

    whole, again = Counts(1), Counts(2)
    fit(small(), callbacks=[whole], epochs=3)
    fit(small(), tmp_path, dies_at=7, callbacks=[Counts(1)], checkpoint_freq=1e-9, epochs=3)  # amid the third
    fit(small(), tmp_path, callbacks=[again], checkpoint_freq=1e-9, epochs=3)
    assert (again.begun, again.seen) == (whole.begun, whole.seen)
    assert again.limit == 2  # as the program says now


def test_a_csv_log_keeps_the_epochs_before(tmp_path: Path) -> None:
    """Its file began anew, and lost them."""

    def log(name: str) -> keras.callbacks.CSVLogger:
        return keras.callbacks.CSVLogger(tmp_path / name)

    given = {"epochs": 3, "validation_data": HELD}
    fit(small(), callbacks=[log("whole.csv")], **given)
    (tmp_path / "parts.csv").write_text("of a fit before\n")
    assert fit(small(), tmp_path / "fit", dies_at=8, callbacks=[log("parts.csv")], **given) is None
    logger, other = log("parts.csv"), keras.callbacks.CSVLogger(tmp_path / "other.csv")
    (tmp_path / "other.csv").write_text("of a fit before\n")
    assert fit(small(), tmp_path / "fit", callbacks=[logger, other], **given) is not None
    assert (tmp_path / "parts.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert "of a fit before" not in (tmp_path / "other.csv").read_text()  # the fit that goes on had no second logger
    fit(small(), callbacks=[logger], **given)
    assert (tmp_path / "parts.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_a_callback_that_is_gone_is_named(tmp_path: Path) -> None:
    fit(small(), tmp_path, dies_at=7, callbacks=callbacks(), validation_data=HELD)
    with pytest.warns(
        ElephasWarning, match="callbacks that this fit does not have: ReduceLROnPlateau 1, EarlyStopping 1"
    ):
        fit(small(), tmp_path, epochs=3, validation_data=HELD)


REMEMBERING = [
    ({"strategy": MortalElastic(), "optimizer_state": "per_worker", "codec": "top_k"}, 1e-9),
    ({"optimizer_state": "per_worker"}, "epoch"),
    ({"optimizer_state_every": 4}, "epoch"),
    ({"optimizer_state_every": 3}, 1e-9),
    ({"codec": "one_bit"}, "epoch"),
    ({"control_variates": True}, 1e-9),
]
"""Options of fits whose workers remember something, and when a checkpoint is written."""


@pytest.mark.parametrize(("options", "freq"), REMEMBERING, ids=str)
def test_what_workers_remember_goes_on(tmp_path: Path, options: dict, freq: str | float) -> None:
    whole, again = regression(), regression()
    expected = fit(whole, options=options, epochs=3)
    given = {"options": options, "checkpoint_freq": freq, "epochs": 3}
    for dies_at in [7] if freq == "epoch" else [1, 8]:
        assert fit(regression(), tmp_path, dies_at=dies_at, **given) is None
    history = fit(again, tmp_path, **given)
    assert (bits(again), told(history)) == (bits(whole), told(expected))


def without_memories(folder: Path) -> None:
    """Make checkpoints those of an earlier version, which did not have what workers remember."""
    for path in folder.glob("*.npz"):
        with np.load(path) as file:
            kept = {name: file[name] for name in file.files if not name.startswith(("memory.", "recalled"))}
        np.savez(path, **kept)
        marker = path.with_suffix(".json")
        content = path.read_bytes()
        digest = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        marker.write_text(json.dumps(json.loads(marker.read_text()) | digest))


def test_a_checkpoint_of_before_has_workers_begin_anew(tmp_path: Path) -> None:
    whole, again, given = small(), small(), {"options": {"codec": "one_bit"}, "epochs": 3}
    fit(whole, **given)
    assert fit(small(), tmp_path, dies_at=7, **given) is None
    without_memories(tmp_path)
    with pytest.warns(
        ElephasWarning, match="npz does not have: an earlier version of elephas_like wrote it. They begin"
    ):
        assert fit(again, tmp_path, **given).epoch == list(range(3))
    assert bits(again) != bits(whole)


def test_other_workers_do_not_get_what_those_before_remembered(tmp_path: Path) -> None:
    given = {"options": {"codec": "one_bit", "optimizer_state": "per_worker"}, "epochs": 3}
    now, before = tmp_path / "now", tmp_path / "before"
    assert fit(small(), now, dies_at=7, **given) is None
    shutil.copytree(now, before)
    without_memories(before)
    models = [small(), small()]
    for model, folder in zip(models, (now, before), strict=True):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ElephasWarning)
            fit(model, folder, workers=3, **given)
        (said,) = [str(each.message) for each in warned if "2 workers then, 3 now" in str(each.message)]
        assert ("What workers remember of their own between rounds begins anew" in said) == (folder == now)
    assert bits(models[0]) == bits(models[1])


def test_a_checkpoint_without_memories_is_as_large_as_before(tmp_path: Path) -> None:
    """What it costs: a state of each worker, and nothing where workers remember nothing."""
    arrays = {}
    for name, options in (
        ("nothing", {}),
        ("slots", {"optimizer_state": "per_worker"}),
        ("own", {"strategy": MortalElastic()}),
    ):
        fit(small(), tmp_path / name, dies_at=4, options=options)
        with np.load(newest(tmp_path / name).with_suffix(".npz")) as file:
            arrays[name] = {key: file[key] for key in file.files if key.startswith(("memory.", "recalled"))}
            slots, weights = file["state.slots"].size, file["state.weights"].size
    assert arrays["nothing"] == {}
    assert {key: array.size for key, array in arrays["slots"].items()} == {
        "recalled": 2,
        "memory.0.slots": slots,
        "memory.1.slots": slots,
    }
    assert {key: array.size for key, array in arrays["own"].items()} == {
        "recalled": 2,
        "memory.0.memory.own": weights,
        "memory.1.memory.own": weights,
    }


def test_how_far_many_workers_drift_apart_is_known_between_two_averages_of_slots(tmp_path: Path) -> None:
    """Nesterov steps stretch the mean of twelve workers by the drift of the fourth round, also after a checkpoint."""
    by_target = np.argsort(Y.ravel())
    blocks = [Block((X[part], Y[part]), 4) for part in np.split(by_target, 12)]
    options = {"engine": "in_process", "batch_size": 2, "seed": 5, "frequency": "epoch", "optimizer_state_every": 3}

    class Dies(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 4:
                raise Killed

    def trained(*callbacks: keras.callbacks.Callback, **given: object) -> keras.Model:
        model = regression()
        SparkModel(model, **options).fit(blocks, epochs=6, verbose=0, callbacks=list(callbacks), **given)
        return model

    with pytest.raises(Killed):
        trained(Dies(), checkpoint_dir=tmp_path)
    assert bits(trained(checkpoint_dir=tmp_path)) == bits(trained())


@pytest.mark.parametrize("options", [{"mode": "asynchronous"}, {"quorum": 1}], ids=str)
def test_workers_that_go_on_alone_remember_what_belongs_to_the_state(tmp_path: Path, options: dict) -> None:
    options = options | {"strategy": None, "codec": "top_k", "optimizer_state": "per_worker"}

    assert fit(small(), tmp_path, options=options, callbacks=[Dies()]) is None
    with np.load(newest(tmp_path).with_suffix(".npz")) as file:
        assert file["recalled"].tolist() == [0, 1]
        assert {f"memory.{worker}.{name}" for worker in (0, 1) for name in ("slots", "residual")} <= set(file.files)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ElephasWarning)
        history = fit(small(), tmp_path, options=options)
    assert history.epoch == list(range(4))
    assert history.history["loss"][-1] < history.history["loss"][0]


def test_seeds_that_were_drawn_are_those_of_the_fit_that_died(tmp_path: Path) -> None:
    whole, again = regression(), regression()
    np.random.seed(7)
    given = {"options": {"seed": None}, "epochs": 3}
    fit(whole, **given)
    np.random.seed(7)
    fit(again, tmp_path, dies_at=7, **given)
    np.random.seed(8)
    fit(again, tmp_path, **given)
    assert bits(again) == bits(whole)


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of a fit that died amid its fourth epoch."""
    folder = tmp_path_factory.mktemp("remains")
    assert fit(small(), folder, dies_at=10) is None
    return folder


@pytest.fixture(scope="module")
def undisturbed() -> list[bytes]:
    """The bits of the same fit where it did not die."""
    model = small()
    fit(model)
    return bits(model)


@pytest.fixture
def died(remains: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test."""
    return Path(shutil.copytree(remains, tmp_path / "died"))


def test_a_fit_is_over_where_a_callback_has_stopped_the_session_of_its_checkpoints(sc) -> None:
    stopped = SimpleNamespace(_jvm=sc._jvm, _jsc=None)  # as SparkContext.stop leaves it
    with pytest.warns(
        ElephasWarning, match="the fit is over, and its checkpoints could not be deleted: the SparkContext"
    ):
        Checkpoints("hdfs://somewhere/checkpoints", None, stopped).end()


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def newest(folder: Path) -> Path:
    return max(folder.glob("*.json"), key=lambda path: json.loads(path.read_text())["number"])


@pytest.mark.parametrize("ending", [".npz", ".json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    died: Path, undisturbed: list[bytes], ending: str
) -> None:
    again = small()
    damage(newest(died).with_suffix(ending))
    with pytest.warns(
        ElephasWarning, match="going on from .*checkpoint-[01].npz, because a newer checkpoint is damaged"
    ):
        fit(again, died)
    assert bits(again) == undisturbed


def test_a_kill_between_the_two_files_of_a_checkpoint(died: Path, undisturbed: list[bytes]) -> None:
    # arrays are put in place before their marker: the slot then holds new arrays under an old marker
    again = small()
    older = next(path for path in died.glob("*.json") if path != newest(died))
    damage(older.with_suffix(".npz"))
    fit(again, died)
    assert bits(again) == undisturbed


def test_damaged_checkpoints_are_an_error(died: Path) -> None:
    model = small()
    for path in died.glob("*.npz"):
        damage(path)
    before = bits(model)
    with pytest.raises(ElephasError, match=r"damaged, and none can be gone on from .* resume=False"):
        fit(model, died)
    assert bits(model) == before
    assert fit(model, died, resume=False) is not None


def test_checkpoints_that_cannot_be_looked_at_are_not_taken_for_none(
    died: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat

    def stale(path: object, *given: object, **named: object) -> os.stat_result:
        if str(path).endswith(".json"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return look(path, *given, **named)

    model = small()
    before, kept = bits(model), {path.name: path.read_bytes() for path in died.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stale)
        with pytest.raises(OSError, match=r"checkpoint-0\.json") as caught:
            fit(model, died)
    assert caught.value.errno == errno.ESTALE
    assert bits(model) == before
    assert {path.name: path.read_bytes() for path in died.iterdir()} == kept


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        ({"batch_size": 16}, {}, "batch_size was 8, and is 16"),
        ({"strategy": "average"}, {}, "strategy was 'Mortal.*, and is 'Average"),
        ({"frequency": 2}, {}, "frequency was '1', and is '2'"),
        ({"seed": 6}, {}, "seed was .*5, None.*, and is .*6, None"),
        ({}, {"shuffle": False}, "shuffle was True, and is False"),
        ({}, {"class_weight": {0: 2.0}}, "class_weight was 'None', and is '{0: 2.0}'"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(died: Path, options: dict, given: dict, said: str) -> None:
    model = small()
    kept = {path.name: path.read_bytes() for path in died.iterdir()}
    with pytest.raises(ElephasError, match=f"is a checkpoint of another fit: {said}"):
        fit(model, died, options=options, **given)
    assert {path.name: path.read_bytes() for path in died.iterdir()} == kept


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        ({"loss": "mae"}, "loss was 'mse', and is 'mae'"),
        ({"loss": [keras.losses.Huber(2.0)]}, r"loss was 'mse', and is '.Huber.*delta: 2\.0"),
        (
            {"optimizer": keras.optimizers.Adam(beta_1=0.8)},
            "optimizer was 'Adam.*beta_1: 0.9.*, and is 'Adam.*beta_1: 0.8",
        ),
        ({"loss_weights": [2.0]}, r"loss_weights was 'None', and is '.2.0."),
    ],
)
def test_a_checkpoint_of_a_model_that_was_compiled_otherwise_is_refused(died: Path, compiled: dict, said: str) -> None:
    model = small()
    model.compile(**({"optimizer": "adam", "loss": "mse", "metrics": ["mae"]} | compiled))
    with pytest.raises(ElephasError, match=f"is a checkpoint of another fit: {said}"):
        fit(model, died)


class Freezing(keras.callbacks.Callback):
    def on_train_begin(self, logs: object = None) -> None:
        self.model.layers[0].trainable = False


def test_a_fit_whose_layers_a_callback_freezes_goes_on(tmp_path: Path) -> None:
    whole, again = (stacked(keras.layers.Dense(6)) for _ in range(2))
    fit(whole, callbacks=[Freezing()], epochs=3)
    assert fit(stacked(keras.layers.Dense(6)), tmp_path, dies_at=8, callbacks=[Freezing()], epochs=3) is None
    fit(again, tmp_path, callbacks=[Freezing()], epochs=3)
    assert bits(again) == bits(whole)


class Perceptual(keras.losses.Loss):
    """Compares what a network of its own makes of targets and predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones", trainable=False)]
        )

    def call(self, y: object, predicted: object) -> object:
        return keras.ops.mean((self.net(y) - self.net(predicted)) ** 2)


def test_a_loss_that_holds_a_network_is_the_same_when_it_is_made_again(tmp_path: Path) -> None:
    def model() -> keras.Model:
        found = small()
        found.compile("adam", Perceptual())
        return found

    assert fit(model(), tmp_path, dies_at=5, epochs=2) is None
    assert fit(model(), tmp_path, epochs=2) is not None


def test_another_learning_rate_is_warned_of(died: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who lowers the rate after a NaN and runs again goes on with the old one, as callbacks may have changed it."""
    fit(small(keras.optimizers.Adam(1e-5)), died)
    assert re.search(
        r"goes on with the learning rate of .*, 0.001. The model's own, 1e-05, .*resume=False", caplog.text
    )


def test_a_learning_rate_that_callbacks_had_changed_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    assert fit(small(), tmp_path, dies_at=8, callbacks=[halving], epochs=3) is None
    model = small()
    fit(model, tmp_path, callbacks=[halving], epochs=3)
    assert "learning rate" not in caplog.text
    assert float(model.optimizer.learning_rate) == np.float32(0.001 / 2**3)


def test_a_checkpoint_of_another_model_is_refused(died: Path) -> None:
    other = small("sgd")
    with pytest.raises(
        ElephasError, match=r"is a checkpoint of another model: the slots have shape \(\d+,\); expected"
    ):
        fit(other, died)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            [(1, True), (3, True)],
            [(2, True), (1, True)],
            r"variable 1 was weights of float32 \(4, 1\), and is .* \(4, 2\)",
        ),
        ([(4, False), (4, True)], [(4, True), (4, False)], "variable 1 was frozen of float32 .*, and is weights of"),
    ],
)
def test_a_checkpoint_of_a_model_of_equally_many_weights_is_refused(
    tmp_path: Path, before: list, now: list, said: str
) -> None:
    """Their states have the same sizes: a fit went on with weights that were shuffled among the layers."""
    first, second = (
        stacked(*(keras.layers.Dense(units, trainable=trainable) for units, trainable in each))
        for each in (before, now)
    )
    assert first.count_params() == second.count_params()
    assert fit(first, tmp_path, dies_at=7) is None
    own = bits(second)[: len(second.variables)]
    with pytest.raises(ElephasError, match=f"is a checkpoint of another model: {said}"):
        fit(second, tmp_path)
    assert bits(second)[: len(second.variables)] == own


def test_a_refused_checkpoint_leaves_the_model_as_it_was(died: Path, undisturbed: list[bytes]) -> None:
    """Whoever then follows the message, with resume=False, begins with the model's own weights."""
    model = small()
    with pytest.raises(ElephasError, match="is a checkpoint of another fit: strategy"):
        fit(model, died, options={"strategy": "average"})
    fit(model, died, resume=False)
    assert bits(model) == undisturbed


def test_a_format_of_the_future_is_refused(died: Path) -> None:
    for marker in died.glob("*.json"):
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 2}))
    with pytest.raises(ElephasError, match="has format 2; this version of elephas_like reads format 1"):
        fit(small(), died)


def test_more_epochs_may_be_asked_for(died: Path) -> None:
    assert fit(small(), died, epochs=5).epoch == list(range(5))


def test_metrics_that_only_one_of_two_fits_had_are_nan_where_the_other_trained(tmp_path: Path) -> None:
    def compiled(metric: str) -> keras.Model:
        model = small()
        model.compile("adam", "mse", metrics=[metric])
        return model

    given = {"validation_data": HELD, "validation_freq": 2, "epochs": 4}
    assert fit(compiled("mae"), tmp_path, dies_at=8, **given) is None  # amid the third epoch
    history = fit(compiled("mape"), tmp_path, **given).history
    found = {name: [bool(np.isnan(value)) for value in values] for name, values in history.items()}
    assert found == {
        "loss": [False] * 4,
        "mae": [False, False, True, True],
        "mape": [True, True, False, False],
        "val_loss": [False] * 2,
        "val_mae": [False, True],
        "val_mape": [True, False],
    }


@pytest.mark.parametrize(("had", "freq", "validated"), [(True, 2, [1, 3]), (False, [1, 4], [0, 3])])
def test_validation_of_only_one_of_two_fits_is_nan_where_the_other_trained(
    tmp_path: Path, had: bool, freq: object, validated: list[int]
) -> None:
    given, held = {"validation_freq": freq, "epochs": 4}, {"validation_data": HELD}
    assert fit(small(), tmp_path, dies_at=8, **given, **(held if had else {})) is None
    history = fit(small(), tmp_path, **given, **({} if had else held)).history
    assert [bool(np.isnan(value)) for value in history["val_mae"]] == [(epoch < 2) is not had for epoch in validated]
    assert len(history["val_loss"]) == len(validated)


class Logs(keras.callbacks.Callback):
    """Logs a number in some epochs."""

    def __init__(self, epochs: list[int]) -> None:
        super().__init__()
        self.epochs = epochs

    def on_epoch_end(self, epoch, logs=None):
        if epoch in self.epochs:
            logs["own"] = float(epoch)


@pytest.mark.parametrize("epochs", [[3], [0, 1]])
def test_what_a_callback_logs_now_and_then_is_as_in_a_fit_that_never_ended(tmp_path: Path, epochs: list[int]) -> None:
    assert fit(small(), tmp_path, dies_at=8, callbacks=[Logs(epochs)]) is None
    assert fit(small(), tmp_path, callbacks=[Logs(epochs)]).history["own"] == epochs  # as Keras has it


@pytest.mark.parametrize("freq", ["epoch", 1e-9])
def test_other_workers_go_on_with_a_warning(tmp_path: Path, freq: str | float) -> None:
    fit(small(), tmp_path, dies_at=7, checkpoint_freq=freq)
    with pytest.warns(ElephasWarning, match="2 workers then, 3 now"):
        history = fit(small(), tmp_path, workers=3)
    for epoch in range(4):  # an epoch amid which it died has begun again: none is left out, none counted twice
        assert sum(r.samples for r in history.rounds if r.epoch == epoch) == len(X)


def test_without_a_number_of_workers_there_are_as_many_as_before(tmp_path: Path) -> None:
    fit(small(), tmp_path, workers=3, dies_at=4)
    assert len(fit(small(), tmp_path, workers=None).rounds[-1].workers) == 3


def test_other_rows_are_named(tmp_path: Path) -> None:
    model = small()
    fit(model, tmp_path, dies_at=7, checkpoint_freq=1e-9)
    spark_model = SparkModel(model, 2, engine="in_process", batch_size=8, seed=5, strategy=Mortal(), frequency=1)
    with pytest.warns(ElephasWarning, match=r"the rows of worker 0 \(24 then, 16 now\)"):
        history = spark_model.fit(X[:32], Y[:32], epochs=4, verbose=0, checkpoint_dir=tmp_path)
    assert sum(r.samples for r in history.rounds if r.epoch == 2) == 32


def test_what_is_written_is_bounded_and_holds_no_pickle(tmp_path: Path) -> None:
    fit(small(), tmp_path, dies_at=10, checkpoint_freq=1e-9)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"checkpoint-{slot}.{ending}" for slot in (0, 1) for ending in ("npz", "json")
    }
    for path in tmp_path.glob("*.npz"):
        with np.load(path, allow_pickle=False) as file:
            assert all(file[name].dtype.kind in "biufV" for name in file.files)


def test_a_directory_that_cannot_be_written_is_found_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = small()
    before = bits(model)
    with pytest.raises(OSError, match="file"):
        fit(model, tmp_path / "file" / "checkpoints", dies_at=0)
    assert bits(model)[: len(model.variables)] == before[: len(model.variables)]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **others: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        fit(small(), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_disk_that_is_full_at_the_first_checkpoint_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **others: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match=f"No space left on device, as the first checkpoint was written: '{tmp_path}'"):
        fit(small(), tmp_path)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"checkpoint_dir must be a directory; .*file is a file"):
        fit(small(), tmp_path / "file")


@contextmanager
def as_another_process() -> Iterator[None]:
    """What this process holds is not known within it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_at_a_time, "_taken", {})
        yield


@pytest.mark.fault(
    "A driver is started again while it is still alive, with the same `checkpoint_dir`",
    "the second goes on from the checkpoint; the first warns, and writes and deletes none any more",
    "the fit is trained twice",
)
@pytest.mark.parametrize("resume", ["auto", False])
def test_a_fit_that_another_one_took_over_writes_and_deletes_nothing_more(tmp_path: Path, resume: str | bool) -> None:
    """A scheduler has started a driver again while the first one was alive."""
    states: list[bytes] = []

    class StartedAgain(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:  # the other dies in its last epoch: its last checkpoint must survive this fit
                with as_another_process():
                    assert fit(small(), tmp_path, dies_at=10, resume=resume) is None
            if epoch == 3:
                states.append(newest(tmp_path).read_bytes())

    with pytest.warns(ElephasWarning, match="another fit now writes its checkpoints") as warned:
        assert fit(small(), tmp_path, callbacks=[StartedAgain()]).epoch == list(range(4))
    assert len([one for one in warned if "another fit now writes" in str(one.message)]) == 1
    assert newest(tmp_path).read_bytes() == states[0]
    assert fit(small(), tmp_path, resume=True).epoch == list(range(4))
    assert list(tmp_path.iterdir()) == []


def test_a_fit_that_begins_anew_knows_who_is_still_writing(tmp_path: Path) -> None:
    """The first fit has looked whether it is alone, and its marker comes after the second has deleted what was there."""
    markers: list[bytes] = []

    class StartedAgain(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                markers.append(newest(tmp_path).read_bytes())

                def write_late(epoch, logs):
                    if epoch == 0:
                        (tmp_path / "checkpoint-1.json").write_bytes(markers[0])

                late = keras.callbacks.LambdaCallback(on_epoch_begin=write_late)
                with as_another_process():
                    assert fit(small(), tmp_path, dies_at=10, resume=False, callbacks=[late]) is None
                markers.append(newest(tmp_path).read_bytes())

    with pytest.warns(ElephasWarning, match="another fit now writes") as warned:
        fit(small(), tmp_path, callbacks=[StartedAgain()])
    assert len([one for one in warned if "another fit now writes" in str(one.message)]) == 1  # not by the second
    assert json.loads(markers[1])["run"] != json.loads(markers[0])["run"]


@pytest.mark.parametrize("content", ["[]", "{", '{"run": 3}'])
def test_a_marker_that_is_none_takes_nothing_over(died: Path, content: str) -> None:
    (died / "checkpoint-0.json").write_text(content)
    with pytest.warns(ElephasWarning, match="going on from .*checkpoint-1.npz, because a newer checkpoint is damaged"):
        assert fit(small(), died).epoch == list(range(4))
    assert list(died.iterdir()) == []


def test_what_a_fit_left_that_was_killed_as_it_wrote_is_deleted(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-0").write_text("half of it")
    fit(small(), tmp_path, epochs=2)
    assert list(tmp_path.iterdir()) == []


def test_what_a_fit_left_that_was_killed_as_it_wrote_to_a_url_is_deleted(sc, tmp_path: Path) -> None:
    (tmp_path / f".checkpoint-1.npz.{uuid.uuid4().hex}").write_text("half of it")
    fit(small(), f"file://{tmp_path}", epochs=2)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_written_later_is_a_warning(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"

    class Blocks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                place.rename(tmp_path / "elsewhere")
                place.write_text("")
            if epoch == 2:
                place.unlink()

    with pytest.warns(ElephasWarning, match="no checkpoint was written after epoch 2, round 6"):
        assert fit(small(), place, callbacks=[Blocks()], dies_at=11) is None
    assert fit(small(), place).epoch == list(range(4))


def test_checkpoints_that_cannot_be_deleted_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = files.remove

    def read_only(path: str, *others: object) -> None:
        if path.endswith("0.json") and os.path.exists(path):
            raise OSError(30, "Read-only file system", path)
        remove(path, *others)

    monkeypatch.setattr(files, "remove", read_only)
    with pytest.warns(ElephasWarning, match="the fit is over, and its checkpoints could not be deleted: .*Read-only"):
        history = fit(small(), tmp_path, epochs=2)
    assert history.epoch == [0, 1]


def test_best_weights_of_a_short_float_go_on(tmp_path: Path) -> None:
    def build() -> keras.Model:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy("bfloat16")
        try:
            return small()
        finally:
            keras.config.set_dtype_policy(before)

    def stopping() -> list[keras.callbacks.Callback]:
        return [keras.callbacks.EarlyStopping("val_loss", patience=9, min_delta=10, restore_best_weights=True)]

    whole, again = build(), build()
    given = {"validation_data": HELD, "epochs": 3}
    fit(whole, callbacks=stopping(), **given)
    assert fit(build(), tmp_path, dies_at=7, callbacks=stopping(), **given) is None
    fit(again, tmp_path, callbacks=stopping(), **given)
    assert bits(again) == bits(whole)


def test_objects_in_the_logs_are_no_checkpoint(tmp_path: Path) -> None:
    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["function"] = open

    with pytest.warns(ElephasWarning, match="no checkpoint was written after epoch 1, round 3: a .* is no plain data"):
        assert fit(small(), tmp_path, epochs=2, callbacks=[Adds()]).epoch == [0, 1]


def test_resume_true_insists(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint in .*; use resume='auto'"):
        fit(small(), tmp_path, resume=True)


def test_resume_false_deletes_nothing_before_the_new_fit_has_begun(died: Path) -> None:
    kept = {path.name: path.read_bytes() for path in died.iterdir()}
    with pytest.raises(ValueError, match="no rows to train on"):
        SparkModel(small(), 2, engine="in_process").fit(X[:0], Y[:0], verbose=0, checkpoint_dir=died, resume=False)
    assert {path.name: path.read_bytes() for path in died.iterdir()} == kept


def test_resume_false_begins_anew(died: Path) -> None:
    assert fit(small(), died, resume=False, dies_at=2) is None
    assert json.loads(newest(died).read_text())["number"] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"checkpoint_freq": "batch"}, "checkpoint_freq must be"),
        ({"checkpoint_freq": 0}, "checkpoint_freq must be"),
        ({"resume": "yes"}, "resume must be 'auto', True or False; got 'yes'"),
        ({"checkpoint_dir": 3}, "checkpoint_dir must be a path or a URL"),
        ({"callbacks": [keras.callbacks.BackupAndRestore("backup")]}, "checkpoint_dir or BackupAndRestore, not both"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path: Path, given: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fit(small(), **({"checkpoint_dir": tmp_path} | given))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def found_or_refused(folder: Path) -> None:
    """Look for a checkpoint: another one, or the documented error, and nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ElephasWarning)
        try:
            found = Checkpoints(str(folder), None, None).found(True)
        except ElephasError:
            return
    assert isinstance(found, Found)
    assert isinstance(found.described, dict)
    assert all(rows is not None for rows, _ in found.shards)


@settings(max_examples=100)
@given(data=st.data())
def test_whatever_a_marker_says_is_gone_on_from_or_refused(died: Path, data: st.DataObject) -> None:
    path = newest(died)
    kept = path.read_text()
    marker = json.loads(kept)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(kept) - 1))
        text = kept[:place] + data.draw(st.sampled_from(["", "{", "\x00", "1", "[" * 100_000]))
    else:
        marker[data.draw(st.sampled_from(sorted(marker)))] = data.draw(JSON)
        text = json.dumps(marker).replace("Infinity", "1e999")
    path.write_text(text)
    try:
        found_or_refused(died)
    finally:
        path.write_text(kept)


@settings(max_examples=60)
@given(data=st.data())
def test_arrays_that_were_changed_are_refused_also_where_their_digest_was_too(died: Path, data: st.DataObject) -> None:
    path = newest(died)
    marker, arrays = path.read_text(), path.with_suffix(".npz").read_bytes()
    place = data.draw(st.integers(0, len(arrays)))
    changed = arrays[:place] + data.draw(st.binary(max_size=4)) + arrays[place + data.draw(st.integers(0, 4)) :]
    changed = data.draw(st.sampled_from([changed, arrays[:place], pickle.dumps({"arrays": 1})]))
    digest = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
    path.with_suffix(".npz").write_bytes(changed)
    if data.draw(st.booleans()):
        path.write_text(json.dumps(json.loads(marker) | digest))
    try:
        found_or_refused(died)
    finally:
        path.write_text(marker)
        path.with_suffix(".npz").write_bytes(arrays)
