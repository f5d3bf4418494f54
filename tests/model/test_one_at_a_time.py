"""Two fits at once: of one model, or with one directory of checkpoints; and evaluations of a model that is being fitted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest

from elephas_like import ElephasError, SparkModel
from elephas_like.model.one_at_a_time import one_at_a_time

X = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
Y = X.sum(axis=1)


def line() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fitted(model: keras.Model, **options: object) -> keras.callbacks.History:
    return SparkModel(model, 2, engine="in_process").fit(X, Y, batch_size=4, verbose=0, **options)


class Meanwhile(keras.callbacks.Callback):
    """Fits in another thread at the end of the first epoch, or in this one."""

    def __init__(self, fit, *, here: bool = False) -> None:
        super().__init__()
        self.fit, self.here, self.error = fit, here, None

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        try:
            if self.here:
                self.fit()
            else:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self.fit).result()
        except ElephasError as error:
            self.error = str(error)


def test_a_model_is_fitted_by_one_thread_at_a_time() -> None:
    model, other = line(), line()
    same = Meanwhile(lambda: fitted(model))
    another = Meanwhile(lambda: fitted(other))
    nested = Meanwhile(lambda: fitted(model), here=True)
    fitted(model, callbacks=[same, another, nested])
    assert same.error is not None
    assert "another thread is fitting the model" in same.error
    assert another.error is nested.error is None
    fitted(model)  # it is free again
    with pytest.raises(ZeroDivisionError), one_at_a_time(model, None):
        _ = 1 / 0
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: fitted(model)).result().epoch == [0]


def evaluated(model: keras.Model) -> float:
    return SparkModel(model, 2, engine="in_process").evaluate(X, Y)


def test_a_model_is_evaluated_by_one_thread_at_a_time() -> None:
    """The fit resets the model's metrics: what another thread counted with them was [0, 0]."""
    model = line()
    other, nested = Meanwhile(lambda: evaluated(model)), Meanwhile(lambda: evaluated(model), here=True)
    fitted(model, callbacks=[other, nested])
    assert "another thread is fitting the model" in str(other.error)
    assert nested.error is None

    class During(keras.callbacks.Callback):
        """Fits in another thread while this one evaluates."""

        def on_test_begin(self, logs: object = None) -> None:
            with (
                ThreadPoolExecutor(1) as pool,
                pytest.raises(ElephasError, match="another thread is evaluating the model"),
            ):
                pool.submit(lambda: fitted(model)).result()

    assert SparkModel(model, 2).evaluate(X, Y, callbacks=[During()]) == evaluated(model)


def test_a_directory_of_checkpoints_is_one_fits(tmp_path: Path) -> None:
    same = Meanwhile(lambda: fitted(line(), checkpoint_dir=tmp_path / "one"))
    another = Meanwhile(lambda: fitted(line(), checkpoint_dir=tmp_path / "other"))
    inner = Meanwhile(lambda: fitted(line(), checkpoint_dir=tmp_path / "one"), here=True)
    fitted(line(), checkpoint_dir=tmp_path / "one", callbacks=[same, another, inner])
    assert same.error is not None
    assert "a checkpoint_dir of its own" in same.error
    assert another.error is None
    # It had the weights of the outer fit, was over at once, and deleted the outer fit's checkpoints.
    assert "the fit whose callback this is called in is writing" in str(inner.error)


@pytest.mark.parametrize("spelled", ["{}/one/", "{}/./one", "file://{}/one", "file:{}/one/", "one", "{}/link"])
def test_a_directory_of_checkpoints_is_one_however_it_is_spelled(tmp_path: Path, monkeypatch, spelled: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("one")
    same = Meanwhile(lambda: fitted(line(), checkpoint_dir=spelled.format(tmp_path)))
    fitted(line(), checkpoint_dir=tmp_path / "one", callbacks=[same])
    assert "a checkpoint_dir of its own" in str(same.error)
