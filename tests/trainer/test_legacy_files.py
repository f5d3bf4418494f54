"""Models in .h5 files that a real Elephas saved (tools/make_elephas_files.py), and what Keras 2 compiled."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from elephas_like.trainer.legacy_files import load_h5
from elephas_like.trainer.recipe import from_json

FILES = sorted((Path(__file__).parent.parent / "data" / "elephas").glob("*.h5"))


def readable(path: Path) -> None:
    """Skip a test of a file that this Keras cannot read."""
    if path.stem.startswith("7.3.0") and "quantization_config" not in inspect.signature(keras.layers.Dense).parameters:
        pytest.skip("the file was saved by a later Keras, and Keras reads no files of later ones")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_elephas_predicts_as_it_did_and_can_be_trained(path: Path) -> None:
    readable(path)
    model = load_h5(str(path))
    seen = np.load(path.with_suffix(".npz"))
    model.run_eagerly = True
    np.testing.assert_allclose(model.predict(seen["x"], verbose=0), seen["y"], atol=1e-6)
    name = path.stem.split("-")[1]
    kinds = {"classifier": keras.optimizers.Adam, "sequence": keras.optimizers.RMSprop}
    assert type(model.optimizer) is kinds.get(name, keras.optimizers.SGD)
    rate = {"classifier": 0.001, "sequence": 0.01}.get(name, 0.02)
    assert float(model.optimizer.learning_rate) == pytest.approx(rate)
    if name in ("classifier", "regression"):
        target = seen["y"] if name == "regression" else np.eye(3, dtype="float32")[[0, 1, 2, 0, 1]]
        history = model.fit(seen["x"], target, verbose=0).history
        assert set(history) == {"loss", {"classifier": "acc", "regression": "mae"}[name]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_architecture_alone_is_the_same_model(path: Path) -> None:
    """Elephas' Spark ML files hold no more than this JSON and the weights."""
    readable(path)
    with h5py.File(path) as file:
        architecture = file.attrs["model_config"]
    model = from_json(architecture if isinstance(architecture, str) else architecture.decode())
    model.set_weights(load_h5(str(path)).get_weights())
    seen = np.load(path.with_suffix(".npz"))
    model.run_eagerly = True
    np.testing.assert_allclose(model.predict(seen["x"], verbose=0), seen["y"], atol=1e-6)


def test_layers_of_one_s_own_in_an_old_architecture() -> None:
    class Double(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    layers = [
        {"class_name": "InputLayer", "config": {"batch_input_shape": [None, 2], "dtype": "float32", "name": "x"}},
        {"class_name": "Double", "config": {"name": "double"}},
    ]
    config = {"class_name": "Sequential", "config": {"name": "old", "layers": layers}, "keras_version": "2.8.0"}
    model = from_json(json.dumps(config), {"Double": Double})
    np.testing.assert_array_equal(model.predict(np.ones((1, 2)), verbose=0), [[2, 2]])


def test_all_versions_are_there() -> None:
    assert {path.stem.split("-")[0] for path in FILES} == {"3.4.8", "4.0.0", "5.2.1", "6.2.1", "7.3.0"}


def saved(tmp_path: Path, **compiled: object) -> str:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})  # type: ignore[arg-type]
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    path = str(tmp_path / "model.h5")
    model.save(path)
    return path


def rewritten(path: str, **training: object) -> str:
    import json

    import h5py

    with h5py.File(path, "a") as file:
        config = json.loads(file.attrs["training_config"])
        file.attrs["training_config"] = json.dumps(config | training)
        file.attrs["keras_version"] = "2.10.0"
    return path


def test_decay_of_keras_2_is_a_schedule(tmp_path: Path) -> None:
    """learning_rate / (1 + decay * steps): 0.1 / (1 + 0.5 * 4) = 0.0333."""
    config = {"class_name": "SGD", "config": {"name": "SGD", "learning_rate": 0.1, "decay": 0.5, "momentum": 0.0}}
    model = load_h5(rewritten(saved(tmp_path), optimizer_config=config))
    schedule = keras.saving.deserialize_keras_object(model.optimizer.get_config()["learning_rate"])
    assert float(schedule(4)) == pytest.approx(0.1 / 3)


def test_losses_and_metrics_of_keras_2_are_read(tmp_path: Path) -> None:
    loss = {"class_name": "Huber", "config": {"reduction": "auto", "name": "huber", "delta": 2.0}}
    wrapped = {"class_name": "MeanMetricWrapper", "config": {"name": "my_error", "fn": "mean_squared_error"}}
    auc = {"class_name": "AUC", "config": {"name": "area", "num_thresholds": 10}}
    model = load_h5(rewritten(saved(tmp_path), loss=loss, metrics=[[wrapped, auc]]))
    assert isinstance(model.loss, keras.losses.Huber)
    found = model.evaluate(np.ones((4, 2)), np.array([[0.0], [1.0]] * 2), verbose=0, return_dict=True)
    assert set(found) == {"loss", "my_error", "area"}


def test_slots_are_kept(tmp_path: Path) -> None:
    path = saved(tmp_path, optimizer="adam", metrics=["mae"])
    model = load_h5(path)
    assert int(model.optimizer.iterations) == 1
    assert any(np.abs(variable.numpy()).max() > 0 for variable in model.optimizer.variables[2:])


