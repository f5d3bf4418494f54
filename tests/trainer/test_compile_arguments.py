"""compile(optimizer, loss, ["acc"]) means metrics, whatever Keras 3 reads it as."""

from __future__ import annotations

import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.trainer.compile_arguments import check_model, check_rows_are_kept, repair_compile, warn_of_own
from elephas_like.trainer.model_facts import prepares_rows

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 3)).astype("float32")
LABELS = RANDOM.integers(0, 2, (8, 1))


def small(*layers: keras.layers.Layer, **compiled: object) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(**({"optimizer": "sgd", "loss": "mse", "run_eagerly": True} | compiled))
    return model


def test_metrics_in_the_place_of_loss_weights_are_taken_as_meant() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    optimizer = keras.optimizers.SGD(0.5)
    model.compile(optimizer, "binary_crossentropy", ["acc"])
    with pytest.warns(UserWarning, match=r"\['acc'\].*loss_weights.*metrics="):
        assert repair_compile(model)
    assert model.optimizer is optimizer
    assert set(model.train_on_batch(X, LABELS, return_dict=True)) == {"loss", "acc"}
    assert not repair_compile(model)


def test_no_loss_scale_is_added_that_was_not_to_be() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
        optimizer = keras.optimizers.SGD(0.5)
        model.compile(optimizer, "binary_crossentropy", ["acc"], auto_scale_loss=False)
        with pytest.warns(UserWarning, match="is taken as metrics"):
            assert repair_compile(model)
        assert model.optimizer is optimizer
    finally:
        keras.config.set_dtype_policy("float32")


def test_metrics_in_the_place_of_loss_weights_come_beside_those_that_were_given_by_name() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    weighted = [keras.metrics.MeanSquaredError(name="weighted")]
    model.compile("sgd", "binary_crossentropy", ["acc"], metrics=["mae"], weighted_metrics=weighted)
    with pytest.warns(UserWarning, match="is taken as metrics"):
        assert repair_compile(model)
    logs = model.test_on_batch(X, LABELS, np.arange(8.0), return_dict=True)
    assert set(logs) == {"loss", "acc", "mae", "weighted"}
    assert logs["weighted"] == pytest.approx(
        np.average((model.predict(X, verbose=0) - LABELS)[:, 0] ** 2, weights=np.arange(8.0))
    )


@pytest.mark.parametrize("metrics", [{"out": ["mae"]}, [["mae"]]])
def test_metrics_by_two_ways_that_cannot_be_put_together_are_refused(metrics: object) -> None:
    model = small(keras.layers.Dense(1, name="out"), loss_weights=["acc"], metrics=metrics)
    with pytest.raises(ValueError, match=r"names metrics twice.*Give all of them as metrics="):
        repair_compile(model)


class TorchModule:
    __module__ = "torch.nn.modules.module"


@pytest.mark.parametrize(
    ("thing", "way"),
    [
        ("m.keras", "load_model"),
        (Path("m.keras"), "load_model"),
        (lambda: None, "Call the function"),
        (TorchModule(), "TorchModuleWrapper"),
        (3, "builtins.int.$"),
    ],
)
def test_what_is_no_model_is_refused_with_the_way_to_one(thing: object, way: str) -> None:
    with pytest.raises(TypeError, match=f"must be a keras.Model; got .*{way}"):
        check_model(thing)


def test_loss_weights_that_are_numbers_are_left_alone() -> None:
    assert not repair_compile(small(keras.layers.Dense(1), loss_weights=[0.5]))


class OwnLoop(keras.Sequential):
    def make_train_function(self, force=False):
        super().make_train_function(force)


class OwnTests(keras.Sequential):
    def make_test_function(self, force=False):
        super().make_test_function(force)


@pytest.mark.parametrize("kind", [OwnLoop, OwnTests])
def test_a_loop_of_the_models_own_around_its_steps_is_refused(kind: type[keras.Model]) -> None:
    model = kind([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ElephasError, match=r"would not be called.*train_step and test_step"):
        check_model(model)


class Prepares(keras.Sequential):
    """As the models of keras-hub."""

    preprocessor = staticmethod(lambda x, y=None: (x / 255, y))

    def preprocess_samples(self, x, y=None, sample_weight=None):
        return (x, y, sample_weight) if self.preprocessor is None else (*self.preprocessor(x, y=y), sample_weight)

    def fit(self, x, y=None, sample_weight=None, **arguments):
        return super().fit(*self.preprocess_samples(x, y, sample_weight), **arguments)


class OwnFit(keras.Sequential):
    def predict(self, x, **arguments):
        return super().predict(x / 255, **arguments)

    def fit(self, x, y, **arguments):
        return super().fit(x / 255, y, **arguments)


class Helped(keras.Sequential):
    """A helper of its step that is called as the method of keras-hub's models."""

    def preprocess_samples(self, x, y):
        return x / 255, y

    def train_step(self, data):
        return super().train_step(self.preprocess_samples(*data))


def test_a_helper_of_a_step_may_be_called_preprocess_samples() -> None:
    model = Helped([keras.Input((3,)), keras.layers.Dense(1)])
    assert not prepares_rows(model)
    with warnings.catch_warnings(action="error"):
        check_rows_are_kept(model)


class WithoutPreprocessor(Prepares):
    preprocessor = None  # type: ignore[assignment]


class OfHub(Prepares):
    """As a subclass of a model of keras-hub that prepares rows in its own way: with no preprocessor, too."""

    def preprocess_samples(self, x, y=None, sample_weight=None):
        return x / 2, y, sample_weight


@pytest.mark.parametrize("kind", [WithoutPreprocessor, OfHub])
def test_rows_that_are_prepared_with_no_preprocessor_are_said_to_be_prepared_elsewhere(kind: type[keras.Model]) -> None:
    """To take the preprocessor away would not help: the model would be refused again."""
    model = kind([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(ElephasError, match=rf"in {kind.__name__}\.fit.*in a layer or in train_step") as caught:
        check_rows_are_kept(model)
    assert "preprocessor = None" not in str(caught.value)
    check_rows_are_kept(model, "evaluate")  # which is Keras' own


def test_rows_that_keras_would_prepare_before_its_steps_are_not_trained_on_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Models of keras-hub apply their preprocessor in a fit of their own; that of another class is named in a warning."""
    model = Prepares([keras.Input((3,)), keras.layers.Dense(1)])
    monkeypatch.setattr(Prepares.preprocess_samples, "__module__", "keras_hub.src.models.task")
    with pytest.raises(
        ElephasError,
        match=r"'prepares.*Prepares.fit.*preprocess_samples.*model.preprocessor = None; then fit on x, y =",
    ):
        check_rows_are_kept(model)
    model.preprocessor = None
    with warnings.catch_warnings(action="error"):
        check_rows_are_kept(model)
        check_rows_are_kept(small(keras.layers.Dense(1)))
    own = OwnFit([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.warns(ElephasWarning, match=r"OwnFit.fit is not called.*train_step"):
        check_rows_are_kept(own)
    with pytest.warns(ElephasWarning, match=r"OwnFit.predict is not called.*predict_step"):
        warn_of_own(own, "predict")
