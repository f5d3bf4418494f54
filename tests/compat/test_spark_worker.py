"""Workers by hand on one partition, as Keras' own fit would train it."""

from __future__ import annotations

from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
from trainer.small import mlp, rows

from elephas_like.compat.elephas import AsynchronousSparkWorker
from elephas_like.compat.spark_worker import SparkWorker
from elephas_like.core.errors import DataError

X, Y = rows(10)


@dataclass
class Broadcast:
    value: list[np.ndarray]


@dataclass
class Shared:
    """A parameter server without a port."""

    weights: list[np.ndarray]
    deltas: list[list[np.ndarray]] = field(default_factory=list)

    def get_parameters(self) -> list[np.ndarray]:
        return self.weights

    def update_parameters(self, delta: list[np.ndarray]) -> None:
        self.deltas.append(delta)
        self.weights = [w - d for w, d in zip(self.weights, delta, strict=True)]


def arguments(model: keras.Model, **config: object) -> dict[str, object]:
    return {
        "json": model.to_json(),
        "parameters": Broadcast(model.get_weights()),
        "train_config": {"verbose": 0, "shuffle": False, **config},
        "master_optimizer": keras.optimizers.serialize(keras.optimizers.SGD(0.05)),
        "master_loss": "mse",
        "master_metrics": ["mae"],
        "custom_objects": {},
    }


def close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.fixture(scope="module")
def trained() -> dict[int, list[np.ndarray]]:
    """The weights that Keras' own fit of two epochs gives, by the batch size."""
    model = mlp(keras.optimizers.SGD(0.05))
    before, found = model.get_weights(), {}
    for batch_size in (4, 32):
        model.set_weights(before)
        model.fit(X, Y, epochs=2, batch_size=batch_size, shuffle=False, verbose=0)
        found[batch_size] = model.get_weights()
    return found


@pytest.mark.parametrize("batch_size", [4, 32])
def test_a_worker_gives_what_training_took_away(batch_size: int, trained: dict[int, list[np.ndarray]]) -> None:
    model = mlp(keras.optimizers.SGD(0.05))
    ((deltas, history),) = SparkWorker(**arguments(model, epochs=2, batch_size=batch_size)).train(
        zip(X, Y, strict=True)
    )
    close([b - d for b, d in zip(model.get_weights(), deltas, strict=True)], trained[batch_size])
    assert set(history) == {"loss", "mae"}


def test_a_worker_normalizes_as_the_model_does() -> None:
    layer = keras.layers.Normalization()
    layer.adapt(10 * X + 5)
    model = keras.Sequential([keras.Input(X.shape[1:]), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    before = model.get_weights()
    ((deltas, _),) = SparkWorker(**arguments(model, epochs=2, batch_size=4)).train(zip(10 * X + 5, Y, strict=True))
    model.fit(10 * X + 5, Y, epochs=2, batch_size=4, shuffle=False, verbose=0)
    close([b - d for b, d in zip(before, deltas, strict=True)], model.get_weights())


def test_no_rows_give_zeros_and_no_batch_size_is_needed() -> None:
    model = mlp()
    ((deltas, history),) = SparkWorker(**arguments(model)).train(iter(()))
    assert history is None
    assert all(not delta.any() for delta in deltas)
    ((deltas, history),) = SparkWorker(**arguments(model)).train(zip(X, Y, strict=True))
    assert any(delta.any() for delta in deltas)


@pytest.mark.parametrize(("frequency", "exchanges"), [("epoch", 2), ("batch", 6)])
def test_an_asynchronous_worker_exchanges_as_often_as_it_is_told(
    frequency: str, exchanges: int, trained: dict[int, list[np.ndarray]]
) -> None:
    model = mlp(keras.optimizers.SGD(0.05))
    shared = Shared(model.get_weights())
    options = arguments(model, epochs=2, batch_size=4)
    worker = AsynchronousSparkWorker(client=shared, frequency=frequency, **options)
    assert list(worker.train(zip(X, Y, strict=True))) == [[]]
    assert len(shared.deltas) == exchanges
    close(shared.weights, trained[4])
    assert list(worker.train(iter(()))) == []


@pytest.mark.parametrize("kind", [SparkWorker, AsynchronousSparkWorker])
def test_rows_with_sample_weights_are_refused(kind: type) -> None:
    """They were trained on without their weights."""
    model = mlp()
    options = arguments(model) | (
        {"client": Shared(model.get_weights()), "frequency": "epoch"} if kind is not SparkWorker else {}
    )
    weighted = [(X[0], Y[0]), (X[1], Y[1], 0.0)]
    with pytest.raises(DataError, match=r"expected rows \(x, y\); got one of 3 parts.*SparkModel.fit"):
        list(kind(**options).train(weighted))


def test_another_frequency_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'epoch' or 'batch'"):
        AsynchronousSparkWorker(client=Shared([]), frequency="fit", **arguments(mlp()))


def test_a_client_may_be_named(monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    worker = AsynchronousSparkWorker(client="socket", frequency="epoch", **arguments(mlp()))
    assert worker.client.client_type == "socket"
