"""What functions in hyperas' form may return."""

from __future__ import annotations

import pickle

import keras
import numpy as np
import pytest
from trainer.small import operations

from elephas_like.core.trials import TrialOrder, TrialStatus
from elephas_like.trainer.code import pickle_by_value
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.model_facts import overrides
from elephas_like.tuning.function_trial import FunctionTrial, model_of, packed, read_result, unpacked


def small() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def test_graphs_of_keras_own_fit_go_with_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process runs one function after another, and TensorFlow registers gradients for good."""
    for name in ("train_step", "test_step", "predict_step"):
        monkeypatch.setattr(keras.Model, name, getattr(keras.Model, name))  # which is put back afterwards

    def trains(params: dict) -> float:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "silu"), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        x = np.arange(20, dtype="float32").reshape(10, 2) / 20
        fitted = model.fit(x, x[:, :1], batch_size=5, epochs=params["epochs"], verbose=0).history["loss"]
        model.predict(x, verbose=0)
        assert overrides(model, "train_step") is False
        return min(fitted[-1], model.evaluate(x, x[:, :1], verbose=0)[0])

    trial = FunctionTrial("graphs", pickle_by_value([trains]), pickle_by_value([lambda: ()]))

    def ran(number: int) -> int:
        result = trial(TrialOrder(number, {"epochs": 2}, batch_size=8), [], lambda epoch, logs: True)
        assert result.status is TrialStatus.OK
        return operations()

    before = ran(0)  # of what is traced once for all
    assert ran(1) <= before


def test_losses_alone_and_dicts_are_read() -> None:
    assert read_result(0, 0.5) == (0.5, None, None, {})
    assert read_result(0, np.float32(0.5))[0] == 0.5
    loss, failure, model, notes = read_result(
        0, {"loss": -0.9, "status": "ok", "epochs": 3, "recall": np.float32(0.5), "object": object()}
    )
    assert (loss, failure, model, notes) == (-0.9, None, None, {"epochs": 3, "recall": 0.5})


def test_failures_are_told_from_errors() -> None:
    for found, said in (
        ({"status": "fail", "error": "too big"}, "returned status 'fail': too big"),
        ({"loss": float("nan")}, "the loss is nan"),
    ):
        loss, failure, _, _ = read_result(3, found)
        assert loss is None
        assert failure is not None
        assert said in failure.message


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("low", "must return a loss, or a dict"),
        ({"status": "ok"}, "must have a 'loss'"),
        ({"loss": None}, "the function's 'loss' must be one number; got None"),
        ({"loss": 1, "model": 3}, "must be a Keras model or its to_json"),
        ({"loss": 1, "model": "{}"}, "needs 'weights' too"),
    ],
)
def test_other_results_are_refused(found: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        read_result(0, found)


@pytest.mark.parametrize("form", ["model", "json and arrays", "json and a pickle"])
def test_models_travel_in_every_form(form: str) -> None:
    model = small()
    found = {
        "model": {"loss": 0, "model": model},
        "json and arrays": {"loss": 0, "model": model.to_json(), "weights": model.get_weights()},
        "json and a pickle": {"loss": 0, "model": model.to_json(), "weights": pickle.dumps(model.get_weights())},
    }[form]
    _, _, taken, _ = read_result(0, found)
    assert taken is not None
    again = model_of(*unpacked(packed(*taken)), {})
    x = np.ones((3, 2), "float32")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def normalized() -> tuple[keras.Model, np.ndarray]:
    x = np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 80.0]], "float32")
    layer = keras.layers.Normalization()
    layer.adapt(x)
    return keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)]), x


def looked_up() -> tuple[keras.Model, np.ndarray]:
    x = np.array([[7], [9], [12], [99]])
    layer = keras.layers.IntegerLookup(output_mode="one_hot")
    layer.adapt(x[:3])
    return keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Dense(1)]), x


@pytest.mark.parametrize("made", [normalized, looked_up])
def test_what_layers_were_adapted_to_comes_back(made) -> None:
    """Neither is among the weights as Keras' set_weights writes them: means that are constants, and a vocabulary."""
    model, x = made()
    _, _, taken, _ = read_result(0, {"loss": 0, "model": model})
    assert taken is not None
    again = model_of(*unpacked(packed(*taken)), {})
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_nothing_is_unpickled_from_an_archive() -> None:
    import io

    buffer = io.BytesIO()
    np.savez(buffer, architecture=np.array([{"evil": 1}], dtype=object))  # pickled
    with pytest.raises(ValueError, match="allow_pickle"):
        unpacked(buffer.getvalue())


def test_a_model_as_good_as_the_worst_that_is_kept_comes_back() -> None:
    def function(params, x):
        return {"loss": params["loss"], "model": small()}

    trial = FunctionTrial("ties", pickle_by_value([function]), pickle_by_value([lambda: 1]))
    orders = [TrialOrder(0, {"loss": loss}, keep_below=0.5) for loss in (0.4, 0.5, 0.6)]
    assert [bool(trial(order, (), lambda epoch, logs: True).model) for order in orders] == [True, True, False]


def test_data_is_made_once_in_a_process(tmp_path) -> None:
    marks = tmp_path / "calls"

    def data():
        with marks.open("a") as file:
            file.write("x")
        return np.ones((4, 2)), 7

    def function(params, x, number):
        return float(x.sum() * params["scale"] + number)

    def results(search: str) -> list:
        trial = FunctionTrial(search, pickle_by_value([function]), pickle_by_value([data]))
        return [trial(TrialOrder(n, {"scale": n}), (), lambda epoch, logs: True) for n in range(3)]

    assert [result.loss for result in results("one")] == [7.0, 15.0, 23.0]
    assert marks.read_text() == "x"
    assert {result.status for result in results("two")} == {TrialStatus.OK}
    assert marks.read_text() == "xx"  # a later search asks again


def test_functions_run_under_the_settings_of_whoever_searches() -> None:
    """The data too. Python processes are used again: what an earlier fit has set there must not matter."""

    def dtype() -> str:
        return f"{keras.layers.Dense(1).compute_dtype} {keras.config.floatx()}"

    def function(params, seen):
        return {"loss": 0.0, "seen": seen, "now": dtype()}

    before = KerasSettings.current()
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.set_floatx("float64")
    try:
        trial = FunctionTrial("settings", pickle_by_value([function]), pickle_by_value([dtype]))
    finally:
        before.apply()
        keras.config.set_dtype_policy("float32")
    notes = trial(TrialOrder(0, {}), (), lambda epoch, logs: True).notes
    assert notes == {"seen": "bfloat16 float64", "now": "bfloat16 float64"}
    assert KerasSettings.current() == before