@pytest.mark.parametrize("named", ["Adam/{}/dense/{}:0", "Adam/dense/{1}/{0}:0"])
def test_an_optimizer_of_tensorflow_2_11_to_2_15_and_its_slots_are_read(
    tmp_path: Path, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They wrote "Custom>Adam", a schedule without a name, and losses with their function; and Keras 2 wrote no learning rate among the slots."""
    rate = {"module": "keras.optimizers.schedules", "class_name": "CosineDecay", "registered_name": None}
    rate["config"] = {"initial_learning_rate": 0.1, "decay_steps": 30, "alpha": 0.0, "name": None}
    config = {
        "name": "Adam",
        "learning_rate": rate,
        "jit_compile": False,
        "is_legacy_optimizer": False,
        "use_ema": False,
    }
    loss = {"class_name": "Huber", "config": {"reduction": "auto", "name": "huber", "delta": 2.0, "fn": "huber"}}
    path = rewritten(saved(tmp_path), optimizer_config={"class_name": "Custom>Adam", "config": config}, loss=loss)
    slots = {
        (kind, name): np.full(shape, number)
        for number, (kind, name, shape) in enumerate(
            [(kind, name, shape) for kind in "mv" for name, shape in (("kernel", (2, 1)), ("bias", (1,)))]
        )
    }
    names = {"Adam/iter:0" if named.endswith("{0}:0") else "iteration:0": np.int64(7)}
    names |= {named.format(kind, name): value for (kind, name), value in slots.items()}
    with h5py.File(path, "a") as file:
        del file["optimizer_weights"]
        group = file.create_group("optimizer_weights")
        group.attrs["weight_names"] = list(names)
        for name, value in names.items():
            group[name] = value
    model = load_h5(path)
    assert isinstance(model.loss, keras.losses.Huber)
    assert isinstance(model.optimizer._learning_rate, keras.optimizers.schedules.CosineDecay)
    found = {variable.path.split("/", 1)[-1]: variable.numpy().ravel()[0] for variable in model.optimizer.variables}
    kept = {
        name.rsplit("_", 2)[-2] + "_" + name.rsplit("_", 1)[-1]: value for name, value in found.items() if "_" in name
    }
    assert kept == {"kernel_momentum": 0, "bias_momentum": 1, "kernel_velocity": 2, "bias_velocity": 3}
    assert found["iteration"] == 7
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    load_h5(rewritten(path, optimizer_config={"class_name": "Custom>RMSprop", "config": {"learning_rate": 0.1}}))
    assert "has kept (momentum, velocity) is not what Keras 3's RMSprop keeps" in caplog.text


def slots_written(path: str, named: str, kinds: list[str]) -> None:
    """Put slots into a file as Keras 2 did: of the layer "dense" (2, 1), the first kind all 0 and 1, the next all 2 and 3."""
    with h5py.File(path, "a") as file:
        del file["optimizer_weights"]
        group = file.create_group("optimizer_weights")
        names = {"Any/iter:0": np.int64(7)}
        for number, kind in enumerate(kinds):
            for place, (name, shape) in enumerate((("kernel", (2, 1)), ("bias", (1,)))):
                names[named.format(kind, name)] = np.full(shape, 2 * number + place, "float32")
        group.attrs["weight_names"] = list(names)
        for name, value in names.items():
            group[name] = value


@pytest.mark.parametrize(
    ("optimizer", "written", "kinds"),
    [
        ("Adagrad", ["accumulator"], ["accumulator"]),
        ("Ftrl", ["accumulator", "linear"], ["accumulator", "linear"]),
        ("Adamax", ["m", "v"], ["momentum", "norm"]),
    ],
)
def test_what_optimizers_before_tensorflow_2_11_kept_is_read(
    tmp_path: Path, optimizer: str, written: list[str], kinds: list[str]
) -> None:
    config = {"class_name": optimizer, "config": {"learning_rate": 0.1}}
    path = rewritten(saved(tmp_path), optimizer_config=config)
    slots_written(path, "Any/dense/{1}/{0}:0", written)
    optimizer = load_h5(path).optimizer
    assert int(optimizer.iterations) == 7
    found = {each.path.rsplit("/", 1)[-1]: each.numpy().ravel()[0] for each in optimizer.variables[2:]}
    for number, kind in enumerate(kinds):
        for place, name in enumerate(("kernel", "bias")):
            (value,) = [value for path, value in found.items() if path.endswith(f"{name}_{kind}")]
            assert value == 2 * number + place


class MyLoss(keras.losses.Loss):
    """Has an argument that Keras 2's losses have, too."""

    def __init__(self, fn: str = "mse", name: str = "mine", **arguments: object) -> None:
        super().__init__(name=name, **arguments)
        self.fn = fn

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


@pytest.mark.parametrize("name", ["MyLoss", "Huber"])
def test_a_loss_of_one_s_own_keeps_its_arguments(tmp_path: Path, name: str) -> None:
    loss = {"class_name": name, "config": {"reduction": "auto", "name": "mine", "fn": "mae"}}
    found = load_h5(rewritten(saved(tmp_path), loss=loss), {name: MyLoss}).loss
    assert isinstance(found, MyLoss)
    assert found.fn == "mae"


class Constant(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, initial_learning_rate: float, decay_steps: int) -> None:
        super().__init__()
        self.rate, self.decay_steps = initial_learning_rate, decay_steps

    def __call__(self, step):
        return self.rate

    def get_config(self) -> dict[str, object]:
        return {"initial_learning_rate": self.rate, "decay_steps": self.decay_steps}


def test_a_schedule_of_one_s_own_goes_before_keras_of_the_same_name(tmp_path: Path) -> None:
    rate = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 3}}
    config = {"class_name": "SGD", "config": {"name": "SGD", "learning_rate": rate}}
    model = load_h5(rewritten(saved(tmp_path), optimizer_config=config), {"CosineDecay": Constant})
    assert isinstance(model.optimizer._learning_rate, Constant)


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def test_custom_objects_are_found(tmp_path: Path) -> None:
    path = saved(tmp_path, loss=own_loss)
    assert load_h5(path, {"own_loss": own_loss}).loss is own_loss
