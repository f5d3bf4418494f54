from __future__ import annotations

from functools import cache

import keras
import numpy as np
import pytest

from elephas_like.ensembles.soups import greedy_soup, recalibrate_batch_norm, uniform_soup

layers = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal([0, 3], [1, 2], (200, 2)).astype("float32")
Y = (X @ np.array([1.0, -2.0], "float32"))[:, None]

ignoring_batch_norm = pytest.mark.filterwarnings("ignore:the soup has BatchNorm layers")


def model(*between: keras.layers.Layer, seed: int = 0, units: int = 8, activation: str = "tanh") -> keras.Model:
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((2,)), layers.Dense(units, activation), *between, layers.Dense(1)])
    # Few steps and few batches: graphs of each model cost more.
    made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=True)
    return made


@cache
def tuned(count: int, batch_norm: bool = False) -> list[keras.Model]:
    """Models that were trained from one initialisation, on different rows. No test may change them."""
    found = []
    for member in range(count):
        each = model(*([layers.BatchNormalization()] if batch_norm else []))
        keras.utils.set_random_seed(member)
        each.fit(X[member::count], Y[member::count], epochs=4, verbose=0)
        found.append(each)
    return found


def test_a_uniform_soup_is_the_mean_of_the_weights() -> None:
    models = tuned(2)
    soup = uniform_soup(models)
    for place, weight in enumerate(soup.get_weights()):
        np.testing.assert_allclose(weight, np.mean([each.get_weights()[place] for each in models], axis=0), atol=1e-6)
    assert soup.optimizer.iterations == 0
    assert models[0].optimizer.iterations > 0
    soup.fit(X, Y, verbose=0)  # compiled as the members are


def test_the_soup_of_one_model_is_that_model_with_a_new_optimizer() -> None:
    each = tuned(2)[0]
    np.testing.assert_array_equal(uniform_soup([each]).predict(X, verbose=0), each.predict(X, verbose=0))


def test_a_soup_of_models_that_normalize_otherwise_is_the_same_from_a_file(tmp_path) -> None:
    models = []
    for scale in (1, 3):
        normalization = layers.Normalization()
        normalization.adapt(scale * X)
        models.append(keras.Sequential([keras.Input((2,)), normalization, *model().layers]))
    soup = uniform_soup(models)
    np.testing.assert_allclose(np.asarray(soup.layers[0].mean)[0], 2 * X.mean(0), rtol=1e-5)
    soup.save(tmp_path / "soup.keras")
    again = keras.models.load_model(tmp_path / "soup.keras")
    np.testing.assert_allclose(again.predict(X, verbose=0), soup.predict(X, verbose=0), rtol=1e-6)


@ignoring_batch_norm
def test_statistics_of_a_soup_are_pooled_and_then_recomputed() -> None:
    models = tuned(2, batch_norm=True)
    means, variances = (np.stack([each.layers[1].get_weights()[i] for each in models]) for i in (2, 3))
    pooled = uniform_soup(models).layers[1]
    np.testing.assert_allclose(pooled.moving_mean, means.mean(0), atol=1e-6)
    np.testing.assert_allclose(pooled.moving_variance, variances.mean(0) + means.var(0), rtol=1e-5, atol=1e-6)
    soup = uniform_soup(models, data=X)
    seen = soup.layers[0](X).numpy()
    np.testing.assert_allclose(soup.layers[1].moving_mean, seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(soup.layers[1].moving_variance, seen.var(0), rtol=1e-5, atol=1e-6)


def test_batch_norm_without_data_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="pass data= to recompute"):
        uniform_soup(tuned(2, batch_norm=True))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_greedy_soup_is_never_worse_than_its_best_member(batch_norm: bool) -> None:
    spoils = model(*([layers.BatchNormalization()] if batch_norm else []))
    spoils.set_weights([weight * 3 for weight in spoils.get_weights()])
    models = [tuned(2, batch_norm)[0], spoils, tuned(2, batch_norm)[1]]
    found = greedy_soup(models, (X, Y), data=X if batch_norm else None)
    losses = [float(np.square(each(X).numpy() - Y).mean()) for each in models]
    assert found.members[0] == int(np.argmin(losses))
    assert found.score <= min(losses) * (1 + 1e-5)
    assert list(found.path) == sorted(found.path, reverse=True)
    assert found.model.evaluate(X, Y, verbose=0)[0] == pytest.approx(found.score, rel=1e-5)
    if not batch_norm:
        assert 1 not in found.members
    mae = greedy_soup(models, (X, Y), metric="mae", direction="min", data=X)
    assert mae.metric == "mae"


def test_a_greedy_soup_asks_for_a_metric_that_is_there() -> None:
    with pytest.raises(ValueError, match="metric must be one of 'loss', 'mae'; got 'accuracy'"):
        greedy_soup(tuned(2), (X, Y), metric="accuracy")
    with pytest.raises(ValueError, match="direction must be given"):
        greedy_soup(tuned(2), (X, Y), metric="goodness")
    with pytest.raises(TypeError, match="validation must be"):
        greedy_soup(tuned(2), X)


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (lambda: model(units=9), r"weight 0 expected shape \(2, 8\), got \(2, 9\)"),
        (lambda: model(layers.Dense(8)), r"weight 2 expected shape \(8, 1\), got \(8, 8\)"),
        (lambda: model(activation="relu"), "its layers are not the same"),
        (lambda: model(layers.LayerNormalization()), "differs from model 0"),
    ],
)
def test_models_of_different_architectures_are_refused(other, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        uniform_soup([model(), other()])


def test_how_members_were_trained_is_no_matter() -> None:
    one, other = model(layers.Dropout(0.1, seed=1)), model(layers.Dropout(0.5, seed=2))
    other.compile("sgd", "mae")
    soup = uniform_soup([one, other])
    for mixed, left, right in zip(soup.get_weights(), one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mixed, (left + right) / 2, atol=1e-6)


def test_models_that_began_at_different_places_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="do not seem to share an initialisation"):
        uniform_soup([model(seed=1, units=64), model(seed=2, units=64)])


def test_recalibration_wants_features() -> None:
    made = model(layers.BatchNormalization())
    with pytest.raises(ValueError, match="the model has 1 inputs, got 2 arrays"):
        recalibrate_batch_norm(made, (X, Y))
    with pytest.raises(ValueError, match="no rows"):
        recalibrate_batch_norm(made, X[:0])
    with pytest.raises(ValueError, match="batch_size"):
        recalibrate_batch_norm(made, X, batch_size=0)
    recalibrate_batch_norm(model(), (X, Y))  # nothing to recompute


class Compiled(keras.Sequential):
    """A user's class, whose `compile` Keras does not call when it loads a model."""

    def compile(self, *given, **named):
        super().compile(*given, **named)


def test_how_models_are_compiled_does_not_matter() -> None:
    models = [Compiled([keras.Input((2,)), layers.Dense(1)]) for _ in range(2)]
    for made in models:
        made.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="do not seem to share an initialisation"):
        soup = uniform_soup(models)
    np.testing.assert_allclose(soup.weights[0], np.mean([each.weights[0] for each in models], axis=0), rtol=1e-6)
